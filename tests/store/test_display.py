"""How batches, tables, datasets and writers are shown: `repr`, and HTML in notebooks."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from helpers.support import fill

from engram import Client, Dataset, Pattern, Store, Table, selectors
from engram._display import MAX_ROWS

STEP = {"x": np.zeros((2, 3), np.float32), "y": 1, "z": "text"}


def fifo(open_store, **options):
    return open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1, **options))


def store_with_lengths(open_store, lengths):
    """A store with an item per length: `x` has this many steps, `z` has one, and `y` has no time axis."""
    store = fifo(open_store)
    with store.writer() as writer:
        for length in lengths:
            for _ in range(length):
                writer.append(STEP)
            history = writer.history
            columns = {"x": history["x"][:], "y": history["y"][-1], "z": history["z"][:1]}
            writer.create_item("t", trajectory=columns)
            writer.end_episode()
    return store


class Cells(HTMLParser):
    """The text of each element of some HTML, by tag."""

    def __init__(self, html):
        super().__init__()
        self.texts, self._open = {}, []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, _):
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts[self._open[-1]][-1] += data


# --- batches ------------------------------------------------------------------------------------


def test_a_batch_shows_its_columns(open_store):
    store = store_with_lengths(open_store, [2, 2, 2])
    assert repr(store.sample("t", 3)) == (
        "Batch(3 items)\n  x  float32  [3, 2, 2, 3]\n  y  int64    [3]\n  z  object   [3, 1]"
    )


@pytest.mark.parametrize("pad", [False, True])
def test_a_batch_shows_which_columns_are_ragged_or_padded(open_store, pad):
    batch = store_with_lengths(open_store, [1, 4, 2]).sample("t", 3, pad=pad)
    x = "[3, 4, 2, 3]  padded: 1 to 4 steps per item" if pad else "[7, 2, 3]  ragged: 1 to 4 steps per item"
    lines = repr(batch).splitlines()
    assert [re.sub("  +", "  ", line) for line in lines] == [
        "Batch(3 items)",
        f"  x  float32  {x}",
        "  y  int64  [3]",
        "  z  object  [3, 1]",
    ]
    assert len({line.index("[") for line in lines[1:]}) == 1


def test_a_batch_shows_nested_columns_single_arrays_and_a_single_item(open_store):
    store = fifo(open_store)
    store.insert({"a": {"b": (np.asarray(1.5), [np.asarray(2)])}}, {"t": 1.0})
    assert repr(store.sample("t", 1)).splitlines()[1:] == ["  a/b/0    float64  [1]", "  a/b/1/0  int64    [1]"]
    store.insert(np.zeros(2), {"t": 1.0})
    assert repr(store.sample("t", 1)) == "Batch(1 item)\n  (data)  float64  [1, 2]"


def test_a_batch_shows_a_limited_number_of_columns(open_store):
    store = fifo(open_store)
    store.insert(list(map(np.asarray, range(MAX_ROWS + 7))), {"t": 1.0})
    batch = store.sample("t", 1)
    lines = repr(batch).splitlines()
    assert len(lines) == MAX_ROWS + 2
    assert lines[-1] == "  ... 7 more columns"
    assert Cells(batch._repr_html_()).texts["td"][-4] == "... 7 more columns"


def test_a_batch_with_other_data_is_shown(open_store):
    batch = store_with_lengths(open_store, [1, 2]).sample("t", 2)
    batch.data = {"x": [1], "new": None}
    assert repr(batch) == "Batch(2 items)\n  new  NoneType  []\n  x/0  int       []"


def test_metadata_shows_its_values(open_store):
    store = fifo(open_store)
    keys = fill(store, "t", range(2), priority=lambda value: value + 0.5)
    key_text = np.array2string(np.array(keys, np.uint64), separator=", ")  # aligned: the numbers of digits may differ
    assert repr(store.sample("t", 2).info) == (
        "BatchInfo(2 items)\n"
        f"  key            uint64   {key_text}\n"
        "  probability    float64  [1., 1.]\n"
        "  priority       float64  [0.5, 1.5]\n"
        "  times_sampled  int32    [1, 1]\n"
        "  table_size     int64    [2, 2]"
    )


def test_metadata_of_many_items_is_summarized(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    assert "table_size     int64    [1, 1, 1, ..., 1, 1, 1]" in repr(store.sample("t", 1000).info)


def test_a_batch_is_an_html_table(open_store):
    store = fifo(open_store)
    store.insert({'<b>&"': np.zeros(2), "y": 1}, {"t": 1.0})
    batch = store.sample("t", 1)
    html = batch._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert Cells(html).texts == {
        "table": [""],
        "caption": ["Batch(1 item)"],
        "tr": [""] * 3,
        "th": ["column", "dtype", "shape", ""],
        "td": ['<b>&"', "float64", "[1, 2]", "", "y", "int64", "[1]", ""],
    }


def test_the_info_of_a_table_is_an_html_table(open_store):
    store = open_store(Table("<i>t</i>", max_size=7, sampler=selectors.Prioritized(0.5)))
    fill(store, "<i>t</i>", [1])
    html = store.info()["<i>t</i>"]._repr_html_()
    assert "<i>" not in html
    texts = Cells(html).texts
    assert texts["caption"] == ["TableInfo of <i>t</i>"]
    assert texts["th"] == ["field", "value"]
    shown = dict(zip(texts["td"][::2], texts["td"][1::2], strict=True))
    assert (shown["size"], shown["max_size"]) == ("1", "7")
    assert shown["sampler"] == "Prioritized(exponent=0.5)"
    assert "ttl" not in shown, "None is not shown"


# --- datasets and writers -----------------------------------------------------------------------


def test_a_dataset_shows_its_options():
    store = Store([Table("t")])
    assert repr(Dataset(store, "t")) == "Dataset(Store(['t']), 't', prefetch=2)"
    assert repr(Dataset(store, "t", 8, at_least=2, max_items=9, timeout=1, pad=True)) == (
        "Dataset(Store(['t']), 't', batch_size=8, at_least=2, prefetch=2, max_items=9, timeout=1.0, pad=True)"
    )
    assert repr(Dataset(Client("localhost:1"), "t", hold=True)) == (
        "Dataset(Client(localhost:1), 't', prefetch=2, hold=True)"
    )


def test_writers_show_their_state(open_store):
    store = open_store(Table("t"), Table("u"))
    patterns = [Pattern("u", num_steps=1), Pattern("t", num_steps=1), Pattern("u", num_steps=2)]
    with store.writer() as writer:
        assert repr(writer) == "TrajectoryWriter(episode_steps=0, pending_items=0)"
        writer.append({"x": 1})
        writer.create_item("t", num_steps=1)
        assert repr(writer) == "TrajectoryWriter(episode_steps=1, pending_items=1)"
    assert repr(writer) == "TrajectoryWriter(episode_steps=1, pending_items=0)"
    with store.pattern_writer(patterns) as writer:
        writer.append({"x": 1})
        assert repr(writer) == "PatternWriter(tables=['t', 'u'], episode_steps=1, pending_items=2)"
    with store.batched_writer(4, patterns) as writer:
        assert repr(writer) == "BatchedWriter(num_envs=4, tables=['t', 'u'], pending_items=0)"
