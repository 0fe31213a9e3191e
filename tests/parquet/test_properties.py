"""Any items: PyArrow reads the values, names and types that a table has, and Engram the items; or they are refused."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers.item_bits import bits_of, insert_random_items, nests
from helpers.support import runs_all_tests
from hypothesis import HealthCheck, given, settings

from engram import Store, Table, _engram
from engram.errors import SignatureError
from engram.parquet import read_parquet, write_parquet

NUMBERS = itertools.count()


def plain(value):
    """A value as nested lists of Python's values, whose text differs if one of them does."""
    if isinstance(value, np.ndarray | list):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def stored(array):
    """The values of cells as they are in a file: complex numbers are pairs, bfloat16 and float8 are bits."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    return array if array.dtype == object or array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def expected_rows(store, table):
    """For each item: the rows of the file's columns, by name."""
    for batch in store.scan(table, batch_size=1):
        arrays, names, _ = _engram.flatten(batch.data)
        row = {}
        for name, array, squeezed in zip(names, arrays, _engram.flatten(batch.squeezed)[0], strict=True):
            cells, cell_axes = stored(array), array.ndim - (1 if squeezed else 2)
            if cell_axes or array.dtype.kind == "c":
                cells = cells.reshape(*array.shape[: array.ndim - cell_axes], -1)
            row[name or "data"] = plain(cells[0])
        row["_key"], row["_priority"] = batch.info.key[0].item(), batch.info.priority[0].item()
        yield row


def read_with_pyarrow(path):
    """The rows of a file."""
    table = pq.read_table(path)
    for field in table.schema:
        innermost = field.type
        while pa.types.is_fixed_size_list(innermost) or pa.types.is_large_list(innermost):
            innermost = innermost.value_type
        assert not pa.types.is_nested(innermost)
    return table.to_pylist()


def check_file(draw, path, readers=(read_with_pyarrow,)):
    """Writes random items, and compares what is read."""
    kind, count = draw(nests()), draw(st.integers(1, 4))
    with Store([Table("original"), Table("copy")], seed=0) as store:
        insert_random_items(draw, store, "original", kind, count)
        expected = list(expected_rows(store, "original"))
        options = {"row_group_size": draw(st.none() | st.integers(1, 4)), "batch_size": draw(st.integers(1, 4))}
        try:
            write_parquet(store, "original", path, **options)
        except SignatureError:
            assert any("\0" in name for name in expected[0])
            assert not path.exists()
            return False
        for read in readers:
            rows = [{name: plain(row[name]) for name in row if name != "_times_sampled"} for row in read(path)]
            assert [sorted(map(repr, row.items())) for row in rows] == [
                sorted(map(repr, row.items())) for row in expected
            ], read
        read_parquet(store, "copy", path)
        assert bits_of(store, "copy") == bits_of(store, "original")
    return True


@settings(
    max_examples=300 if runs_all_tests() else 25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_file_has_the_items_for_pyarrow_and_for_engram_or_is_refused(tmp_path, data):
    check_file(data.draw, tmp_path / f"{next(NUMBERS)}")
