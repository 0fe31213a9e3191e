"""Delta compression of integers."""

import numpy as np
from helpers.support import case

from engram import Pattern, Store, Table, selectors

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def frames(dtype, steps, seed=0):
    """Images that change little between steps, with values from the whole range of the dtype."""
    rng = np.random.default_rng(seed)
    bounds = np.iinfo(dtype)
    first = rng.integers(bounds.min, bounds.max, (32, 32), dtype=dtype, endpoint=True)
    with np.errstate(over="ignore"):
        return [first + np.full((), step, dtype) for step in range(steps)]


def test_integers_of_every_width_are_stored_exactly(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    for dtype in INTEGERS:
        values = frames(dtype, 20)
        with store.writer(history=20, chunk_length=8, compression="delta") as writer:
            for frame in values:
                writer.append({"x": frame, "f": frame.astype(np.float32), "n": np.int64(3), "flag": frame > 0})
            writer.create_item("t", trajectory={name: writer.history[name][1:19] for name in ("x", "f", "n", "flag")})
        data = store.sample("t", 1, timeout=10).data
        with case(dtype):
            assert np.array_equal(data["x"][0], values[1:19])
            assert np.array_equal(data["f"][0], np.asarray(values[1:19], np.float32))
            assert np.array_equal(data["flag"][0], np.asarray(values[1:19]) > 0)
            assert data["x"].dtype == dtype


def test_delta_compression_saves_space(tmp_path):
    sizes = {}
    for mode in ("off", "auto", "delta"):
        with Store.open(tmp_path / mode, [Table("t")]) as store:
            with store.pattern_writer([Pattern("t", num_steps=8)], chunk_length=8, compression=mode) as writer:
                for frame in frames("uint8", 8):
                    writer.append({"x": frame})
            sizes[mode] = store.info()["t"].bytes
        with Store.open(tmp_path / mode) as store:
            assert np.array_equal(store.sample("t", 1).data["x"][0], frames("uint8", 8))
    assert sizes["delta"] < 0.4 * sizes["auto"] <= 0.4 * sizes["off"]


def test_a_batched_writer_can_use_delta_compression(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    values = np.stack([frames("uint16", 6, seed) for seed in range(3)])
    with store.batched_writer(3, [Pattern("t", num_steps=6)], chunk_length=4, compression="delta") as writer:
        for step in range(6):
            writer.append_batch({"x": values[:, step]})
    assert np.array_equal(store.sample("t", 3, timeout=10).data["x"], values)
