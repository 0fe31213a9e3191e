"""Training with logs, evaluations and checkpoints in a directory, and its continuation.

With `RunConfig.sync`, a run that is resumed equals one that was never interrupted, bit for bit on a CPU: a checkpoint
has the parameters, the optimizer, all random keys, the environments, the steps of incomplete items, and the tables
with their random state.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.actor_thread import ActorThread
from engram.agents.ftw.config import FtwConfig, RunConfig
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.run_directory import Checkpoint, RunDirectory, load
from engram.agents.ftw.run_logs import RunLogs
from engram.agents.ftw.training import Progress, Result, Run, Update, evaluate_run, lock_step, start
from engram.errors import InvalidArgumentError

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
) -> Result:
    """Trains until there are `config.max_frames` frames, then saves a checkpoint and evaluates.

    Args:
        config: What is trained.
        run_config: How.
        directory: Gets logs and checkpoints; see `run_directory` and `run_logs`.
        resume: Continue from the newest checkpoint in the directory, which must not have one otherwise.
        report: Called after each learner step. If it raises KeyboardInterrupt, a checkpoint is saved and training
            ends without an evaluation. Default: None, no reports.

    Raises:
        InvalidArgumentError: The directory has a run and is not to be resumed, or it has none and is; the
            configuration is not that of the run to resume; or the queue is too small for `run_config.max_policy_lag`.
        StorageError: Another process trains in the directory.
    """
    _check_queue(config, run_config)
    with RunDirectory(directory, resume=resume) as folder, RunLogs(directory, run_config.log_period) as logs:
        return _Training(config, run_config, folder, logs).train(report)


class _Training:
    """A run with its logs and checkpoints."""

    def __init__(self, config: FtwConfig, run_config: RunConfig, folder: RunDirectory, logs: RunLogs) -> None:
        """Begins or resumes it."""
        self._config, self._run_config, self._folder, self._logs = config, run_config, folder, logs
        self._learner_steps = 0
        self._started = time.perf_counter()
        self._described = describe_config(config, run_config)
        newest = folder.newest()
        if newest is None:
            self._run = start(config, replay_path=folder.replay)
            logs.start()
            self._saved = self._evaluated = (-1, -1)
        else:
            checkpoint = load(newest)
            check_same_config(checkpoint.config, self._described)
            self._run = start(config, replay_path=folder.replay, saved_replay=newest / "replay")
            set_state(self._run, checkpoint.state)
            self._learner_steps = checkpoint.counts["learner_steps"]
            self._started -= checkpoint.counts["seconds"]
            self._saved, self._evaluated = self._position, (-1, -1)
            logs.resume(newest, self._run.actors.frames, checkpoint.state.get("logs", {}))

    def train(self, report: Callable[[Progress], None] | None) -> Result:
        run, config = self._run, self._config
        returns: list[float] = []
        interrupted = False
        evaluation: list[float] = []
        with ExitStack() as stack:
            stack.enter_context(run.replay)
            stack.enter_context(run.actors)
            updates, paused = self._driver(stack)
            frames = run.actors.frames
            for update in updates:
                self._add(update)
                returns += update.returns
                before, frames = frames, run.actors.frames
                if _passes(before, frames, self._run_config.evaluation_period):
                    evaluation = self._evaluate()
                if _passes(before, frames, self._run_config.checkpoint_period):
                    with paused():
                        frames = run.actors.frames
                        self._save()
                if report is not None and update.metrics:
                    progress = Progress(
                        frames=frames,
                        learner_steps=self._learner_steps,
                        returns=returns,
                        metrics=update.metrics[-1],
                        seconds=self._seconds(),
                    )
                    returns = []
                    try:
                        report(progress)
                    except KeyboardInterrupt:
                        interrupted = True
                        break
            with paused():
                self._save()
            params = jax.tree.map(np.asarray, run.learner.params)
            seconds = self._seconds()
            if not interrupted and self._evaluated != self._position:
                evaluation = self._evaluate()
        return Result(
            config=config,
            frames=run.actors.frames,
            learner_steps=self._learner_steps,
            evaluation=[] if interrupted else evaluation,
            seconds=seconds,
            params=params,
            interrupted=interrupted,
        )

    def _driver(self, stack: ExitStack) -> tuple[Iterator[Update], Callable[[], AbstractContextManager[None]]]:
        """Returns the updates, and what pauses the actors."""
        if self._run_config.sync:
            return lock_step(self._run, self._config.max_frames), nullcontext
        thread = ActorThread(self._run, self._config.max_frames, self._run_config.max_policy_lag)
        stack.enter_context(thread)
        return thread.updates(), thread.paused

    def _add(self, update: Update) -> None:
        self._learner_steps += len(update.metrics)
        frames, steps = self._run.actors.frames, self._learner_steps
        self._logs.add(update.returns, update.metrics, frames=frames, steps=steps, seconds=self._seconds())

    def _evaluate(self) -> list[float]:
        returns = evaluate_run(self._config, self._run)
        frames, steps = self._evaluated = self._position
        self._logs.add_evaluation(returns, frames=frames, steps=steps, seconds=self._seconds())
        return returns

    def _save(self) -> None:
        if self._position == self._saved:
            return
        state = get_state(self._run)
        logs = self._logs.get_state()
        frames, steps = self._saved = self._position
        counts = {"frames": frames, "learner_steps": steps, "seconds": self._seconds()}
        checkpoint = Checkpoint({**state, "logs": logs} if logs else state, counts, self._described)
        keep = self._run_config.keep_checkpoints
        self._folder.save(checkpoint, self._run.replay, self._logs.files, keep=keep)

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
        raise InvalidArgumentError(f"a run is resumed with the configuration that it has: {differences}")


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


def _passes(before: int, after: int, period: int) -> bool:
    """Returns whether a multiple of the period is after `before` and not after `after`; of the period 0, never."""
    return period > 0 and after // period > before // period


def _leaves(tree: Any) -> list[tuple[str, Any]]:  # noqa: ANN401, a pytree
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named_leaves(tree: Any) -> dict[str, Any]:  # noqa: ANN401, a pytree
    return {name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for name, leaf in _leaves(tree)}


def _is_key(leaf: Any) -> bool:  # noqa: ANN401, an array
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
