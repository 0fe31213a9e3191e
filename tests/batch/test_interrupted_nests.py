"""Ctrl-C and a lack of memory while the engine reads a nest reach the caller."""

import sys
from _thread import interrupt_main
from collections.abc import Mapping
from itertools import filterfalse
from signal import SIGINT

import numpy as np
import optree
import pytest

from engram import Table
from engram._engram import flatten, unflatten

ERRORS = [KeyboardInterrupt, MemoryError, SystemExit]


@pytest.fixture(autouse=True)
def unraisable(monkeypatch):
    """The exceptions that were lost, which must be none."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    yield
    assert [each.exc_type for each in lost] == []


class Name(str):
    """A key whose `repr` raises SIGINT by C functions alone: Python has not run its signal handler when it returns."""

    __slots__ = ()
    __repr__ = map(chr, filterfalse(interrupt_main, [SIGINT] * 9)).__next__


def test_ctrl_c_while_an_error_text_is_created_reaches_the_caller():
    assert flatten({Name("x"): 1})[0] == [1]  # without an error, no text is created
    with pytest.raises(KeyboardInterrupt):
        flatten({Name("x"): 1, 1: 1})


class RaisesOnce:
    """Raises an error the first time that it is converted to a number or its `shape` is read."""

    def __init__(self, error):
        self.errors = [error]

    def fail(self):
        if self.errors:
            raise self.errors.pop()
        return 1

    __index__ = __float__ = fail

    @property
    def shape(self):
        return (self.fail(),)

    @property
    def dtype(self):
        return np.dtype(np.float32)

    def __hash__(self):
        return 1

    def __lt__(self, other):
        return True


class KeysOfUnknownNumber(Mapping):
    def __init__(self, error):
        self.once = RaisesOnce(error)

    def keys(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration

    def __len__(self):
        return self.once.fail()

    def __getitem__(self, key):
        raise KeyError(key)


def named_fields(error):
    class Fields(type):
        @property
        def _fields(cls):
            raise error

    class Step(tuple, metaclass=Fields):
        __slots__ = ()

    return Step((1, 2))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "make", [named_fields, KeysOfUnknownNumber, lambda error: {RaisesOnce(error): 1}], ids=["fields", "len", "key"]
)
def test_errors_of_a_container_reach_the_caller(make, error):
    with pytest.raises(error):
        flatten(make(error))


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_creating_a_namedtuple_reach_the_caller(monkeypatch, error):
    def namedtuple(*_):
        raise error

    monkeypatch.setattr("collections.namedtuple", namedtuple)
    with pytest.raises(error):
        unflatten('{"n":"NeverSeenBefore","f":[["x",0]]}', [1])


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_reading_arguments_reach_the_caller(open_store, error):
    store = open_store(Table("t"))
    with pytest.raises(error):
        store.insert(1, {"t": RaisesOnce(error)})
    with pytest.raises(error):
        store.create_table(Table("u", signature={"x": RaisesOnce(error)}))
    with store.writer() as writer:
        writer.append({"x": [np.asarray(1), np.asarray(2)]})
        with pytest.raises(error):
            writer.history["x"][0][RaisesOnce(error)]


class Part(dict):
    def __init__(self, error):
        super().__init__(x=1)
        self.error = error

    def __contains__(self, key):
        raise self.error


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_a_partial_step_reach_the_caller(open_store, error):
    with open_store(Table("t")).writer() as writer:
        writer.append({"x": 1, "y": 2})
        with pytest.raises(error):
            writer.append(Part(error), partial_step=True)


class Entry(str):
    __slots__ = ("error",)
    __hash__ = str.__hash__

    def __eq__(self, other):
        if self.error is not None:
            raise self.error
        return str.__eq__(self, other)


@optree.register_pytree_node_class(namespace="engram")
class Registered:
    def __init__(self, error):
        self.entry = Entry("x")
        self.entry.error = error

    def __tree_flatten__(self):
        return (1,), None, (self.entry,)

    tree_flatten = __tree_flatten__

    @classmethod
    def tree_unflatten(cls, *_):
        pytest.fail("a step is never unflattened")

    __tree_unflatten__ = tree_unflatten


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_comparing_entries_reach_the_caller(open_store, error):
    with open_store(Table("t")).writer() as writer:
        writer.append(Registered(None))
        with pytest.raises(error):
            writer.append(Registered(error))
