"""Text and bytes: what was given as `str` is returned as `str`, what was given as `bytes` as `bytes`."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
from helpers.support import raises

from engram import ArraySpec, Dataset, Pattern, Server, Store, Table, selectors
from engram.data import Ragged
from engram.data.numpy import dataset
from engram.errors import SignatureError

TEXT = ["", "ab", "é\0", "日本語 🎲", "\0"]
BYTES = [text.encode() for text in TEXT]


def queue(name="t", **options):
    return Table(name, sampler=selectors.Fifo(), max_times_sampled=1, **options)


def words(array):
    """The elements of an array of objects, which are compared with their types."""
    assert array.dtype == object
    return array.tolist()


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        ("é\0", "é\0"),
        (b"\xff\0", b"\xff\0"),
        (np.str_("é"), "é"),
        (np.bytes_(b"\xff"), b"\xff"),
        (np.array(["a", "béc"]), ["a", "béc"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array(TEXT, object), TEXT),
        (np.array([BYTES], object), [BYTES]),
        (np.array([["x"]], ">U3"), [["x"]]),
        (np.array([], "U4"), []),
        (np.array([], object), []),
    ],
)
def test_strings_are_returned_as_they_were_given(open_store, given, returned):
    store = open_store(queue())
    store.insert({"x": given}, {"t": 1.0})
    assert words(store.sample("t", 1).data["x"]) == [returned]


def test_every_writer_stores_text(open_store):
    store = open_store(queue())
    with store.writer(chunk_length=2) as writer:
        for text in TEXT:
            writer.append({"x": text, "y": text.encode()})
        assert words(writer.history["x"][-2:].numpy()) == TEXT[-2:]
        writer.create_item("t", num_steps=5)
    with store.pattern_writer([Pattern("t", num_steps=5)], chunk_length=3) as writer:
        for text in TEXT:
            writer.append({"x": text, "y": text.encode()})
    with store.batched_writer(2, [Pattern("t", num_steps=5)]) as writer:
        for text in TEXT:
            writer.append_batch(
                {"x": np.array([text, text + "!"], object), "y": np.array([text.encode(), b""], object)}
            )
    batch = store.sample("t", 4)
    assert words(batch.data["x"])[:3] == [TEXT] * 3
    assert words(batch.data["x"])[3] == [text + "!" for text in TEXT]
    assert words(batch.data["y"]) == [*[BYTES] * 3, [b""] * 5]


def fill(store):
    """Inserts items of one and three texts."""
    for length in (1, 3):
        store.insert({"x": np.array(TEXT[1 : 1 + length], object)}, {"t": 1.0}, time_axis=True)


def test_padded_text_is_empty_text(open_store):
    store = open_store(queue())
    fill(store)
    batch = store.sample("t", 2, pad=True)
    assert words(batch.data["x"]) == [["ab", "", ""], TEXT[1:4]]
    assert copy.deepcopy(batch).data["x"].tolist() == batch.data["x"].tolist()


def test_datasets_yield_text(open_store):
    store = open_store(Table("t"))
    fill(store)
    for element in dataset(store, "t", max_batches=4, steps=True):
        assert element.data["x"].item() in TEXT[1:4]
    [batch] = dataset(store, "t", batch_size=16, max_batches=1)
    assert isinstance(batch.data["x"], Ragged)
    assert set(words(batch.data["x"].values)) == set(TEXT[1:4])
    [batch] = Dataset(store, "t", 16, max_batches=1, pad=True)
    assert {text for item in words(batch.data["x"]) for text in item} <= {"", *TEXT[1:4]}


def test_text_survives_the_log_and_a_checkpoint(tmp_path):
    tables = [Table("t", sampler=selectors.Fifo(), signature={"x": ArraySpec((), str), "y": ArraySpec((), bytes)})]
    with Store.open(tmp_path, tables) as store:
        store.insert({"x": "é", "y": b"\xff"}, {"t": 1.0})
    for checkpoint in (True, False):
        with Store.open(tmp_path) as store, Server(store):
            assert [spec.dtype for spec in store.info()["t"].signature.values()] == ["str", "string"]
            data = store.sample("t", 1).data
            assert (words(data["x"]), words(data["y"])) == (["é"], [b"\xff"])
            if checkpoint:
                store.checkpoint()


@pytest.mark.parametrize("dtype", [str, "str", "U", np.dtype("U5"), "string", bytes, object, "S"])
def test_a_signature_of_strings_takes_text_and_bytes(open_store, dtype):
    store = open_store(queue(signature={"x": ArraySpec((), dtype)}))
    store.insert({"x": "é"}, {"t": 1.0})
    store.insert({"x": b"a"}, {"t": 1.0})
    assert [words(store.sample("t", 1).data["x"]) for _ in range(2)] == [["é"], [b"a"]]
    with pytest.raises(SignatureError, match=r"column `x` must be (str|string)\[\]; got int64\[\]"):
        store.insert({"x": 1}, {"t": 1.0})


@pytest.mark.parametrize("given", [("é", b"a", "b"), (b"a", "é", "b")])
def test_a_batch_of_text_and_bytes_has_bytes(open_store, given):
    store = open_store(queue())
    for value in given:
        store.insert({"x": value}, {"t": 1.0})
    expected = [value.encode() if isinstance(value, str) else value for value in given]
    assert words(store.sample("t", 3).data["x"]) == expected


def test_reverbs_api_returns_bytes_for_text(open_store):
    from engram.compat import reverb  # noqa: PLC0415, only this test

    store = open_store(Table("t"))
    store.insert({"x": np.array(["é", "b"], object)}, {"t": 1.0}, time_axis=True)
    with Server(store) if isinstance(store, Store) else nullcontext(store.server) as server:
        client = reverb.Client(server.address)
        [sample] = client.sample("t", emit_timesteps=False)
    assert words(sample.data[0]) == ["é".encode(), b"b"]


def test_a_column_is_either_text_or_bytes(open_store):
    store = open_store(queue())
    text = "column `x` contains str and bytes; a column is either text or bytes"
    with raises(SignatureError, text):
        store.insert({"x": np.array(["a", b"b"], object)}, {"t": 1.0})
    with store.writer() as writer:
        writer.append({"x": "a"})
        with raises(
            SignatureError, "column `x` must keep its dtype; got string[] after str[]; string is bytes, str is text"
        ):
            writer.append({"x": b"a"})


@pytest.mark.frameworks
def test_text_is_bytes_in_tensorflow(open_store, tf):
    from engram.data import tensorflow  # noqa: PLC0415, the extra

    for signature in (None, {"x": ArraySpec((None,), str)}):
        store = open_store(queue(signature=signature))
        store.insert({"x": np.array(TEXT, object)}, {"t": 1.0}, time_axis=True)
        [element] = tensorflow.dataset(store, "t", batch_size=1, max_batches=1)
        values = element.data["x"]
        assert values.dtype == tf.string
        values = values.flat_values if isinstance(values, tf.RaggedTensor) else values[0]
        assert values.numpy().tolist() == BYTES
