"""Files of every kind that Engram writes, with all dtypes, selectors and rate limiters, and what reading them shows.

    python tests/helpers/format_samples.py tests/durable/format-1

`format-1` has the files of format version 1, as the release that introduced it wrote them, and `expected.json`. They do
not change: every later version must read them. A new version of the format gets a directory of its own.
"""

import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path

import ml_dtypes  # noqa: F401, registers the names of small floats
import numpy as np

import engram
from engram import ArraySpec, Client, Pattern, Server, Store, Table, rate_limiters, selectors
from engram.buffers import MappedFile, ReplayBuffer, Transitions

INTEGERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
OPTIONS = {"capacity": 12, "num_envs": 2, "items": Transitions(n_step=2, discount=0.5)}


def tables():
    """One table for each selector and each kind of rate limiter."""
    ratio = rate_limiters.SampleToInsertRatio(4.0, min_size=2, error_buffer=100.0)
    signature = {"x": ArraySpec([2], np.float32)}
    return [
        Table("all dtypes", sampler=selectors.Uniform(), rate_limiter=rate_limiters.MinSize(2)),
        Table("prioritized", max_size=6, sampler=selectors.Prioritized(0.6), remover=selectors.MinHeap()),
        Table("heaps", sampler=selectors.MaxHeap(), remover=selectors.Lifo(), rate_limiter=ratio, ttl=1e9),
        Table("signature", signature=signature, max_bytes=1 << 20, max_times_sampled=3, note="a note"),
        Table.queue("queue", max_size=50),
        Table.stack("stack", max_size=50),
    ]


def step(number):
    """A step with a column of every dtype, and one that is compressed."""
    values = {name: np.full(3, number).astype(name) for name in INTEGERS + FLOATS}
    return values | {"text": f"number {number}", "bytes": str(number).encode(), "frame": np.full((8, 8), number, "u1")}


def row(number):
    """A step of a replay buffer; episodes have four steps."""
    x = np.full(2, number, np.float32)
    flags = {"terminated": number % 8 == 7, "truncated": number % 8 == 3}
    return {"obs": x, "next_obs": x + 1, "reward": float(number)} | flags


def write_store(path):
    """Writes a store with a checkpoint, a log of all changes after it, and the mark of a close."""
    with Store.open(path, tables(), seed=1) as store:
        change(store, 0)
        store.checkpoint()
        change(store, 10)


def change(store, first):
    """Makes changes of every kind."""
    patterns = [Pattern("all dtypes", num_steps=2), Pattern("prioritized", num_steps=3)]
    with store.pattern_writer(patterns, chunk_length=4) as writer:
        for number in range(first, first + 5):
            writer.append(step(number))
    keys = [store.insert({"x": np.full(2, first + i, np.float32)}, {"heaps": i, "signature": 1.0}) for i in range(4)]
    store.update_priorities("heaps", keys[:2], [9.0, 8.0])
    store.delete("signature", keys[3:])
    store.sample("signature", 2)
    with Server(store) as server, Client(server.address) as client, client.writer(compression="delta") as writer:
        for number in range(first, first + 6):
            writer.append({"x": number, "frame": np.arange(number, number + 32)})
            writer.create_item("queue", num_steps=1)
            writer.create_item("stack", num_steps=1)
    store.sample("queue", 2)
    store.sample("stack", 1)
    store.set_rate_limiter("heaps", rate_limiters.SampleToInsertRatio(2.0, min_size=1, error_buffer=50.0))
    store.create_table(Table(f"table {first}"))
    store.insert({"x": 1}, {f"table {first}": 1.0})
    if first:
        store.drop_table("table 0")


def write_buffers(path):
    """Writes a save of a replay buffer, and a replay buffer in a mapped file."""
    for storage in (None, MappedFile(path / "mapped")):
        sampler = selectors.Prioritized(0.5)
        with ReplayBuffer(**OPTIONS, sampler=sampler, storage=storage, seed=2) as buffer:
            for number in range(9):
                buffer.add(row(number), env_id=0)
            buffer.add(row(2), env_id=1)
            buffer.end_episodes(env_ids=[1])
            buffer.add(row(4), env_id=1)
            buffer.update_priorities([3, 4], [5.0, 0.25])
            if storage is None:
                buffer.save(path / "saved")


def contents(path):
    """What reading the files shows, as JSON values. Opening them may change them."""
    found = {}
    with Store.open(path / "store") as store:
        found["notes"] = list(store.notes)
        for name, info in sorted(store.info().items()):
            options = [info.sampler, info.remover, info.rate_limiter, info.max_size, info.max_bytes, info.signature]
            counts = [info.size, info.inserts, info.samples, info.deletes, info.num_episodes, info.num_unique_samples]
            texts = [repr(each) for each in [*options, info.max_times_sampled, info.ttl, info.note]]
            found[name] = [texts, counts, *itertools.chain(*map(items, store.scan(name, batch_size=1)))]
    with ReplayBuffer(**OPTIONS, sampler=selectors.Prioritized(0.5)) as buffer:
        buffer.restore(path / "saved")
        found["saved"] = buffer_contents(buffer)
    with ReplayBuffer(**OPTIONS, sampler=selectors.Prioritized(0.5), storage=MappedFile(path / "mapped")) as buffer:
        found["mapped"] = buffer_contents(buffer)
    return json.loads(json.dumps(found))


def buffer_contents(buffer):
    return [*itertools.chain(*map(items, [*buffer.scan(1, steps=True), *buffer.scan(1)]))]


def items(batch):
    """Yields what a batch of one item shows."""
    names = [name for name in ("key", "priority", "times_sampled", "position") if hasattr(batch.info, name)]
    yield [str(getattr(batch.info, name)) for name in names]
    for name, array in batch.data.items():
        as_bytes = array.dtype != object
        yield [name, array.dtype.str, list(array.shape), array.tobytes().hex() if as_bytes else str(array.tolist())]


def main() -> None:
    """Writes all files."""
    path = Path(sys.argv[1])
    write_store(path / "store")
    write_buffers(path)
    with tempfile.TemporaryDirectory() as copy:
        found = contents(shutil.copytree(path, Path(copy, "files")))
    expected = json.dumps({"written by": engram.__version__} | found, indent=None, separators=(",", ":"))
    (path / "expected.json").write_text(expected.replace('],["', '],\n["') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
