"""Nests are sampled as they were written, except that mappings and registered nodes become dicts."""

from collections import OrderedDict, namedtuple
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import optree
import pytest
from helpers.support import case, raises

from engram import Pattern, Table
from engram._engram import flatten, unflatten
from engram._engram import names as names_of
from engram.errors import SignatureError


class Timestep(NamedTuple):
    observation: object
    reward: object


@optree.dataclasses.dataclass(namespace="engram")
class Transition:
    obs: object
    action: object


@optree.dataclasses.dataclass(namespace="another_package")
class OtherNamespace:
    x: object


def round_trip(store, nest, way):
    if way == "insert":
        store.insert(nest, {"t": 1.0})
    else:
        with store.writer() as writer:
            writer.append(nest)
            writer.create_item("t", num_steps=1)
    data = store.sample("t", 1).data
    store.reset("t")
    return data


NESTS = {
    "leaf": 1,
    "dict": {"b": 1, "a": 2, "c": {"z": 3, "y": 4}},
    "int keys": {10: 1, 9: 2, -1: 3},
    "list": [1, [2, 3]],
    "tuple": (1, (2,), ((3,), 4)),
    "namedtuple": Timestep({"x": 1}, 2),
    "mixed": {"z": [1, (2, {"k": Timestep(3, [4])})], "a": 5},
    "deep": {"a": {"a": {"a": {"a": {"a": [{"a": (1,)}]}}}}},
    "slashes": {"a/b": 1, "a": {"b": 2}},
    "odd names": {"": 1, "ü": 2, '"': 3, "\\": 4, " ": 5},
}


@pytest.mark.parametrize("way", ["insert", "writer"])
def test_nests_round_trip(open_store, way):
    store = open_store(Table("t"))
    for name, nest in NESTS.items():
        with case(name):
            arrays = optree.tree_map(np.asarray, nest)  # lists of numbers are no nests
            sampled = round_trip(store, arrays, way)
            plain = optree.tree_map(lambda array: array.item(), sampled, none_is_leaf=True)
            assert plain == nest
            assert optree.tree_structure(plain) == optree.tree_structure(nest)


def test_inserted_items_keep_containers_without_leaves(open_store):
    nest = {"a": {}, "b": [], "c": (), "d": 1}
    store = open_store(Table("t"))
    assert {**round_trip(store, nest, "insert"), "d": 1} == nest
    assert list(round_trip(store, nest, "writer")) == ["d"], "a writer keeps columns, not containers"


def test_a_namedtuple_is_returned_as_its_class(open_store):
    sampled = round_trip(open_store(Table("t")), Timestep(1, 2), "insert")
    assert type(sampled) is Timestep


def test_a_redefined_namedtuple_is_returned_as_the_new_class(open_store):
    store = open_store(Table("t"))
    for _ in range(2):
        Point = namedtuple("Point", "x y")  # noqa: PYI024, like a notebook's cell that runs twice
        store.insert(Point(1, 2), {"t": 1.0})
        assert type(store.sample("t", 1).data) is Point


@pytest.mark.parametrize("make", [OrderedDict, MappingProxyType])
def test_other_mappings_are_returned_as_dicts(open_store, make):
    sampled = round_trip(open_store(Table("t")), make({"b": 1, "a": 2}), "insert")
    assert type(sampled) is dict
    assert {name: array.item() for name, array in sampled.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize("way", ["insert", "writer"])
def test_registered_nodes_are_returned_as_dicts(open_store, way):
    sampled = round_trip(open_store(Table("t")), [Transition({"x": 1}, 2), 3], way)
    plain = optree.tree_map(lambda array: array.item(), sampled)
    assert plain == [{"obs": {"x": 1}, "action": 2}, 3]


def test_a_writer_accepts_registered_nodes_at_every_step(open_store):
    store = open_store(Table("t"))
    with store.pattern_writer([Pattern("t", lambda s: s["obs"][-2:])]) as writer:
        for value in range(3):
            writer.append(Transition(value, 0))
        with pytest.raises(SignatureError):
            writer.append({"obs": 1, "action": 2})
    assert store.info()["t"].size == 2


def test_nodes_of_other_namespaces_are_not_containers(open_store):
    with pytest.raises(SignatureError, match=r"^column `x` contains a Python object of type OtherNamespace"):
        open_store(Table("t")).insert({"x": OtherNamespace(1)}, {"t": 1.0})


def test_mappings_are_ordered_by_key(open_store):
    store = open_store(Table("t"))
    for value, names in enumerate(["ab", "ba", "ab"]):
        store.insert({name: np.int64(value * 10 + ord(name)) for name in names}, {"t": 1.0})
    data = store.sample("t", 20).data
    assert (data["b"] - data["a"] == 1).all()


def test_steps_with_none_leaves_can_be_left_out(open_store):
    store = open_store(Table("t"))
    with store.writer() as writer:
        for value in range(4):
            writer.append({"x": value, "y": {"z": None if value % 2 else value}})
        history = writer.history
        writer.create_item("t", trajectory={"x": history["x"][:], "y": {"z": history["y"]["z"][::2]}})
    data = store.sample("t", 1).data
    assert (data["x"].tolist(), data["y"]["z"].tolist()) == ([[0, 1, 2, 3]], [[0, 2]])


def test_elements_keep_their_index_in_items_of_a_list_or_tuple_without_some_of_them(open_store):
    left, right = np.array(1), np.array(3)
    for given, stored in (
        ((left, None, right), {0: left, 2: right}),
        ([None, {"a": left}], {1: {"a": left}}),
        ((left, None), (left,)),
        ((left, [], right), (left, right)),
        (([None, right], left), ({1: right}, left)),
    ):
        store = open_store(Table("t"))
        with case(given), store.writer() as writer:
            writer.append({"cams": given})
            writer.create_item("t", num_steps=1)
            writer.append({"cams": (left, left, right) if given[1] is None and len(given) == 3 else given})
            writer.flush()
            assert optree.tree_map(np.squeeze, store.sample("t", 1).data["cams"]) == stored


# --- paths, and errors of Python code ------------------------------------------------------------


def test_paths_of_leaves_are_unique():
    nest = {"": {"b": 0}, "\\0": {"b": 1}, "a": {"b": 2}, "a/b": 3, "a\\": {"b": 4}, "a\\/b": 5, "b": 6}
    _, names, text = flatten(nest)
    assert names == ["\\0/b", "\\\\0/b", "a/b", "a\\/b", "a\\\\/b", "a\\\\\\/b", "b"]
    assert names_of(text) == names


def test_similar_paths_are_different_columns(open_store):
    store = open_store(Table("t"))
    with store.writer() as writer:
        writer.append({"a/b": 1})
        writer.append({"a/b": 2, "a": {"b": 3}})
        history = writer.history
        writer.create_item("t", trajectory={"flat": history["a/b"][:], "nested": history["a"]["b"][-1:]})
    data = store.sample("t", 1).data
    assert (data["flat"].tolist(), data["nested"].tolist()) == ([[1, 2]], [[3]])


class Key(str, Enum):  # noqa: UP042, a StrEnum's members print as their text
    A = "a"
    B = "b"


@pytest.mark.parametrize(
    ("first", "second", "added", "names"),
    [(Key.A, Key.B, "c", ["a", "b", "c"]), (False, True, 2, ["0", "1", "2"])],
    ids=["enum", "bool"],
)
def test_keys_are_compared_as_stored(open_store, first, second, added, names):
    _, names_of_leaves, text = flatten({first: 0, second: 0, added: 0})
    assert names_of_leaves == names == names_of(text)
    store = open_store(Table("t"))
    with store.writer() as writer:
        writer.append({first: 1, second: 10})
        writer.append({first: 2, second: 20})
        writer.append({first: 3, second: 30, added: 5})
        history = writer.history
        writer.create_item(
            "t", trajectory={"first": history[first][:], "second": history[second][:], "added": history[added][-1:]}
        )
    data = store.sample("t", 1).data
    assert {name: data[name].tolist() for name in data} == {
        "first": [[1, 2, 3]],
        "second": [[10, 20, 30]],
        "added": [[5]],
    }


@pytest.mark.parametrize(("first", "second"), [("0", 0), (0, "0"), (0, "x")])
def test_text_and_integer_keys_do_not_merge(open_store, first, second):
    with open_store(Table("t")).writer() as writer:
        writer.append({first: 1})
        described = f"`{second}`"
        if str(first) == str(second):
            described = (
                "the same names in a different structure, such as a list instead of a dict, or int instead of str keys"
            )
        text = "steps may add or omit columns, but must keep the nesting of earlier steps"
        with raises(SignatureError, f"{text}, `{first}`; got {described}"):
            writer.append({second: 2})
        writer.append({first: 3})
        assert list(writer.history) == [first]


class Twins:
    """A node with two entries of the same name."""


optree.register_pytree_node(Twins, lambda _: ((1, 2), None, ("0", 0)), lambda _, children: children, namespace="engram")


def test_entries_with_the_same_name_are_rejected(open_store):
    with raises(SignatureError, "the entries of a Twins must have different names; got `0` twice"):
        open_store(Table("t")).insert({"x": Twins()}, {"t": 1.0})


class Raising:
    """A leaf that raises an error when it is read."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


class Unordered:
    def __init__(self, error):
        self.error = error

    def __lt__(self, other):
        raise self.error


@optree.register_pytree_node_class(namespace="engram")
class Node:
    def __init__(self, error):
        self.error = error

    def __tree_flatten__(self):
        raise self.error

    tree_flatten = __tree_flatten__

    @classmethod
    def tree_unflatten(cls, *_):
        pytest.fail("it is never flattened, so it is never unflattened")

    __tree_unflatten__ = tree_unflatten


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("make", [Raising, lambda error: {Unordered(error): 1, Unordered(error): 2}, Node])
def test_ctrl_c_and_lack_of_memory_are_not_replaced(open_store, make, error):
    store = open_store(Table("t"))
    with pytest.raises(error):
        store.insert({"x": make(error)}, {"t": 1.0})


@pytest.mark.parametrize("make", [Raising, lambda error: {Unordered(error): 1, Unordered(error): 2}])
def test_other_errors_are_replaced(open_store, make):
    with pytest.raises(SignatureError):
        open_store(Table("t")).insert({"x": make(ZeroDivisionError)}, {"t": 1.0})


@pytest.mark.parametrize("leaves", [[1], [1, 2, 3]])
def test_a_structure_needs_one_leaf_per_column(leaves):
    structure = '{"d":[["a",0],["b",0]]}'
    expected = rf'the structure "{{\"d\":[[\"a\",0],[\"b\",0]]}}" describes 2 columns, got {len(leaves)}'
    with raises(SignatureError, expected):
        unflatten(structure, leaves)


@pytest.mark.parametrize(("name", "field"), [("not a name", "x"), ("Step", "class"), ("Step", "_x")])
def test_a_namedtuple_whose_names_python_does_not_allow_becomes_a_mapping(name, field):
    assert unflatten(f'{{"n":"{name}","f":[["{field}",0],["y",0]]}}', [1, 2]) == {field: 1, "y": 2}
