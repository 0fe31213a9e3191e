"""Runs in a directory: logs, checkpoints, and their continuation."""

import csv
import dataclasses
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.ftw_runs import SYNC, tiny
from helpers.support import wait_until
from jax.experimental.compilation_cache import compilation_cache

from engram import Store
from engram.agents.ftw import run_training as module
from engram.agents.ftw.actor import Actors
from engram.agents.ftw.actor_thread import ActorThread
from engram.agents.ftw.config import RunConfig
from engram.agents.ftw.run_directory import Checkpoint, RunDirectory, load
from engram.agents.ftw.run_logs import read_log
from engram.agents.ftw.run_training import get_state, run_training, set_state
from engram.agents.ftw.training import start
from engram.errors import InvalidArgumentError, StorageError

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("quick_compilation"), pytest.mark.timeout(600)]


def newest(directory):
    return RunDirectory(directory, resume=True).newest()


def frames_of(checkpoint):
    return int(checkpoint.name.split("-")[0])


def rows(directory, name):
    """Returns the rows of a log without the seconds, which differ from run to run."""
    with (directory / name).open(newline="") as file:
        return [row[:-1] for row in csv.reader(file)]


def tables(directory):
    """Returns the items of the newest checkpoint's tables, in order."""
    with Store([]) as store:
        store.restore(newest(directory) / "replay")
        return {
            name: [jax.tree.leaves(batch.data) for batch in store.scan(name, batch_size=1)] for name in store.info()
        }


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_same_run(directory, result, expected_directory, expected):
    assert_same(result.params, expected.params)
    assert result.evaluation == expected.evaluation
    for name in ("train.csv", "evaluation.csv"):
        assert rows(directory, name) == rows(expected_directory, name)
    # All that later frames depend on: environments, random keys, steps of incomplete items, tables.
    assert newest(directory).name == newest(expected_directory).name
    assert_same(load(newest(directory)).state, load(newest(expected_directory)).state)
    assert_same(tables(directory), tables(expected_directory))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The environment variables with which another process uses what this one has compiled."""
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
    }
    before = {name.lower(): getattr(jax.config, name.lower()) for name in variables}
    for name, value in variables.items():
        jax.config.update(name.lower(), value)
    compilation_cache.reset_cache()
    yield {name: str(value) for name, value in variables.items()}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compiled):  # noqa: ARG001, before anything is compiled
    """The directory, the result and the reports of a run of 2000 frames."""
    directory = tmp_path_factory.mktemp("runs") / "uninterrupted"
    reports = []
    return directory, run_training(tiny(), SYNC, directory, report=reports.append), reports


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(uninterrupted, tmp_path):
    # In the middle of items, episodes and a row of the log.
    stop = next(each.frames for each in uninterrupted[2] if each.frames > 1000 and each.learner_steps % 3 == 2)
    first = run_training(tiny(stop), SYNC, tmp_path)
    assert first.frames == stop
    state = load(newest(tmp_path)).state
    rows_since_boundary = (state["actors"]["recorder"]["rows"] - 1) % 9
    assert ((rows_since_boundary > 0) & (state["actors"]["timestep"]["step_type"] == 1)).any()
    assert len(state["logs"]["metrics"]) == 2
    result = run_training(tiny(), SYNC, tmp_path, resume=True)
    assert_same_run(tmp_path, result, *uninterrupted[:2])


KILLED = """
import dataclasses, os, signal, sys, jax
sys.path[:0] = {paths!r}
jax.config.update("jax_disable_most_optimizations", True)
from helpers.ftw_runs import SYNC, tiny
from engram.agents.ftw import replay, run_training
saved, number = replay.Replay.save, 0
def save(self, target):
    global number
    number += 1
    saved(self, target)
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
replay.Replay.save = save
from pathlib import Path
run_training.run_training(tiny(), dataclasses.replace(SYNC, checkpoint_period=300), Path({directory!r}))
"""


@pytest.mark.crash
def test_a_killed_run_is_resumed_from_its_last_complete_checkpoint(uninterrupted, compiled, tmp_path):
    script = KILLED.format(paths=[str(Path(__file__).parents[2])], directory=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", script], check=False, env={**os.environ, **compiled})
    assert killed.returncode == -signal.SIGKILL
    checkpoints = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert len([name for name in checkpoints if name.startswith("unfinished-0")]) == 1
    assert 600 <= frames_of(newest(tmp_path)) < 700
    assert (tmp_path / "checkpoints" / "unfinished-tables").exists()
    run_config = dataclasses.replace(SYNC, checkpoint_period=700)  # which may change
    result = run_training(tiny(), run_config, tmp_path, resume=True)
    assert_same_run(tmp_path, result, *uninterrupted[:2])
    assert not list((tmp_path / "checkpoints").glob("unfinished-*"))


@pytest.mark.usefixtures("uninterrupted")  # so that nothing is compiled here
def test_hyperparameters_that_were_changed_are_saved(tmp_path):
    runs = [start(tiny()) for _ in range(2)]
    changed = {"learning_rate": 0.3, "slow_core_period": 7, "internal_rewards": [2], "learning_rate_decay_steps": 9}
    runs[0].learner.hypers = runs[0].learner.hypers.replace(changed)
    with RunDirectory(tmp_path, resume=False) as folder:
        counts = {"frames": 0, "learner_steps": 0}
        with start(tiny(), replay_path=folder.replay).replay as replay:
            folder.save(Checkpoint(get_state(runs[0]), counts, {}), replay, [], keep=1)
    set_state(runs[1], load(newest(tmp_path)).state)
    for before, after in zip(*(run.learner.hypers for run in runs), strict=True):
        assert type(before) is type(after)
        assert before == after
    for run in runs:
        run.actors.close()
        run.replay.close()


def test_a_finished_run_that_is_resumed_evaluates_without_logging_it_again(uninterrupted, tmp_path):
    directory = shutil.copytree(uninterrupted[0], tmp_path / "run")
    result = run_training(tiny(), SYNC, directory, resume=True)
    assert_same_run(directory, result, *uninterrupted[:2])


def interrupt_at_call(number):
    """Returns a function whose call with this number, from 1, is interrupted."""
    calls = []

    def check():
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt

    return check


def test_a_run_that_is_interrupted_in_an_evaluation_repeats_it(uninterrupted, tmp_path):
    first = run_training(tiny(), SYNC, tmp_path, check_interrupt=interrupt_at_call(4))  # of two per evaluation
    assert first.interrupted
    assert 1000 <= frames_of(newest(tmp_path)) == first.frames < 1004
    assert len(read_log(tmp_path / "evaluation.csv")["frames"]) == 1
    again = run_training(tiny(), SYNC, tmp_path, resume=True, check_interrupt=interrupt_at_call(1))
    assert again.interrupted
    assert again.frames == first.frames
    result = run_training(tiny(), SYNC, tmp_path, resume=True)
    assert_same_run(tmp_path, result, *uninterrupted[:2])


@pytest.mark.usefixtures("uninterrupted")
def test_the_evaluation_after_training_can_be_interrupted(tmp_path):
    run_config = dataclasses.replace(SYNC, evaluation_period=0)
    result = run_training(tiny(200), run_config, tmp_path, check_interrupt=interrupt_at_call(2))
    assert (result.interrupted, result.evaluation, result.frames) == (True, [], 200)
    assert frames_of(newest(tmp_path)) == 200
    assert len(read_log(tmp_path / "evaluation.csv")["frames"]) == 0
    result = run_training(tiny(200), run_config, tmp_path, resume=True)
    assert not result.interrupted
    assert len(result.evaluation) == 6
    assert read_log(tmp_path / "evaluation.csv")["frames"].tolist() == [200]


@pytest.mark.usefixtures("uninterrupted")
def test_an_interrupted_run_saves_a_checkpoint(tmp_path):
    def interrupt(progress):
        if progress.frames >= 150:
            raise KeyboardInterrupt

    result = run_training(tiny(), SYNC, tmp_path, report=interrupt)
    assert result.interrupted
    assert result.evaluation == []
    assert 150 <= frames_of(newest(tmp_path)) == result.frames < 250


def test_logs_have_the_means_of_losses_and_returns(uninterrupted):
    directory, result, reports = uninterrupted
    log = read_log(directory / "train.csv")
    assert log["learner_steps"].tolist() == list(range(3, result.learner_steps + 1, 3))
    each = [[*report.metrics.losses, report.metrics.gradient_norm] for report in reports]
    expected = np.array(each[: 3 * len(log["loss"])], float).reshape(-1, 3, 9).mean(1)
    np.testing.assert_allclose(log["critic_loss"], expected[:, 2], rtol=1e-6)
    np.testing.assert_allclose(log["gradient_norm"], expected[:, -1], rtol=1e-6)
    assert (np.diff(log["frames"]) >= 0).all()
    returns = [each for report in reports for each in report.returns]
    assert log["episodes"].sum() <= len(returns)
    total = np.nansum(log["episodes"] * log["mean_return"])
    assert total == pytest.approx(sum(returns[: int(log["episodes"].sum())]))

    evaluation = read_log(directory / "evaluation.csv")
    assert (evaluation["frames"] // 500).tolist() == [1, 2, 3, 4]
    assert evaluation["mean_return"][-1] == evaluation["success"][-1] == np.mean(result.evaluation)
    assert (evaluation["episodes"] == 6).all()


def test_tensorboard_has_the_values_of_the_logs(uninterrupted):
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415, an extra

    directory = uninterrupted[0]
    (file,) = (directory / "tensorboard").iterdir()
    content, scalars = file.read_bytes(), {}
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    log = read_log(directory / "train.csv")
    steps, values = zip(*scalars["train/loss"], strict=True)
    assert list(steps) == log["frames"].tolist()
    np.testing.assert_allclose(values, log["loss"], rtol=1e-6)
    assert len(scalars["evaluation/success"]) == 4


@pytest.mark.usefixtures("uninterrupted")  # so that nothing is compiled here
def test_old_checkpoints_are_removed(tmp_path):
    run_config = dataclasses.replace(SYNC, checkpoint_period=100, keep_checkpoints=3)
    run_training(tiny(500), run_config, tmp_path)
    frames = sorted(frames_of(path) for path in (tmp_path / "checkpoints").iterdir())
    assert [each // 100 for each in frames] == [3, 4, 5]


def test_a_run_is_resumed_with_its_own_configuration(uninterrupted, tmp_path):
    directory = shutil.copytree(uninterrupted[0], tmp_path / "run")
    message = (
        "a run can be resumed only with its own configuration: `seed` is 1, but 0 in the checkpoint;"
        " `network.torso_size` is 9, but 8 in the checkpoint; `hypers.learning_rate` is 0.5, but 0.01 in the"
        " checkpoint; `run.log_period` is 4, but 3 in the checkpoint$"
    )
    changed = tiny(
        seed=1,
        network=dataclasses.replace(tiny().network, torso_size=9),
        hypers=tiny().hypers.replace({"learning_rate": 0.5}),
    )
    with pytest.raises(InvalidArgumentError, match=message):
        run_training(changed, dataclasses.replace(SYNC, log_period=4), directory, resume=True)


def test_a_directory_with_a_run_is_not_overwritten_and_one_without_cannot_be_resumed(uninterrupted, tmp_path):
    with pytest.raises(InvalidArgumentError, match="has the checkpoints of a run; resume it, or choose another dir"):
        run_training(tiny(), SYNC, uninterrupted[0])
    unfinished = tmp_path / "checkpoints" / "unfinished-000000001000"
    unfinished.mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match=f"no checkpoint to resume from in {tmp_path}$"):
        run_training(tiny(), SYNC, tmp_path, resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match="the directory of a run must not be a file; got "):
        run_training(tiny(), SYNC, tmp_path / "file")


def test_one_process_trains_in_a_directory(tmp_path):
    with (tmp_path / "engram.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            StorageError, match=f"a run trains in {tmp_path}; wait until it ends, or choose another directory$"
        ):
            run_training(tiny(), SYNC, tmp_path)


# Actors in a thread


ASYNC = dataclasses.replace(SYNC, sync=False, max_policy_lag=2)


@pytest.mark.usefixtures("uninterrupted")  # so that nothing is compiled here
def test_a_run_with_actors_in_a_thread_is_resumed(tmp_path):
    first = run_training(tiny(600), dataclasses.replace(ASYNC, checkpoint_period=200), tmp_path)
    before = load(newest(tmp_path))
    assert (before.counts["frames"], before.counts["learner_steps"]) == (first.frames, first.learner_steps)
    evaluated = read_log(tmp_path / "evaluation.csv")
    assert (evaluated["frames"][-1], evaluated["learner_steps"][-1]) == (first.frames, first.learner_steps)
    assert 600 <= first.frames < 604
    result = run_training(tiny(1200), ASYNC, tmp_path, resume=True)
    assert 1200 <= result.frames < 1204
    assert result.learner_steps > first.learner_steps > 10
    after = load(newest(tmp_path))
    assert_same(after.state["hypers"], before.state["hypers"])
    assert len(result.evaluation) == 6
    assert (np.diff(read_log(tmp_path / "train.csv")["learner_steps"]) == 3).all()


@pytest.mark.usefixtures("uninterrupted")
def test_actors_wait_for_the_learner():
    run = start(tiny())
    limit = 2 * run.replay.config.batch_size
    with run.replay, run.actors, ActorThread(run, 10**9, 2) as thread:
        size = lambda: run.replay.store.info()["queue"].size  # noqa: E731
        wait_until(lambda: size() >= limit and not thread._acts)
        assert not thread._may_go_on()
        assert size() < limit + 2 * 4
        frames = run.actors.frames
        next(thread.updates())
        wait_until(lambda: run.actors.frames > frames)


@pytest.mark.usefixtures("uninterrupted")
def test_no_environment_steps_while_actors_are_paused():
    run = start(tiny())
    with run.replay, run.actors, ActorThread(run, 10**9, 2) as thread:
        wait_until(run.replay.can_sample_queue)
        with thread.paused():
            frames = run.actors.frames
            next(thread.updates())  # makes room in the queue
            for _ in range(20):
                time.sleep(0.005)
                assert run.actors.frames == frames
        wait_until(lambda: run.actors.frames > frames)


@pytest.mark.usefixtures("uninterrupted")
def test_errors_of_the_actors_thread_are_raised(monkeypatch):
    run = start(tiny())

    def step(*_):
        raise ValueError("broken environment")

    monkeypatch.setattr(run.actors, "step", step)
    with run.replay, run.actors, pytest.raises(ValueError, match="broken env"), ActorThread(run, 100, 2) as thread:
        with pytest.raises(ValueError, match="broken env"):
            list(thread.updates())
        with pytest.raises(ValueError, match="broken env"), thread.paused():
            pytest.fail("paused in the middle of a step")
        assert not thread._pauses
        with pytest.raises(ValueError, match="broken env"):
            thread.stop()
        # Leaving the block raises it, too.


@pytest.mark.usefixtures("uninterrupted")
def test_after_an_error_of_the_actors_no_checkpoint_is_saved(tmp_path, monkeypatch):
    original = Actors.step

    def step(self, *args):
        if self.frames >= 300:
            original(self, *args)
            raise ValueError("broken environment")
        return original(self, *args)

    def interrupt(_):
        wait_until(lambda: failed() or runs[0].replay.can_sample_queue())
        if failed():
            raise KeyboardInterrupt

    failed = lambda: runs[0].actors.frames > 300  # noqa: E731
    runs = capture_runs(monkeypatch)
    monkeypatch.setattr(Actors, "step", step)
    with pytest.raises(ValueError, match="broken environment"):
        run_training(tiny(), ASYNC, tmp_path, report=interrupt)
    assert newest(tmp_path) is None


def capture_runs(monkeypatch):
    """Returns a list that gets each run that starts."""
    runs = []

    def start_captured(*args, **options):
        runs.append(start(*args, **options))
        return runs[-1]

    monkeypatch.setattr(module, "start", start_captured)
    return runs


@pytest.mark.usefixtures("uninterrupted")
def test_the_last_checkpoint_has_all_that_the_actors_did(tmp_path, monkeypatch):
    original = Actors.step
    ended = []

    def step(self, *args):
        returns = [*original(self, *args), (0, 1.0)]
        ended.extend(returns)
        return returns

    def interrupt(progress):
        if progress.frames >= 400:
            raise KeyboardInterrupt

    monkeypatch.setattr(Actors, "step", step)
    runs = capture_runs(monkeypatch)
    run_config = dataclasses.replace(ASYNC, evaluation_period=0, checkpoint_period=150)
    result = run_training(tiny(), run_config, tmp_path, report=interrupt)
    checkpoint = load(newest(tmp_path))
    assert result.frames == checkpoint.counts["frames"] == runs[0].actors.frames
    logged = read_log(newest(tmp_path) / "train.csv")["episodes"].sum()
    assert logged + len(checkpoint.state["logs"].get("returns", ())) == len(ended) > 100


@pytest.mark.usefixtures("uninterrupted")
def test_frames_that_pass_until_the_actors_pause_do_not_hide_an_evaluation(tmp_path, monkeypatch):
    runs = capture_runs(monkeypatch)

    @contextmanager
    def pause(value=None):
        run = runs[0]
        end = run.actors.frames + 100
        while run.actors.frames < end:
            run.actors.step(run.learner.params, run.learner.hypers)
        yield value

    monkeypatch.setattr(module, "nullcontext", pause)
    run_config = dataclasses.replace(SYNC, evaluation_period=100, checkpoint_period=200)
    run_training(tiny(600), run_config, tmp_path)
    evaluated = read_log(tmp_path / "evaluation.csv")["frames"] // 100
    assert evaluated.tolist()[:6] == list(range(1, 7))


def test_a_queue_that_is_too_small_for_the_lag_is_rejected(tmp_path):
    message = "`max_queue_size` must be at least 47, for `batch_size` 4, `num_envs` 4 and `max_policy_lag` 10; got 40"
    with pytest.raises(InvalidArgumentError, match=message):
        run_training(tiny(), dataclasses.replace(ASYNC, max_policy_lag=10), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_period": 0}, "`log_period` must be at least 1; got 0"),
        ({"max_policy_lag": 0}, "`max_policy_lag` must be at least 1; got 0"),
        ({"keep_checkpoints": 0}, "`keep_checkpoints` must be at least 1; got 0"),
        ({"checkpoint_period": -1}, "`checkpoint_period` must be at least 0; got -1"),
        ({"evaluation_period": -1}, "`evaluation_period` must be at least 0; got -1"),
    ],
)
def test_counts_that_cannot_work_are_rejected(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        RunConfig(**options)
