"""Resharding of closed stores: the same contents in another number of directories."""

import re
import shutil
import signal
import time

import numpy as np
import pytest
from helpers.python_process import PIPE, PythonProcess
from helpers.support import raises

import engram
from engram import Store, Table, rate_limiters, resharding, selectors
from engram.errors import InvalidArgumentError, StorageError


def tables():
    return [
        Table("replay", sampler=selectors.Prioritized(0.6), max_size=1_000, rate_limiter=rate_limiters.MinSize(1)),
        Table("text", max_size=500, rate_limiter=rate_limiters.MinSize(1)),
    ]


def fill(path, first, *, count=60, size=4):
    """Creates a store with `count` items of three steps in one table, and as many texts in the other."""
    with Store.open(path, tables()) as store:
        with store.writer() as writer:
            for number in range(first, first + count):
                writer.append({"x": np.full(size, number, np.float32)})
                if number >= first + 2:
                    writer.create_item("replay", number % 7, {"x": writer.history["x"][-3:]})
        for number in range(first, first + count):
            store.insert({"t": f"text {number}"}, {"text": 1.0})
        store.sample("replay", 20)
    return path


def comparable(values):
    """Returns an array, or text, as a value that `==` compares; large arrays quickly."""
    array = np.asarray(values)
    return array.tolist() if array.dtype.kind in "OSTU" else (array.dtype, array.shape, array.tobytes())


def contents(paths):
    """Returns the items of all stores, by table and key: data and priority; and the sums of the tables' counts."""
    items, counts = {}, {}
    for path in paths:
        with Store.open(path) as store:
            for name, info in store.info().items():
                counts[name] = counts.get(name, 0) + np.array([info.inserts, info.samples, info.size])
                for batch in store.scan(name, batch_size=16):
                    for index, key in enumerate(batch.info.key.tolist()):
                        item = {column: comparable(values[index]) for column, values in batch.data.items()}
                        assert (name, key) not in items
                        items[name, key] = (item, float(batch.info.priority[index]))
    return items, {name: each.tolist() for name, each in counts.items()}


@pytest.fixture
def sources(tmp_path):
    return [fill(tmp_path / f"source-{number}", 100 * number) for number in range(3)]


def test_contents_stay_the_same_from_three_to_five_to_two(sources, tmp_path):
    before = contents(sources)
    five = resharding.reshard(sources, into=5, output=tmp_path / "five")
    assert five.directories == tuple(tmp_path / "five" / f"shard-{number}" for number in range(5))
    assert {name: sum(sizes) for name, sizes in five.tables.items()} == {"replay": 3 * 58, "text": 180}
    assert five.notes == ()
    assert all(max(sizes) - min(sizes) <= 6 for sizes in five.tables.values())
    assert contents(five.directories) == before
    two = resharding.reshard(five.directories, into=2, output=str(tmp_path / "two"))
    assert contents(two.directories) == before
    for path in two.directories:
        assert engram.inspect_directory(path).ok
        with Store.open(path) as store:
            assert store.info()["replay"].max_size == 1_500
            assert store.sample("replay", 8).data["x"].shape == (8, 3, 4)


def test_progress_is_reported_and_an_exception_of_it_stops(sources, tmp_path):
    reports = []
    resharding.reshard(sources, into=2, output=tmp_path / "two", progress=lambda *report: reports.append(report))
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1] > 0

    def stop(done, total):
        raise KeyboardInterrupt(done, total)

    with pytest.raises(KeyboardInterrupt):
        resharding.reshard(sources, into=2, output=tmp_path / "three", progress=stop)
    assert not list(tmp_path.glob("three*"))


def test_arguments_are_checked(sources, tmp_path):
    output = tmp_path / "out"
    with raises(InvalidArgumentError, "`into` must be at least 1; got 0"):
        resharding.reshard(sources, into=0, output=output)
    with raises(InvalidArgumentError, "`into` must be at most 1023; got 1024"):
        resharding.reshard(sources, into=1024, output=output)
    with raises(InvalidArgumentError, "`directories` must have at least one directory of a store; got none"):
        resharding.reshard([], into=1, output=output)
    with raises(InvalidArgumentError, f"`directories` must be an iterable of paths; got '{sources[0]}' (str)"):
        resharding.reshard(str(sources[0]), into=1, output=output)
    with raises(
        InvalidArgumentError,
        f"`output`: {tmp_path} exists and is not empty; give a directory that does not exist yet, or an empty one",
    ):
        resharding.reshard(sources, into=1, output=tmp_path)
    with raises(
        InvalidArgumentError,
        f"`directories`: {sources[1]} and {sources[1]} are the same directory; give each source once",
    ):
        resharding.reshard([*sources, sources[1]], into=1, output=output)
    with Store.open(sources[2]), pytest.raises(StorageError, match=f"^{sources[2]} is in use by this process"):
        resharding.reshard(sources, into=1, output=output)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("into", [2, 3])
def test_all_items_of_a_divided_queue_are_sampled(tmp_path, into):
    with Store.open(tmp_path / "source", [Table.queue("q", max_size=100)]) as store:
        for number in range(20):
            store.insert({"x": number}, {"q": 1.0})
        store.sample("q", 13)
    left = []
    for path in resharding.reshard([tmp_path / "source"], into=into, output=tmp_path / "out").directories:
        with Store.open(path) as store:
            for _ in range(store.info()["q"].size):
                left += store.sample("q", 1, timeout=5.0).data["x"].tolist()
            assert store.info()["q"].size == 0
            for number in range(store.info()["q"].max_size):
                store.insert({"x": number}, {"q": 1.0}, timeout=5.0)
    assert sorted(left) == list(range(13, 20))


def test_ages_count_the_later_items_of_the_same_shard(sources, tmp_path):
    for path in resharding.reshard(sources, into=5, output=tmp_path / "five").directories:
        with Store.open(path) as store:
            items = store.peek("text", 1_000).items
            assert [item.age for item in items] == list(range(36))


def test_sources_in_the_unfinished_output_are_not_removed(sources, tmp_path):
    resharding.reshard(sources, into=2, output=tmp_path / "out")
    moved = (tmp_path / "out").rename(tmp_path / "out.tmp")
    shards = [moved / "shard-0", moved / "shard-1"]
    with raises(
        InvalidArgumentError,
        f"`output`: {shards[0]} is in {moved}, which a resharding to {tmp_path / 'out'} removes; give another `output`",
    ):
        resharding.reshard(shards, into=3, output=tmp_path / "out")
    assert contents(shards) == contents(sources)


def test_more_directories_than_open_files_are_refused_at_once(sources, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (140, 140))"
    process = start(sources, tmp_path / "out", into=40, first=limit)
    _, stderr = process.communicate()
    assert stderr.splitlines()[-1] == (
        "engram.errors.InvalidArgumentError: `into`: 40 new directories need about 145 open files, but this process "
        "may have 140; raise its limit (`ulimit -n 145`), or give a smaller `into`"
    )
    assert sorted(tmp_path.iterdir()) == sources
    assert len(resharding.reshard(sources, into=40, output=tmp_path / "out").directories) == 40


RESHARD = """
import sys
from engram import resharding
into, output, *sources = sys.argv[1:]
resharding.reshard(sources, into=int(into), output=output)
"""


def start(sources, output, into=3, first=""):
    """Starts a process that runs the program `first`, and then reshards."""
    return PythonProcess(first + RESHARD, into, output, *sources, stderr=PIPE)


def test_a_killed_run_can_be_repeated(tmp_path):
    sources = [fill(tmp_path / f"source-{number}", 100 * number, size=100_000) for number in range(2)]
    before = contents(sources)
    output = tmp_path / "out"
    staging = tmp_path / "out.tmp"
    killed = 0
    for attempt in range(5):
        process = start(sources, output)
        while process.poll() is None and not any(staging.glob("shard-*")):
            time.sleep(0.0005)
        time.sleep(0.004 * attempt)
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate()
        if process.returncode == 0:  # it was faster
            shutil.rmtree(output)
            continue
        assert stderr == ""
        killed += 1
        if output.exists():  # killed after the last step
            assert contents(sorted(output.iterdir())) == before
            shutil.rmtree(output)
    assert killed > 0
    assert contents(sources) == before
    resharded = resharding.reshard(sources, into=3, output=output)
    assert not staging.exists()
    assert contents(resharded.directories) == before


def test_a_full_disk_leaves_nothing(sources, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))"  # Python ignores SIGXFSZ
    process = start(sources, tmp_path / "out", first=limit)
    _, stderr = process.communicate()
    last = stderr.splitlines()[-1]
    assert re.fullmatch(
        rf"engram\.errors\.StorageError: {tmp_path}/out\.tmp/shard-\d cannot be written: File too large", last
    ), stderr
    assert sorted(tmp_path.iterdir()) == sources
