"""What a table tells of its options, through every door and from disk."""

import numpy as np
import pytest
from support import raises

from engram import ArraySpec, Store, Table, selectors
from engram.errors import InvalidArgumentError

SIGNATURE = {"obs": ArraySpec((None, 3), np.float32), "more": [ArraySpec((), "string"), ArraySpec((2,), "bfloat16")]}


def test_options_are_told(open_store):
    plain = Table("plain")
    full = Table(
        "full",
        sampler=selectors.Prioritized(0.7),
        remover=selectors.MinHeap(),
        max_times_sampled=3,
        ttl=1.5,
        signature=SIGNATURE,
        note="für später",
    )
    info = open_store(plain, full).info()
    told = info["full"]
    assert (told.sampler, told.remover) == (selectors.Prioritized(0.7), selectors.MinHeap())
    assert (told.max_times_sampled, told.ttl, told.note) == (3, 1.5, "für später")
    shapes = {"obs": (None, 3), "more": [(), (2,)]}
    assert {"obs": told.signature["obs"].shape, "more": [spec.shape for spec in told.signature["more"]]} == shapes
    assert [np.dtype(told.signature["obs"].dtype), *(spec.dtype for spec in told.signature["more"])] == [
        np.float32,
        "string",
        "bfloat16",
    ]
    told = info["plain"]
    assert (told.sampler, told.remover) == (selectors.Uniform(), selectors.Fifo())
    assert (told.max_times_sampled, told.ttl, told.note, told.signature) == (None, None, None, None)


@pytest.mark.parametrize("signature", [None, SIGNATURE])
@pytest.mark.parametrize("note", [None, "", "ä" * 1000])
def test_notes_outlive_the_process(tmp_path, note, signature):
    with Store.open(tmp_path, [Table("t", note=note, signature=signature)]):
        pass
    for _ in range(2):  # from the log, then from a checkpoint
        with Store.open(tmp_path) as store:
            told = store.info()["t"]
            assert (told.note, told.signature is None) == (note, signature is None)
            store.checkpoint()


def test_a_note_given_when_opened_counts(tmp_path):
    with Store.open(tmp_path, [Table("t", note="old")]):
        pass
    with Store.open(tmp_path, [Table("t", note="new")]) as store:
        assert store.info()["t"].note == "new"


def test_bad_notes(open_store):
    with raises(InvalidArgumentError, "table `t`: `note` must be a str; got b'x' (bytes)"):
        Table("t", note=b"x")
    store = open_store()
    with raises(InvalidArgumentError, "note of table `t` must have at most 65536 bytes, got 65537"):
        store.create_table(Table("t", note="x" * (2**16 + 1)))
    store.create_table(Table("t", note="x" * 2**16))
    assert len(store.info()["t"].note) == 2**16
