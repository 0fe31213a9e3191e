"""Writers whose server stops while items are pending, and is started again at the same address."""

import pytest
from helpers.compat_tables import serving, steps
from helpers.support import BackgroundCall, wait_until

from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw


def write_legacy(client):
    writer = client.writer(1)
    for value in range(5):
        writer.append([value])
        writer.create_item("queue", 1, 1.0)
    return writer


def write_trajectories(client):
    writer = client.trajectory_writer(1)
    for value in range(5):
        writer.append([value])
        writer.create_item("queue", 1.0, writer.history[0][-1:])
    return writer


def write_structured(client):
    writer = client.structured_writer([sw.create_config([sw.create_reference_step([0])[0][-1:]], "queue")])
    for value in range(5):
        writer.append([value])
    return writer


@pytest.mark.parametrize("write", [write_legacy, write_trajectories, write_structured])
def test_pending_items_are_sent_to_the_next_server_once_and_in_order(write):
    """The first server's queue holds one item. When the server stops, it confirms none of the items that wait."""
    with serving(reverb.Table.queue("queue", 1)) as (server, client):
        port = server.port
        writer = write(client)
        flushing = BackgroundCall(writer.flush)
        store = server._server_store.store
        wait_until(lambda: (store.info()["queue"].size, store.info()["queue"].waiting_inserts > 0) == (1, True))
    # The first item stayed in the first server.
    with serving(reverb.Table.queue("queue", 1), port=port) as (_, client):
        assert steps(client, "queue", 4) == [[1], [2], [3], [4]]
        flushing.result()
        info = client.server_info()["queue"]
        assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (0, 4)
        del writer  # kept until here, because a deleted writer is closed
