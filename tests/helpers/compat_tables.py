"""Tables, servers and items for the tests of `engram.compat.reverb`."""

from contextlib import contextmanager

import numpy as np

from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec


def table(name="t", **changes):
    """A table that blocks only samples, and only while it is empty, except as set by `changes`."""
    options = {
        "sampler": reverb.selectors.Fifo(),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name=name, **{**options, **changes})


@contextmanager
def serving(*tables, **options):
    """A server on localhost and a client of it."""
    server = reverb.Server(list(tables), host="localhost", **options)
    try:
        yield server, reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def steps(client, table="t", n=1):
    """The data of the first step of `n` sampled items."""
    return [item[0].data for item in client.sample(table, n)]


SIGNATURE = {"a": TensorSpec([2], np.float32, "n"), "b": TensorSpec([], np.int64)}
FITTING_STEP = {"b": 1, "a": np.zeros(2, np.float32)}
"""A step that fits `SIGNATURE`."""


@contextmanager
def four_tables():
    """A client of the tables `t`, `prioritized`, `signed` and `queue`."""
    tables = (
        table(),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
        table("signed", signature=SIGNATURE),
        table("queue", max_times_sampled=1),
    )
    with serving(*tables) as (_, client):
        yield client


@contextmanager
def tables_sampled_once(*more):
    """A client of `t` and of a `queue` of size 1, whose items are sampled once each, of `prioritized` and of `more`."""
    tables = (
        table(max_times_sampled=1),
        reverb.Table.queue("queue", 1),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
    )
    with serving(*tables, *more) as (_, client):
        yield client


def step(value):
    """A step that fits `SIGNATURE`."""
    return {"a": np.full(2, value, np.float32), "b": value}


def writer_with_three_steps(client):
    """A trajectory writer to which `step(0)` to `step(2)` were appended."""
    writer = client.trajectory_writer(4)
    for value in range(3):
        writer.append(step(value))
    return writer


def samples(client, name="t"):
    """All items of a table whose items are sampled once each, as whole columns."""
    size = client.server_info()[name].current_size
    return list(client.sample(name, size, emit_timesteps=False)) if size else []


def items(client, name="t"):
    """All items of a table whose items are sampled once each: the columns of each, as lists."""
    return [[column.tolist() for column in sample.data] for sample in samples(client, name)]


def sample_item(client, name):
    """Waits for an item and returns its columns."""
    return [column.tolist() for column in next(client.sample(name, emit_timesteps=False)).data]


def keys(client, name, n=1):
    """The keys of `n` sampled items."""
    return [item[0].info.key for item in client.sample(name, n)]
