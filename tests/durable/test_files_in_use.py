"""Files and directories that are in use are replaced and removed by no function that writes to a path."""

import fcntl
import os
import re
import shutil

import numpy as np
import pytest
import typer
from helpers.forks import PROGRAM, needs_fork
from helpers.support import case, run_python

import engram
from engram import Store, Table
from engram._complete_output import complete_output
from engram.buffers import MappedFile, ReplayBuffer
from engram.cli.demo import check_folder
from engram.cli.progress_log import ProgressLog
from engram.errors import StorageError

parquet = pytest.importorskip("engram.parquet", reason="needs the extra `parquet`")
dqn = pytest.importorskip("engram.agents.dqn", reason="needs the extra `agents`")
plot = pytest.importorskip("engram.agents.dqn.plot", reason="needs the extra `agents`")


def mapped(path, **options):
    """A buffer in a mapped file, with steps 0 and 1."""
    buffer = ReplayBuffer(20, storage=MappedFile(path), seed=0, **options)
    buffer.add_steps({"x": np.arange(2)[None]})
    return buffer


def steps(path):
    with ReplayBuffer(20, storage=MappedFile(path), seed=0) as buffer:
        return sorted(buffer.epoch(100).__next__().data["x"].tolist())


def save(path):
    buffer = ReplayBuffer(5, seed=0)
    buffer.add({"x": 1})
    buffer.save(path)


def write_file(path):
    with Store([Table("t")]) as store:
        store.insert({"x": 1}, {"t": 1.0})
        parquet.write_parquet(store, "t", path)


def write_directory(path):
    with Store([Table("t")]) as store:
        store.insert({"x": 1}, {"t": 1.0})
        parquet.write_parquet(store, "t", path, items_per_file=1)


WRITERS = [save, write_file]


@pytest.mark.parametrize("write", WRITERS)
def test_the_file_of_a_mapped_buffer(tmp_path, monkeypatch, write):
    """By its path, another path and links; also by the buffer itself."""
    path = tmp_path / "file"
    buffer = mapped(path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "symbolic").symlink_to("file")
    (tmp_path / "of a folder").symlink_to(".")
    os.link(path, tmp_path / "hard")
    before = sorted(tmp_path.iterdir())
    for given in ("file", "folder/../file", "symbolic", "hard", "of a folder/file", path):
        with (
            case(given),
            pytest.raises(StorageError, match=r"is in use by this process \(since .*close that buffer first"),
        ):
            write(given)
    with pytest.raises(StorageError, match=rf"^{path} is in use by this process"):
        buffer.save(path)
    assert sorted(tmp_path.iterdir()) == before
    buffer.add({"x": 2})
    buffer.flush()
    buffer.close()
    assert steps(path) == [0, 1, 2]
    write(path)
    with pytest.raises(StorageError, match="file"):  # of another kind
        steps(path)


def test_the_file_of_a_mapped_buffer_in_another_process(tmp_path):
    path = tmp_path / "file"
    buffer = mapped(path)
    code = f"""
from engram.buffers import ReplayBuffer
from engram.errors import StorageError
buffer = ReplayBuffer(5)
buffer.add({{"x": 1}})
try:
    buffer.save({str(path)!r})
except StorageError as error:
    print(error)
"""
    [text] = run_python(code).splitlines()
    assert text.startswith(f"{path} is in use by process {os.getpid()} since 20")
    buffer.close()
    assert run_python(code) == ""


def test_files_whose_names_end_like_those_of_unfinished_ones(tmp_path):
    """They stay, whether they are in use or not. What a killed process has left is removed, unless it is in use."""
    for name in ("file.tmp", "file.1.tmp", "file.20260131.tmp", "other.0123456789abcdef.tmp"):
        mapped(tmp_path / name).close()
    in_use = mapped(tmp_path / "file.0000000000000001.tmp")
    before = sorted(tmp_path.iterdir())
    for write in (save, mapped):
        (tmp_path / "file.0123456789abcdef.tmp").touch()
        write(tmp_path / "file")
        (tmp_path / "file").unlink()
        assert sorted(tmp_path.iterdir()) == before
    in_use.close()
    assert [steps(path) for path in before] == [[0, 1]] * 5


@pytest.mark.parametrize("name", ["LOCK", "CLOSED", "log-0000000001", "log-0000000099", "checkpoint-0000000002.tmp"])
@pytest.mark.parametrize("write", [*WRITERS, write_directory, mapped])
def test_names_in_the_directory_of_an_open_store(tmp_path, monkeypatch, name, write):
    path = tmp_path / "store"
    (tmp_path / "link").symlink_to("store")
    monkeypatch.chdir(path.parent)
    with Store.open(path, [Table("t")]) as store:
        store.insert({"x": 1}, {"t": 1.0})
        text = rf"{name} cannot be written: \S*store is in use by this process \(since .*close that store first"
        if (path / name).exists() and write not in WRITERS:
            return  # they replace nothing
        for given in (path / name, f"store/{name}", f"link/{name}"):
            with case(given), pytest.raises(StorageError, match=text):
                write(given)
        store.checkpoint()
        write_file(path / "mine.parquet")  # not the name of a store's file
    with Store.open(path) as store:
        assert store.info()["t"].size == 1


@pytest.mark.parametrize("below", ["", "new/deep"])
def test_directories_with_the_name_of_a_file_of_an_open_store(tmp_path, below):
    """They are not created; nor are directories in them."""
    Store.open(tmp_path / "source", [Table("t")]).close()
    calls = [
        Store.open,
        lambda path: engram.resharding.reshard([tmp_path / "source"], into=1, output=path),
        ProgressLog,
        check_folder,
        lambda path: plot.plot_returns([], path / "returns.png"),
    ]
    path = tmp_path / "store"
    with Store.open(path, [Table("t")]) as store:
        store.insert({"x": 1}, {"t": 1.0})
        before = sorted(tmp_path.rglob("*"))
        text = (
            r"log-0000000002\S* cannot be written: \S*store is in use by this process \(since .*close that store first"
        )
        for call in calls:
            given = path / "log-0000000002" / below
            with case(call), pytest.raises(StorageError, match=text):
                call(given)
            assert sorted(tmp_path.rglob("*")) == before
        Store.open(path / "mine" / below, [Table("t")]).close()  # not the name of a store's file
        store.checkpoint()
    with Store.open(path) as store:
        assert store.info()["t"].size == 1


def test_a_store_does_not_remove_files_that_are_in_use(tmp_path):
    buffer = mapped(tmp_path / "log-0000000001.tmp")
    with pytest.raises(StorageError, match=r"log-0000000001.tmp is in use by this process"):
        Store.open(tmp_path, [Table("t")])
    buffer.add({"x": 2})
    buffer.close()
    assert steps(tmp_path / "log-0000000001.tmp") == [0, 1, 2]


def test_resharding_does_not_remove_files_that_are_in_use(tmp_path):
    Store.open(tmp_path / "source", [Table("t")]).close()
    (tmp_path / "output.tmp" / "shard-0").mkdir(parents=True)
    path = tmp_path / "output.tmp" / "shard-0" / "log-0000000001"
    buffer = mapped(path)
    with pytest.raises(StorageError, match=rf"^{path} is in use by this process"):
        engram.resharding.reshard([tmp_path / "source"], into=2, output=tmp_path / "output")
    buffer.close()
    assert steps(path) == [0, 1]
    with Store.open(tmp_path / "store", [Table("t")]), pytest.raises(StorageError, match="store is in use"):
        engram.resharding.reshard([tmp_path / "source"], into=2, output=tmp_path / "store" / "log-0000000009")


@pytest.mark.parametrize("name", ["log-0000000001", "mine"])
def test_files_in_the_directories_of_a_resharding_that_runs(tmp_path, name):
    with Store.open(tmp_path / "source", [Table("t")]) as store:
        for n in range(2000):
            store.insert({"x": np.full(1000, n)}, {"t": 1.0})
    staging, refused = tmp_path / "output.tmp", []

    def progress(*_):
        if not refused and (staging / "shard-0" / "log-0000000001").exists():
            for write in WRITERS:
                with pytest.raises(StorageError) as error:
                    write(staging / "shard-0" / name)
                refused.append(str(error.value))

    engram.resharding.reshard([tmp_path / "source"], into=1, output=tmp_path / "output", progress=progress)
    text = (
        f"{staging / 'shard-0' / name} cannot be written: {staging} is in use: something writes to it and has locked "
        "it; wait until that ends, or give another path"
    )
    assert refused == [text, text]
    with Store.open(tmp_path / "output" / "shard-0") as store:
        assert store.info()["t"].size == 2000


def test_the_log_of_a_run(tmp_path):
    path = tmp_path / "progress.jsonl"
    with ProgressLog(tmp_path):
        for write in (*WRITERS, lambda path: ProgressLog(path.parent)):
            with pytest.raises(StorageError, match=rf"^{path} is in use: something writes to it and has locked it; "):
                write(path)
    with ProgressLog(tmp_path):
        pass


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_the_log_of_a_run_whose_name_is_a_link(tmp_path, link):
    """Such as one to a file of a store that is open: that stays as it is."""
    file, log = tmp_path / "file", tmp_path / "progress.jsonl"
    for exists in (True, False)[: 1 + (link is os.symlink)]:
        if exists:
            file.write_text("of others")
        link(file, log)
        with ProgressLog(tmp_path):
            pass
        assert log.read_text() == ""
        log.unlink()
        if exists:
            assert file.read_text() == "of others"
            file.unlink()
        assert list(tmp_path.iterdir()) == []


@needs_fork
def test_a_forked_child_neither_ends_nor_keeps_what_its_parent_writes(tmp_path):
    code = f"""
{PROGRAM}
from pathlib import Path
from engram._complete_output import complete_output
from engram.cli.progress_log import ProgressLog

path = Path({str(tmp_path)!r})
with ProgressLog(path) as log:
    in_child(lambda: log.__exit__())
    try:
        ProgressLog(path)
        sys.exit("unlocked by a child")
    except engram.errors.StorageError:
        pass
    read, write = os.pipe()
    child = fork(lambda: (os.close(write), os.read(read, 1)))
with ProgressLog(path):  # the child still has the file open
    pass
for is_directory in (False, True):
    with complete_output(path / "output", is_directory=is_directory) as temporary:
        temporary.touch()
        in_child(lambda: None)
    (path / "output").rename(path / f"is_directory={{is_directory}}")
os.close(write)
assert os.waitpid(child, 0)[1] == 0
"""
    run_python(code)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "is_directory=False",
        "is_directory=True",
        "progress.jsonl",
    ]


def test_a_log_that_is_locked_at_the_last_moment_stays_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "progress.jsonl").write_text("of another run")

    def lock(*_):
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", lock)
    with pytest.raises(
        StorageError,
        match=r"progress.jsonl is in use: another run writes to it; wait until that ends, or give another directory$",
    ):
        ProgressLog(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "progress.jsonl").read_text() == "of another run"
    with ProgressLog(tmp_path):
        assert (tmp_path / "progress.jsonl").read_text() == ""


def test_directories_are_not_replaced_by_files(tmp_path):
    path = tmp_path / "returns.png"
    path.mkdir()
    with (
        pytest.raises(StorageError, match=rf"^cannot write {path}: it is a directory; give the path of a file$"),
        complete_output(path, is_directory=False),
    ):
        pytest.fail("not refused at once")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x", "x.png", "x.svg"])
def test_the_format_of_plots(tmp_path, name):
    result = dqn.Result(
        config=dqn.DQNConfig(),
        stopped="budget",
        steps=1,
        learner_steps=1,
        returns=[1.0],
        episode_ends=[0],
        seconds=1.0,
        table=None,
        params=None,
    )
    start = b"<?xml" if name == "x.svg" else b"\x89PNG"
    assert plot.plot_returns([result], tmp_path / name).read_bytes().startswith(start)


def test_plots(tmp_path):
    buffer = mapped(tmp_path / "returns.png")
    with pytest.raises(StorageError, match=r"returns.png is in use by this process"):
        plot.plot_returns([], tmp_path / "returns.png")
    buffer.close()
    assert steps(tmp_path / "returns.png") == [0, 1]


@pytest.mark.parametrize("write", [*WRITERS, write_directory])
def test_pipes_sockets_and_devices_are_not_replaced(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        StorageError, match="cannot be written: it is a pipe, socket or device; give the path of a file"
    ):
        if write is write_directory:
            engram._engram.check_unused(tmp_path / "pipe")
        write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_import_leaves_a_store_that_another_process_has_opened(tmp_path, monkeypatch):
    """It has opened it since the command began."""
    from engram.cli.import_reverb import import_reverb  # noqa: PLC0415, needs the command's packages

    opened = []
    original = Store.open

    def open_twice(path):
        opened.append(original(path, [Table("t")]))
        return original(path)

    monkeypatch.setattr(Store, "open", open_twice)
    with pytest.raises(typer.Exit):
        import_reverb(tmp_path / "checkpoint", into=tmp_path / "store")
    monkeypatch.undo()
    opened[0].insert({"x": 1}, {"t": 1.0})
    opened[0].close()
    with Store.open(tmp_path / "store") as store:
        assert store.info()["t"].size == 1
    shutil.rmtree(tmp_path / "store")


def test_a_file_that_is_replaced_while_it_is_written(tmp_path):
    """A buffer that is opened while the new file is written is seen, too."""
    path = tmp_path / "t.parquet"
    opened = []

    class Rows(Store):
        def scan(self, *args, **options):
            opened.append(mapped(path))
            return super().scan(*args, **options)

    with Rows([Table("t")]) as store, pytest.raises(StorageError, match=re.escape(f"{path} is in use by this process")):
        parquet.write_parquet(store, "t", path)
    opened[0].close()
    assert steps(path) == [0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_created_while_a_new_one_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    opened = []
    link = os.link

    def create_and_link(*args, **options):
        opened.append(mapped(path))
        link(*args, **options)

    monkeypatch.setattr(os, "link", create_and_link)
    with pytest.raises(StorageError, match=rf"^{path} is in use by this process"):
        write_file(path)
    opened[0].close()
    assert steps(path) == [0, 1]
    assert list(tmp_path.iterdir()) == [path]
