"""Several threads use one writer: their calls wait for each other, but not for tables that another call waits for."""

import itertools

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.support import BackgroundCall, wait_until

from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw

STEPS = 150
CALLS = ("append", "create_item", "flush", "end_episode")


@pytest.fixture
def client():
    with serving(table(), reverb.Table.queue("queue", 1)) as (_, client):
        yield client


def writers(client, name):
    """A writer of each kind, with functions that append a step, and create an item of the newest one in a table."""
    trajectory = client.trajectory_writer(10)
    legacy = client.writer(10, chunk_length=2)
    reference = sw.create_reference_step([None])
    structured = client.structured_writer([sw.create_config([reference[0][-1]], name)])
    return {
        "trajectory": (
            trajectory,
            lambda value: trajectory.append([value]),
            lambda: trajectory.create_item(name, 1.0, [trajectory.history[0][-1]]),
        ),
        "legacy": (legacy, lambda value: legacy.append([value]), lambda: legacy.create_item(name, 1, 1.0)),
        "structured": (structured, lambda value: structured.append([value]), lambda: None),
    }


@pytest.mark.parametrize("kind", ["trajectory", "structured", "legacy"])
def test_any_two_calls_can_be_made_by_two_threads(client, kind):
    for calls in itertools.combinations_with_replacement(CALLS, 2):
        writer, append, create_item = writers(client, "t")[kind]
        append(np.float32(0))
        functions = {
            "append": lambda append=append: append(np.float32(1)),
            "create_item": create_item,
            "flush": writer.flush,
            "end_episode": getattr(writer, "end_episode", writer.flush),
        }
        if "end_episode" in calls:  # there may be no step left for an item
            functions["create_item"] = functions["append"]

        def repeat(call):
            for _ in range(STEPS):
                call()

        for thread in [BackgroundCall(lambda call=functions[call], repeat=repeat: repeat(call)) for call in calls]:
            thread.result()
        writer.flush()
        if kind == "legacy":
            writer.close()


@pytest.mark.parametrize("kind", ["trajectory", "structured", "legacy"])
@pytest.mark.parametrize("waiting", ["flush", "end_episode", "close"])
def test_a_call_that_waits_for_a_table_does_not_block_others(client, kind, waiting):
    writer, append, create_item = writers(client, "queue")[kind]
    if not hasattr(writer, waiting) or (kind, waiting) == ("trajectory", "close"):
        return  # it does not wait
    for value in range(3):
        append(np.float32(value))
        create_item()
    wait_until(lambda: client.server_info()["queue"].current_size == 1)
    if kind == "legacy":
        writer.flush()
    caller = BackgroundCall(getattr(writer, waiting))
    if waiting == "close":
        with pytest.raises(RuntimeError, match="the writer is closed"):
            wait_until(lambda: append(np.float32(3)))
    else:
        append(np.float32(3))
    values = [next(client.sample("queue", emit_timesteps=False)).data[0].item() for _ in range(3)]
    assert values == [0, 1, 2]
    if kind == "structured" and waiting != "close":
        next(client.sample("queue", emit_timesteps=False))  # the flush also waits for the item of the last append
    caller.result()


def test_a_long_wait_is_logged(client, caplog, monkeypatch):
    monkeypatch.setattr("engram.compat.reverb._turns.FIRST_REPORT", 0.05)
    writer, append, create_item = writers(client, "queue")["trajectory"]
    for value in range(2):
        append(np.float32(value))
        create_item()
    other = BackgroundCall(lambda: wait_until(lambda: "`flush` has waited" in caplog.text))
    with pytest.raises(
        reverb.DeadlineExceededError, match=r"of 0:00:00.500000: 1 item is not in its table after 0\.5 s; "
    ):
        writer.flush(timeout_ms=500)
    other.result()
    assert caplog.messages[0].startswith("`flush` has waited 0 s: 1 item is not in its table; it stays queued")
    for _ in range(2):
        next(client.sample("queue", emit_timesteps=False))
    writer.flush()
