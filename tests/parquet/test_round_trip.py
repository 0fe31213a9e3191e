"""Tables that are written to Parquet and read again are equal bit for bit."""

import itertools

import hypothesis.strategies as st
import pytest
from helpers.item_bits import bits_of, insert_random_items, nests
from helpers.support import runs_all_tests
from hypothesis import HealthCheck, assume, given, settings

from engram import Table
from engram.parquet import read_parquet, write_parquet

NUMBERS = itertools.count()


@pytest.fixture
def store(open_store):
    """One store for all examples of a test."""
    return open_store()


@settings(
    max_examples=60 if runs_all_tests() else 20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kinds=st.lists(nests(), min_size=1, max_size=2), count=st.integers(1, 5), sizes=st.data())
def test_items_come_back_bit_for_bit(store, tmp_path, kinds, count, sizes):
    assume(r"\x00" not in repr(kinds))  # names with NUL are refused
    path = tmp_path / f"{next(NUMBERS)}"
    store.create_table(Table("original"))
    store.create_table(Table("copy"))
    try:
        for kind in kinds:
            insert_random_items(sizes.draw, store, "original", kind, count)
        options = {
            "items_per_file": None if len(kinds) == 1 else sizes.draw(st.integers(1, 7)),
            "row_group_size": sizes.draw(st.none() | st.integers(1, 4)),
            "batch_size": sizes.draw(st.integers(1, 4)),
        }
        total = count * len(kinds)
        assert write_parquet(store, "original", path, **options) == total
        assert read_parquet(store, "copy", path, batch_size=sizes.draw(st.integers(1, 4))) == total
        assert bits_of(store, "copy") == bits_of(store, "original")
    finally:
        store.drop_table("original")
        store.drop_table("copy")
