"""A table's options in `info`, in process, remote and from disk."""

import copy
import math
import typing

import numpy as np
import pytest
from helpers.support import BackgroundCall, raises, wait_until

from engram import ArraySpec, Pattern, Store, Table, rate_limiters, selectors
from engram.compat.reverb import _table_info
from engram.errors import InvalidArgumentError

SIGNATURE = {"obs": ArraySpec((None, 3), np.float32), "more": [ArraySpec((), "string"), ArraySpec((2,), "bfloat16")]}


def test_info_contains_all_options(open_store):
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
    entry = info["full"]
    assert (entry.sampler, entry.remover) == (selectors.Prioritized(0.7), selectors.MinHeap())
    assert (entry.max_times_sampled, entry.ttl, entry.note) == (3, 1.5, "für später")
    shapes = {"obs": (None, 3), "more": [(), (2,)]}
    assert {"obs": entry.signature["obs"].shape, "more": [spec.shape for spec in entry.signature["more"]]} == shapes
    assert [np.dtype(entry.signature["obs"].dtype), *(spec.dtype for spec in entry.signature["more"])] == [
        np.float32,
        "string",
        "bfloat16",
    ]
    entry = info["plain"]
    assert (entry.sampler, entry.remover) == (selectors.Uniform(), selectors.Fifo())
    assert (entry.max_times_sampled, entry.ttl, entry.note, entry.signature) == (None, None, None, None)


@pytest.mark.parametrize("kind", typing.get_args(selectors.Selector))
def test_info_has_the_selectors_that_the_tables_were_given(open_store, tmp_path, kind):
    selector = kind(0.25) if kind is selectors.Prioritized else kind()
    tables = [Table("sampler", sampler=selector), Table("remover", remover=selector)]
    stores = [open_store(*tables), Store.open(tmp_path, tables)]
    stores[1].close()
    with Store.open(tmp_path) as stores[1]:  # from the log
        for store in stores:
            infos = store.info()
            assert (infos["sampler"].sampler, infos["remover"].remover) == (selector, selector)
            assert _table_info.to_reverb_info(infos["sampler"]).sampler_options is not None


LIMITERS = (
    rate_limiters.MinSize(7),
    rate_limiters.SampleToInsertRatio(0.3, 5, 2.1),
    rate_limiters.SampleToInsertRatio(4, 10, (-8, math.inf)),
    rate_limiters.Queue(3),
    rate_limiters.Stack(4),
    rate_limiters.RateLimiter(2.5, 3, -math.inf, 9.5),
)


def test_info_has_the_rate_limiters_that_the_tables_were_given(open_store):
    tables = [Table(str(number), rate_limiter=limiter) for number, limiter in enumerate(LIMITERS)]
    store = open_store(*tables)
    infos = store.info()
    assert [infos[table.name].rate_limiter for table in tables] == list(LIMITERS)
    assert {type(limiter) for limiter in LIMITERS} == set(typing.get_args(rate_limiters.AnyRateLimiter))
    assert copy.deepcopy(infos["1"].rate_limiter) == LIMITERS[1]
    for limiter in LIMITERS:
        store.set_rate_limiter("0", limiter)
        assert store.info()["0"].rate_limiter == limiter


def test_waiting_inserts_are_the_writers_and_calls_that_wait_now(open_store):
    store = open_store(Table("q", rate_limiter=rate_limiters.Queue(1), sampler=selectors.Fifo(), max_times_sampled=1))
    waiting = lambda: store.info()["q"].waiting_inserts  # noqa: E731
    store.insert({"x": 0}, {"q": 1.0})
    assert waiting() == 0
    writer = store.pattern_writer([Pattern("q", num_steps=1)], max_in_flight_items=3, chunk_length=1)
    appends = BackgroundCall(lambda: [writer.append({"x": np.int64(t)}) for t in range(6)])
    wait_until(lambda: waiting() == 1)
    inserts = [BackgroundCall(lambda: store.insert({"x": 0}, {"q": 1.0}, timeout=60)) for _ in range(2)]
    wait_until(lambda: waiting() == 3)
    reader = BackgroundCall(lambda: [store.sample("q", 1, timeout=60) for _ in range(9)])
    for call in (appends, *inserts):
        call.result()
    writer.close()
    reader.result()
    wait_until(lambda: waiting() == 0)


@pytest.mark.parametrize("kind", ["MinSize", "SampleToInsertRatio", "Queue", "RateLimiter", "Other"])
@pytest.mark.parametrize("parameters", [(2.0, 3, 90.0, 90.5), (2.0, 3, -math.inf, math.inf)])
def test_rate_limiters_that_another_program_made_are_described_by_their_parameters(kind, parameters):
    """Such a limiter may have parameters that `engram.rate_limiters` would reject."""
    limiter = rate_limiters.from_native(kind, *parameters)
    assert isinstance(limiter, rate_limiters.RateLimiter | rate_limiters.SampleToInsertRatio)
    assert (limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff) == parameters


@pytest.mark.parametrize("signature", [None, SIGNATURE])
@pytest.mark.parametrize("note", [None, "", "ä" * 1000])
def test_notes_are_durable(tmp_path, note, signature):
    with Store.open(tmp_path, [Table("t", note=note, signature=signature)]):
        pass
    for _ in range(2):  # from the log, then from a checkpoint
        with Store.open(tmp_path) as store:
            entry = store.info()["t"]
            assert (entry.note, entry.signature is None) == (note, signature is None)
            store.checkpoint()


def test_open_replaces_the_note(tmp_path):
    with Store.open(tmp_path, [Table("t", note="old")]):
        pass
    with Store.open(tmp_path, [Table("t", note="new")]) as store:
        assert store.info()["t"].note == "new"


def test_bad_notes_are_rejected(open_store):
    with raises(InvalidArgumentError, "table `t`: `note` must be a str; got b'x' (bytes)"):
        Table("t", note=b"x")
    store = open_store()
    with raises(InvalidArgumentError, "`note` of table `t` must have at most 65536 bytes; got 65537"):
        store.create_table(Table("t", note="x" * (2**16 + 1)))
    store.create_table(Table("t", note="x" * 2**16))
    assert len(store.info()["t"].note) == 2**16
