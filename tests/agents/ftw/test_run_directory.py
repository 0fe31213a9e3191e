"""Directories of runs: what is locked, refused, written and removed."""

import fcntl
import json
import os
import resource
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers.forks import PROGRAM, needs_fork
from helpers.support import run_python

from engram import Store, Table
from engram.agents.ftw.learner import Metrics
from engram.agents.ftw.run_directory import Checkpoint, RunDirectory
from engram.agents.ftw.run_logs import RunLogs
from engram.agents.ftw.total_loss import Losses
from engram.buffers import MappedFile, ReplayBuffer
from engram.errors import InvalidArgumentError, StorageError

pytestmark = [pytest.mark.jax, pytest.mark.timeout(60)]


class Tables:
    """Saves a file instead of tables."""

    def save(self, target):
        target.mkdir()
        (target / "tables").touch()


def save(folder, frames, *, keep=2, tables=None):
    checkpoint = Checkpoint({"x": np.arange(3)}, {"frames": frames, "learner_steps": 1, "seconds": 0.5}, {})
    folder.save(checkpoint, tables or Tables(), [], keep=keep)


def mapped(path):
    """A buffer in a mapped file, with one more step."""
    buffer = ReplayBuffer(5, storage=MappedFile(path))
    buffer.add({"x": 0})
    return buffer


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def checkpoints(directory):
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.mark.parametrize(
    "name", ["train.csv", "evaluation.csv", "tensorboard", "checkpoints", "curves.png", "result.json"]
)
def test_a_directory_with_files_of_others_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").touch()
    message = (
        f"{tmp_path} is not the directory of a run, but has {name}, which a run would overwrite; choose another"
        " directory$"
    )
    with pytest.raises(InvalidArgumentError, match=message), RunDirectory(tmp_path, resume=False):
        pass
    assert names(tmp_path) == [name, f"{name}/mine"]


def test_other_files_stay(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "mine").touch()
    (tmp_path / "lock").write_text("mine")
    with RunDirectory(tmp_path, resume=False) as folder:
        folder.replay.mkdir()
        assert folder.replay.relative_to(tmp_path) == Path("checkpoints/unfinished-tables")
    assert names(tmp_path) == ["checkpoints", "engram.lock", "lock", "replay", "replay/mine"]
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_run_that_was_killed_before_its_first_checkpoint_is_started_again(tmp_path):
    with RunDirectory(tmp_path, resume=False):
        pass
    for leftover in ("unfinished-tables", "unfinished-000000000001-000000000001"):
        (tmp_path / "checkpoints" / leftover).mkdir()
    (tmp_path / "train.csv").touch()
    with RunDirectory(tmp_path, resume=False):
        assert checkpoints(tmp_path) == []


def test_leftovers_that_cannot_be_removed_are_an_error(tmp_path, monkeypatch):
    with RunDirectory(tmp_path, resume=False) as folder:
        pass
    folder.replay.mkdir()

    def rmtree(path, ignore_errors=False):  # noqa: FBT002, the signature of shutil
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(PermissionError), folder:
        pass
    monkeypatch.undo()
    with folder:  # the lock was released
        pass


def test_only_complete_checkpoints_count(tmp_path):
    with RunDirectory(tmp_path, resume=False) as folder:
        others = ["my-notes", "000000000001-x", "z-000000000001", "999999999999-999999999999"]
        for name in others:
            (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / "my-notes" / "run.json").touch()
        assert folder.newest() is None
        for frames in (1, 2, 3):
            save(folder, frames, keep=1)
        assert folder.newest().name == "000000000003-000000000001"
    assert checkpoints(tmp_path) == sorted([*others, "000000000003-000000000001"])


def test_a_checkpoint_that_is_removed_does_not_count(tmp_path, monkeypatch):
    with RunDirectory(tmp_path, resume=False) as folder:
        save(folder, 1, keep=1)
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if killed at its start
        save(folder, 2, keep=1)
        assert [path.name for path in folder._complete()] == ["000000000002-000000000001"]
        monkeypatch.undo()
    with RunDirectory(tmp_path, resume=True):
        assert checkpoints(tmp_path) == ["000000000002-000000000001"]


def test_a_run_of_another_process_is_seen_after_the_lock(tmp_path, monkeypatch):
    def lock(*args):
        """Locks after another process has trained."""
        monkeypatch.undo()
        checkpoint = tmp_path / "checkpoints" / "000000000001-000000000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "run.json").write_text(json.dumps({}))
        fcntl.flock(*args)

    monkeypatch.setattr(fcntl, "flock", lock)
    with (
        pytest.raises(InvalidArgumentError, match="has the checkpoints of a run"),
        RunDirectory(tmp_path, resume=False),
    ):
        pass
    with RunDirectory(tmp_path, resume=True):
        pass


def test_one_process_trains_in_a_directory(tmp_path):
    message = f"a run trains in {tmp_path}; wait until it ends, or choose another directory$"
    with (
        RunDirectory(tmp_path, resume=False),
        pytest.raises(StorageError, match=message),
        RunDirectory(tmp_path, resume=False),
    ):
        pass


@needs_fork
@pytest.mark.timeout(180)
def test_a_forked_child_neither_ends_nor_keeps_a_run(tmp_path):
    code = f"""
{PROGRAM}
from pathlib import Path
from engram.agents.ftw.run_directory import RunDirectory

def locked():
    try:
        RunDirectory(Path({str(tmp_path)!r}), resume=False).__enter__()
    except engram.errors.StorageError:
        return True

with RunDirectory(Path({str(tmp_path)!r}), resume=False) as folder:
    folder.replay.mkdir()
    in_child(lambda: (folder.__exit__(), os._exit(0)))  # without the exit handlers of JAX
    assert folder.replay.exists() and locked()
    read, write = os.pipe()
    child = fork(lambda: (os.close(write), os.read(read, 1), os._exit(0)))
assert not folder.replay.exists() and not locked()  # the child still has the file open
os.close(write)
assert os.waitpid(child, 0)[1] == 0
"""
    run_python(code)


def test_a_check_for_files_in_use_does_not_stop_a_run(tmp_path, monkeypatch):
    """It locks `engram.lock` for a moment."""

    def lock(*_):
        monkeypatch.undo()
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", lock)
    with RunDirectory(tmp_path, resume=False):
        pass


def test_a_checkpoint_that_cannot_be_written_is_removed(tmp_path):
    class Full:
        def save(self, target):
            target.mkdir()
            raise OSError(28, "No space left on device", str(target))

    with RunDirectory(tmp_path, resume=False) as folder:
        with pytest.raises(OSError, match="No space left"):
            save(folder, 1, tables=Full())
        assert checkpoints(tmp_path) == []
        save(folder, 1)
        assert folder.newest().name == "000000000001-000000000001"


def test_arrays_that_cannot_be_written_are_an_error(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    arrays = {"x": np.random.default_rng(0).random(1_000_000)}
    checkpoint = Checkpoint(arrays, {"frames": 1, "learner_steps": 1, "seconds": 0.5}, {})
    with RunDirectory(tmp_path, resume=False) as folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        try:
            with pytest.raises(StorageError, match=r"^the checkpoint cannot be written: .* File too large"):
                folder.save(checkpoint, Tables(), [], keep=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoints(tmp_path) == []


# Logs


METRICS = Metrics(Losses(*map(float, range(len(Losses._fields)))), 0.5)


def events(directory):
    """Returns wall time, step and values of the events with values that TensorBoard shows."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: PLC0415, an extra

    shown = []
    for file in sorted((directory / "tensorboard").iterdir()):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == SessionLog.START:
                shown = [each for each in shown if each[1] < event.step]
            if event.summary.value:
                shown.append(
                    (event.wall_time, event.step, {each.tag: each.simple_value for each in event.summary.value})
                )
    return shown


def test_a_full_disk_is_an_error_of_the_logs(tmp_path, monkeypatch):
    from tensorboardX import record_writer  # noqa: PLC0415, an extra

    monkeypatch.setattr(record_writer, "open_file", lambda _: Path("/dev/full").open("wb"))  # noqa: SIM115, closed by the writer
    logs = RunLogs(tmp_path, 1)
    logs.start()

    def write():
        for step in range(1, 1000):
            logs.add([], [METRICS], frames=step, steps=step, seconds=1.0)

    with pytest.raises(OSError, match="No space left"):
        write()


def test_tensorboard_shows_the_rows_of_the_logs_after_a_resume(tmp_path):
    directory, checkpoint = tmp_path / "run", tmp_path / "checkpoint"
    directory.mkdir()
    checkpoint.mkdir()
    with RunLogs(directory, 1) as logs:
        logs.start()
        logs.add([0.25], [METRICS], frames=10, steps=1, seconds=1.0)
        logs.add_evaluation([1.0, 0.0], frames=10, steps=1, seconds=2.0)
        for file in logs.files:
            shutil.copyfile(file, checkpoint / file.name)
        logs.add([], [METRICS], frames=10, steps=2, seconds=3.0)  # removed, although of the same frame
        logs.add_evaluation([1.0], frames=20, steps=2, seconds=4.0)
    assert len(events(directory)) == 4
    (old,) = (directory / "tensorboard").iterdir()
    old.rename(old.with_name("events.out.tfevents.0000000000.old"))
    with RunLogs(directory, 1) as logs:
        logs.resume(checkpoint, {}, 2.0)
        assert logs.last_evaluation() == (10, 1)
        logs.add([], [METRICS], frames=30, steps=2, seconds=9.0)
    assert len(list((directory / "tensorboard").iterdir())) == 1
    shown = events(directory)
    assert [step for _, step, _ in shown] == [10, 10, 30]
    assert shown[0][2]["train/mean_return"] == 0.25
    assert shown[0][2]["train/learner_steps"] == 1
    assert shown[1][2]["evaluation/success"] == 0.5
    assert shown[2][2]["train/learner_steps"] == 2
    assert "train/mean_return" not in shown[2][2]
    times = np.array([time for time, _, _ in shown])
    np.testing.assert_allclose(np.diff(times), [1.0, 7.0], atol=1e-3)


def test_a_run_without_evaluations_has_no_last_one(tmp_path):
    with RunLogs(tmp_path, 1) as logs:
        logs.start()
        assert logs.last_evaluation() == (0, 0)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_logs_whose_names_are_links(tmp_path, link):
    """Such as those to a file of a store that is open: that stays as it is."""
    mine = tmp_path / "mine"
    mine.write_text("of others")
    with RunDirectory(tmp_path / "run", resume=False) as folder:
        for resume in (False, True):
            for name in ("train.csv", "evaluation.csv"):
                (tmp_path / "run" / name).unlink(missing_ok=True)
                link(mine, tmp_path / "run" / name)
            with RunLogs(folder.path, 1) as logs:
                if resume:
                    logs.resume(folder.newest(), {}, 1.0)
                else:
                    logs.start()
                    checkpoint = Checkpoint({"x": np.arange(3)}, {"frames": 1, "learner_steps": 1}, {})
                    folder.save(checkpoint, Tables(), logs.files, keep=1)
                assert logs.last_evaluation() == (0, 0)
            assert mine.read_text() == "of others"


@pytest.mark.parametrize("name", ["train.csv", "evaluation.csv", "curves.png", "result.json", "tensorboard/events"])
def test_a_run_does_not_overwrite_a_file_that_is_in_use(tmp_path, name):
    with RunDirectory(tmp_path, resume=False):
        pass
    (tmp_path / name).parent.mkdir(exist_ok=True)
    with mapped(tmp_path / name) as buffer:
        with (
            pytest.raises(StorageError, match=rf"{name} is in use by this process"),
            RunDirectory(tmp_path, resume=False),
        ):
            pass
        buffer.add({"x": 1})
    with mapped(tmp_path / name) as buffer:
        assert buffer.num_items == 3


def test_files_of_a_run_that_trains_are_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "cannot be written: a run trains in "
    with RunDirectory(tmp_path / "run", resume=False):
        (tmp_path / "run" / "train.csv").touch()
        for given in ("run/train.csv", tmp_path / "run" / "checkpoints" / "mine", "run/engram.lock"):
            with pytest.raises(StorageError, match=text):
                mapped(tmp_path / "buffer").save(given)
        with pytest.raises(StorageError, match=text):
            mapped(tmp_path / "run" / "checkpoints" / "mine")
        with (
            pytest.raises(StorageError, match=text),
            RunDirectory(tmp_path / "run" / "checkpoints" / "mine" / "run", resume=False),
        ):
            pass
        assert checkpoints(tmp_path / "run") == []
        mapped(tmp_path / "run" / "mine").close()
    mapped(tmp_path / "run" / "checkpoints" / "mine").close()


def test_a_checkpoint_whose_tables_are_open_is_kept(tmp_path):
    class StoreTables:
        def save(self, target):
            Store.open(target, [Table("t")]).close()

    with RunDirectory(tmp_path, resume=False) as folder:
        save(folder, 1, keep=1, tables=StoreTables())
        with Store.open(folder.newest() / "replay") as store:
            save(folder, 2, keep=1)
            assert checkpoints(tmp_path) == [f"00000000000{number}-000000000001" for number in (1, 2)]
            store.insert({"x": 1}, {"t": 1.0})
        save(folder, 3, keep=1)
    assert checkpoints(tmp_path) == ["000000000003-000000000001"]
