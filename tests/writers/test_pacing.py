"""A writer does not run ahead of a closed rate limiter: `max_waiting_items`."""

import re
import textwrap
from contextlib import suppress

import dm_env
import numpy as np
import pytest
from helpers.faults import Proxy
from helpers.store_types import doors
from helpers.support import BackgroundCall, raises, run_python, sample_x, wait_until

import engram
from engram import Pattern, Server, Store, Table, rate_limiters
from engram.adders import NStepTransitionAdder, StructuredAdder
from engram.errors import BackpressureError, ClosedError, DeadlineExceededError, InvalidArgumentError, UnavailableError

FULL = "`q`: inserting waits: Queue(1) is full: 1 inserted item is not sampled yet"
CHUNK = 16
"""Longest chunk by default, in steps."""


def write_to(store, kind, table, **options):
    """Opens a writer, or an adder, that creates one item per step and environment.

    Returns it, the number of environments, and a function that appends a step `{"x": value}` of each of them.
    """
    patterns, num_envs = [Pattern(table, lambda step: {"x": step["x"][-1]})], 1
    if kind == "trajectory":
        writer = store.writer(history=1, **options)

        def append(value):
            writer.append({"x": value})
            writer.create_item(table, trajectory={"x": writer.history["x"][-1]})

    elif kind == "pattern":
        writer = store.pattern_writer(patterns, **options)

        def append(value):
            writer.append({"x": value})

    elif kind == "batched":
        num_envs = 8
        writer = store.batched_writer(num_envs, patterns, **options)

        def append(value):
            writer.append_batch({"x": np.full(num_envs, value)})

    else:
        writer = NStepTransitionAdder(store, 1, 1.0, priority_fns={table: 1.0}, **options)
        writer.add_first(dm_env.restart(0))

        def append(value):
            writer.add(value, dm_env.transition(0.0, value + 1))

    return writer, num_envs, append


KINDS = ["trajectory", "pattern", "batched", "adder"]


def append_until_closed(store, append, inserts):
    """Appends until the writer's timeout passes while the table has exactly this many inserted items."""
    steps = 0
    while True:
        try:
            append(steps)
            steps += 1
        except BackpressureError as error:
            if store.info()["replay"].inserts == inserts:  # not if the server was slow to answer
                return steps, str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_stays_near_a_closed_limiter(open_store, kind):
    limiter = rate_limiters.SampleToInsertRatio(16, min_size=100, error_buffer=1_600)
    store = open_store(Table("replay", max_size=10_000, rate_limiter=limiter))
    writer, num_envs, append = write_to(store, kind, "replay", timeout=0)
    steps, text = append_until_closed(store, append, 200)
    # Up to `max_waiting_items`, or one chunk and a step if that is more.
    ahead = max(16, (CHUNK + 1) * num_envs)
    assert 200 < steps * num_envs <= 200 + ahead
    assert (
        "(`max_waiting_items` = 16), and the tables did not accept enough of them within 0 s (`timeout`); `replay`: "
        in text
    )
    assert (
        "inserting waits: writers are 3,200 samples ahead of the learner, the limit of SampleToInsertRatio(16)" in text
    )
    # The limiter opens for 100 items: nothing was lost, and the writer continues until it is closed again.
    store.sample("replay", 1_600, timeout=10)
    more, _ = append_until_closed(store, append, 300)
    assert 300 < (steps + more) * num_envs <= 300 + ahead
    reader = BackgroundCall(lambda: store.sample("replay", 16 * ahead, timeout=10))
    writer.close(10)
    reader.result()
    assert store.info()["replay"].inserts == (steps + more) * num_envs


@pytest.mark.parametrize("limit", [1, 3, None])
@pytest.mark.parametrize("kind", KINDS)
def test_items_keep_their_order_through_waits(open_store, kind, limit):
    store = open_store(Table.queue("q", max_size=4))
    writer, num_envs, append = write_to(store, kind, "q", max_waiting_items=limit)

    def write():
        for value in range(40):
            append(value)
        writer.close()

    caller = BackgroundCall(write)
    values = []
    for _ in range(40 * num_envs // 4):
        data = store.sample("q", 4, timeout=10).data
        values += (data.observation if kind == "adder" else data["x"]).tolist()
    caller.result()
    # The items of a batched writer are in the order of environments within each chunk.
    assert sorted(values) == np.repeat(range(40), num_envs).tolist()
    if kind != "batched":
        assert values == list(range(40))


@pytest.mark.usefixtures("other_thread")
def test_exactly_the_maximum_waits(open_store):
    store = open_store(Table.queue("q", max_size=1))
    writer = store.writer(chunk_length=1, max_waiting_items=3, timeout=0)
    for value in range(4):
        writer.append({"x": value})
        writer.create_item("q", num_steps=1)
    wait_until(lambda: writer.pending_items == 3)
    # The last item is sent with the next step.
    text = (
        "the writer has 2 items waiting for tables and 1 not sent yet (`max_waiting_items` = 3), "
        f"and the tables did not accept enough of them within 0 s (`timeout`); {FULL}"
    )
    for _ in range(2):
        with raises(BackpressureError, text):
            writer.append({"x": 9})
        with raises(BackpressureError, text):
            writer.create_item("q", num_steps=1)
    assert sample_x(store, "q", 1) == [[0]]
    wait_until(lambda: writer.pending_items == 2)
    writer.append({"x": 4})
    writer.create_item("q", num_steps=1)
    reader = BackgroundCall(lambda: [sample_x(store, "q", 1) for _ in range(4)])
    writer.close(10)
    assert reader.result() == [[[value]] for value in range(1, 5)]


@pytest.mark.usefixtures("other_thread")
def test_a_chunk_is_completed_while_no_item_waits_for_a_table(open_store):
    store = open_store(Table.queue("q", max_size=4))
    writer = store.pattern_writer([Pattern("q", num_steps=1)], chunk_length=4, max_waiting_items=2, timeout=0)
    for value in range(9):  # four items in the table, four that wait, and the first of the next chunk
        writer.append({"x": value})
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    text = (
        "the writer has 4 items waiting for tables and 1 not sent yet (`max_waiting_items` = 2), and the tables did "
        "not accept enough of them within 0 s (`timeout`); `q`: inserting waits: Queue(4) is full: 4 inserted items "
        "are not sampled yet"
    )
    with raises(BackpressureError, text):
        writer.append({"x": 9})
    assert store.sample("q", 4, timeout=10).data["x"].tolist() == [[0], [1], [2], [3]]
    wait_until(lambda: writer.pending_items == 1)
    for value in range(9, 12):
        writer.append({"x": value})
    assert store.sample("q", 4, timeout=10).data["x"].tolist() == [[4], [5], [6], [7]]
    writer.close(10)
    assert store.sample("q", 4, timeout=10).data["x"].tolist() == [[8], [9], [10], [11]]


def test_an_open_table_has_its_items_while_another_is_closed(open_store):
    store = open_store(Table("open"), Table.queue("q", max_size=1))
    patterns = [Pattern(table, num_steps=1) for table in ("open", "q")]
    writer = store.pattern_writer(patterns, chunk_length=1, max_waiting_items=3, timeout=0)
    written, rejected = 0, 0
    while rejected < 3:
        try:
            writer.append({"x": written})
            written += 1
        except BackpressureError:
            rejected += store.info()["q"].inserts == 1
    # For the queue, one item is inserted and one waits. The last step's items, one for each table, are not sent yet.
    assert written == 3
    wait_until(lambda: store.info()["open"].size == 2)
    reader = BackgroundCall(lambda: [sample_x(store, "q", 1) for _ in range(written)])
    writer.close(10)
    assert reader.result() == [[[value]] for value in range(written)]
    assert store.info()["open"].size == written


@pytest.mark.parametrize("event", ["drop", "close", "reset"])
def test_a_wait_ends_with_its_table(open_store, event):
    store = open_store(Table.queue("q", max_size=1))
    writer = store.pattern_writer([Pattern("q", num_steps=1)], chunk_length=1, max_waiting_items=2)
    appended = []

    def write():
        for value in range(5):
            writer.append({"x": value})
            appended.append(value)

    caller = BackgroundCall(write)
    wait_until(lambda: store.info()["q"].waiting_inserts > 0 and len(appended) == 3)
    if event == "reset":
        store.reset("q")
        wait_until(lambda: len(appended) == 4)
        reader = BackgroundCall(lambda: [sample_x(store, "q", 1) for _ in range(4)])
        caller.result()
        writer.close(10)
        assert reader.result() == [[[value]] for value in range(1, 5)]
        return
    if event == "drop":
        store.drop_table("q")
    else:
        store.close()
    with pytest.raises(ClosedError):
        caller.result()
    assert len(appended) == 3


def test_a_wait_ends_with_the_server():
    with Server([Table.queue("q", max_size=1)]) as server:
        client = engram.Client(server.address, reconnect_timeout=0.1)
        writer = client.pattern_writer([Pattern("q", num_steps=1)], chunk_length=1, max_waiting_items=2)
        caller = BackgroundCall(lambda: [writer.append({"x": value}) for value in range(5)])
        wait_until(lambda: server.store.info()["q"].waiting_inserts > 0)
    with pytest.raises(UnavailableError):
        caller.result()


def test_a_new_server_is_paced_too():
    """The limits of the first server's tables do not apply to the next one at the same address."""
    first = Server([Table("q")])
    port = int(first.address.rpartition(":")[2])
    client = engram.Client(first.address)
    writer = client.pattern_writer([Pattern("q", num_steps=1)], chunk_length=1, max_waiting_items=2, timeout=0)
    for value in range(100):
        writer.append({"x": value})
    writer.flush(10)
    first.close()
    with Server([Table.queue("q", max_size=1)], port=port) as second:
        written = 0

        def is_rejected():
            nonlocal written
            try:
                writer.append({"x": written})
            except BackpressureError:
                return second.store.info()["q"].inserts == 1
            written += 1
            return False

        wait_until(is_rejected)
        reader = BackgroundCall(lambda: [sample_x(second.store, "q", 1) for _ in range(written)])
        writer.close(10)
        assert reader.result() == [[[value]] for value in range(written)]


@pytest.mark.parametrize("open_store", doors(slow=["sharded"]), indirect=True)
@pytest.mark.parametrize("kind", ["patterns", "single items"])
def test_a_timeout_does_not_cut_the_end_of_an_episode(open_store, kind):
    """The last `add` of an episode writes several items, which are not lost although too many wait."""
    store = open_store(Table.queue("q", max_size=1))
    priority = 1.0 if kind == "patterns" else lambda item: 1.0 + float(item.reward)
    adder = NStepTransitionAdder(
        store, 4, 1.0, priority_fns={"q": priority}, chunk_length=1, max_waiting_items=2, timeout=0
    )
    sampled = []

    def sample():
        sampled.append(int(store.sample("q", 1, timeout=10).data.observation[0]))

    for first in (0, 10):
        adder.add_first(dm_env.restart(first))
        steps = [dm_env.transition(0.0, first + step) for step in range(1, 4)]
        for step in [*steps, dm_env.termination(0.0, first + 4)]:
            added = False
            while not added:
                try:
                    adder.add(0, step)
                    added = True
                except DeadlineExceededError:
                    assert step.last()
                    added = True
                except BackpressureError:
                    sample()
    reader = BackgroundCall(lambda: [sample() for _ in range(8 - len(sampled))])
    adder.close(10)
    reader.result()
    assert sampled == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_slow_first_reply_is_not_taken_for_a_closed_limiter():
    with Server([Table.queue("q", max_size=1_000)]) as server, Proxy(server.port) as proxy:
        client = engram.Client(proxy.address)
        writer = client.pattern_writer([Pattern("q", num_steps=1)], chunk_length=1, timeout=0)
        writer.append({"x": 0})  # asks for the table; its item is sent with the next step, on a connection of its own
        proxy.delay(0.4)
        for value in range(1, 100):
            writer.append({"x": value})
        proxy.delay(0)
        writer.close(10)
        assert server.store.info()["q"].inserts == 100


@pytest.mark.parametrize("open_store", doors(slow=["remote"]), indirect=True)
def test_abandoned_episodes_do_not_escape_the_bound(open_store):
    store = open_store(Table.queue("q", max_size=1))
    pattern = Pattern("q", lambda step: {"x": step.action[-1]})
    adder = StructuredAdder(store, [pattern], chunk_length=1, max_waiting_items=4, timeout=0)
    added = 0
    for _ in range(4):
        adder.add_first(dm_env.restart(0.0))
        with suppress(BackpressureError):
            for _ in range(3):
                adder.add(added, dm_env.transition(0.0, 0.0))
                added += 1
        with suppress(DeadlineExceededError):
            adder.reset()
    assert added == 6
    adder.add_first(dm_env.restart(0.0))
    text = (
        "5 items of abandoned episodes wait for tables (`max_waiting_items` = 4): 2 items are not in their tables "
        "after 0 s; they stay queued; `q`: inserting waits: "
    )
    with pytest.raises(BackpressureError, match=rf"\A{re.escape(text)}"):
        adder.add(added, dm_env.transition(0.0, 0.0))
    reader = BackgroundCall(lambda: [sample_x(store, "q", 1) for _ in range(7)])
    while added < 7:
        with suppress(BackpressureError):
            adder.add(added, dm_env.transition(0.0, 0.0))
            added += 1
    adder.close(10)
    assert sorted(reader.result()) == [[value] for value in range(7)]


def run_alone(code, *, logs=False):
    """Runs a program in which writers often check whether they wait in the only thread."""
    head = "import engram\nengram._engram.set_only_thread_checks(0.1, 0.1)\n"
    return run_python(head + textwrap.dedent(code), logs=logs)


def test_a_flush_in_the_only_thread_reports_a_deadlock():
    output = run_alone("""
        for call in ("flush", "end_episode", "close"):
            store = engram.Store([engram.Table.queue("q", max_size=1)])
            writer = store.pattern_writer([engram.Pattern("q", num_steps=1)])
            for value in range(3):
                writer.append({"x": value})
            try:
                getattr(writer, call)()
            except engram.errors.DeadlineExceededError as error:
                print(error)
            assert store.sample("q", 1).data["x"].tolist() == [[0]]
            try:
                getattr(writer, call)(0.05)
            except engram.errors.DeadlineExceededError as error:
                print(error)
            # Nothing is lost.
            assert [store.sample("q", 1, timeout=5).data["x"].tolist() for _ in range(2)] == [[[1]], [[2]]]
            getattr(writer, call)()
    """)
    deadlock = "; this is the only thread of the process, so nothing is sampled while it waits: sample first"
    text = (
        f"2 items are not in their tables; they stay queued; {FULL}{deadlock}\n"
        f"1 item is not in its table after 0.05 s; it stays queued; {FULL}{deadlock}\n"
    )
    assert output == 3 * text


def test_the_limit_on_items_in_flight_reports_a_deadlock():
    output = run_alone(
        """
        store = engram.Store([engram.Table.queue("q", max_size=1)])
        patterns = [engram.Pattern("q", num_steps=1)]
        writer = store.pattern_writer(patterns, chunk_length=1, max_in_flight_items=2, max_waiting_items=None)
        try:
            for value in range(10):
                writer.append({"x": value})
        except engram.errors.BackpressureError as error:
            print(error)
    """,
        logs=True,
    )  # of the writer's items
    assert output == (
        f"the writer has 2 items in flight (`max_in_flight_items` = 2); {FULL}; this is the only thread of the "
        "process, so nothing is sampled while it waits: sample before you write more\n"
    )


def test_a_writer_in_the_only_thread_reports_a_deadlock(tmp_path):
    output = run_alone(f"""
        def open_durable(tables):
            return engram.Store.open({str(tmp_path)!r}, tables)

        for open_store in (engram.Store, open_durable):
            store = open_store([engram.Table.queue("q", max_size=1)])
            writer = store.pattern_writer([engram.Pattern("q", num_steps=1)], chunk_length=1, max_waiting_items=2)
            written = 0
            try:
                while True:
                    writer.append({{"x": written}})
                    written += 1
            except engram.errors.BackpressureError as error:
                print(error)
            # Nothing is lost, and the writer continues.
            for value in range(2):
                assert store.sample("q", 1).data["x"].tolist() == [[value]]
            writer.append({{"x": 3}})
            assert store.sample("q", 1).data["x"].tolist() == [[2]]
            writer.flush()
    """)
    assert output == 2 * (
        f"the writer has 1 item waiting for tables and 1 not sent yet (`max_waiting_items` = 2); {FULL}; this is the "
        "only thread of the process, so nothing is sampled while it waits: sample before you write more, or increase "
        "`max_waiting_items`\n"
    )


def test_an_open_dataset_may_end_the_wait_of_the_only_thread():
    output = run_alone(
        """
        store = engram.Store([engram.Table.queue("q", max_size=1), engram.Table("t")])
        dataset = engram.Dataset(store, "t", 1)
        batches = iter(dataset)
        store.insert(1, {"t": 1.0})
        next(batches)
        patterns = [engram.Pattern("q", num_steps=1)]
        writer = store.pattern_writer(patterns, chunk_length=1, max_waiting_items=2, timeout=0.5)
        try:
            for value in range(10):
                writer.append({"x": value})
        except engram.errors.BackpressureError as error:
            print("0.5 s" in str(error), "only thread" in str(error))
    """,
        logs=True,
    )  # of the writer's items
    assert output == "True False\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "`max_waiting_items` must be at least 1; got 0"),
        ("x", "`max_waiting_items` must be an integer; got 'x' (str)"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_maximum_is_checked(kind, value, text):
    with Store([Table("t")]) as store, pytest.raises(InvalidArgumentError, match=re.escape(text)):
        write_to(store, kind, "t", max_waiting_items=value)
