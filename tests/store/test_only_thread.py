"""Calls without a timeout that wait in the only thread of a process: errors, not hangs."""

import textwrap

import pytest
from helpers import support


def run_python(code: str) -> str:
    return support.run_python(textwrap.dedent(code))


def test_sample_of_an_empty_table():
    output = run_python("""
        import engram
        store = engram.Store([engram.Table("replay")])
        try:
            store.sample("replay", 4)
        except engram.errors.UnsatisfiableError as error:
            print(error)
        store.insert({"x": 1}, {"replay": 1.0})
        assert store.sample("replay", 4).data["x"].tolist() == [1, 1, 1, 1]
    """)
    assert output == (
        "`sample` waits for 4 items of table `replay`; `replay`: sampling waits: the table is empty (MinSize); this is "
        "the only thread of the process, so nothing is inserted while it waits: insert more before you sample, call "
        "`flush` of the writers, or pass `timeout`\n"
    )


def test_sample_of_items_in_an_unfinished_chunk():
    output = run_python("""
        import engram
        store = engram.Store([engram.Table("replay")])
        writer = store.pattern_writer([engram.Pattern("replay", num_steps=1)], chunk_length=10)
        writer.append({"x": 1})
        try:
            store.sample("replay", 1)
        except engram.errors.UnsatisfiableError as error:
            print(error)
        writer.flush()
        assert store.sample("replay", 1).data["x"].tolist() == [[1]]
    """)
    assert "unfinished chunk" in output
    assert "; this is the only thread of the process" in output


def test_sample_that_another_thread_may_end_waits():
    output = run_python("""
        import engram, threading, time
        store = engram.Store([engram.Table("replay")])
        def insert():
            time.sleep(6)
            store.insert({"x": 1}, {"replay": 1.0})
        threading.Thread(target=insert).start()
        print(store.sample("replay", 1).data["x"])
    """)
    assert output == "[1]\n"


def test_sample_that_a_client_may_end_waits():
    output = run_python("""
        import subprocess, sys, engram
        with engram.Server([engram.Table("replay")]) as server:
            code = f'''
        import time, engram
        time.sleep(6)
        engram.Client("{server.address}").insert({{"x": 1}}, {{"replay": 1.0}})
        '''
            code = "\\n".join(line.strip() for line in code.splitlines())
            process = subprocess.Popen([sys.executable, "-c", code])
            print(server.store.sample("replay", 1).data["x"])
            process.wait()
    """)
    assert output == "[1]\n"


def test_a_timeout_of_sample_is_kept():
    output = run_python("""
        import time, engram
        store = engram.Store([engram.Table("replay")])
        begin = time.monotonic()
        try:
            store.sample("replay", 1, timeout=5.5)
        except engram.errors.DeadlineExceededError:
            print(time.monotonic() - begin > 5.4)
    """)
    assert output == "True\n"


@pytest.mark.parametrize("others", [[], ["other"]])
def test_insert_into_a_full_queue(others):
    output = run_python(f"""
        import engram
        store = engram.Store([engram.Table("other"), engram.Table.queue("q", max_size=1)])
        priorities = dict.fromkeys({others!r} + ["q"], 1.0)
        store.insert({{"x": 1}}, priorities)
        try:
            store.insert({{"x": 2}}, priorities)
        except engram.errors.BackpressureError as error:
            print(error)
        assert store.sample("q", 1).data["x"].tolist() == [1]
        store.insert({{"x": 3}}, priorities)
        assert store.sample("q", 1).data["x"].tolist() == [3]
    """)
    has = "only `other` has the item" if others else "no table has the item"
    assert output == (
        f"table `q` does not accept more items now; {has}; `q`: inserting waits: Queue(1) is full: 1 inserted item is "
        "not sampled yet; this is the only thread of the process, so nothing is sampled while the call waits: sample "
        "before you insert more, or pass `timeout`\n"
    )


def test_insert_that_an_expiring_item_may_end_waits():
    output = run_python("""
        import engram
        limiter = engram.rate_limiters.Queue(1)
        store = engram.Store([engram.Table("t", ttl=6, rate_limiter=limiter)])
        for value in range(2):
            store.insert({"x": value}, {"t": 1.0})
        print("done")
    """)
    assert output == "done\n"
