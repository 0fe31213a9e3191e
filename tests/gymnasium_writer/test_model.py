"""Items of random runs equal those of a naive model of each environment's episodes, in every autoreset mode."""

import gymnasium
import numpy as np
import pytest
from helpers.store_types import STORE_TYPES
from helpers.vector_envs import MODES, Scripted, key_of, run, sequences, transitions, vector_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engram
from engram.gymnasium import Episodes, Sequences, Transitions, VectorWriter

# Lengths of episodes; those below 0 are truncated.
LENGTHS = st.lists(st.integers(-9, 9).filter(bool), min_size=1, max_size=4)


def stored(store, table):
    """The items of a table."""
    return [sample.data for sample in store.scan(table, batch_size=None)]


def assert_same(items, expected):
    assert sorted(map(key_of, items)) == sorted(map(key_of, expected))


def check(store, kinds, logs):
    """Compares the items of each kind with the model's. Returns the items by table."""
    episodes = [episode for log in logs for episode in log]
    found = {kind.table: stored(store, kind.table) for kind in kinds}
    for kind in kinds:
        if isinstance(kind, Transitions):
            expected = (transitions(episode, kind.n_step, kind.discount) for episode in episodes)
        elif isinstance(kind, Sequences):
            period = kind.period or kind.length
            expected = (sequences(episode, kind.length, period, kind.at_end) for episode in episodes)
        else:
            expected = (sequences(episode, kind.max_length, kind.max_length, "cut") for episode in episodes)
        assert_same(found[kind.table], [item for items in expected for item in items])
    return found


@st.composite
def kinds_of_items(draw):
    number = st.integers(1, 7)
    kinds = [
        Transitions("n-step", n_step=draw(st.integers(1, 5)), discount=draw(st.sampled_from([0.0, 0.5, 1.0]))),
        Transitions("one-step", discount=0.5),
        Sequences(
            "sequences",
            length=draw(number),
            period=draw(st.none() | number),
            at_end=draw(st.sampled_from(["pad", "cut", "drop"])),
        ),
        Episodes("episodes", max_length=draw(st.integers(1, 12))),
    ]
    return draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))


def per_door_and_mode(*always):
    """Parametrizes a test by the doors of a store and the modes of autoreset.

    All combinations are slow except those in process, which have all modes, and those in `always`.
    """
    combinations = [(door, mode) for door in sorted(STORE_TYPES) for mode in MODES]
    return pytest.mark.parametrize(
        ("open_store", "mode"),
        [
            pytest.param(*each, marks=[] if each[0] == "in_process" or each in always else pytest.mark.slow)
            for each in combinations
        ],
        indirect=["open_store"],
    )


@pytest.fixture
def store(open_store):
    """One store for all examples of a test."""
    return open_store()


@per_door_and_mode(("remote", "DISABLED"), ("sharded", "SAME_STEP"))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_items_equal_those_of_the_model(mode, store, data):
    kinds = data.draw(kinds_of_items(), "kinds")
    scripts = data.draw(st.lists(LENGTHS, min_size=1, max_size=4), "scripts")
    masks = st.lists(st.booleans(), min_size=len(scripts), max_size=len(scripts))
    interrupt = data.draw(st.dictionaries(st.integers(0, 30), masks, max_size=3), "interrupt")
    nested = data.draw(st.booleans(), "nested")
    chunk_length = data.draw(st.none() | st.integers(1, 6), "chunk_length")
    envs, logs = vector_of([Scripted(n, script, nested=nested) for n, script in enumerate(scripts)], mode)
    for kind in kinds:
        store.create_table(engram.Table(kind.table, max_size=100_000))
    try:
        with VectorWriter(store, envs, kinds, chunk_length=chunk_length) as writer:
            run(
                writer,
                envs,
                data.draw(st.integers(0, 40), "steps"),
                rng=np.random.default_rng(0),
                interrupt=interrupt,
                flush=data.draw(st.none() | st.integers(1, 7), "flush"),
            )
        check(store, kinds, logs)
    finally:
        for kind in kinds:
            store.drop_table(kind.table)


@per_door_and_mode(("sharded", "NEXT_STEP"))
def test_cart_pole_has_terminal_transitions_and_none_that_cross_resets(mode, open_store):
    envs, logs = vector_of([gymnasium.make("CartPole-v1", max_episode_steps=40) for _ in range(8)], mode)
    kinds = [Transitions("replay", discount=0.99), Sequences("sequences", length=30)]
    tables = [engram.Table(kind.table, signature=kind.signature(envs), max_size=100_000) for kind in kinds]
    store = open_store(*tables)
    with VectorWriter(store, envs, kinds) as writer:
        run(writer, envs, 400, rng=np.random.default_rng(1))
    found = check(store, kinds, logs)
    episodes = [episode for log in logs for episode in log]
    items = found["replay"]
    assert sum(item["discount"] == 0 for item in items) == sum(any(episode.terminated) for episode in episodes) > 50
    pairs = {
        (a.tobytes(), b.tobytes()) for episode in episodes for a, b in zip(episode.obs, episode.obs[1:], strict=False)
    }
    assert all((item["obs"].tobytes(), item["next_obs"].tobytes()) in pairs for item in items)
    # Every step of every episode that ended is in a sequence.
    steps = sum(len(episode) for episode in episodes if episode.ended)
    assert steps <= sum(item["valid"].sum() for item in found["sequences"])
