"""Calls without a timeout that wait in the only thread of a process: errors, not hangs."""

import re
import textwrap

import pytest
from helpers import support

from engram import _engram

CHECK = 0.1
"""Seconds between two checks of a waiting call in the programs; by default 1 s for writers and 5 s for other calls."""


def run_python(code: str) -> str:
    set_checks = f"import engram\nengram._engram.set_only_thread_checks({CHECK}, {CHECK})\n"
    return support.run_python(set_checks + textwrap.dedent(code))


def test_sample_that_waits_for_more_items():
    output = run_python("""
        def sample(store, table, *arguments, **options):
            try:
                store.sample(table, *arguments, **options)
            except engram.errors.UnsatisfiableError as error:
                print(error)

        store = engram.Store([engram.Table("empty"), engram.Table("unsent"), engram.Table.queue("q", max_size=5)])
        sample(store, "empty", 4)
        store.insert({"x": 1}, {"empty": 1.0})
        assert store.sample("empty", 4).data["x"].tolist() == [1, 1, 1, 1]

        writer = store.pattern_writer([engram.Pattern("unsent", num_steps=1)], chunk_length=10)
        writer.append({"x": 1})
        sample(store, "unsent", 1)
        writer.flush()
        assert store.sample("unsent", 1).data["x"].tolist() == [[1]]

        for value in range(3):
            store.insert({"x": value}, {"q": 1.0})
        sample(store, "q", 5, at_least=4)
        assert store.sample("q", 3).data["x"].tolist() == [0, 1, 2]
    """)
    empty, unsent, too_few = output.splitlines()
    assert empty == (
        "`sample` waits for 4 items of table `empty`, and has taken none; `empty`: sampling waits: the table is "
        "empty (MinSize); this is the only thread of the process, so nothing is inserted while it waits: insert more "
        "before you sample, call `flush` of the writers, or pass `timeout`"
    )
    assert "unfinished chunk" in unsent
    assert "; this is the only thread of the process" in unsent
    assert too_few.startswith("`sample` waits for at least 4 items of table `q`, and has taken none; ")


@pytest.mark.slow
def test_the_default_interval_between_checks():
    output = support.run_python(
        textwrap.dedent("""
        import time
        import engram
        store = engram.Store([engram.Table("empty")])
        begin = time.monotonic()
        try:
            store.sample("empty", 1)
        except engram.errors.UnsatisfiableError:
            print(time.monotonic() - begin >= 4.5)
    """)
    )
    assert output == "True\n"


def test_a_wait_that_another_thread_may_end():
    output = run_python("""
        import threading, time
        store = engram.Store([engram.Table("t"), engram.Table("u")])
        def insert(table):
            time.sleep(0.5)
            store.insert({"x": 1}, {table: 1.0})
        threading.Thread(target=insert, args=["t"]).start()
        print(store.sample("t", 1).data["x"])
        threading.Thread(target=insert, args=["u"]).start()
        print(next(iter(engram.Dataset(store, "u", 1))).data["x"])
    """)
    assert output == "[1]\n[1]\n"


def test_sample_that_a_client_may_end_waits():
    output = run_python("""
        import subprocess, sys
        with engram.Server([engram.Table("replay")]) as server:
            code = f'''
        import time, engram
        time.sleep(0.5)
        engram.Client("{server.address}").insert({{"x": 1}}, {{"replay": 1.0}})
        '''
            code = "\\n".join(line.strip() for line in code.splitlines())
            process = subprocess.Popen([sys.executable, "-c", code])
            print(server.store.sample("replay", 1).data["x"])
            process.wait()
    """)
    assert output == "[1]\n"


def test_timeouts_are_kept():
    output = run_python("""
        import time
        store = engram.Store([engram.Table("replay")])
        begin = time.monotonic()
        try:
            store.sample("replay", 1, timeout=0.5)
        except engram.errors.DeadlineExceededError:
            print(time.monotonic() - begin > 0.45)
        print(list(engram.Dataset(store, "replay", 1, timeout=0.5)))
    """)
    assert output == "True\n[]\n"


def test_insert_into_a_full_queue():
    output = run_python("""
        for tables in (["q"], ["other", "q"], ["q", "other"]):
            store = engram.Store([engram.Table("other"), engram.Table.queue("q", max_size=1)])
            priorities = dict.fromkeys(tables, 1.0)
            store.insert({"x": 1}, priorities)
            try:
                store.insert({"x": 2}, priorities)
            except engram.errors.BackpressureError as error:
                print(error)
            assert store.info()["other"].size == 2 * ("other" in priorities)
            assert store.sample("q", 1).data["x"].tolist() == [1]
            store.insert({"x": 3}, priorities)
            assert store.sample("q", 1).data["x"].tolist() == [3]
    """)
    assert output == "".join(
        f"table `q` did not accept the item; {has}; `q`: inserting waits: Queue(1) is full: 1 inserted item is not "
        "sampled yet; this is the only thread of the process, so nothing is sampled while the call waits: sample "
        "before you insert more, or pass `timeout`\n"
        for has in ("no table has the item", "only `other` has the item", "only `other` has the item")
    )


def test_insert_that_an_expiring_item_may_end_waits():
    output = run_python("""
        limiter = engram.rate_limiters.Queue(1)
        store = engram.Store([engram.Table("t", ttl=0.5, rate_limiter=limiter)])
        for value in range(2):
            store.insert({"x": value}, {"t": 1.0})
        print("done")
    """)
    assert output == "done\n"


def test_dataset_that_waits_for_more_items():
    output = run_python("""
        import numpy
        for open_dataset in (
            lambda store: engram.Dataset(store, "q", 2),
            lambda store: engram.data.numpy.dataset(store, "q", batch_size=2),
        ):
            store = engram.Store([engram.Table.queue("q", max_size=10)])
            for value in range(3):
                store.insert({"x": numpy.array([value])}, {"q": 1.0}, time_axis=True)
            try:
                for batch in open_dataset(store):
                    print(batch.data["x"].ravel().tolist())
            except engram.errors.UnsatisfiableError as error:
                print(error)
            print(store.sample("q", 1).data["x"].tolist())
    """)
    text = (
        "[0, 1]\n"
        "a dataset of table `q` cannot fill its next batch, and returns the items that it has taken for it; `q`: "
        "sampling waits: the learner has caught up with the writers, which is as far as Queue allows (3 inserted x 1 "
        "sample per insert - 3 sampled = 0); this is the only thread of the process, so nothing is inserted while it "
        "waits: insert more before the iteration, call `flush` of the writers, or pass `timeout`\n"
        "[[2]]\n"
    )
    assert output == 2 * text


def test_each_dataset_that_waits_raises():
    output = run_python("""
        store = engram.Store([engram.Table("replay")])
        errors = []
        for _ in range(2):
            try:
                list(engram.Dataset(store, "replay", 1))
            except engram.errors.UnsatisfiableError as error:
                errors.append(error)  # its traceback refers to the closed iterator
        print(len(errors))
    """)
    assert output == "2\n"


def test_a_wait_of_a_dataset_that_another_reader_or_a_client_may_end():
    output = run_python("""
        import signal
        class EndedError(Exception):
            pass
        def end(*_):
            raise EndedError
        signal.signal(signal.SIGALRM, end)
        store = engram.Store([engram.Table("replay"), engram.Table("other")])
        store.insert({"x": 1}, {"other": 1.0})
        def check():
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            try:
                list(engram.Dataset(store, "replay", 1))
            except EndedError:
                print("still waits")
        with engram.Dataset(store, "other", 1) as other:
            batches = iter(other)
            next(batches)
            check()
        with engram.Server(store):
            check()
    """)
    assert output == 2 * "still waits\n"


def test_a_wait_for_the_disk_is_not_a_deadlock(tmp_path):
    output = run_python(f"""
        tables = [engram.Table.queue("q", max_size=2)]
        with engram.Store.open({str(tmp_path)!r}, tables, durability="disk", sync_interval=0.3) as store:
            for value in range(2):
                store.insert({{"x": value}}, {{"q": 1.0}})
            print(store.info()["q"].size)
            batches = iter(engram.Dataset(store, "q", 1))
            print([next(batches).data["x"].item() for _ in range(2)])
            batches.close()
    """)
    assert output == "2\n[0, 1]\n"


@pytest.mark.parametrize("intervals", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_intervals_between_checks_are_checked(intervals):
    text = f"an interval must be at least a millisecond; got {next(i for i in intervals if i != 1.0):.0f} s"
    try:
        with pytest.raises(ValueError, match=re.escape(text.replace("nan", "NaN"))):
            _engram.set_only_thread_checks(*intervals)
    finally:
        _engram.set_only_thread_checks(1.0, 5.0)
