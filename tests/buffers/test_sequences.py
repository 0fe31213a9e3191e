"""The native sequences of any length, which other replay buffers are built on, agree with a naive model."""

import numpy as np
import pytest
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram import ArraySpec
from engram.buffers import ReplayBuffer
from engram.errors import InvalidArgumentError, UnsatisfiableError

SIGNATURE = {"x": ArraySpec((2,), np.int64), "flag": ArraySpec((), bool)}


def create(num_envs, length):
    return ReplayBuffer(num_envs * length, num_envs, signature=SIGNATURE, seed=0)._native


def add(native, model, counts):
    """Adds this many steps to each environment; `model` has a list of all steps for each."""
    for env, count in enumerate(counts):
        for _ in range(count):
            value = 1000 * env + len(model[env])
            step = {"x": np.array([value, -value]), "flag": np.bool_(value % 3 == 0)}
            native.add(step, env_id=env)
            model[env].append(step)


def assert_steps(data, index, steps):
    for name in SIGNATURE:
        np.testing.assert_array_equal(data[name][index], np.stack([step[name] for step in steps]))


@given(st.data())
def test_sampled_sequences_agree_with_a_model(data):
    num_envs, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    native, model, oldest = create(num_envs, length), [[] for _ in range(num_envs)], [0] * num_envs
    for _ in range(data.draw(st.integers(1, 5))):
        add(native, model, data.draw(st.lists(st.integers(0, 7), min_size=num_envs, max_size=num_envs)))
        if data.draw(st.integers(0, 4)) == 0:
            native.clear()
            oldest = [len(steps) for steps in model]
        for steps in range(1, length + 1):
            starts = {
                (env, start)
                for env, rows in enumerate(model)
                for start in range(max(oldest[env], len(rows) - length), len(rows) - steps + 1)
            }
            if not starts:
                with pytest.raises(UnsatisfiableError):
                    native.sample_sequences(1, steps, 0)
                continue
            batch = native.sample_sequences(7, steps, data.draw(st.integers(0, 2**64 - 1)))
            drawn = list(zip(batch.env_id().tolist(), batch.position().tolist(), strict=True))
            assert starts.issuperset(drawn)
            np.testing.assert_allclose(batch.probability(), 1 / len(starts))
            for index, (env, start) in enumerate(drawn):
                assert_steps(batch.data, index, model[env][start : start + steps])


def test_all_sequences_are_equally_likely():
    native, model = create(2, 5), [[], []]
    add(native, model, [4, 7])  # sequences of 3 steps begin with 2 steps of the one, and with 3 of the other
    n = 50_000
    batch = native.sample_sequences(n, 3, 1)
    counts = np.bincount(10 * batch.env_id() + batch.position().astype(np.int64), minlength=20)
    assert np.flatnonzero(counts).tolist() == [0, 1, 12, 13, 14]
    expected = n / 5
    assert ((counts[counts > 0] - expected) ** 2 / expected).sum() < 23.5  # chi-square, 4 degrees: 1e-4


def test_the_seed_determines_the_sequences():
    native, model = create(2, 50), [[], []]
    add(native, model, [50, 50])

    def positions(seed):
        return native.sample_sequences(20, 2, seed).position().tolist()

    assert positions(3) == positions(3)
    assert positions(3) != positions(4)


def test_slots_are_read_whatever_they_contain():
    native, model = create(2, 4), [[], []]
    add(native, model, [6, 3])

    def read(envs, positions, length):
        return native.read_sequences(np.array(envs, np.int64), np.array(positions, np.uint64), length)

    data = read([0, 0, 1], [2, 4, 0], 2)
    for index, (env, start) in enumerate([(0, 2), (0, 4), (1, 0)]):
        assert_steps(data, index, model[env][start : start + 2])
    assert read([0], [0], 4)["x"][0, :, 0].tolist() == [4, 5, 2, 3], "steps 0 and 1 were overwritten by 4 and 5"
    assert read([0], [3], 2)["x"][0, :, 0].tolist() == [3, 4]
    assert read([1], [3], 1)["x"][0, :, 0].tolist() == [0], "nothing was written to this slot"
    native.clear()
    assert read([0, 1], [4, 6], 1)["x"][:, 0, 0].tolist() == [4, 1002], "the slots keep their content"
    assert read([], [], 1)["x"].shape == (0, 1, 2)


def test_positions_continue_after_clear():
    native, model = create(2, 4), [[], []]
    add(native, model, [6, 3])
    native.clear()
    add(native, model, [1, 0])
    assert [native.next_position(env) for env in range(2)] == [7, 3]


def test_results_are_written_to_given_arrays():
    native, model = create(1, 4), [[]]
    add(native, model, [4])
    out = {"x": np.zeros((3, 2, 2), np.int64), "flag": np.zeros((3, 2), bool)}
    batch = native.sample_sequences(3, 2, 5, out)
    assert batch.data is out
    for index, start in enumerate(batch.position().tolist()):
        assert_steps(out, index, model[0][start : start + 2])
    one = {"x": np.zeros((1, 2, 2), np.int64), "flag": np.zeros((1, 2), bool)}
    assert native.read_sequences(np.array([0]), np.array([1], np.uint64), 2, one) is one
    assert_steps(one, 0, model[0][1:3])


def test_invalid_arguments_are_rejected():
    native, model = create(2, 4), [[], []]
    add(native, model, [2, 1])
    envs, positions = np.array([0]), np.array([0], np.uint64)
    for length in (0, 5):
        text = f"`length` must be from 1 to 4; got {length}"
        with raises(InvalidArgumentError, text):
            native.sample_sequences(1, length, 0)
        with raises(InvalidArgumentError, text):
            native.read_sequences(envs, positions, length)
    with raises(InvalidArgumentError, "each of `env_ids` must be from 0 to 1; got 2"):
        native.read_sequences(np.array([2]), positions, 1)
    with raises(InvalidArgumentError, "`env_ids` and `positions` must have the same length; got 1 and 2"):
        native.read_sequences(envs, np.zeros(2, np.uint64), 1)
    text = "the replay buffer has 3 steps and no item yet; an item needs 3 consecutive steps of one environment"
    with raises(UnsatisfiableError, text):
        native.sample_sequences(1, 3, 0)
    with raises(InvalidArgumentError, "`env_id` must be from 0 to 1; got 2"):
        native.next_position(2)
    native.clear()
    with raises(UnsatisfiableError, "the replay buffer is empty; add steps before sampling"):
        native.sample_sequences(1, 1, 0)
