"""Chunks larger than one message: many at once arrive, and none is mixed up with another."""

import numpy as np
import pytest

from engram import Pattern, Table, selectors

PART = 2**18  # bytes of a chunk in one message
SIZES = [PART - 64, PART, PART + 1, 2 * PART - 64, 3 * PART + 7, 5 * PART]


@pytest.mark.parametrize("kind", ["trajectory", "pattern", "batched"])
@pytest.mark.parametrize("compression", ["off", "auto"])
def test_many_at_once(open_store, kind, compression):
    store = open_store(Table("t", sampler=selectors.Fifo(), remover=selectors.Fifo(), max_times_sampled=1))
    rng = np.random.default_rng(0)
    # Half of each compresses; those of one size follow each other, as a writer's do.
    noise = rng.integers(0, 256, 5 * PART, np.uint8) * (np.arange(5 * PART) % 512 < 256).astype(np.uint8)
    for size in SIZES:
        values = [np.roll(noise, i)[:size] for i in range(12)]
        patterns, options = [Pattern("t", num_steps=1)], {"chunk_length": 1, "compression": compression}
        if kind == "batched":
            with store.batched_writer(2, patterns, **options) as writer:
                for pair in np.array(values).reshape(6, 2, size):
                    writer.append_batch({"x": pair})
        elif kind == "pattern":
            with store.pattern_writer(patterns, **options) as writer:
                for value in values:
                    writer.append({"x": value})
        else:
            with store.writer(**options) as writer:
                for value in values:
                    writer.append({"x": value})
                    writer.create_item("t", num_steps=1)
        batch = store.sample("t", len(values), timeout=30)
        np.testing.assert_array_equal(batch.data["x"][:, 0], values)
