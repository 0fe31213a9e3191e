"""A forked child gets `ForkedError`, ends cleanly, and can create its own store."""

import sys

import pytest
from helpers.forks import PROGRAM as HEAD
from helpers.forks import needs_fork
from helpers.python_process import run_program
from helpers.support import run_python

pytestmark = needs_fork

EVERYTHING = """
store = engram.Store([engram.Table("t"), engram.Table.queue("q", max_size=1000)])
big = np.zeros(200_000)
for value in range(64):
    store.insert({"x": value, "big": big}, {"t": 1.0, "q": 1.0})
store.sample("t", 64)  # gathered by several threads
writer, patterns = store.writer(), store.pattern_writer([engram.Pattern("t", num_steps=1)])
batched = store.batched_writer(2, [engram.Pattern("t", num_steps=1)])
writer.append({"x": 1})
history = writer.history["x"]
dataset = engram.Dataset(store, "q", 2, prefetch=4)
batches = iter(dataset)
batch = next(batches)

def child():
    expect_forked_error("store", lambda: store.sample("t", 1))
    expect_forked_error("store", lambda: store.insert({"x": 1}, {"t": 1.0}))
    expect_forked_error("store", store.info)
    expect_forked_error("store", store.close)
    expect_forked_error("store", lambda: store.writer())
    expect_forked_error("store", lambda: next(iter(engram.Dataset(store, "t", 1))))
    expect_forked_error("dataset", lambda: next(batches))
    expect_forked_error("writer", lambda: writer.append({"x": 2}))
    expect_forked_error("writer", lambda: history[-1:])
    expect_forked_error("writer", lambda: writer.flush())
    expect_forked_error("writer", lambda: patterns.append({"x": 2}))
    expect_forked_error("writer", lambda: batched.append_batch({"x": np.zeros(2)}))
    assert repr(store) == "Store(closed)"
    assert repr(writer).startswith("TrajectoryWriter(this writer was created before the process forked")
    assert batch.data["x"].tolist() == [0, 1]
    with store, writer, dataset:
        pass  # the parent closes them
    with engram.Store([engram.Table("t")]) as own:
        for value in range(64):
            own.insert({"x": value, "big": big}, {"t": 1.0})
        assert own.sample("t", 64, timeout=10).data["big"].shape == (64, 200_000)
        assert len(next(iter(engram.Dataset(own, "t", 64)))) == 64

in_child(child)
assert next(batches).data["x"].tolist() == [2, 3]
dataset.close()
writer.create_item("t", num_steps=1)
writer.close()
assert store.info()["t"].size == 65
store.close()
print("parent continues")
"""

INSIDE = """
with engram.Store([engram.Table("t")]) as store, store.writer() as writer:
    writer.append({"x": 1})
    writer.create_item("t", num_steps=1)
    child = os.fork()
    if child == 0:
        sys.exit(0)  # exits both blocks
    assert os.waitpid(child, 0)[1] == 0
    writer.flush()
    assert store.info()["t"].size == 1
print("done")
"""


def test_objects_created_before_the_fork_raise_in_the_child():
    assert run_python(HEAD + EVERYTHING) == "parent continues\n"


def test_a_child_that_exits_inside_with_blocks_ends_cleanly():
    assert run_python(HEAD + INSIDE) == "done\n"


def test_forks_while_readers_wait_do_not_hang():
    code = """
import threading
store = engram.Store([engram.Table("t")])
waiting = threading.Thread(target=lambda: store.sample("t", 1))
waiting.start()
batches = iter(engram.Dataset(store, "t", 1))
starting = threading.Thread(target=lambda: next(batches))
starting.start()
for _ in range(8):
    in_child(lambda: expect_forked_error("store", lambda: store.sample("t", 1)))
store.insert({"x": 1}, {"t": 1.0})
waiting.join()
starting.join()
batches.close()
"""
    assert run_python(HEAD + code) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="fork is multiprocessing's default on Linux only")
def test_a_forked_multiprocessing_child_gets_forked_error():
    code = """
import multiprocessing
store = engram.Store([engram.Table("t")])

def work():
    expect_forked_error("store", lambda: store.insert({"x": 1}, {"t": 1.0}))

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
assert process.exitcode == 0
"""
    assert run_python(HEAD + code) == ""


def test_siblings_choose_different_keys(tmp_path):
    """The second child of a process would otherwise repeat the keys of the first, and its items would be lost."""
    output = run_python(f"""
import os
import engram

for _ in range(2):
    child = os.fork()
    if child == 0:
        with engram.Store.open({str(tmp_path)!r}, [engram.Table("t")]) as store:
            for value in range(10):
                store.insert({{"x": value}}, {{"t": 1.0}})
        os._exit(0)
    os.waitpid(child, 0)
with engram.Store.open({str(tmp_path)!r}) as store:
    print(store.info()["t"].size)
""")
    assert output == "20\n"


def test_a_child_works_if_it_is_forked_while_a_thread_uses_the_engine_for_the_first_time():
    code = """
import builtins, signal
imports = builtins.__import__
reached, proceed = threading.Semaphore(0), threading.Semaphore(0)

def pausing_import(*arguments, **options):
    if threading.current_thread() is thread:
        reached.release()
        proceed.acquire()
    return imports(*arguments, **options)

def use():
    store = engram.Store([engram.Table("t")])
    store.insert({"x": np.zeros(3), "y": {"z": 1.5, "text": "a"}}, {"t": 1.0})
    try:
        store.sample("unknown", 1)
    except engram.errors.UnknownTableError:
        pass

def child():
    signal.alarm(20)  # instead of hanging
    builtins.__import__ = imports
    use()

def use_and_end():
    try:
        use()
    finally:
        done.set()
        reached.release()

done = threading.Event()
thread = threading.Thread(target=use_and_end, daemon=True)
builtins.__import__ = pausing_import
thread.start()
reached.acquire()
forks = 0
while not done.is_set():
    forks += 1
    try:
        in_child(child)
    finally:
        proceed.release()
    reached.acquire()
assert forks >= 2
"""
    assert run_program(HEAD + code) == ""
