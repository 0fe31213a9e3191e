"""Mistaken arguments that Reverb accepts or ignores are errors."""

import pytest
from helpers.compat_tables import serving, step, table
from helpers.support import raises

from engram.compat import reverb


def last_step():
    """A config for items of the newest step."""
    pattern = reverb.structured.pattern_from_transform({"x": None}, lambda step: step["x"][-1])
    return reverb.structured.create_config(pattern, "t")


@pytest.fixture(scope="module")
def client():
    with serving(table()) as (_, client):
        yield client


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c: c.insert(step(0), {"t": True}), TypeError, "`priorities['t']` must be a number; got True (bool)"),
        (
            lambda c: c.trajectory_writer(num_keep_alive_refs=True),
            TypeError,
            "`num_keep_alive_refs` must be an integer; got True (bool)",
        ),
        (lambda c: c.writer(1, delta_encoded="no"), TypeError, "`delta_encoded` must be True or False; got 'no' (str)"),
        (
            lambda c: c.trajectory_writer(1).end_episode(clear_buffers="no"),
            TypeError,
            "`clear_buffers` must be True or False; got 'no' (str)",
        ),
        (
            lambda c: c.structured_writer([last_step()]).end_episode(clear_buffers=1),
            TypeError,
            "`clear_buffers` must be True or False; got 1 (int)",
        ),
        (lambda _: reverb.rate_limiters.Queue(2.0), TypeError, "`size` must be an integer; got 2.0 (float)"),
        (lambda c: c.reset(b"t"), TypeError, "`table` must be text; got b't' (bytes)"),
        (
            lambda _: reverb.Client("localhost"),
            ValueError,
            "address is `localhost`: it has no port; give `host:port` or `unix:PATH`",
        ),
    ],
)
def test_mistaken_arguments_are_rejected(client, call, error, text):
    with raises(error, text):
        call(client)
    assert client.server_info()["t"].current_size == 0
