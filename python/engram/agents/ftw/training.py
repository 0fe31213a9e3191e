"""Training: the parts of a run, and how actors and learner take turns. In lock step, a seed determines a run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.actor import Actors, example_row
from engram.agents.ftw.agent_networks import make_networks
from engram.agents.ftw.config import FtwConfig
from engram.agents.ftw.environment import make_environment
from engram.agents.ftw.evaluation import evaluate
from engram.agents.ftw.learner import Learner, Metrics
from engram.agents.ftw.replay import Replay

with importing_extra("agents", "engram.agents"):
    import jax


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run, after a learner step."""

    frames: int
    """Frames so far."""
    learner_steps: int
    """Learner steps so far."""
    returns: list[float]
    """Undiscounted returns of the episodes that ended since the last report."""
    metrics: Metrics
    """Of this learner step, on the device: reading them waits for the step."""
    seconds: float
    """Seconds since the start, with compilation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run."""

    config: FtwConfig
    """Its configuration."""
    frames: int
    """Frames of training."""
    learner_steps: int
    """Learner steps."""
    evaluation: list[float]
    """Undiscounted returns of the evaluation's episodes."""
    seconds: float
    """Seconds of training, with compilation, and, of a run in a directory, with evaluations and checkpoints; without
    the evaluation after training."""
    params: Any
    """The parameters: `AgentNetworks` with NumPy arrays as leaves."""
    interrupted: bool = False
    """Whether Ctrl-C ended the training; there is no evaluation then."""


class Run(NamedTuple):
    """The parts of a run."""

    replay: Replay
    actors: Actors
    learner: Learner


class Update(NamedTuple):
    """What happened since the last update.

    Attributes:
        returns: Undiscounted returns of the episodes that ended.
        metrics: Of the learner steps, on the device.
    """

    returns: list[float]
    metrics: list[Metrics]


def start(config: FtwConfig, *, replay_path: Path | None = None, saved_replay: Path | None = None) -> Run:
    """Returns the parts of a run at its start; close its actors and its replay.

    Args:
        config: The configuration.
        replay_path: See the argument `path` of `Replay`.
        saved_replay: See the argument `saved` of `Replay`.
    """
    env_seed, store_seed = np.random.SeedSequence(config.seed).spawn(2)
    networks_key, actor_key, learner_key, _ = _keys(config)
    seeds = np.random.default_rng(env_seed).integers(2**63, size=config.num_envs).tolist()
    environment, spec = make_environment(config.environment, seeds)
    networks = make_networks(
        config.network,
        config.replay,
        observation_shape=spec.observation_shape,
        num_actions=spec.num_actions,
        key=networks_key,
    )
    learner = Learner(networks, config.hypers, learner_key)
    row = example_row(spec, networks.policy)
    replay = Replay(config.replay, row, seed=int(store_seed.generate_state(1)[0]), path=replay_path, saved=saved_replay)
    return Run(replay, Actors(environment, learner.static, replay, actor_key), learner)


def lock_step(run: Run, max_frames: int) -> Iterator[Update]:
    """Acts and learns in turn until there are `max_frames` frames; yields after each step of the actors."""
    actors, learner, replay = run.actors, run.learner, run.replay
    while actors.frames < max_frames:
        returns = [each for _, each in actors.step(learner.params, learner.hypers)]
        metrics = []
        while replay.can_sample_queue():
            metrics.append(learner.learn(replay))
        yield Update(returns, metrics)


def train(config: FtwConfig, report: Callable[[Progress], None] | None = None) -> Result:
    """Trains for `config.max_frames` frames in lock step, then evaluates. Nothing is written to disk.

    Args:
        config: The configuration.
        report: Called after each learner step. Default: None, no reports.
    """
    started = time.perf_counter()
    run = start(config)
    learner_steps = 0
    returns: list[float] = []
    with run.replay, run.actors:
        for update in lock_step(run, config.max_frames):
            returns += update.returns
            for metrics in update.metrics:
                learner_steps += 1
                if report is not None:
                    report(
                        Progress(
                            frames=run.actors.frames,
                            learner_steps=learner_steps,
                            returns=returns,
                            metrics=metrics,
                            seconds=time.perf_counter() - started,
                        )
                    )
                    returns = []
        params = jax.tree.map(np.asarray, run.learner.params)  # waits for the last step
        seconds = time.perf_counter() - started
    return Result(
        config=config,
        frames=run.actors.frames,
        learner_steps=learner_steps,
        evaluation=evaluate_run(config, run),
        seconds=seconds,
        params=params,
    )


def evaluate_run(config: FtwConfig, run: Run, check: Callable[[], None] = lambda: None) -> list[float]:
    """Returns the undiscounted returns of `config.evaluation_episodes` episodes with the current parameters.

    `check` is called between the rounds of episodes; what it raises ends the evaluation.
    """
    *_, key = _keys(config)
    return evaluate(
        run.learner.static,
        run.learner.params,
        run.learner.hypers,
        config.environment,
        num_episodes=config.evaluation_episodes,
        num_envs=config.num_envs,
        rng=np.random.default_rng(np.random.SeedSequence(config.seed).spawn(3)[2]),
        key=key,
        check=check,
    )


def _keys(config: FtwConfig) -> jax.Array:
    """Returns the keys of networks, actors, learner and evaluation."""
    return jax.random.split(jax.random.key(config.seed), 4)
