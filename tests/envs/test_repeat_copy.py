"""The repeat-copy task."""

import numpy as np
import pytest
from helpers.ftw_fixtures import TOLERANCE, arrays, load
from helpers.support import raises

from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

BITS = 4


@pytest.fixture
def repeat_copy():
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    pytest.importorskip("dm_env")
    from engram.envs import repeat_copy  # noqa: PLC0415, as above

    with jax.enable_x64(True):  # noqa: FBT003, JAX's signature
        yield repeat_copy


def test_costs_of_the_fixture(repeat_copy):
    fixture = arrays(load("repeat_copy"))
    batch = fixture["logits"], fixture["target"], fixture["mask"]
    np.testing.assert_allclose(repeat_copy.cost(*batch), fixture["cost"], **TOLERANCE)
    np.testing.assert_allclose(repeat_copy.cost(*batch, time_average=True), fixture["cost_time_average"], **TOLERANCE)
    np.testing.assert_allclose(repeat_copy.cost(*batch, in_bits=True), fixture["cost_bits"], **TOLERANCE)


def test_examples_repeat_their_bits(repeat_copy):
    lengths, repeats = (1, 3), (2, 4)
    batch = repeat_copy.draw_examples(np.random.default_rng(0), 64, num_bits=BITS, lengths=lengths, repeats=repeats)
    assert batch.observations.shape == (18, 64, BITS + 2)
    assert batch.targets.shape == (18, 64, BITS + 1)
    seen = set()
    for b in range(64):
        observations, targets, mask = (array[:, b] for array in batch)
        starts = np.flatnonzero(observations[:, BITS])
        (end_of_input,) = np.flatnonzero(observations[:, BITS + 1])
        (end,) = np.flatnonzero(targets[:, BITS])
        assert starts.tolist() == [0]
        length, count = end_of_input - 1, round(float(observations[end_of_input, BITS + 1]) * 4)
        seen.add((length, count))
        bits = observations[1 : length + 1, :BITS]
        assert end == end_of_input + 1 + length * count
        np.testing.assert_array_equal(targets[end_of_input + 1 : end, :BITS], np.tile(bits, (count, 1)))
        np.testing.assert_array_equal(np.flatnonzero(mask), np.arange(end_of_input + 1, end + 1))
        np.testing.assert_array_equal(targets[mask == 0], 0)
        np.testing.assert_array_equal(observations[end_of_input + 1 :], 0)
    assert seen == {(length, count) for length in (1, 2, 3) for count in (2, 3, 4)}


def test_equal_seeds_draw_equal_examples(repeat_copy):
    first, second, other = (repeat_copy.draw_examples(np.random.default_rng(seed), 8) for seed in (0, 0, 1))
    for mine, same, different in zip(first, second, other, strict=True):
        np.testing.assert_array_equal(mine, same)
        assert not np.array_equal(mine, different)


def test_a_perfect_answer_costs_nothing(repeat_copy):
    batch = repeat_copy.draw_examples(np.random.default_rng(0), 8)
    logits = np.where(batch.targets > 0, 1e3, -1e3)
    assert repeat_copy.cost(logits, batch.targets, batch.mask) == 0
    steps = batch.mask.sum(0).mean()
    np.testing.assert_allclose(
        repeat_copy.cost(0 * logits, batch.targets, batch.mask, in_bits=True), steps * (BITS + 1), rtol=1e-6
    )


def test_arguments_are_checked(repeat_copy):
    rng = np.random.default_rng(0)
    for arguments, text in (
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"batch_size": 1, "num_bits": 0}, "`num_bits` must be at least 1; got 0"),
        ({"batch_size": 1, "lengths": (0, 1)}, "`lengths[0]` must be at least 1; got 0"),
        ({"batch_size": 1, "repeats": (2, 1)}, "`repeats[1]` must be at least 2; got 1"),
    ):
        with raises(InvalidArgumentError, text):
            repeat_copy.draw_examples(rng, **arguments)
    with raises(
        InvalidArgumentError,
        "`logits`, `targets` and `mask` must have the shapes [T, B, K], [T, B, K] and [T, B]; got (2, 3, 4), (2, 3, 4)"
        " and (2, 4)",
    ):
        repeat_copy.cost(np.zeros((2, 3, 4)), np.zeros((2, 3, 4)), np.zeros((2, 4)))
