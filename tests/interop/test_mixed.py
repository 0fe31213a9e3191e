"""dm-reverb's client and Engram's client at one server, and the server's deliberate differences from dm-reverb's."""

import numpy as np
import pytest
from helpers.support import wait_until

import engram

pytestmark = pytest.mark.interop

PAIR = {"x": engram.ArraySpec((None, 2), "float32"), "y": engram.ArraySpec((), "int64")}


@pytest.fixture
def serve():
    """Starts servers and stops them after the test."""
    servers = []

    def start(*tables, path=None, **options):
        store = engram.Store(tables) if path is None else engram.Store.open(path, tables)
        servers.append(engram.Server(store, **options))
        return servers[-1], f"localhost:{servers[-1].port}"

    yield start
    for server in servers:
        server.close()
        server.store.close()


def test_reverb_client_reads_items_of_engram_client(programs, serve):
    server, address = serve(engram.Table.queue("table", max_size=100))
    client = engram.Client(server.address)
    steps = [
        {
            "image": np.full((40, 50), index, np.uint8),
            "text": f"é{index}",
            "value": np.float16(index),
            "wide": np.int64(index),
        }
        for index in range(6)
    ]
    with client.writer(history=6, chunk_length=3) as writer:
        for step in steps:
            writer.append(step)
            history = writer.history
            if len(history["image"]) >= 4:
                item = {"stack": history["image"][-4::2], "text": history["text"][-3:], "last": history["value"][-1]}
                writer.create_item("table", 2.5, item)
    items = programs.run("read_three", address)
    assert [facts for _, facts, _ in items] == [(1.0, 3 - index, 2.5, 1) for index in range(3)]
    for index, (_, _, [[last, stack, text]]) in enumerate(items, 3):
        assert (last.dtype, last.shape, last) == (np.dtype("float16"), (), index)
        np.testing.assert_array_equal(stack, [steps[index - 3]["image"], steps[index - 1]["image"]])
        assert text.tolist() == [f"é{one}".encode() for one in (index - 2, index - 1, index)]


def test_engram_client_reads_items_of_reverb_client(programs, serve):
    server, address = serve(engram.Table("table"), engram.Table("pairs", signature=PAIR))
    programs.run("write_pairs", address)
    client = engram.Client(server.address)
    x, y = client.sample("table", 1).data
    assert (x.tolist(), y.tolist()) == ([[[0.0, 0.0], [1.0, 1.0]]], [1])
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    batch = client.sample("pairs", 1).data
    assert sorted(batch) == ["x", "y"]
    np.testing.assert_array_equal(batch["x"], x)


def test_reverb_client_sees_an_engram_signature(programs, serve):
    _, address = serve(engram.Table("pairs", signature=PAIR), engram.Table("table"))
    assert programs.run("signature_of_pairs", address) == [
        ("x", "TensorSpec(shape=(None, 2), dtype=tf.float32, name='x')"),
        ("y", "TensorSpec(shape=(), dtype=tf.int64, name='y')"),
    ]


@pytest.mark.parametrize("writer", ["dm-reverb", "engram"])
def test_a_table_of_steps_serves_both_datasets(programs, serve, writer):
    signature = {"x": engram.ArraySpec((2,), "float32"), "y": engram.ArraySpec((), "int64")}
    server, address = serve(engram.Table("pairs", sampler=engram.selectors.Fifo(), signature=signature))
    client = engram.Client(server.address)
    if writer == "engram":
        for value in range(2):
            client.insert({"x": np.full(2, value, np.float32), "y": np.int64(value)}, {"pairs": 1.0})
    else:
        programs.run("insert_steps", address)
    *datasets, explicit = programs.run("datasets_of_pairs", address)
    assert datasets == [("returned", [{"x": [0.0, 0.0], "y": 0}] * 2)] * 2
    assert explicit == ("returned", 2)
    batch = client.sample("pairs", 1).data
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[0.0, 0.0]], [0])


def test_a_timestep_dataset_of_items_states_table_and_signatures(programs, serve):
    """dm-reverb's client compares single steps with the signature of whole items."""
    signature = {"x": engram.ArraySpec((None, 2), "float32"), "y": engram.ArraySpec((None,), "int64")}
    server, address = serve(engram.Table("pairs", sampler=engram.selectors.Fifo(), signature=signature))
    programs.run("insert_steps", address)
    steps, trajectories, explicit = programs.run("datasets_of_pairs", address)
    assert trajectories == ("returned", [{"x": [[0.0, 0.0]], "y": [0]}] * 2)
    kind, text = steps
    assert kind == "InvalidArgumentError"
    for part in (
        "'pairs'",
        "Specification has (dtype, shape): (float, [?,2])",
        "Tensor has (dtype, shape): (float, [2])",
    ):
        assert part in text
    kind, text = explicit
    assert kind == "InvalidArgumentError"
    for part in ("'pairs'", "Requested (dtype, shape): (float, [2])", "Signature (dtype, shape): (float, [?,2])"):
        assert part in text
    assert server.store.info()["pairs"].size == 2


def test_several_steps_do_not_fit_a_signature_of_one(programs, serve):
    signature = {"x": engram.ArraySpec((2,), "float32"), "y": engram.ArraySpec((), "int64")}
    _, address = serve(engram.Table("pairs", signature=signature))
    kind, text = programs.run("write_two_steps", address)
    assert kind == "ValueError", text
    assert text.startswith("item does not match the signature of table `pairs`: columns `x`, `y` have a time axis, ")
    assert "signature: `x` float32[2], `y` int64[]; item: `x` float32[2,2], `y` int64[2]" in text


def test_bfloat16_is_supported_and_float8_is_not(programs, serve):
    """dm-reverb supports bfloat16, but no 8-bit floats."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    server, address = serve(engram.Table("bfloat16"), engram.Table("float8"))
    client = engram.Client(server.address)
    client.insert({"x": np.array([1.5, -2], ml_dtypes.bfloat16)}, {"bfloat16": 1.0})
    client.insert({"x": np.array([1.5, -2], ml_dtypes.float8_e5m2)}, {"float8": 1.0})
    values, error = programs.run("read_small_floats", address)
    assert values == [1.5, -2.0]
    assert error == (
        "ValueError",
        "column `x`: dtype float8_e5m2 is not supported by dm-reverb's clients; read it with Engram's client",
    )


def test_a_token_is_required(programs, serve):
    _, address = serve(engram.Table("table"), token="secret")
    kind, text = programs.run("sample_one", address)
    assert kind == "RuntimeError"
    assert text.startswith("token required, none sent")
    assert text.endswith("(dm-reverb clients cannot send one)")


def test_calls_with_an_invalid_priority_change_nothing(programs, serve):
    """The table continues to work; dm-reverb's would hang."""
    tables = (engram.Table("table", sampler=engram.selectors.Prioritized(1.0)), engram.Table("other"))
    server, address = serve(*tables)
    outcomes = programs.run("bad_priorities", address)
    rejected = [
        (
            "ValueError",
            f"priority for table `table` is {bad}; a Prioritized selector needs a finite value that is not negative",
        )
        for bad in ("-1", "inf")
        for _ in range(2)
    ]
    assert outcomes == [*rejected, [1.0, 1.0]]
    assert server.store.info()["table"].size == 1


def test_a_slice_beyond_its_chunk_is_rejected_at_insert(programs, serve):
    """dm-reverb's server reports the wrong slice only when the item is sampled."""
    server, address = serve(engram.Table("table"))
    kind, text = programs.run("one_step_twice", address)
    assert (kind, "column `0`" in text) == ("ValueError", True), text
    assert server.store.info()["table"].size == 0


def test_an_item_that_does_not_fit_an_engram_signature_is_rejected(programs, serve):
    """The server checks signatures, even if the writer does not validate its items."""
    server, address = serve(engram.Table("pairs", signature=PAIR))
    kind, text = programs.run("write_mismatching_item", address)
    assert (kind, text.partition("; signature")[0]) == (
        "ValueError",
        "item does not match the signature of table `pairs`: column `x` must be float32[?,2]; got float32[1,3]",
    )
    assert server.store.info()["pairs"].size == 0
    programs.run("write_pair", address)
    assert server.store.info()["pairs"].size == 1


def test_pending_items_of_a_stopped_server_are_sent_to_the_next(programs, serve):
    """dm-reverb's server confirms pending items when it stops, and drops them."""
    server, address = serve(engram.Table.queue("queue", max_size=1))
    programs.start("write_five_into_a_queue", address)
    wait_until(lambda: server.store.info()["queue"].waiting_inserts > 0)
    server.close()
    server, _ = serve(engram.Table.queue("queue", max_size=1), port=server.port)
    client = engram.Client(server.address)
    sampled = [client.sample("queue", 1, timeout=50).data[0].item() for _ in range(4)]
    assert sorted(sampled) == [1, 2, 3, 4]
    assert programs.result() == "flushed"
    assert server.store.info()["queue"].inserts == 4


def test_checkpoint_returns_its_path(programs, serve, tmp_path):
    _, address = serve(engram.Table("table"), path=tmp_path / "store")
    kind, path = programs.run("checkpoint", address)
    assert (kind, path) == ("returned", str(tmp_path / "store" / "checkpoint-0000000001"))
    assert (tmp_path / "store" / "checkpoint-0000000001").exists()


def test_a_store_in_memory_has_no_checkpoint(programs, serve):
    _, address = serve(engram.Table("table"))
    assert programs.run("checkpoint", address) == (
        "ValueError",
        "this store is in memory only, so it has no checkpoints; create a store on disk with `engram.Store.open(path)`",
    )


def test_a_writer_outlives_its_server(programs, serve, tmp_path):
    """The writer continues when a server is started again, and confirmed items are still in the table."""
    tables = (engram.Table("table", sampler=engram.selectors.Fifo()),)
    server, address = serve(*tables, path=tmp_path / "store")
    programs.run("write_first", address)
    server.close()
    server.store.close()
    programs.start("write_second", address)
    server, _ = serve(*tables, path=tmp_path / "store", port=server.port)
    assert programs.result() == 20
    assert server.store.info()["table"].size == 20
