"""dm-reverb's client and Engram's own at one server, and where the server differs from dm-reverb's on purpose."""

import numpy as np
import pytest
from support import wait_until

import engram

pytestmark = pytest.mark.interop

PAIR = {"x": engram.ArraySpec((None, 2), "float32"), "y": engram.ArraySpec((), "int64")}


@pytest.fixture
def serve():
    """Starts servers, and stops them after the test."""
    servers = []

    def start(*tables, **options):
        servers.append(engram.Server(tables, **options))
        return servers[-1], f"localhost:{servers[-1].port}"

    yield start
    for server in servers:
        server.close()


def test_what_engram_wrote_is_read(programs, serve):
    server, address = serve(engram.Table.queue("table", max_size=100))
    client = engram.Client(server.address)
    steps = [
        {"image": np.full((40, 50), at, np.uint8), "text": f"é{at}", "value": np.float16(at), "wide": np.int64(at)}
        for at in range(6)
    ]
    with client.writer(history=6, chunk_length=3) as writer:
        for step in steps:
            writer.append(step)
            history = writer.history
            if len(history["image"]) >= 4:
                item = {"stack": history["image"][-4::2], "text": history["text"][-3:], "last": history["value"][-1]}
                writer.create_item("table", 2.5, item)
    seen = programs.run("read_three", address)
    assert [facts for _, facts, _ in seen] == [(1.0, 3 - at, 2.5, 1) for at in range(3)]
    for at, (_, _, [[last, stack, text]]) in enumerate(seen, 3):
        assert (last.dtype, last.shape, last) == (np.dtype("float16"), (), at)
        np.testing.assert_array_equal(stack, [steps[at - 3]["image"], steps[at - 1]["image"]])
        assert text.tolist() == [f"é{one}".encode() for one in (at - 2, at - 1, at)]


def test_what_dm_reverb_wrote_is_read(programs, serve):
    server, address = serve(engram.Table("table"), engram.Table("pairs", signature=PAIR))
    programs.run("write_pairs", address)
    client = engram.Client(server.address)
    x, y = client.sample("table", 1).data
    assert (x.tolist(), y.tolist()) == ([[[0.0, 0.0], [1.0, 1.0]]], [1])
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    batch = client.sample("pairs", 1).data
    assert sorted(batch) == ["x", "y"]
    np.testing.assert_array_equal(batch["x"], x)


def test_a_signature_of_engrams_own_is_told(programs, serve):
    _, address = serve(engram.Table("pairs", signature=PAIR), engram.Table("table"))
    assert programs.run("signature_of_pairs", address) == [
        ("x", "TensorSpec(shape=(None, 2), dtype=tf.float32, name='x')"),
        ("y", "TensorSpec(shape=(), dtype=tf.int64, name='y')"),
    ]


def test_types_of_few_bits(programs, serve):
    """dm-reverb has bfloat16, and no floats of 8 bits."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    server, address = serve(engram.Table("bfloat16"), engram.Table("float8"))
    client = engram.Client(server.address)
    client.insert({"x": np.array([1.5, -2], ml_dtypes.bfloat16)}, {"bfloat16": 1.0})
    client.insert({"x": np.array([1.5, -2], ml_dtypes.float8_e5m2)}, {"float8": 1.0})
    values, error = programs.run("read_few_bits", address)
    assert values == [1.5, -2.0]
    assert error == (
        "ValueError",
        "column `x`: dtype float8_e5m2 is not supported by dm-reverb's clients; read it with Engram's client",
    )


def test_a_token_is_asked_for(programs, serve):
    _, address = serve(engram.Table("table"), token="secret")
    kind, text = programs.run("sample_one", address)
    assert kind == "RuntimeError"
    assert text.startswith("token required, none sent")
    assert text.endswith("(a dm-reverb client cannot send one)")


def test_a_bad_priority_is_refused_and_nothing_else(programs, serve):
    """dm-reverb's table hangs for ever after it."""
    tables = (engram.Table("table", sampler=engram.selectors.Prioritized(1.0)), engram.Table("other"))
    server, address = serve(*tables)
    seen = programs.run("bad_priorities", address)
    refused = [
        (
            "ValueError",
            f"priority for table `table` is {bad}; a Prioritized selector needs a finite value of at least 0",
        )
        for bad in ("-1", "inf")
        for _ in range(2)
    ]
    assert seen == [*refused, [1.0, 1.0]]
    assert server.store.info()["table"].size == 1


def test_a_slice_beyond_its_chunk_is_refused(programs, serve):
    """Where it is made: dm-reverb's server refuses it to whoever samples it."""
    server, address = serve(engram.Table("table"))
    kind, text = programs.run("one_cell_twice", address)
    assert (kind, "column `0`" in text) == ("ValueError", True), text
    assert server.store.info()["table"].size == 0


def test_what_does_not_fit_a_table_of_engrams_own_is_refused(programs, serve):
    """Its signature holds for every writer, also one that does not validate its items."""
    server, address = serve(engram.Table("pairs", signature=PAIR))
    kind, text = programs.run("write_what_does_not_fit", address)
    assert (kind, text.partition(";")[0]) == (
        "ValueError",
        "item does not match the signature of table `pairs`: column `x` must be float32[?,2], got float32[1,3]",
    )
    assert server.store.info()["pairs"].size == 0
    programs.run("write_pair", address)
    assert server.store.info()["pairs"].size == 1


def test_what_waits_when_the_server_stops_is_sent_to_the_next(programs, serve):
    """dm-reverb's server confirms it, and drops it."""
    server, address = serve(engram.Table.queue("queue", max_size=1))
    programs.begin("write_five_into_a_queue", address)
    wait_until(lambda: server.store.info()["queue"].waiting_inserts > 0)
    server.close()
    server, _ = serve(engram.Table.queue("queue", max_size=1), port=server.port)
    client = engram.Client(server.address)
    found = [client.sample("queue", 1, timeout=50).data[0].item() for _ in range(4)]
    assert sorted(found) == [1, 2, 3, 4]
    assert programs.end() == "flushed"
    assert server.store.info()["queue"].inserts == 4


def test_a_checkpoint_is_where_its_path_says(programs, serve, tmp_path):
    _, address = serve(engram.Table("table"), path=tmp_path / "store")
    kind, path = programs.run("checkpoint", address)
    assert (kind, path) == ("returned", str(tmp_path / "store" / "checkpoint-0000000001"))
    assert (tmp_path / "store" / "checkpoint-0000000001").exists()


def test_a_store_in_memory_has_no_checkpoint(programs, serve):
    _, address = serve(engram.Table("table"))
    assert programs.run("checkpoint", address) == (
        "ValueError",
        "this store is in memory only, so it has no checkpoints; open the store with a path",
    )


def test_a_writer_outlives_its_server(programs, serve, tmp_path):
    """It goes on where a server comes back, and what was confirmed is there."""
    tables = (engram.Table("table", sampler=engram.selectors.Fifo()),)
    server, address = serve(*tables, path=tmp_path / "store")
    programs.run("write_first", address)
    server.close()
    programs.begin("write_second", address)
    server, _ = serve(*tables, path=tmp_path / "store", port=server.port)
    assert programs.end() == 20
    assert server.store.info()["table"].size == 20
