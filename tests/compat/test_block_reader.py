"""`BlockReader`: the sizes of its blocks, and when it ends."""

import time
from contextlib import ExitStack

import numpy as np
from helpers.support import BackgroundCall

import engram
from engram.compat.reverb._block_reader import BlockReader, FetchOptions


def test_items_that_form_no_block_are_read_one_by_one_until_64_fit():
    with engram.Store([engram.Table.queue("t", max_size=400)]) as store:
        for i in range(300):  # item 20 has another shape, so no block can contain both it and others
            store.insert({"x": np.full(3 if i == 20 else 2, i)}, {"t": 1.0})
        reader = BlockReader(
            store, "t", FetchOptions(max_in_flight=20, max_items=300), lambda block: block.columns[0][:, 0].tolist()
        )
        blocks = list(reader.blocks())
        assert [each for block in blocks for each in block] == list(range(300))
        sizes = [len(block) for block in blocks]
        # After 64 items that fit, the reader uses blocks again.
        assert sizes[:2] == [10, 10]
        assert sizes[2:66] == [1] * 64
        assert sizes[66:-1] == [10] * (len(sizes) - 67)


def test_a_timeout_is_not_rounded():
    """Readers with different timeouts wait at the same time, several times."""

    def shortest_time(store, timeout):
        times = []
        for _ in range(5 if timeout < 0.3 else 3):
            began = time.monotonic()
            reader = BlockReader(store, "t", FetchOptions(max_in_flight=2, timeout=timeout), lambda block: block.size)
            blocks = list(reader.blocks())
            assert set(blocks) <= {None}  # yielded at intervals while there are no items
            times.append(time.monotonic() - began)
        return min(times)

    timeouts = [0.05, 0.21, 0.3, 0.41]
    with ExitStack() as stack:
        stores = [stack.enter_context(engram.Store([engram.Table.queue("t", max_size=4)])) for _ in timeouts]
        calls = [
            BackgroundCall(lambda store=store, timeout=timeout: shortest_time(store, timeout))
            for store, timeout in zip(stores, timeouts, strict=True)
        ]
        for timeout, call in zip(timeouts, calls, strict=True):
            assert timeout - 0.002 <= call.result() < timeout + 0.09, timeout


def test_max_items_counts_items_read_one_by_one():
    with engram.Store([engram.Table.queue("t", max_size=400)]) as store:
        for i in range(100):  # the first item has another shape, so items are read one by one
            store.insert({"x": np.full(3 if i == 0 else 2, i)}, {"t": 1.0})
        reader = BlockReader(store, "t", FetchOptions(max_in_flight=20, max_items=64), lambda block: block.size)
        assert list(reader.blocks()) == [1] * 64
        assert store.info()["t"].size == 36


def test_an_unreachable_server_is_waited_for_although_the_timeout_is_short():
    with engram.Server([engram.Table.queue("t", max_size=4)]) as server:
        address, port = server.address, server.port
    options = FetchOptions(max_in_flight=2, timeout=0.05, reconnect_forever=True)
    with engram.Client(address, reconnect_timeout=0.3) as client:
        reader = BlockReader(client, "t", options, lambda block: block.columns[0].tolist()).blocks()
        first = BackgroundCall(lambda: next(block for block in reader if block is not None))
        time.sleep(0.8)  # the timeout and the time to reconnect pass twice
        with engram.Store([engram.Table.queue("t", max_size=4)]) as store:
            store.insert({"x": 7}, {"t": 1.0})
            with engram.Server(store, port=port):
                assert first.result(20.0) == [7]
                reader.close()
