"""Messages stay below the maximum size, also if many items with many slices are sent again."""

import contextlib

from helpers.faults import Proxy
from helpers.support import wait_until

from engram import Client, Server, Table
from engram.errors import DeadlineExceededError

ITEMS, COLUMNS = 60, 200


def test_items_that_together_exceed_the_maximum_message_size_are_sent_again():
    names = [f"column_{number}" for number in range(COLUMNS)]
    with (
        Server([Table.queue("q", max_size=1)]) as server,
        Proxy(server.port) as proxy,
        Client(proxy.address) as client,
        client.writer(history=4, chunk_length=2, max_waiting_items=None) as writer,
    ):
        # Items that refer to several chunks many times: 100 kB of slices each.
        for value in range(ITEMS + 3):
            writer.append(dict.fromkeys(names, value))
            if value >= 3:
                columns = writer.history
                writer.create_item("q", trajectory={name: columns[name][[-1, -4] * 50] for name in names})
        with contextlib.suppress(DeadlineExceededError):
            writer.flush(timeout=0.5)
        wait_until(lambda: writer.pending_items == ITEMS - 1)
        # After a cut, all pending items are sent again.
        proxy.cut()
        for value in range(3, ITEMS + 3):
            data = server.store.sample("q", 1, timeout=20).data
            assert data["column_7"][0, :4].tolist() == [value, value - 3] * 2
        writer.flush(timeout=20)
        wait_until(lambda: server.store.info()["q"].size == 0)
