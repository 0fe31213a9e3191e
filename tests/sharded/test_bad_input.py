"""Mistakes with sharded clients: the errors name the shard, and what to do."""

import re
import time

import numpy as np
import pytest
from helpers.support import BackgroundCall

import engram
from engram import Table, selectors
from engram.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, UnavailableError, UnknownTableError

UNUSED = "127.0.0.1:9"


def raises(error, text):
    return pytest.raises(error, match=re.escape(text))


def client_of(*servers, **options):
    return engram.ShardedClient([server.address for server in servers], reconnect_timeout=0.3, **options)


@pytest.mark.parametrize(
    ("addresses", "text"),
    [
        ([], "`addresses` must have from 1 to 1023 addresses, one for each shard; got 0"),
        (["a:1"] * 1024, "`addresses` must have from 1 to 1023 addresses, one for each shard; got 1024"),
        (["a:1", "b:1", "a:1"], "`addresses` must differ; shards 0 and 2 are both 'a:1': remove one of them"),
        (["a:1", "b"], "address is `b`: it has no port; give `host:port` or `unix:PATH`"),
        ("a:1", "`addresses`"),
        (["a:1", 7], "`address`"),
    ],
)
def test_addresses(addresses, text):
    with raises(InvalidArgumentError, text):
        engram.ShardedClient(addresses)


@pytest.mark.parametrize("number", [0, -1, 2.5, 1 << 31])
def test_items_per_request_are_at_least_1(number):
    with pytest.raises(InvalidArgumentError, match=rf"`items_per_request` must be .*; got {number}"):
        engram.ShardedClient([UNUSED], items_per_request=number)


@pytest.mark.parametrize("shard_id", [0, 1024, -1, 1.5, "1"])
def test_shard_ids_are_from_1_to_1023(shard_id):
    with raises(InvalidArgumentError, "`shard_id` must be"):
        engram.Server([Table("t")], shard_id=shard_id)


def test_no_shard_can_be_reached():
    client = engram.ShardedClient([UNUSED, "127.0.0.1:10"], reconnect_timeout=0.2)
    with raises(UnavailableError, f"no shard can be reached: shard 0 (at {UNUSED}), shard 1 (at 127.0.0.1:10)"):
        client.sample("t", 1)
    with raises(UnavailableError, "no shard can be reached"):
        client.insert({"x": 1}, {"t": 1.0})


def test_a_shard_that_cannot_be_reached_is_named_and_the_others_go_on(start_servers, caplog):
    (server,) = start_servers([Table("t")], 1)
    client = engram.ShardedClient([UNUSED, server.address], reconnect_timeout=0.2)
    client.insert({"x": 1}, {"t": 1.0})
    assert client.sample("t", 3).data["x"].tolist() == [1, 1, 1]
    assert f"shard 0 (at {UNUSED}) cannot be reached; calls go on with the others until it can" in caplog.text
    with raises(UnavailableError, UNUSED) as raised:
        client.reset("t")
    note = (
        f"This is the error of shard 0 (at {UNUSED}); the call was also sent to the other shards (1), and may have "
        "succeeded there."
    )
    assert note in raised.value.__notes__
    assert client.info()["t"].size == 0


@pytest.mark.parametrize("timeout", [0.3, np.float32(0.3)])
def test_a_timeout_holds_while_no_shard_can_be_reached(timeout):
    client = engram.ShardedClient([UNUSED, "127.0.0.1:10"], reconnect_timeout=30.0)
    began = time.monotonic()
    text = f"no reply of shard 0 (at {UNUSED}), shard 1 (at 127.0.0.1:10) in 0.3 s (`timeout`)"
    with raises(DeadlineExceededError, text):
        client.sample("t", 1, timeout=timeout)
    assert time.monotonic() - began < 10.0


def test_a_timeout_holds_while_a_shard_cannot_be_reached(start_servers):
    [server] = start_servers([Table("t")], 1)
    # The client waits at the end of each call, and of its close.
    calls = [
        BackgroundCall(lambda shard=shard: check_timeout_without_shard(shard, server.address)) for shard in range(2)
    ]
    for call in calls:
        call.result(60.0)


def check_timeout_without_shard(shard, address):
    """Checks calls of a client whose shard of this number cannot be reached."""
    addresses = [address]
    addresses.insert(shard, UNUSED)
    client = engram.ShardedClient(addresses, reconnect_timeout=30.0)
    waiting = BackgroundCall(client.info)
    why = "cannot be reached: connection refused (is it running? is the port right?)"
    text = f"table `t`: no reply of shards {shard} (at {UNUSED}, {why}) in 0.3 s (`timeout`)"
    for _ in range(2):
        began = time.monotonic()
        with raises(DeadlineExceededError, text):
            client.sample("t", 1, timeout=0.3)
        assert time.monotonic() - began < 10.0
    client.close()
    with pytest.raises((ClosedError, UnavailableError)):
        waiting.result()


def test_a_first_sample_may_have_a_timeout_of_0(start_servers):
    servers = start_servers([Table("t")], 2)
    with engram.Client(servers[0].address) as one:
        one.insert_batch("t", {"x": np.arange(100)})
    client = client_of(*servers)
    assert len(client.sample("t", 2, at_least=1, timeout=0)) == 2


def test_two_servers_with_one_shard_id(start_servers):
    servers = [*start_servers([Table("t")], 1), *start_servers([Table("t")], 1)]
    with raises(
        InvalidArgumentError,
        f"shard 0 (at {servers[0].address}) and shard 1 (at {servers[1].address}) both have the shard id 1: start one "
        "of them with another `shard_id`",
    ):
        client_of(*servers).sample("t", 1)


def test_servers_without_shard_ids_can_be_used():
    servers = [engram.Server([Table("t")]) for _ in range(2)]
    client = client_of(*servers)
    keys = []
    for server in servers:
        with engram.Client(server.address) as one:
            keys.append(one.insert({"x": 1}, {"t": 1.0}))
    assert client.delete("t", np.array(keys, np.uint64)) == 2
    for server in servers:
        server.close()


def test_shards_with_different_tables(start_servers):
    first, second = start_servers([Table("t")], 1)[0], start_servers([Table("t"), Table("u")], 1, first_id=2)[0]
    with raises(
        UnknownTableError,
        f"shard 1 (at {second.address}) has a table `u`, shard 0 (at {first.address}) has not; all shards must have "
        "the same tables: create it there",
    ):
        client_of(first, second).info()


@pytest.mark.parametrize(
    ("option", "one", "other", "shown"),
    [
        ("sampler", selectors.Uniform(), selectors.Fifo(), "('Uniform', None)"),
        ("max_times_sampled", None, 3, "None"),
    ],
)
def test_shards_with_different_options(start_servers, option, one, other, shown):
    first = start_servers([Table("t", **{option: one})], 1)[0]
    second = start_servers([Table("t", **{option: other})], 1, first_id=2)[0]
    with raises(InvalidArgumentError, f"table `t`: `{option}` differs: {shown} on shard 0 (at {first.address}), "):
        client_of(first, second).info()


def test_a_table_that_no_shard_has(start_servers):
    client = client_of(*start_servers([Table("t")]))
    for call in (
        lambda: client.sample("x", 1),
        lambda: client.insert({"x": 1}, {"x": 1.0}),
        lambda: client.delete("x", [1]),
        lambda: client.update_priorities("x", [], []),
        lambda: client.scan("x"),
        lambda: client.reset("x"),
        lambda: next(iter(engram.Dataset(client, "x", 1))),
    ):
        with raises(UnknownTableError, "`x`"):
            call()


def test_a_table_that_one_shard_lost(start_servers):
    servers = start_servers([Table("t"), Table("u")])
    client = client_of(*servers)
    client.insert({"x": 1}, {"t": 1.0})
    servers[1].store.drop_table("t")
    with raises(UnknownTableError, "`t`"):
        client.update_priorities("t", [1], [1.0])


def test_repeated_changes_of_tables_reach_the_other_shards(start_servers):
    servers = start_servers([Table("t")])
    client = client_of(*servers)
    servers[0].store.create_table(Table("new"))  # as a call that could not reach the others
    client.create_table(Table("new"))
    assert [server.store.tables for server in servers] == [["new", "t"]] * 3
    with raises(InvalidArgumentError, "already exists"):
        client.create_table(Table("new"))
    servers[0].store.drop_table("new")
    client.drop_table("new")
    assert [server.store.tables for server in servers] == [["t"]] * 3
    with raises(UnknownTableError, "`new`"):
        client.drop_table("new")
    servers[2].store.create_table(Table("new", max_times_sampled=1))
    with raises(InvalidArgumentError, "table `new`: `max_times_sampled` differs"):
        client.create_table(Table("new"))


def test_keys_and_priorities_of_different_lengths(start_servers):
    client = client_of(*start_servers([Table("t")]))
    with pytest.raises(InvalidArgumentError, match=r"keys|priorities"):
        client.update_priorities("t", [1, 2], [1.0])


def test_a_token_that_a_shard_rejects(start_servers):
    first = start_servers([Table("t")], 1)[0]
    second = engram.Server([Table("t")], token="secret", shard_id=2)
    with raises(engram.errors.HandshakeError, second.address):
        client_of(first, second).info()
    second.close()


def test_a_closed_client(start_servers):
    client = client_of(*start_servers([Table("t")]))
    client.insert({"x": 1}, {"t": 1.0})
    client.close()
    client.close()
    for call in (lambda: client.sample("t", 1), client.info, lambda: engram.Dataset(client, "t", 1).read(id)):
        with raises(engram.errors.ClosedError, "this client is closed"):
            next(iter(call() or ()))


def test_a_shard_that_lost_a_table_is_named(start_servers):
    servers = start_servers([Table("t")], 2)
    client = client_of(*servers)
    client.insert_batch("t", {"x": np.arange(100)})
    with engram.Client(servers[1].address) as second:
        second.drop_table("t")
    text = (
        f"shard 0 (at {servers[0].address}) has a table `t`, shard 1 (at {servers[1].address}) has not; all shards "
        "must have the same tables: create it there"
    )
    time.sleep(0.2)  # what the client knows of the tables is older than 0.1 s then
    with raises(UnknownTableError, text):
        client.sample("t", 600)
