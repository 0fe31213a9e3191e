"""Addressing of a DNC by the order of writes."""

import numpy as np
import pytest
from helpers.dnc_weights import weights

pytestmark = pytest.mark.jax

BATCH, SLOTS, WRITES, READS = 3, 6, 2, 3


@pytest.fixture
def linkage():
    from engram.agents.ftw.networks.dnc import linkage  # noqa: PLC0415 - an extra, not needed to collect the tests

    return linkage


def one_hot(slot):
    return np.eye(SLOTS, dtype=np.float32)[slot]


def test_links_stay_in_their_bounds(linkage, rng):
    state = linkage.TemporalLinkageState(
        np.zeros((BATCH, 2, SLOTS, SLOTS), np.float32), np.zeros((BATCH, 2, SLOTS), np.float32)
    )
    for _ in range(20):
        state = linkage.updated_linkage(state, weights(rng, BATCH, 2, SLOTS))
        link = np.asarray(state.link)
        assert (np.diagonal(link, axis1=-2, axis2=-1) == 0).all()
        assert ((link >= 0) & (link <= 1)).all()
        assert max(link.sum(-1).max(), link.sum(-2).max(), state.precedence_weights.sum(-1).max()) <= 1 + 1e-5
    assert link.max() > 0.01


def test_links_follow_the_order_of_writes(linkage):
    zeros = np.zeros((1, SLOTS, SLOTS), np.float32), np.zeros((1, SLOTS), np.float32)
    state = linkage.TemporalLinkageState(*zeros)
    for slot in (4, 1):
        state = linkage.updated_linkage(state, one_hot(slot)[None])
    assert state.link[0, 1, 4] == 1
    assert np.abs(state.link).sum() == 1
    forward, _ = linkage.directional_weights(state.link, one_hot(4)[None])
    _, backward = linkage.directional_weights(state.link, one_hot(1)[None])
    np.testing.assert_array_equal(forward[0, 0], one_hot(1))
    np.testing.assert_array_equal(backward[0, 0], one_hot(4))


@pytest.mark.usefixtures("float64")
def test_gradients_are_those_of_the_equations(linkage, rng):
    from jax.test_util import check_grads  # noqa: PLC0415 - an extra, not needed to collect the tests

    link, precedence = rng.normal(size=(2, WRITES, SLOTS, SLOTS)), rng.normal(size=(2, WRITES, SLOTS))
    write, read = rng.normal(size=(2, WRITES, SLOTS)), rng.normal(size=(2, READS, SLOTS))

    def updated(link, precedence, write):
        return linkage.updated_linkage(linkage.TemporalLinkageState(link, precedence), write)

    # Against differences of the function's own values, which the fixtures verify.
    check_grads(updated, (link, precedence, write), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)
    check_grads(linkage.directional_weights, (link, read), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)
