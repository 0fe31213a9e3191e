"""Writers after errors and at process exit: their state, and their pending items."""

import gc
import re
import signal
import subprocess
import sys
import time

import pytest
from helpers.compat_tables import serving, table
from helpers.forks import needs_fork
from helpers.support import BackgroundCall, run_python, runs_all_tests, wait_until

import engram
from engram.compat import reverb
from engram.compat.reverb import _sending
from engram.compat.reverb import structured_writer as sw

STEP = {"x": None}
REF = sw.create_reference_step(STEP)


@pytest.fixture
def client():
    with serving(table(), reverb.Table.queue("queue", 1)) as (_, client):
        yield client
        gc.collect()  # a garbage-collected writer waits for its server, which still runs here


def last_step_config(table):
    """A config for items of the newest step."""
    return sw.create_config([REF["x"][-1]], table)


def td_error_config(table):
    """A config for items of the newest step, with a computed priority."""
    return sw.create_config([REF["x"][-1]], table, priority=sw.td_error(1.0, STEP, lambda step: step["x"]))


def sample_values(client, name, count):
    """The first columns of `count` items."""
    return [next(client.sample(name, emit_timesteps=False)).data[0].tolist() for _ in range(count)]


# The end of an episode


@needs_fork
def test_end_episode_in_a_forked_process_raises_and_keeps_the_history():
    printed = run_python(
        """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from helpers.compat_tables import serving, table
from engram.compat import reverb
with serving(table()) as (_, client):
    writer = client.trajectory_writer(3)
    for value in range(2):
        writer.append([value])
    child = os.fork()
    if not child:
        try:
            writer.end_episode()
        except RuntimeError:
            os._exit(len(writer.history[0]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert printed == "2\n"


# Errors of earlier items


@pytest.fixture
def client_and_drop():
    """A client, and a function that drops its table `queue`."""
    with serving(table(), reverb.Table.queue("queue", 1)) as (server, client):

        def drop():
            server._server_store.store.drop_table("queue")
            time.sleep(0.2)  # until the writers have received the errors

        yield client, drop
        gc.collect()  # a garbage-collected writer waits for its server, which still runs here


def drain(client):
    """Removes all items; returns the priority and the first column of each, in order."""
    items = []
    for _ in range(client.server_info()["t"].current_size):
        (sample,) = client.sample("t", emit_timesteps=False)
        items.append((sample.info.priority, sample.data[0].tolist()))
        client.mutate_priorities("t", deletes=[sample.info.key])
    return items


def drain_by_priority(client):
    """Removes all items; returns their first columns by priority. Priorities must be unique."""
    items = drain(client)
    data_by_priority = dict(items)
    assert len(data_by_priority) == len(items)
    return data_by_priority


def succeeded(call):
    """True if the call raised no error about the dropped table."""
    try:
        call()
    except RuntimeError as error:
        return "queue" not in str(error)
    return True


@pytest.mark.parametrize("length", [1, 2])
def test_a_trajectory_writer_continues_after_its_table_was_dropped(client_and_drop, length):
    client, drop = client_and_drop
    writer = client.trajectory_writer(20)
    writer.configure(("x",), num_keep_alive_refs=20, max_chunk_length=length)
    for value in range(8):
        writer.append({"x": value})
        if value % 2 == 0:
            writer.create_item("queue", 1.0, writer.history["x"][-1])
    drop()
    errors, last_values = 0, {}
    for value in range(8, 16):
        errors += not succeeded(lambda: writer.append({"x": value}))  # noqa: B023, called immediately
        engine_history = writer._native.history()[0]
        assert len(writer.history["x"]) == len(engine_history) == writer.episode_steps
        assert writer.history["x"][-1].numpy() == engine_history[-1].numpy()
        last_values[value] = writer.history["x"][-1].numpy().item()
        errors += not succeeded(lambda: writer.create_item("t", float(value), writer.history["x"][-1]))  # noqa: B023, called immediately
    while not succeeded(writer.flush):
        errors += 1
    assert 1 <= errors <= 6, "each of the six items of `t` may have an error, which the server may report at any time"
    assert sum(value == last for value, last in last_values.items()) >= 8 - errors
    data_by_priority = drain_by_priority(client)
    assert len(data_by_priority) >= 8 - errors
    assert all(data == last_values[priority] for priority, data in data_by_priority.items())


def test_a_legacy_writer_continues_after_its_table_was_dropped(client_and_drop):
    client, drop = client_and_drop
    writer = client.writer(3, chunk_length=2)
    for value in range(4):
        writer.append([value])
        writer.create_item("queue", 1, 1.0)
    drop()
    errors = 0
    for value in range(4, 10):
        errors += not succeeded(lambda: writer.append([value]))  # noqa: B023, called immediately
        assert f"timesteps={writer._native.episode_steps}," in repr(writer)
        errors += not succeeded(lambda: writer.create_item("t", 1, float(value)))  # noqa: B023, called immediately
    while not succeeded(writer.flush):
        errors += 1
    writer.close()
    assert 1 <= errors <= 3
    data_by_priority = drain_by_priority(client)
    assert len(data_by_priority) >= 6 - errors
    # After a failed append, the newest step is an earlier one.
    assert all(0 <= priority - data[0] <= errors for priority, data in data_by_priority.items())


@pytest.mark.parametrize("config", [last_step_config, td_error_config])
def test_a_structured_writer_continues_after_its_table_was_dropped(client_and_drop, config):
    client, drop = client_and_drop
    later = [sw.Condition.step_index() >= 8]
    priority = None if config is last_step_config else sw.td_error(1.0, STEP, lambda step: step["x"])
    writer = client.structured_writer([config("queue"), sw.create_config([REF["x"][-1]], "t", later, priority)])
    for value in range(8):
        writer.append({"x": value})
    drop()
    failed = []
    for value in range(8, 14):
        if not succeeded(lambda: writer.append({"x": value})):  # noqa: B023, called immediately
            failed.append(value)
        assert not writer.step_is_open
    errors = len(failed)
    while not succeeded(writer.flush):
        errors += 1
    # The server may report errors at any time: one for the items that waited for `queue`, one for each later one.
    assert 1 <= errors <= 7
    items = drain(client)
    values = [value for _, value in items]
    # A failed append may have stored its step before.
    assert values == [value for value in range(8, 14) if value in values or value not in failed]
    assert [number for number, _ in items] == [1.0 if priority is None else value for value in values]


# The end of a writer

WRITERS = {
    "structured": """
    writer = client.structured_writer([sw.create_config([sw.create_reference_step([0])[0][-1]], "queue")])
    for value in range(4):
        writer.append([value])
""",
    "legacy": """
    writer = client.writer(1, chunk_length=1)
    for value in range(4):
        writer.append([value])
        writer.create_item("queue", 1, 1.0)
""",
    "trajectory": """
    writer = client.trajectory_writer(1)
    for value in range(4):
        writer.append([value])
        writer.create_item("queue", 1.0, writer.history[0][-1])
""",
}


def _program(port, kind, end):
    return f"""
import sys, threading, time, warnings
from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw
warnings.filterwarnings("ignore", category=ResourceWarning)
client = reverb.Client("localhost:{port}")
def write():{WRITERS[kind]}
    return writer
writer = write()
{end}
"""


# The last line of the program. `writer.itself` makes a reference cycle.
ENDS = ["del writer", "", "sys.exit(0)", "writer.itself = writer"]


@pytest.mark.parametrize("kind", ["structured", pytest.param("legacy", marks=pytest.mark.slow)])
def test_garbage_collected_writers_wait_for_their_tables(kind):
    """Each program has a table of its own, and all run at the same time."""
    with serving(*(reverb.Table.queue(f"queue{number}", 1) for number in range(len(ENDS)))) as (server, client):
        programs = [
            _program(server.port, kind, end).replace('"queue"', f'"queue{number}"') for number, end in enumerate(ENDS)
        ]
        endings = [BackgroundCall(lambda code=code: run_python(code)) for code in programs]
        for number in range(len(ENDS)):
            name = f"queue{number}"
            wait_until(lambda name=name: client.server_info()[name].current_size == 1, seconds=30)
        endings[-1].join(0.7)
        assert {end: ending.is_alive() for end, ending in zip(ENDS, endings, strict=True)} == dict.fromkeys(ENDS, True)
        for number, (end, ending) in enumerate(zip(ENDS, endings, strict=True)):
            values = sample_values(client, f"queue{number}", 4)
            assert [value[0] if kind == "legacy" else value for value in values] == [0, 1, 2, 3], end
            ending.result()


WORKER = """
import multiprocessing
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forking with threads
opened = []
worker = multiprocessing.get_context("fork").Process(target=lambda: opened.append(write()))
worker.start()
worker.join()
assert worker.exitcode == 0
"""


@needs_fork
@pytest.mark.parametrize("kind", WRITERS)
def test_open_writers_of_a_worker_process_wait_for_their_tables(kind):
    with serving(reverb.Table.queue("queue", 4 if kind == "trajectory" else 1)) as (server, client):
        program = _program(server.port, kind, WORKER).replace("\nwriter = write()\n", "\n")
        ending = BackgroundCall(lambda: run_python(program))
        values = sample_values(client, "queue", 4)
        assert [value[0] if kind == "legacy" else value for value in values] == [0, 1, 2, 3]
        ending.result()


@pytest.mark.parametrize("kind", WRITERS)
def test_garbage_collected_writers_report_rejected_items(kind):
    with serving(reverb.Table.queue("queue", 1)) as (server, client):
        names = {"client": client, "sw": sw}
        exec(f"def write():{WRITERS[kind]}\n    return writer", names)  # noqa: S102, the programs' code
        cycle = [names["write"]()]
        cycle.append(cycle)
        wait_until(lambda: client.server_info()["queue"].current_size == 1)
        engram.Client(f"localhost:{server.port}").drop_table("queue")
        wait_until(lambda: "queue" not in client.server_info())
        text = r"^a \w+ was closed before 3 items reached their table `queue`: table `queue` was dropped$"
        del cycle
        with pytest.warns(UserWarning, match=text):
            gc.collect()


@pytest.mark.parametrize("kind", ["legacy", pytest.param("structured", marks=pytest.mark.slow)])
def test_garbage_collected_writers_wait_for_a_limited_time(kind):
    program = _program("{port}", kind, "").replace(
        "\nwriter = write()", "\nsending.CLOSE_TIMEOUT = 0.1\nwriter = write()"
    )
    assert _sending.CLOSE_TIMEOUT == 60  # seconds
    with serving(reverb.Table.queue("queue", 1)) as (server, client):
        program = "from engram.compat.reverb import _sending as sending" + program.replace("{port}", str(server.port))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
        assert "UserWarning: a" in done.stderr
        assert "was closed before 3 items reached their table `queue`; flush it first" in done.stderr
        assert client.server_info()["queue"].current_size == 1


@pytest.mark.parametrize("kind", ["legacy", "trajectory", pytest.param("structured", marks=pytest.mark.slow)])
def test_lost_items_are_reported_even_at_process_exit(kind):
    with serving(reverb.Table.queue("queue", 1)) as (server, client):
        program = subprocess.Popen(
            [sys.executable, "-c", _program(server.port, kind, "print(0, flush=True)")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with program:
            program.stdout.readline()
            time.sleep(0.5)
            if kind != "trajectory":  # a trajectory writer does not wait at exit
                program.send_signal(signal.SIGINT)
            errors = program.communicate(timeout=20)[1]
        assert re.search(
            r"UserWarning: a \w+ was closed before 3 items reached their table `queue`; flush it first", errors
        ), errors
        assert ("KeyboardInterrupt" in errors) == (kind != "trajectory")
        assert "panicked" not in errors
        assert client.server_info()["queue"].current_size == 1


@pytest.mark.parametrize(
    "kind", ["structured", *(pytest.param(k, marks=pytest.mark.slow) for k in ("legacy", "trajectory"))]
)
def test_a_process_with_open_writers_and_their_server_exits(kind):
    """The writers are global variables."""
    code = f"""
import warnings
from helpers.compat_tables import table
from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw
warnings.filterwarnings("ignore", category=ResourceWarning)
server = reverb.Server([table("queue")], host="localhost")
client = reverb.Client(f"localhost:{{server.port}}")
if True:{WRITERS[kind]}
print(client.server_info()["queue"].current_size > -1)
"""
    for _ in range(3 if runs_all_tests() else 1):
        assert run_python(code) == "True\n"
