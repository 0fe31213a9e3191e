"""Training in several processes: the learner here, which serves the tables; the actors spawned, and connected to it."""

import multiprocessing
import signal
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Self

import numpy as np

import engram
from engram.agents.dqn.actor import epsilon_at
from engram.agents.dqn.actor_process import play
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.learner import Learner
from engram.agents.dqn.result import Result, Stopped
from engram.agents.dqn.run_history import RunHistory
from engram.agents.dqn.tables import EPISODES, REPLAY, WEIGHTS, make_shared_tables
from engram.errors import DeadlineExceededError, EngramError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

SAMPLE_POLL_TIMEOUT = 0.1
"""Seconds that the learner waits for a batch before it looks after everything else."""


class ActorDiedError(EngramError, RuntimeError):
    """The process of an actor ended before the learner did."""


class Actors:
    """The actors' processes; a context manager, which ends them."""

    def __init__(self, address: str, config: DQNConfig) -> None:
        """Prepare `config.processes - 1` of them, to play into the server at `address`."""
        spawn = multiprocessing.get_context("spawn")  # a forked JAX or tokio would hang
        self._processes: list[SpawnProcess] = [
            spawn.Process(target=play, args=(address, config, index), name=f"actor {index}", daemon=True)
            for index in range(config.processes - 1)
        ]

    def check(self) -> None:
        """See that all live.

        Raises:
            ActorDiedError: One does not.
        """
        for process in self._processes:
            code = process.exitcode
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
                raise ActorDiedError(
                    f"{process.name} (process {process.pid}) {how}; all {len(self._processes)} must play until the"
                    " learner ends them. If it failed, it has said why on stderr"
                )

    def __enter__(self) -> Self:
        # Ctrl-C goes to all processes of a terminal; what becomes of the actors is the learner's business. They are
        # born with SIGINT blocked, as nothing they do could catch it before they have finished importing. The helper
        # of `multiprocessing` goes first: starting it would unblock the signal again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process in self._processes:
                process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.kill()  # there is nothing that an actor would have to finish
        for process in started:
            process.join()


def train_in_processes(config: DQNConfig, history: RunHistory) -> Result:
    """Learn here from what `config.processes - 1` actors play."""
    learner_seed, store_seed = np.random.SeedSequence(config.seed).generate_state(4).tolist()[2:]
    with Environment(config.env_id) as env:
        spaces = env.spaces
    stopped: Stopped = "budget"
    with (
        engram.Server(make_shared_tables(config, spaces), seed=store_seed) as server,
        Actors(server.address, config) as actors,
    ):
        store = server.store
        learner = Learner(config, spaces, seed=learner_seed)
        store.insert(learner.params, {WEIGHTS: 1.0})
        step = 0
        try:
            while step < config.max_steps and not history.solved:
                actors.check()
                try:
                    learner.learn(store, step, timeout=SAMPLE_POLL_TIMEOUT)
                except DeadlineExceededError:
                    pass  # the actors are not that far yet
                else:
                    if learner.steps % config.publish_period == 0:
                        store.insert(learner.params, {WEIGHTS: 1.0})
                tables = store.info()
                step = tables[REPLAY].inserts  # each step of a whole window of n starts an item
                for _ in range(tables[EPISODES].size):
                    history.add_episode(float(store.sample(EPISODES, 1).data["return"][0]), step)
                    if history.solved:
                        stopped = "solved"
                        break
                history.report(step, epsilon_at(config, step), store)
        except KeyboardInterrupt:
            stopped = "interrupted"
        return history.result(stopped, step, learner.steps, learner.params, store.info()[REPLAY])
