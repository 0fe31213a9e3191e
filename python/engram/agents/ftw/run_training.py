"""Training with logs, evaluations and checkpoints in a directory, and its continuation.

With `RunConfig.sync`, a run that is resumed equals one that was never interrupted, bit for bit on the same CPU: a
checkpoint has the parameters, the optimizer, all random keys, the environments, the steps of incomplete items, and the
tables with their random state.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.actor_thread import ActorThread
from engram.agents.ftw.config import FtwConfig, RunConfig
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.run_directory import Checkpoint, RunDirectory, load
from engram.agents.ftw.run_logs import RunLogs
from engram.agents.ftw.training import Progress, Result, Run, Update, evaluate_run, lock_step, start
from engram.errors import InvalidArgumentError
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp

_MAY_CHANGE = ("max_frames", "run.checkpoint_period", "run.keep_checkpoints")
"""What may differ when a run is resumed: the values of a run's past do not depend on it."""


def run_training(
    config: FtwConfig,
    run_config: RunConfig,
    directory: Path,
    *,
    resume: bool = False,
    report: Callable[[Progress], None] | None = None,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Result:
    """Trains until there are `config.max_frames` frames, then saves a checkpoint and evaluates.

    Args:
        config: What is trained.
        run_config: How.
        directory: Gets logs and checkpoints; see `run_directory` and `run_logs`.
        resume: Continue from the newest checkpoint in the directory, which must not have one otherwise.
        report: Called after each learner step. If it raises KeyboardInterrupt, a checkpoint is saved and training
            ends without an evaluation. Default: None, no reports.
        check_interrupt: Called between the rounds of an evaluation. If it raises KeyboardInterrupt, a checkpoint is
            saved and training ends without this evaluation, which a resumed run does first. Default: nothing.

    Raises:
        InvalidArgumentError: The directory has a run and is not to be resumed, or it has none and is; it is no run's,
            and has files that would be overwritten; the configuration is not that of the run to resume; or the queue
            is too small for `run_config.max_policy_lag`.
        StorageError: Another process trains in the directory, or a checkpoint cannot be written.
        OSError: A file or directory cannot be written.
    """
    _check_queue(config, run_config)
    with RunDirectory(directory, resume=resume) as folder, RunLogs(directory, run_config.log_period) as logs:
        return _Training(config, run_config, folder, logs, check_interrupt).train(report)


class _Driver(NamedTuple):
    """How actors and learner take turns.

    Attributes:
        updates: The updates.
        paused: Lets no environment step within a block; the block gets the returns since the last update.
        stop: Ends the actors; returns the returns since the last update.
    """

    updates: Iterator[Update]
    paused: Callable[[], AbstractContextManager[list[float]]]
    stop: Callable[[], list[float]]


class _InterruptedError(Exception):
    """A function of the caller raised KeyboardInterrupt. Elsewhere, it is raised in the middle of something."""


class _Training:
    """A run with its logs and checkpoints."""

    def __init__(
        self,
        config: FtwConfig,
        run_config: RunConfig,
        folder: RunDirectory,
        logs: RunLogs,
        check_interrupt: Callable[[], None],
    ) -> None:
        """Begins or resumes it."""
        self._config, self._run_config, self._folder, self._logs = config, run_config, folder, logs
        self._check_interrupt = check_interrupt
        self._learner_steps = 0
        self._started = time.perf_counter()
        self._described = describe_config(config, run_config)
        self._evaluation: list[float] = []
        newest = folder.newest()
        if newest is None:
            self._run = start(config, replay_path=folder.replay)
            logs.start()
            self._saved = self._evaluated = (0, 0)
        else:
            checkpoint = load(newest)
            check_same_config(checkpoint.config, self._described)
            self._run = start(config, replay_path=folder.replay, saved_replay=newest / "replay")
            set_state(self._run, checkpoint.state)
            seconds = checkpoint.counts["seconds"]
            self._learner_steps = checkpoint.counts["learner_steps"]
            self._started -= seconds
            logs.resume(newest, checkpoint.state.get("logs", {}), seconds)
            self._saved, self._evaluated = self._position, logs.last_evaluation()

    def train(self, report: Callable[[Progress], None] | None) -> Result:
        run = self._run
        interrupted = False
        with ExitStack() as stack:
            stack.enter_context(run.replay)
            stack.enter_context(run.actors)
            driver = self._driver(stack)
            try:
                self._train(driver, report)
            except _InterruptedError:
                interrupted = True
            self._add(Update(driver.stop(), []))
            self._save()
            params = jax.tree.map(np.asarray, run.learner.params)
            seconds = self._seconds()
            if not interrupted and not (self._evaluation and self._evaluated == self._position):
                try:
                    self._evaluate()
                except _InterruptedError:
                    interrupted = True
        return Result(
            config=self._config,
            frames=run.actors.frames,
            learner_steps=self._learner_steps,
            evaluation=[] if interrupted else self._evaluation,
            seconds=seconds,
            params=params,
            interrupted=interrupted,
        )

    def _train(self, driver: _Driver, report: Callable[[Progress], None] | None) -> None:
        """Trains until there are enough frames.

        Raises:
            _InterruptedError: The caller wants to end the training.
        """
        returns: list[float] = []
        self._evaluate_if_due()  # the run was interrupted in an evaluation
        for update in driver.updates:
            self._add(update)
            returns += update.returns
            self._evaluate_if_due()
            if _passes(self._saved[0], self._run.actors.frames, self._run_config.checkpoint_period):
                with driver.paused() as ended:
                    self._add(Update(ended, []))
                    returns += ended
                    self._save()
            if report is not None and update.metrics:
                progress = Progress(
                    frames=self._run.actors.frames,
                    learner_steps=self._learner_steps,
                    returns=returns,
                    metrics=update.metrics[-1],
                    seconds=self._seconds(),
                )
                returns = []
                _call(report, progress)

    def _driver(self, stack: ExitStack) -> _Driver:
        if self._run_config.sync:
            no_returns: list[float] = []
            return _Driver(lock_step(self._run, self._config.max_frames), lambda: nullcontext(no_returns), list)
        thread = ActorThread(self._run, self._config.max_frames, self._run_config.max_policy_lag)
        stack.enter_context(thread)
        return _Driver(thread.updates(), thread.paused, thread.stop)

    def _add(self, update: Update) -> None:
        self._learner_steps += len(update.metrics)
        frames, steps = self._run.actors.frames, self._learner_steps
        self._logs.add(update.returns, update.metrics, frames=frames, steps=steps, seconds=self._seconds())

    def _evaluate_if_due(self) -> None:
        if _passes(self._evaluated[0], self._run.actors.frames, self._run_config.evaluation_period):
            self._evaluate()

    def _evaluate(self) -> None:
        """Evaluates; logs it, unless the logs have it.

        Raises:
            _InterruptedError: The caller wants to end the training.
        """
        frames, steps = position = self._position  # without `sync`, actors go on
        self._evaluation = evaluate_run(self._config, self._run, lambda: _call(self._check_interrupt))
        if self._evaluated != position:
            self._evaluated = position
            self._logs.add_evaluation(self._evaluation, frames=frames, steps=steps, seconds=self._seconds())

    def _save(self) -> None:
        if self._position == self._saved:
            return
        state = get_state(self._run)
        logs = self._logs.get_state()
        frames, steps = position = self._position
        counts = {"frames": frames, "learner_steps": steps, "seconds": self._seconds()}
        checkpoint = Checkpoint({**state, "logs": logs} if logs else state, counts, self._described)
        keep = self._run_config.keep_checkpoints
        self._folder.save(checkpoint, self._run.replay, self._logs.files, keep=keep)
        self._saved = position

    @property
    def _position(self) -> tuple[int, int]:
        """Frames and learner steps so far."""
        return self._run.actors.frames, self._learner_steps

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def get_state(run: Run) -> dict[str, Any]:
    """Returns all of a run but its tables, as nested dictionaries of arrays."""
    hypers = {name: np.asarray(value) for name, value in run.learner.hypers._asdict().items()}
    return {"learner": _named_leaves(run.learner.state), "actors": run.actors.get_state(), "hypers": hypers}


def set_state(run: Run, state: Mapping[str, Any]) -> None:
    """Continues from a state that `get_state` returned, of a run with the same configuration."""
    learner = run.learner
    arrays = state["learner"]
    leaves = [
        jax.random.wrap_key_data(jnp.array(arrays[name])) if _is_key(leaf) else jnp.array(arrays[name])
        for name, leaf in _leaves(learner.state)
    ]
    learner.state = jax.tree.unflatten(jax.tree.structure(learner.state), leaves)
    learner.hypers = Hypers.create(**{name: np.asarray(value).tolist() for name, value in state["hypers"].items()})
    run.actors.set_state(state["actors"])


def describe_config(config: FtwConfig, run_config: RunConfig) -> dict[str, Any]:
    """Returns all values of a configuration by name, such as "network.core.core_type", as JSON values."""
    values = dataclasses.asdict(config)
    hypers = values.pop("hypers")._asdict()
    nested = {**values, "hypers": hypers, "run": dataclasses.asdict(run_config)}
    described: dict[str, Any] = json.loads(json.dumps(_flat(nested), default=lambda array: array.tolist()))
    return described


def check_same_config(saved: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Checks that a run can continue with a configuration, as `describe_config` returns it.

    Raises:
        InvalidArgumentError: Something differs that may not; the text names it.
    """
    names = [name for name in {**saved, **config} if name not in _MAY_CHANGE and saved.get(name) != config.get(name)]
    if names:
        differences = "; ".join(
            f"`{name}` is {_text(config, name)}, but {_text(saved, name)} in the checkpoint" for name in names
        )
        raise InvalidArgumentError(f"a run can be resumed only with its own configuration: {differences}")


def _text(config: Mapping[str, Any], name: str) -> str:
    return json.dumps(config[name]) if name in config else "absent"


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _check_queue(config: FtwConfig, run_config: RunConfig) -> None:
    needed = run_config.max_policy_lag * config.replay.batch_size - 1 + 2 * config.num_envs
    if not run_config.sync and config.replay.max_queue_size < needed:
        raise InvalidArgumentError(
            f"`max_queue_size` must be at least {needed}, for `batch_size` {config.replay.batch_size}, `num_envs`"
            f" {config.num_envs} and `max_policy_lag` {run_config.max_policy_lag}; got {config.replay.max_queue_size}"
        )


def _call(function: Callable[..., None], *args: object) -> None:
    try:
        function(*args)
    except KeyboardInterrupt:
        raise _InterruptedError from None


def _passes(before: int, after: int, period: int) -> bool:
    """Returns whether a multiple of the period is after `before` and not after `after`; of the period 0, never."""
    return period > 0 and after // period > before // period


def _leaves(tree: Nest) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named_leaves(tree: Nest) -> dict[str, Any]:
    return {name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for name, leaf in _leaves(tree)}


def _is_key(leaf: Nest) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
