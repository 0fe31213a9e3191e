"""Training: `train` plays and learns, in one process or in several.

In one process actor and learner take turns and share one `engram.Store`. The actor appends each step once; a pattern
turns the stream into items of n + 1 consecutive steps, which the learner draws by priority. One seed, one run: nothing
depends on the clock but the progress reports. For several processes see `processes`.
"""

from collections.abc import Callable

import numpy as np

import engram
from engram.agents.dqn.actor import Actor, epsilon_at
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.learner import Learner
from engram.agents.dqn.processes import train_in_processes
from engram.agents.dqn.result import Progress, Result, Stopped
from engram.agents.dqn.run_history import RunHistory
from engram.agents.dqn.tables import REPLAY, make_replay

SAMPLE_TIMEOUT = 30.0
"""Seconds until a batch that does not come is an error that says why, instead of a silent wait."""


def train(
    config: DQNConfig, report: Callable[[Progress], None] | None = None, *, report_period: float = 0.25
) -> Result:
    """Play and learn until solved, out of budget or interrupted by Ctrl-C.

    Args:
        config: What to play and how, and in how many processes. With more than one, a script must guard
            its main code with `if __name__ == "__main__"`: actors are spawned, and import it.
        report: Called now and then, between two steps; a KeyboardInterrupt that it raises ends the run like Ctrl-C.
        report_period: Seconds between two reports.

    Raises:
        InvalidArgumentError: If the environment does not exist or does not fit.
        ActorDiedError: If an actor's process ended too early.
    """
    history = RunHistory(config, report, report_period)
    return train_in_turns(config, history) if config.processes == 1 else train_in_processes(config, history)


def train_in_turns(config: DQNConfig, history: RunHistory) -> Result:
    """Act and learn by turns, in this process."""
    # NumPy seeds: one stream for each source of chance, all from one seed.
    seeds = np.random.SeedSequence(config.seed).generate_state(4).tolist()
    env_seed, actor_seed, learner_seed, store_seed = seeds
    stopped: Stopped = "budget"
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
                finished = actor.step(params, epsilon)
                step += 1
                if finished is not None:
                    history.add_episode(finished, step)
                    if history.solved:
                        stopped = "solved"
                        break

                # Learn, once the table holds `min_replay_size` items: the open episode is n items behind its steps.
                warm_up = config.min_replay_size + config.n_step
                if step == warm_up:
                    actor.flush()  # the first sample would wait for items whose chunk is not full yet
                if step >= warm_up and step % config.learn_period == 0:
                    learner.learn(store, step, timeout=SAMPLE_TIMEOUT)
                    params = learner.params
                history.report(step, epsilon, store)
        except KeyboardInterrupt:
            stopped = "interrupted"
        return history.result(stopped, step, learner.steps, learner.params, store.info()[REPLAY])
