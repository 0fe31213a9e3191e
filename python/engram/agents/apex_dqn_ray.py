"""Ape-X DQN on Ray: actors with different exploration, replay prioritized and sharded, one learner. Solves CartPole.

    python examples/apex_dqn_ray.py
    python examples/apex_dqn_ray.py --shards 4 --actors 8 --kill-after 20

The replay table is divided over shards, each a Ray actor with a durable store. Each actor explores with an epsilon of
its own. The learner, in this process, samples from all shards at once, and publishes its network through Ray's object
store. With `--kill-after`, a shard is killed meanwhile: Ray starts it again, and training continues.

Horgan et al. 2018, "Distributed Prioritized Experience Replay".
"""

import argparse
import importlib
import itertools
import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import engram
from engram.agents.dqn.actor import Actor
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.tables import EPISODES, REPLAY, make_replay
from engram.errors import DeadlineExceededError

if TYPE_CHECKING:
    from engram.distributed import Cluster, Weights

CONFIG = DQNConfig(batch_size=128, learn_period=2, replay_size=50_000, actor_lead=64)
"""`learn_period`: environment steps of all actors together per learner step."""
PUBLISH_PERIOD = 20  # learner steps
REFRESH_PERIOD = 20  # steps of an actor
INFO_PERIOD = 10  # learner steps
REPORT_PERIOD = 5.0  # seconds
SAMPLE_TIMEOUT = 20.0  # seconds; a shard that is restarted is back sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class ApexResult:
    """How a run ended."""

    solved: bool
    mean_return: float | None  # of the greediest actor's last episodes; None before there are enough
    steps: int
    learner_steps: int
    seconds: float  # of training; starting Ray and the shards is not included
    longest_wait: float  # seconds of the longest learner step, such as one that waits for a shard


def epsilon_of(actor: int, actors: int) -> float:
    """Returns an actor's share of random actions, from 0.4 to 0.0007 as in the paper; the last actor's is the least."""
    return float(0.4 ** (1 + 7 * actor / max(1, actors - 1)))


def act(client: "engram.ShardedClient", index: int, *, config: DQNConfig, actors: int, weights: "Weights") -> None:
    """Acts with the newest network, and writes steps and returns, until the learner ends; the function of a worker."""
    env_seed, seed = np.random.SeedSequence(config.seed, spawn_key=(index,)).generate_state(2).tolist()
    version, params = 0, None
    epsilon = epsilon_of(index, actors)
    with Environment(config.env_id) as env, Actor(env, client, config, env_seed=env_seed, seed=seed) as actor:
        for step in itertools.count():
            while params is None or step % REFRESH_PERIOD == 0:
                version, newer = weights.get(after=version)
                params = newer or params
                if params is not None:
                    break
                time.sleep(0.1)
            episode_return = actor.step(params, epsilon)
            if episode_return is not None:
                client.insert({"return": episode_return, "actor": index}, {EPISODES: 1.0})


def make_tables(config: DQNConfig) -> list[engram.Table]:
    """Returns the replay table, whose rate limiter keeps actors and learner in step, and the queue of returns."""
    with Environment(config.env_id) as env:
        spaces = env.spaces
    ratio = config.batch_size / config.learn_period
    limiter = engram.rate_limiters.SampleToInsertRatio(
        ratio, min_size=config.min_replay_size, error_buffer=20 * config.actor_lead * ratio
    )
    return [make_replay(config, spaces, limiter), engram.Table.queue(EPISODES, max_size=10_000)]


def train(
    cluster: "Cluster",
    config: DQNConfig,
    *,
    actors: int,
    kill_after: float | None = None,
    report: Callable[[str], None] = print,
) -> ApexResult:
    """Trains until the greediest actor's last episodes reach `config.solved_return`, or for `config.max_steps`."""
    from engram import distributed  # noqa: PLC0415, an extra
    from engram.agents.dqn.learner import Learner  # noqa: PLC0415, an extra

    with Environment(config.env_id) as env:
        learner = Learner(config, env.spaces, seed=config.seed)
    weights = distributed.Weights()
    weights.publish(learner.params)
    function = partial(act, config=config, actors=actors, weights=weights)
    returns: deque[float] = deque(maxlen=config.solved_episodes)
    step, longest_wait, started = 0, 0.0, time.monotonic()
    next_report = started + REPORT_PERIOD
    solved_return = float("inf") if config.solved_return is None else config.solved_return

    def mean_return() -> float | None:
        return float(np.mean(returns)) if len(returns) == returns.maxlen else None

    with cluster.client() as client, distributed.RolloutWorkers(cluster, function, actors, num_cpus=0.5):
        while step < config.max_steps and (mean_return() or 0.0) < solved_return:
            began = time.monotonic()
            try:
                learner.learn(client, step, timeout=SAMPLE_TIMEOUT)
            except DeadlineExceededError as error:
                report(str(error))
                continue
            if learner.steps > 1:  # the first one waits for the actors, and compiles
                longest_wait = max(longest_wait, time.monotonic() - began)
            if learner.steps % PUBLISH_PERIOD == 0:
                weights.publish(learner.params)
            if learner.steps % INFO_PERIOD == 0:
                tables = client.info()
                step = tables[REPLAY].inserts
                if tables[EPISODES].size:
                    episodes = client.sample(EPISODES, tables[EPISODES].size, timeout=SAMPLE_TIMEOUT).data
                    returns += episodes["return"][episodes["actor"] == actors - 1].tolist()
            now = time.monotonic()
            if kill_after is not None and now - started > kill_after:
                report(kill_shard(cluster))
                kill_after = None
            if now > next_report:
                next_report = now + REPORT_PERIOD
                current = mean_return()
                mean_text = "-" if current is None else f"{current:.0f}"
                steps = f"{step:,} steps, {learner.steps:,} learner steps"
                report(f"{now - started:4.0f} s: {steps}, mean return {mean_text}")
    mean = mean_return()
    return ApexResult(
        solved=(mean or 0.0) >= solved_return,
        mean_return=mean,
        steps=step,
        learner_steps=learner.steps,
        seconds=time.monotonic() - started,
        longest_wait=longest_wait,
    )


def kill_shard(cluster: "Cluster") -> str:
    """Kills the process of shard 0; Ray starts it again."""
    import ray  # noqa: PLC0415, an extra

    shard = cluster.shards()[0]
    actor = ray.get_actor(cluster.actor_name(shard), namespace=cluster.namespace)
    ray.kill(actor, no_restart=False)
    return f"killed shard 0 (id {shard.shard_id}) at {shard.address}"


def run(
    config: DQNConfig = CONFIG,
    *,
    shards: int = 2,
    actors: int = 3,
    kill_after: float | None = None,
    report: Callable[[str], None] = print,
) -> ApexResult:
    """Starts shards in a temporary directory, trains, and stops them; on the running Ray cluster or a local one."""
    from engram import distributed  # noqa: PLC0415, an extra

    ray = importlib.import_module("ray")
    owns_ray = not ray.is_initialized()
    if owns_ray:
        ray.init(include_dashboard=False, num_cpus=shards + actors)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="engram-apex-", ignore_cleanup_errors=True) as path,
            distributed.start(
                make_tables(config),
                path=path,
                shards=shards,
                name=f"apex-{config.seed}",
                durability="process",
                num_cpus=0.5,
            ) as cluster,
        ):
            return train(cluster, config, actors=actors, kill_after=kill_after, report=report)
    finally:
        if owns_ray:
            ray.shutdown()


def describe(result: ApexResult) -> str:
    """Returns one line about the end of a run."""
    mean = "too few episodes" if result.mean_return is None else f"{result.mean_return:.0f}"
    return (
        f"{'solved' if result.solved else 'not solved'} in {result.seconds:.0f} s: mean return {mean}, "
        f"{result.steps:,} steps, {result.learner_steps:,} learner steps; longest wait {result.longest_wait:.1f} s"
    )


def main() -> None:
    """Trains with the options of the command line, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--steps", type=int, default=CONFIG.max_steps, help="maximum environment steps")
    parser.add_argument("--kill-after", type=float, help="seconds after which a shard is killed")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    config = replace(CONFIG, seed=options.seed, max_steps=options.steps)
    result = run(config, shards=options.shards, actors=options.actors, kill_after=options.kill_after)
    print(describe(result))


if __name__ == "__main__":
    main()
