"""Training, in one process or in several.

In one process, actor and learner alternate and share one `engram.Store`. The actor appends each step once; a pattern
creates items of n + 1 consecutive steps, which the learner samples by priority. A seed determines a run: only progress
reports depend on the clock. For several processes see `processes`.
"""

from collections.abc import Callable

import numpy as np

import engram
from engram.agents.dqn.actor import Actor, epsilon_at
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.learner import Learner
from engram.agents.dqn.processes import train_in_processes
from engram.agents.dqn.result import Progress, Result, StopReason
from engram.agents.dqn.run_history import RunHistory
from engram.agents.dqn.tables import REPLAY, make_replay

SAMPLE_TIMEOUT = 30.0
"""Seconds that the learner waits for a batch; then it raises an error that states why sampling is blocked."""


def train(
    config: DQNConfig, report: Callable[[Progress], None] | None = None, *, report_period: float = 0.25
) -> Result:
    """Trains until the environment is solved, `max_steps` are done, or Ctrl-C is pressed.

    Args:
        config: The configuration. With several processes, a script must guard its main code with
            `if __name__ == "__main__"`, as spawned actors import the script.
        report: Called between two steps, at most every `report_period` seconds. A KeyboardInterrupt that it raises ends
            the run like Ctrl-C. Default: None, no reports.
        report_period: Minimum seconds between two reports. Default: 0.25.

    Returns:
        The result, also after Ctrl-C.

    Raises:
        InvalidArgumentError: The environment does not exist or is not supported.
        ActorDiedError: The process of an actor ended before the learner.
    """
    history = RunHistory(config, report, report_period)
    return train_in_process(config, history) if config.processes == 1 else train_in_processes(config, history)


def train_in_process(config: DQNConfig, history: RunHistory) -> Result:
    """Trains in this process; acting and learning alternate."""
    # One seed for each source of randomness, all from the configuration's seed.
    seeds = np.random.SeedSequence(config.seed).generate_state(4).tolist()
    env_seed, actor_seed, learner_seed, store_seed = seeds
    stopped: StopReason = "budget"
    step = 0
    with (
        Environment(config.env_id) as env,
        engram.Store([make_replay(config, env.spaces)], seed=store_seed) as store,
        Actor(env, store, config, env_seed=env_seed, seed=actor_seed) as actor,
    ):
        learner = Learner(config, env.spaces, seed=learner_seed)
        params = learner.params
        try:
            while step < config.max_steps:
                epsilon = epsilon_at(config, step)
                episode_return = actor.step(params, epsilon)
                step += 1
                if episode_return is not None:
                    history.add_episode(episode_return, step)
                    if history.solved:
                        stopped = "solved"
                        break

                # After this many steps, there are at least `min_replay_size` items: the last `n_step` steps may not
                # start one yet.
                warm_up = config.min_replay_size + config.n_step
                if step == warm_up:
                    actor.flush()  # items whose chunk is not full are not visible yet
                if step >= warm_up and step % config.learn_period == 0:
                    learner.learn(store, step, timeout=SAMPLE_TIMEOUT)
                    params = learner.params
                history.report(step, epsilon, store, learner)
        except KeyboardInterrupt:
            stopped = "interrupted"
        return history.result(stopped, step, learner.steps, learner.params, store.info()[REPLAY])
