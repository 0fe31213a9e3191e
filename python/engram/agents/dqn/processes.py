"""Training in several processes: the calling process learns and serves the tables, spawned actors connect to it."""

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
from engram.agents.dqn.result import Result, StopReason
from engram.agents.dqn.run_history import RunHistory
from engram.agents.dqn.tables import EPISODES, REPLAY, WEIGHTS, make_shared_tables
from engram.errors import DeadlineExceededError, EngramError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

SAMPLE_POLL_TIMEOUT = 0.1
"""Seconds that the learner waits for a batch before it checks the actors and reports progress."""


class ActorDiedError(EngramError, RuntimeError):
    """The process of an actor ended before the learner."""


class Actors:
    """The processes of the actors, as a context manager: it starts them, and kills them at the end of its block."""

    def __init__(self, address: str, config: DQNConfig) -> None:
        """Prepares `config.processes - 1` actors that write to the server at `address`."""
        spawn = multiprocessing.get_context("spawn")  # JAX and Tokio hang in forked processes
        self._processes: list[SpawnProcess] = [
            spawn.Process(target=play, args=(address, config, index), name=f"actor {index}", daemon=True)
            for index in range(config.processes - 1)
        ]

    def check(self) -> None:
        """Checks that all actors run.

        Raises:
            ActorDiedError: An actor has ended.
        """
        for process in self._processes:
            code = process.exitcode
            if code is not None:
                how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
                reason = "; its output on stderr shows the reason" if code >= 0 else ""
                if code == -signal.SIGKILL:
                    reason = "; perhaps the machine ran out of memory"
                raise ActorDiedError(
                    f"{process.name} (process {process.pid}) {how}, but training needs all {len(self._processes)} "
                    f"actors{reason}"
                )

    def __enter__(self) -> Self:
        # A terminal sends Ctrl-C to all processes, but only the learner ends actors. They start with SIGINT blocked, as
        # they could not handle it while they import modules. The resource tracker of `multiprocessing` is started
        # before SIGINT is blocked here, because starting it would unblock the signal.
        resource_tracker.ensure_running()
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process in self._processes:
                process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.kill()  # an actor has nothing to save
        for process in started:
            process.join()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def train_in_processes(config: DQNConfig, history: RunHistory) -> Result:
    """Learns in this process from the steps of `config.processes - 1` actors."""
    learner_seed, store_seed = np.random.SeedSequence(config.seed).generate_state(4).tolist()[2:]
    with Environment(config.env_id) as env:
        spaces = env.spaces
    stopped: StopReason = "budget"
    with (
        engram.Store(make_shared_tables(config, spaces), seed=store_seed) as store,
        engram.Server(store) as server,
        Actors(server.address, config) as actors,
    ):
        learner = Learner(config, spaces, seed=learner_seed)
        store.insert(learner.params, {WEIGHTS: 1.0})
        step = 0
        try:
            while step < config.max_steps and not history.solved:
                actors.check()
                try:
                    learner.learn(store, step, timeout=SAMPLE_POLL_TIMEOUT)
                except DeadlineExceededError:
                    pass  # the actors have not written enough items yet
                else:
                    if learner.steps % config.publish_period == 0:
                        store.insert(learner.params, {WEIGHTS: 1.0})
                tables = store.info()
                # Environment steps so far: each step starts one item, which is inserted once `n_step` more are written.
                step = tables[REPLAY].inserts
                for _ in range(tables[EPISODES].size):
                    history.add_episode(float(store.sample(EPISODES, 1).data["return"][0]), step)
                    if history.solved:
                        stopped = "solved"
                        break
                history.report(step, epsilon_at(config, step), store, learner)
        except KeyboardInterrupt:
            stopped = "interrupted"
        return history.result(stopped, step, learner.steps, learner.params, store.info()[REPLAY])
