"""Who uses a table, and which calls it has rejected, as `info` lists them."""

import os
import re

import pytest
from helpers.support import fill, wait_until

from engram import Client, Dataset, Pattern, Server, Store, Table, TableUser, rate_limiters, selectors
from engram.errors import DeadlineExceededError, PriorityError


def users(store, table="t"):
    return store.info()[table].users


def test_a_writer_is_listed_while_it_is_connected(open_store):
    store = open_store(Table("t"), Table("u"))
    with store.pattern_writer([Pattern("t", num_steps=1)], chunk_length=1) as writer:
        for _ in range(5):
            writer.append({"x": 1})
        writer.flush()
        if isinstance(store, Store):
            assert users(store) == []
            return
        (user,) = users(store)
        assert (user.kind, user.items, user.in_flight) == ("writer", 5, 0)
        assert user.session is not None
        assert user.items_per_s > 0
        assert 0 <= user.idle_s < 10
        assert re.fullmatch(rf"process {os.getpid()}|127\.0\.0\.1:\d+", user.address)
        assert users(store, "u") == []
    del writer  # closes its stream
    wait_until(lambda: users(store) == [])


def test_a_reader_is_listed_with_the_items_that_it_waits_for():
    with Store([Table("t")]) as store, Server(store) as server, Client(server.address) as client:
        with Dataset(client, "t", batch_size=4, max_batches=2) as dataset:
            batches = iter(dataset)
            fill(store, "t", range(3))
            next(batches)
            (user,) = users(client)
            assert isinstance(user, TableUser)
            assert (user.kind, user.session) == ("reader", None)
            assert user.items >= 4
        wait_until(lambda: users(store) == [])


@pytest.mark.usefixtures("other_thread")
def test_items_of_a_blocked_writer_are_in_flight():
    limiter = rate_limiters.SampleToInsertRatio(1.0, min_size=1, error_buffer=2.0)
    with Store([Table("t", rate_limiter=limiter)]) as store, Server(store) as server, Client(server.address) as client:
        writer = client.pattern_writer([Pattern("t", num_steps=1)], chunk_length=1)
        for _ in range(8):  # the writer has not sent the last one
            writer.append({"x": 1})
        wait_until(lambda: [user.in_flight for user in users(store)] == [4])
        store.sample("t", 3)
        wait_until(lambda: [user.in_flight for user in users(store)] == [1])
        store.set_rate_limiter("t", rate_limiters.MinSize(1))
        writer.close()


def test_rejected_calls_are_counted_by_error(open_store):
    store = open_store(Table("t", sampler=selectors.Prioritized()))
    assert store.info()["t"].rejected_calls == {}
    keys = fill(store, "t", [1])
    for _ in range(2):
        with pytest.raises(PriorityError):
            store.update_priorities("t", keys, [float("nan")])
    with pytest.raises(DeadlineExceededError):
        store.set_rate_limiter("t", rate_limiters.MinSize(5))
        store.sample("t", 1, timeout=0.0)
    assert store.info()["t"].rejected_calls == {"DeadlineExceededError": 1, "PriorityError": 2}
    store.reset("t")
    assert store.info()["t"].rejected_calls == {}
