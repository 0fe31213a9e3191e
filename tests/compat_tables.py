"""Tables and servers as code for Reverb makes them."""

from contextlib import contextmanager

from engram.compat import reverb


def table(name="t", **changes):
    """A table that lets everybody through, but for what is given."""
    options = {
        "sampler": reverb.selectors.Fifo(),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name=name, **{**options, **changes})


@contextmanager
def serving(*tables, **options):
    """A server on this machine alone, and a client of it."""
    server = reverb.Server(list(tables), host="localhost", **options)
    try:
        yield server, reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def steps(client, table="t", n=1):
    """The data of the first step of `n` items, as one sampled after the other."""
    return [item[0].data for item in client.sample(table, n)]
