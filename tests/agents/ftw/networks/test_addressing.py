"""Addressing of a DNC by content and by free slots."""

import numpy as np
import pytest
from helpers.dnc_weights import weights

pytestmark = pytest.mark.jax

BATCH, SLOTS, WORD, READS = 3, 6, 4, 2


@pytest.fixture
def addressing():
    from engram.agents.ftw.networks.dnc import addressing  # noqa: PLC0415 - an extra, not needed to collect the tests

    return addressing


def one_hot(slot):
    return np.eye(SLOTS, dtype=np.float32)[slot]


def test_content_weights_sum_to_one_and_prefer_similar_words(addressing, rng):
    memory = rng.normal(size=(BATCH, SLOTS, WORD)).astype(np.float32)
    keys = memory[:, :READS] * 2  # only the angle counts
    content = addressing.content_weights(memory, keys, np.full((BATCH, READS), 50, np.float32))
    np.testing.assert_allclose(content.sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(content.argmax(-1), [[0, 1]] * BATCH)


def test_content_weights_of_an_empty_memory_are_uniform(addressing, rng):
    keys, strengths = rng.normal(size=(BATCH, READS, WORD)), rng.uniform(size=(BATCH, READS))
    content = addressing.content_weights(np.zeros((BATCH, SLOTS, WORD)), keys, strengths)
    np.testing.assert_allclose(content, 1 / SLOTS, rtol=1e-6)


def test_content_weights_of_an_empty_memory_have_a_finite_gradient(addressing):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    zeros = np.zeros((SLOTS, WORD), np.float32), np.zeros((1, WORD), np.float32), np.ones(1, np.float32)
    gradients = jax.grad(lambda *args: (addressing.content_weights(*args) ** 2).sum(), argnums=(0, 1, 2))(*zeros)
    assert all(np.isfinite(each).all() for each in gradients)


def test_allocation_is_what_the_usages_leave(addressing, rng):
    usage = rng.uniform(size=(BATCH, SLOTS)).astype(np.float32)
    allocation = addressing.allocation_weights(usage)
    assert (allocation >= 0).all()
    smoothed = addressing.EPSILON + (1 - addressing.EPSILON) * usage
    np.testing.assert_allclose(allocation.sum(-1), 1 - smoothed.prod(-1), rtol=1e-5)
    np.testing.assert_array_equal(allocation.argmax(-1), usage.argmin(-1))


def test_allocation_in_a_full_and_in_an_empty_memory(addressing):
    np.testing.assert_allclose(addressing.allocation_weights(np.ones(SLOTS, np.float32)), 0, atol=1e-6)
    empty = addressing.allocation_weights(np.zeros(SLOTS, np.float32))
    np.testing.assert_allclose(empty, (1 - 1e-6) * one_hot(0), atol=2e-6)
    assert empty[0] == np.float32(1 - 1e-6)


def test_slots_of_equal_usage_are_allocated_in_the_order_of_their_index(addressing):
    allocation = addressing.allocation_weights(np.full(SLOTS, 0.5, np.float32))
    np.testing.assert_allclose(allocation, 0.5 ** np.arange(1, SLOTS + 1), rtol=1e-5)


def test_a_second_write_head_avoids_the_slot_of_the_first(addressing):
    usage = np.array([0.9, 0.2, 0.8, 0.0, 0.9, 0.9], np.float32)
    first, second = addressing.write_allocation_weights(usage, np.ones(2, np.float32))
    assert (first.argmax(), second.argmax()) == (3, 1)
    assert second[3] < 1e-5
    first, second = addressing.write_allocation_weights(usage, np.zeros(2, np.float32))
    np.testing.assert_array_equal(first, second)


def test_usage_stays_between_zero_and_one_and_falls_only_by_free_gates(addressing, rng):
    usage = rng.uniform(size=(BATCH, SLOTS)).astype(np.float32)
    for _ in range(20):
        write, read = weights(rng, BATCH, 2, SLOTS), weights(rng, BATCH, READS, SLOTS)
        kept = addressing.updated_usage(usage, write, np.zeros((BATCH, READS)), read)
        assert (kept >= usage).all()
        usage = addressing.updated_usage(usage, write, rng.uniform(size=(BATCH, READS)), read)
        assert ((usage >= 0) & (usage <= 1)).all()


def test_a_slot_that_was_fully_read_is_freed(addressing):
    usage = np.full(SLOTS, 0.7, np.float32)
    freed = addressing.updated_usage(usage, one_hot(2)[None], np.ones(1), one_hot(2)[None])
    np.testing.assert_allclose(freed, np.where(one_hot(2) == 1, 0, 0.7), rtol=1e-6)


def test_no_gradient_reaches_the_write_weights_through_the_usage(addressing, rng):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    usage, write = rng.uniform(size=SLOTS), weights(rng, 1, SLOTS)
    args = [usage.astype(np.float32), write, np.full(READS, 0.5, np.float32), weights(rng, READS, SLOTS)]
    of_usage, of_write, of_gates, of_reads = jax.grad(
        lambda *args: addressing.updated_usage(*args).sum(), argnums=(0, 1, 2, 3)
    )(*args)
    np.testing.assert_array_equal(of_write, 0)
    assert all(np.abs(each).max() > 0 for each in (of_usage, of_gates, of_reads))
