"""Training with the learner and the actors in processes of their own."""

import dataclasses
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.support import raises, wait_until

import engram
from engram.errors import ClosedError

pytestmark = pytest.mark.jax

SMOKE = {"processes": 3, "max_steps": 400, "min_replay_size": 64, "batch_size": 32, "hidden_sizes": (16,), "n_step": 3}


@pytest.fixture
def dqn():
    from engram.agents import dqn  # noqa: PLC0415 - an extra, not needed to collect the tests

    return dqn


def test_two_actors_train_for_max_steps(dqn):
    reports = []
    result = dqn.train(dqn.DQNConfig(**SMOKE), reports.append, report_period=0.0)
    assert result.stopped == "budget"
    assert result.steps >= 400
    assert result.learner_steps > 100
    assert result.table.samples == result.learner_steps * 32
    assert len(result.returns) == len(result.episode_ends) > 5
    assert all(np.isfinite(layer.weight).all() for layer in result.params)
    assert reports[-1].step == result.steps
    assert active_children() == []


def test_the_rate_limiter_keeps_the_ratio_of_samples_to_inserts(dqn):
    config = dqn.DQNConfig(**SMOKE, actor_lead=8)
    result = dqn.train(config)
    # 32 samples for every 2 inserts after the first 64, with a tolerance of 8 inserts, plus one call in progress.
    expected = (result.table.inserts - config.min_replay_size) * 16
    assert abs(result.table.samples - expected) <= (config.actor_lead + 1) * 16


def test_several_processes_stop_when_solved(dqn):
    result = dqn.train(dqn.DQNConfig(**SMOKE, solved_return=1.0, solved_episodes=2))
    assert result.stopped == "solved"
    assert len(result.returns) == 2
    assert active_children() == []


def serve(dqn, config):
    """Starts the learner's server. Its replay table is sampled in order: the first sample is an actor's first item."""
    from engram.agents.dqn.learner import Learner  # noqa: PLC0415 - an extra
    from engram.agents.dqn.tables import WEIGHTS, make_shared_tables  # noqa: PLC0415 - an extra

    spaces = dqn.Spaces((4,), np.float32, 1, 2)
    replay, *others = make_shared_tables(config, spaces)
    tables = [dataclasses.replace(replay, sampler=engram.selectors.Fifo()), *others]
    server = engram.Server(engram.Store(tables, seed=0))
    server.store.insert(Learner(config, spaces, seed=0).params, {WEIGHTS: 1.0})
    return server


def test_actors_never_import_jax(dqn):
    from engram.agents.dqn.actor_process import play  # noqa: PLC0415 - an extra

    config = dqn.DQNConfig(**SMOKE)
    with (
        serve(dqn, config) as server,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        actor = pool.submit(play, server.address, config, 0)
        wait_until(lambda: actor.done() or server.store.info()["replay"].inserts >= 64, seconds=60)
        server.store.close()
        assert isinstance(actor.exception(timeout=60), ClosedError)
        modules = pool.submit(eval, "set(__import__('sys').modules)").result(timeout=60)
    assert "engram.agents.dqn.actor_process" in modules
    assert modules.isdisjoint({"jax", "jaxlib", "optax", "flax", "matplotlib"})
    assert "jax" in sys.modules  # it is installed


def test_actors_follow_their_seeds(dqn):
    from engram.agents.dqn.actor_process import play  # noqa: PLC0415 - an extra

    def first_item(seed, index):
        config = dqn.DQNConfig(**SMOKE, seed=seed)
        with serve(dqn, config) as server:
            actor = threading.Thread(target=pytest.raises, args=(ClosedError, play, server.address, config, index))
            actor.start()
            item = server.store.sample("replay", 1, timeout=60).data.observation[0]
            server.store.close()
            actor.join()
        return item.tolist()

    assert first_item(0, 0) == first_item(0, 0)
    assert first_item(0, 0) != first_item(0, 1)
    assert first_item(0, 0) != first_item(1, 0)


def test_an_actor_exits_if_the_server_is_gone(dqn):
    from engram.agents.dqn.actor_process import play  # noqa: PLC0415 - an extra

    with serve(dqn, dqn.DQNConfig(**SMOKE)) as server:
        address = server.address
    with pytest.raises(SystemExit) as caught:
        play(address, dqn.DQNConfig(**SMOKE), 1)
    assert str(caught.value).startswith("actor 1: ")
    assert address in str(caught.value)


OUTPUT_SHOWS_REASON = "; its output on stderr shows the reason"


@pytest.mark.parametrize(
    ("code", "how", "reason"),
    [
        (1, "ended with exit status 1", OUTPUT_SHOWS_REASON),
        (0, "ended with exit status 0", OUTPUT_SHOWS_REASON),
        (-signal.SIGKILL, "was killed by SIGKILL", "; perhaps the machine ran out of memory"),
        (-signal.SIGSEGV, "was killed by SIGSEGV", ""),
        (-signal.SIGRTMIN - 1, f"was killed by signal {signal.SIGRTMIN + 1}", ""),  # it has no name
    ],
)
def test_the_error_states_how_an_actor_ended(dqn, code, how, reason):
    from engram.agents.dqn.processes import Actors  # noqa: PLC0415 - an extra

    actors = Actors("localhost:1", dqn.DQNConfig(**SMOKE))
    actors._processes[0] = SimpleNamespace(name="actor 0", pid=7, exitcode=code)
    text = f"actor 0 (process 7) {how}, but training needs all 2 actors{reason}"
    with raises(dqn.ActorDiedError, text):
        actors.check()


@pytest.mark.crash
def test_a_killed_actor_is_an_error(dqn):
    config = dqn.DQNConfig(**{**SMOKE, "max_steps": 1_000_000})
    killed = []

    def kill(progress):
        if progress.step >= 100 and not killed:
            victim = next(child for child in active_children() if child.name == "actor 1")
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    with pytest.raises(dqn.ActorDiedError) as caught:
        dqn.train(config, kill, report_period=0.0)
    assert str(caught.value) == (
        f"actor 1 (process {killed[0]}) was killed by SIGKILL, but training needs all 2 actors;"
        " perhaps the machine ran out of memory"
    )
    assert active_children() == []
