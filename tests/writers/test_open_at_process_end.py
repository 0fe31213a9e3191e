"""A writer that is open when its process ends is reported, also in worker processes of `multiprocessing`."""

import multiprocessing

import pytest
from helpers.forks import needs_fork
from helpers.python_process import run_program

from engram import Server, Table

HEAD = """
import gc, multiprocessing, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forking with threads
import numpy as np
import engram

store = engram.Store([engram.Table("t"), engram.Table.queue("full", max_size=1)])

def write(store=store):
    writer = store.pattern_writer([engram.Pattern("t", num_steps=1)])
    for value in range(5):
        writer.append({"x": value})
    return writer
"""

WORKERS = """
import threading
import engram

opened = []

def write(address):
    client = engram.Client(address)
    opened.append(client.pattern_writer([engram.Pattern("t", num_steps=1)]))
    for value in range(5):
        opened[0].append({"x": value})

def write_in_threads(address):
    write(address)
    ended = threading.Event()

    def flush():
        ended.wait(0.3)
        opened[0].flush()

    threading.Thread(target=flush).start()

def delete(address):
    opened.append(engram.Client(address))
    opened[0].delete("nowhere", [1], wait=False)
"""

ENDS = {
    "a global variable": "writer = write()",
    "an object of another module": "np.writer = write()",
    "a default argument": "np.function = lambda writer=write(): writer",
    "a cycle": "class A: pass\na = A()\na.a, a.writer = a, write()\ndel a",
    "a daemon thread": """
written = threading.Event()

def run():
    writer = write()
    written.set()
    time.sleep(100)

threading.Thread(target=run, daemon=True).start()
written.wait()
""",
}

METHODS = ["fork", "forkserver", "spawn"]

LOST = (
    "a PatternWriter was still open when its process ended with 5 pending items of table `t`, which may be lost; "
    "flush or close it first\n"
)


@pytest.fixture
def in_worker(tmp_path):
    """Returns a function that runs one of `WORKERS` in a worker process, and returns the table's size afterwards."""
    (tmp_path / "workers.py").write_text(WORKERS)

    def run(method, worker, stderr=""):
        with Server([Table("t")]) as server:
            run_program(
                f"""
import multiprocessing, sys
import engram
sys.path.insert(0, {str(tmp_path)!r})
import workers
process = multiprocessing.get_context({method!r}).Process(target=workers.{worker}, args=({server.address!r},))
process.start()
process.join()
assert process.exitcode == 0
""",
                stderr=stderr,
            )
            return server.store.info()["t"].size

    return run


@pytest.mark.parametrize("end", ENDS)
def test_pending_items_are_logged_at_exit(end):
    run_program(HEAD + ENDS[end], stderr=LOST)


def test_closed_writers_are_not_logged_at_exit():
    code = """
import atexit
atexit.register(lambda: by_function.close())
closed, flushed, by_function = write(), write(), write()
closed.close()
flushed.flush()
"""
    run_program(HEAD + code)


def test_a_writer_in_use_at_exit_is_logged():
    code = """
def run():
    writer = store.writer(chunk_length=1)
    while True:
        writer.append({"x": 1})
        writer.create_item("full", num_steps=1)

threading.Thread(target=run, daemon=True).start()
time.sleep(0.5)
"""
    text = (
        "a TrajectoryWriter was still in use by another thread when its process ended; its pending items of table "
        "`full` may be lost; end the thread and close the writer first\n"
    )
    run_program(HEAD + code, stderr=text)


@needs_fork
def test_a_forked_child_does_not_report_writers_of_its_parent():
    code = """
writer = write()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
process = multiprocessing.get_context("fork").Process(target=gc.collect)
process.start()
process.join()
writer.close()
"""
    run_program(HEAD + code)


@needs_fork
def test_a_forked_child_does_not_report_a_writer_that_its_parent_uses():
    code = """
writer = store.pattern_writer([engram.Pattern("full", num_steps=1)])
writer.append({"x": 1})
writer.append({"x": 2})
flush = threading.Thread(target=writer.flush)
flush.start()
while not store.info()["full"].waiting_inserts:
    time.sleep(0.01)
time.sleep(0.1)
process = multiprocessing.get_context("fork").Process(target=gc.collect)
process.start()
process.join()
store.sample("full", 1)
flush.join()
"""
    run_program(HEAD + code)


@pytest.mark.parametrize("method", [each for each in METHODS if each in multiprocessing.get_all_start_methods()])
def test_pending_items_are_logged_at_the_end_of_a_worker(in_worker, method):
    assert in_worker(method, "write", stderr=LOST) == 0


@needs_fork
def test_workers_wait_for_their_threads(in_worker):
    assert in_worker("fork", "write_in_threads") == 5


@needs_fork
def test_changes_that_failed_are_logged_at_the_end_of_a_worker(in_worker):
    text = "a change that no call waited for (`wait=False`) failed: no table `nowhere`; known tables: `t`\n"
    assert in_worker("fork", "delete", stderr=text) == 0


@needs_fork
def test_a_worker_of_a_pool_reports_its_writer():
    code = """
import concurrent.futures
server = engram.Server(store, port=0)
address = server.address

def open_writer():
    global writer
    writer = write(engram.Client(address))

def work(value):
    pass

context = multiprocessing.get_context("fork")
with concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=open_writer) as executor:
    list(executor.map(work, range(3)))
with context.Pool(1, initializer=open_writer) as pool:
    pool.map(work, range(3))
    pool.close()
    pool.join()
"""
    run_program(HEAD + code, stderr=2 * LOST)
