"""Tables, servers and clients of the Reverb-compatible API."""

from contextlib import contextmanager

import numpy as np

from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec


def table(name="t", **changes):
    """A table with a permissive rate limiter, except for the given options."""
    options = {
        "sampler": reverb.selectors.Fifo(),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name=name, **{**options, **changes})


@contextmanager
def serving(*tables, **options):
    """A local server, and a client of it."""
    server = reverb.Server(list(tables), host="localhost", **options)
    try:
        yield server, reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def steps(client, table="t", n=1):
    """Data of the first step of `n` items, sampled one by one."""
    return [item[0].data for item in client.sample(table, n)]


SIGNATURE = {"a": TensorSpec([2], np.float32, "n"), "b": TensorSpec([], np.int64)}
FITTING = {"b": 1, "a": np.zeros(2, np.float32)}
"""A step that matches `SIGNATURE`."""


@contextmanager
def four_tables():
    """A client of a server with the tables `t`, `prioritized`, `signed` and `queue`."""
    tables = (
        table(),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
        table("signed", signature=SIGNATURE),
        table("queue", max_times_sampled=1),
    )
    with serving(*tables) as (_, client):
        yield client


@contextmanager
def once_each(*more):
    """A client of a server with `t` and a `queue` of size 1, which return each item once, `prioritized`, and `more`."""
    tables = (
        table(max_times_sampled=1),
        reverb.Table.queue("queue", 1),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
    )
    with serving(*tables, *more) as (_, client):
        yield client


def step(value):
    """A step with this value that matches `SIGNATURE`."""
    return {"a": np.full(2, value, np.float32), "b": value}


def of_three_steps(client):
    """A trajectory writer with the steps 0 to 2."""
    writer = client.trajectory_writer(4)
    for value in range(3):
        writer.append(step(value))
    return writer


def samples(client, name="t"):
    """All items of a table, one sample per item."""
    size = client.server_info()[name].current_size
    return list(client.sample(name, size, emit_timesteps=False)) if size else []


def items(client, name="t"):
    """All items of a table: the columns of each, as lists."""
    return [[column.tolist() for column in sample.data] for sample in samples(client, name)]


def drawn(client, name):
    """Columns of an item; waits until there is one."""
    return [column.tolist() for column in next(client.sample(name, emit_timesteps=False)).data]


def keys(client, name, n=1):
    """Keys of `n` items, sampled one by one."""
    return [item[0].info.key for item in client.sample(name, n)]
