"""Sequences without priorities: which ones are possible, how likely they are, and recent data."""

from collections import Counter

import numpy as np
import pytest
from helpers import alf_buffers
from helpers.alf_buffers import assert_frequencies, fill, ints, replay_buffer, steps, x_of
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


@pytest.fixture(autouse=True)
def seed():
    alf_buffers.torch.manual_seed(0)


def starts_of(info):
    """Environment and position of each sequence."""
    return [*zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ignored", [0, 1])
@pytest.mark.parametrize("with_replacement", [False, True])
def test_all_complete_sequences_are_possible(count, length, ignored, with_replacement):
    buffer = fill(replay_buffer(num_earliest_frames_ignored=ignored, with_replacement=with_replacement), count)
    size = min(count, 4)
    possible = [*range(count - size + ignored, count - length + 1)]
    if not possible:
        needed = length + ignored
        text = f"each environment must have at least {needed} steps (`batch_length` + `num_earliest_frames_ignored`) "
        with raises(AssertionError, f"{text}to sample; environment 0 has {size}"):
            buffer.get_batch(1, length)
        return
    batch, info = buffer.get_batch(200, length)
    assert {*info.positions.tolist()} == {*possible}
    assert x_of(batch) == [[*range(position, position + length)] for position in info.positions.tolist()]
    assert info.env_ids.tolist() == [0] * 200
    assert (info.importance_weights, info.discounted_return) == ((), ())
    assert info.replay_buffer is buffer
    assert info.positions.dtype == info.env_ids.dtype == alf_buffers.torch.int64


def test_an_empty_buffer_or_one_short_environment_prevents_sampling():
    buffer = replay_buffer(2)
    text = "each environment must have at least 2 steps (`batch_length` + `num_earliest_frames_ignored`) to sample; "
    with raises(AssertionError, f"{text}environment 0 has 0"):
        buffer.get_batch(1, 2)
    fill(buffer, 4, 1)
    with raises(AssertionError, f"{text}environment 1 has 1"):
        buffer.get_batch(1, 2)
    assert x_of(buffer.get_batch(2, 1)[0])[1] == [100]


def test_sizes_must_be_integers():
    buffer = fill(replay_buffer(), 4)
    with raises(InvalidArgumentError, "`batch_length` must be at least 1; got 0"):
        buffer.get_batch(1, 0)
    with raises(InvalidArgumentError, "`batch_size` must be at least 0; got -1"):
        buffer.get_batch(-1, 1)
    batch, info = buffer.get_batch(0, 3)
    assert (batch["nested"]["x"].shape, info.positions.shape) == ((0, 3, 2), (0,))


@pytest.mark.parametrize("with_replacement", [False, True])
def test_environments_are_equally_likely_whatever_they_store(with_replacement):
    """P(environment e, start s) = 1 / (E * number of starts of e)."""
    buffer = fill(replay_buffer(3, 8, with_replacement=with_replacement), 2, 5, 20)
    counts = Counter(start for _ in range(3000) for start in starts_of(buffer.get_batch(4, 2)[1]))
    expected = {(env, start): 4000 / m for env, m in enumerate([1, 4, 7]) for start in range(m)}
    expected = {(env, start + (12 if env == 2 else 0)): mean for (env, start), mean in expected.items()}
    assert {*counts} == {*expected}
    assert_frequencies([counts[start] for start in expected], [*expected.values()])


def test_environments_are_repeated_in_order():
    buffer = fill(replay_buffer(3, 8), 8, 8, 8)
    last = Counter()
    for _ in range(600):
        envs = buffer.get_batch(8, 1)[1].env_ids.tolist()
        assert envs[:6] == [0, 1, 2, 0, 1, 2]
        last[tuple(envs[6:])] += 1
    pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert_frequencies([last[pair] for pair in pairs], [100.0] * 6)


@given(n=st.integers(1, 60), counts=st.lists(st.integers(2, 30), min_size=1, max_size=3), length=st.integers(1, 2))
def test_without_replacement_there_is_one_draw_per_stratum(n, counts, length):
    buffer = fill(replay_buffer(len(counts), 20), *counts)
    draws = {env: [] for env in range(len(counts))}
    for env, position in starts_of(buffer.get_batch(n, length)[1]):
        draws[env].append(position)
    for env, positions in draws.items():
        starts = min(counts[env], 20) - length + 1
        first = counts[env] - min(counts[env], 20)
        assert len(positions) in {n // len(counts), n // len(counts) + 1}
        assert positions == sorted(positions)
        for number, position in enumerate(positions):
            # The stratum, rounded to whole starts.
            low, high = number * starts / len(positions), (number + 1) * starts / len(positions)
            assert int(low) <= position - first < high
        if positions and starts % len(positions) == 0:
            assert len({*positions}) == len(positions)


def test_with_replacement_draws_are_independent():
    buffer = fill(replay_buffer(1, 10, with_replacement=True), 10)
    assert any(len({*buffer.get_batch(10, 1)[1].positions.tolist()}) < 10 for _ in range(5))


def test_the_seed_of_torch_decides():
    buffers = [fill(replay_buffer(3, 8), 8, 8, 8) for _ in range(2)]
    draws = []
    for buffer in buffers:
        alf_buffers.torch.manual_seed(5)
        draws.append([starts_of(buffer.get_batch(4, 2)[1]) for _ in range(3)])
    assert draws[0] == draws[1]
    assert starts_of(buffers[0].get_batch(4, 2)[1]) != draws[0][0]


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("batch_size", [7, 40, 42])
def test_a_seed_draws_what_it_draws_with_alf(with_replacement, batch_size):
    """The same random numbers, in the same order, and each operation in float32. Recent starts are drawn last."""
    torch, counts = alf_buffers.torch, [30, 57, 91, 100]
    options = {"with_replacement": with_replacement, "recent_data_ratio": 0.25, "recent_data_steps": 6}
    buffer = fill(replay_buffer(4, 100, **options), *counts)
    sizes, num_recent = torch.tensor(counts), -(-batch_size // 4)
    for _ in range(5):
        random = torch.random.get_rng_state()
        _, info = buffer.get_batch(batch_size, 3)
        after = torch.rand(1)
        torch.random.set_rng_state(random)
        parts = []
        for n, starts in ((batch_size - num_recent, sizes - 2), (num_recent, torch.full((4,), 6))):
            envs = torch.arange(4).repeat(n // 4)
            if n % 4:
                envs = torch.cat([envs, torch.randperm(4)[: n % 4]])
            fractions = torch.rand(n)
            if not with_replacement:
                draws = torch.bincount(envs, minlength=4)
                fractions = (torch.arange(n) // 4 + fractions) / draws[envs]
            positions = (fractions * starts[envs]).long() + (sizes - 2 - starts)[envs]
            parts.insert(0, (envs, positions))
        for found, column in zip((info.env_ids, info.positions), zip(*parts, strict=True), strict=True):
            assert found.tolist() == torch.cat(column).tolist()
        assert torch.rand(1) == after


def test_long_rings_have_no_unreachable_starts():
    """A float32 has 24 bits."""
    alf = alf_buffers.alf
    buffer = alf.ReplayBuffer(alf.TensorSpec((), "bool"), 1, max_length=2**26, with_replacement=True)
    buffer._size[:] = buffer._pos[:] = 2**26
    positions = buffer.get_batch(2000, 1)[1].positions
    assert positions.max() >= 2**26 - 2**18
    assert (positions % 2 == 1).any()


@pytest.mark.parametrize("with_replacement", [False, True])
def test_the_largest_random_number_finds_the_last_start(with_replacement, monkeypatch):
    """Although the fraction is rounded up to 1."""
    from engram.compat.alf.experience_replayers import _sampler  # noqa: PLC0415, it needs PyTorch

    monkeypatch.setattr(_sampler, "random_units", lambda n, dtype: np.full(n, 1 - 2**-24, dtype))
    buffer = fill(replay_buffer(1, 8, with_replacement=with_replacement), 12)
    assert buffer.get_batch(7, 2)[1].positions[-1] == 10


# --- recent data ----------------------------------------------------------------------------------


def test_recent_sequences_are_first():
    buffer = fill(replay_buffer(2, 20, recent_data_steps=3, recent_data_ratio=0.5), 15, 25)
    newest = {0: {11, 12, 13}, 1: {21, 22, 23}}
    counts = Counter()
    for _ in range(500):
        starts = starts_of(buffer.get_batch(7, 2)[1])
        assert [env for env, _ in starts[:2]] == [0, 1]
        assert all(position in newest[env] for env, position in starts[:4])
        counts.update(starts[4:])
    assert len(counts) == 14 + 19
    expected = {(env, position): 750 / 14 for env, position in counts if env == 0}
    expected |= {(env, position): 750 / 19 for env, position in counts if env == 1}
    assert_frequencies([counts[start] for start in expected], [*expected.values()])


def test_recent_starts_are_those_of_an_environment_if_it_has_fewer():
    buffer = fill(replay_buffer(2, 40, recent_data_steps=3, recent_data_ratio=1.0), 2, 40)
    starts = [start for _ in range(30) for start in starts_of(buffer.get_batch(2, 2)[1])]
    assert {*starts} == {(0, 0), (1, 36), (1, 37), (1, 38)}


@pytest.mark.parametrize(("count", "recent"), [(12, False), (13, True)])
def test_recent_data_needs_enough_steps(count, recent):
    """The mean number of starts, times the ratio, must be above `recent_data_steps`."""
    options = {"recent_data_steps": 5, "recent_data_ratio": 0.5, "num_earliest_frames_ignored": 1}
    buffer = fill(replay_buffer(1, 40, **options), count)
    firsts = {position for _ in range(50) for position in buffer.get_batch(4, 2)[1].positions[:2].tolist()}
    assert (min(firsts) >= count - 6) == recent


# --- other rules ----------------------------------------------------------------------------------


def test_samples_extend_over_episodes_but_not_over_the_newest_step():
    buffer = replay_buffer(1, 4)
    for x, step_type in enumerate([0, 2, 0, 2, 0, 2]):
        buffer.add_batch(steps([x], step_type))
    assert sorted(x_of(buffer.get_batch(30, 3)[0])[i][0] for i in (0, 29)) == [2, 3]


def test_a_batch_is_a_copy_without_gradients():
    torch = alf_buffers.torch
    buffer = replay_buffer(1, 2)
    given = steps([1])
    given["reward"].requires_grad_()
    buffer.add_batch(given)
    batch, _ = buffer.get_batch(1, 1)
    given["nested"]["x"].fill_(9)
    buffer.add_batch(steps([5]))
    buffer.add_batch(steps([6]))
    assert x_of(batch) == [[1]]
    assert not batch["reward"].requires_grad
    assert torch.is_grad_enabled()


def test_a_cleared_environment_begins_again():
    buffer = fill(replay_buffer(2, 4), 6, 6)
    buffer.clear(ints([1]))
    assert buffer.total_size.tolist() == 4
    with pytest.raises(AssertionError, match="environment 1 has 0"):
        buffer.get_batch(1, 1)
    buffer.add_batch(steps([50]), ints([1]))
    assert starts_of(buffer.get_batch(2, 1)[1])[1] == (1, 0)


def test_dequeue_is_not_available():
    buffer = fill(replay_buffer(), 2)
    with raises(NotImplementedError, "a ReplayBuffer has no `dequeue`; use a RingBuffer, or `remove_up_to`"):
        buffer.dequeue()
    buffer.remove_up_to(1)
    assert buffer.get_batch(1, 1)[1].positions.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_earliest_frames_ignored": -1}, "`num_earliest_frames_ignored` must be at least 0; got -1"),
        ({"recent_data_steps": 0}, "`recent_data_steps` must be at least 1; got 0"),
        ({"recent_data_ratio": 1.5}, "`recent_data_ratio` must be from 0 to 1; got 1.5"),
    ],
)
def test_invalid_options_are_rejected(options, text):
    with raises(InvalidArgumentError, text):
        replay_buffer(**options)
