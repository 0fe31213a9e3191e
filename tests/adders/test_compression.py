"""Delta compression stores integers that change little from step to step in less space."""

import numpy as np
import optree
import pytest
from helpers.episodes import MAKERS, queue, timesteps
from helpers.support import raises

from engram import Store
from engram.errors import InvalidArgumentError


@pytest.fixture(params=sorted(MAKERS))
def make(request):
    return MAKERS[request.param]


def table_after_episode(make, **options):
    """Adds an episode of a noisy image that grows brighter; returns the table's bytes and the leaves of its items."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    steps = [step._replace(observation=noise + np.uint8(step.observation)) for step in timesteps(range(7))]
    with Store([queue()]) as store:
        with make(store, chunk_length=8, **options) as adder:
            adder.add_first(steps[0])
            for step in steps[1:]:
                adder.add(np.int32(7), step)
        info = store.info()["priority_table"]
        return info.bytes, [optree.tree_leaves(store.sample("priority_table", 1).data) for _ in range(info.size)]


def test_delta_compression_halves_the_bytes(make):
    raw_bytes, raw_items = table_after_episode(make, compression="off")
    auto, _ = table_after_episode(make)
    delta, items = table_after_episode(make, compression="delta")
    assert delta < 0.5 * auto <= 0.5 * raw_bytes
    for item, raw_item in zip(items, raw_items, strict=True):
        for leaf, expected in zip(item, raw_item, strict=True):
            np.testing.assert_array_equal(leaf, expected, strict=True)


@pytest.mark.parametrize(
    ("compression", "text"),
    [
        ("zip", '`compression` must be "auto", "delta" or "off"; got \'zip\' (str)'),
        (True, '`compression` must be "auto", "delta" or "off"; got True (bool)'),
    ],
)
def test_bad_compressions_are_rejected(make, compression, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        make(store, compression=compression)
