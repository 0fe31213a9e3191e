"""Items for comparisons bit for bit, and random items of all dtypes, shapes and nests."""

from typing import NamedTuple

import hypothesis.strategies as st
import ml_dtypes
import numpy as np

from engram import _engram

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    *(str, bytes),
]


class Point(NamedTuple):
    """A node of a nest."""

    x: object
    y: object


class Column(NamedTuple):
    """A random column."""

    dtype: object
    shape: tuple
    time_axis: bool


def columns():
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    return st.builds(Column, st.sampled_from(DTYPES), shapes, st.booleans())


def nests():
    """Nests whose leaves are random columns."""

    def containers(children):
        return st.one_of(
            st.dictionaries(st.text(max_size=4), children, min_size=1, max_size=3),
            st.dictionaries(st.integers(-3, 9), children, min_size=1, max_size=3),
            st.lists(children, min_size=1, max_size=3),
            st.lists(children, min_size=1, max_size=3).map(tuple),
            st.builds(Point, children, children),
        )

    return st.recursive(columns(), containers, max_leaves=5)


def leaves_of(nest):
    """The leaves of a nest of columns, which are themselves tuples, and a function that fills the nest."""
    found = []

    def fill(node, values):
        if isinstance(node, Column):
            return next(values)
        if isinstance(node, dict):
            return {key: fill(node[key], values) for key in sorted(node)}
        if isinstance(node, Point):
            return Point(*(fill(each, values) for each in node))
        return type(node)(fill(each, values) for each in node)

    def collect(node):
        if isinstance(node, Column):
            found.append(node)
            return
        for each in [node[key] for key in sorted(node)] if isinstance(node, dict) else node:
            collect(each)

    collect(nest)
    return found, lambda values: fill(nest, iter(values))


def cell(draw, column):
    """A cell with random bits."""
    count = int(np.prod(column.shape))
    if column.dtype in (str, bytes):
        each = st.text(max_size=3) if column.dtype is str else st.binary(max_size=3)
        flat = np.empty(count, object)
        flat[:] = draw(st.lists(each, min_size=count, max_size=count))
    else:
        dtype = np.dtype(column.dtype)
        size = count * dtype.itemsize
        bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
        flat = (bits & 1 if dtype.kind == "b" else bits).view(dtype)
    return flat.reshape(column.shape)


def insert_random_items(draw, store, table, nest, count):
    """Inserts `count` items with columns as in `nest`."""
    found, fill = leaves_of(nest)
    for _ in range(count):
        priority = draw(st.floats(0, 1e6))
        if not any(column.time_axis for column in found):
            store.insert(fill([cell(draw, column) for column in found]), {table: priority})
            continue
        lengths = [draw(st.integers(1, 3)) if column.time_axis else 1 for column in found]
        cells = [[cell(draw, column) for _ in range(length)] for column, length in zip(found, lengths, strict=True)]
        with store.writer(history=3) as writer:
            for step in range(max(lengths)):
                writer.append([each[step] if step < len(each) else None for each in cells])
            slices = [
                history[[*range(length)]] if column.time_axis else history[0]
                for history, column, length in zip(writer.history, found, lengths, strict=True)
            ]
            writer.create_item(table, priority, fill(slices))


def insert_columns(store, table, data, priority=1.0):
    """Inserts an item whose columns, nested arrays with a time axis, may differ in length."""
    columns, _, structure = _engram.flatten(data)
    with store.writer() as writer:
        for step in range(max(map(len, columns))):
            writer.append([column[step, ...] if step < len(column) else None for column in columns])
        slices = [history[[*range(len(column))]] for history, column in zip(writer.history, columns, strict=True)]
        return writer.create_item(table, priority, _engram.unflatten(structure, slices))


def bits_of(store, table, **options):
    """The items of a table, as something that is equal only if they are equal bit for bit."""
    return [bits_of_item(batch) for batch in store.scan(table, batch_size=1, **options)]


def bits_of_item(batch):
    """Structure, priority and columns of the item of a batch."""
    columns, _, structure = _engram.flatten(batch.data)
    squeezed = _engram.flatten(batch.squeezed)[0]
    return (
        structure,
        float(batch.info.priority[0]),
        [
            (str(column.dtype), column.shape, is_squeezed, content(column))
            for column, is_squeezed in zip(columns, squeezed, strict=True)
        ],
    )


def bits_of_nest(nest, start=0):
    """Names, dtypes, shapes and bits of nested arrays, from row `start` on."""
    columns, names, _ = _engram.flatten(nest)
    found = [(name, column[start:]) for name, column in zip(names, columns, strict=True)]
    return sorted((name, str(column.dtype), column.shape, content(column)) for name, column in found)


def content(column):
    """The bits of an array; strings as a list."""
    return column.ravel().tolist() if column.dtype == object else column.tobytes()
