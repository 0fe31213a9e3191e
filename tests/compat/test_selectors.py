"""Selectors: `repr`, and the engine's selectors."""

import pytest
from helpers.compat_tables import serving, steps, table
from helpers.support import raises

import engram
from engram import selectors as native
from engram.compat.reverb import item_selectors, selectors

MADE = [
    (selectors.Fifo, "FifoSelector", native.Fifo()),
    (selectors.Lifo, "LifoSelector", native.Lifo()),
    (selectors.Uniform, "UniformSelector", native.Uniform()),
    (selectors.MinHeap, "HeapSelector(sign=1)", native.MinHeap()),
    (selectors.MaxHeap, "HeapSelector(sign=-1)", native.MaxHeap()),
]


def test_selectors_and_item_selectors_are_one_module():
    assert selectors is item_selectors


@pytest.mark.parametrize(("make", "text", "selector"), MADE)
def test_repr_and_engine_selector(make, text, selector):
    assert repr(make()) == text
    assert make()._native == selector


def test_prioritized_takes_its_exponent_by_position_and_by_name():
    assert repr(selectors.Prioritized(0.8)) == "PrioritizedSelector(priority_exponent=0.8)"
    assert repr(selectors.Prioritized(priority_exponent=1)) == "PrioritizedSelector(priority_exponent=1)"
    assert selectors.Prioritized(0.8)._native == native.Prioritized(0.8)


def test_prioritized_needs_a_valid_exponent():
    with pytest.raises(TypeError, match="priority_exponent"):
        selectors.Prioritized()
    with raises(TypeError, "`priority_exponent` must be a number; got 'a' (str)"):
        selectors.Prioritized("a")
    with raises(engram.errors.InvalidArgumentError, "`exponent` must be a number; got nan"):
        selectors.Prioritized(float("nan"))


def test_heaps_have_one_class():
    assert type(selectors.MinHeap()) is type(selectors.MaxHeap()) is item_selectors.HeapSelector


def test_a_selector_may_be_used_by_several_tables():
    shared = selectors.Lifo()
    tables = [table(name, sampler=shared, remover=shared, max_size=2) for name in "ab"]
    with serving(*tables) as (_, client):
        for value in range(3):
            client.insert([value], {"a": 1.0})
        client.insert([9], {"b": 1.0})
        assert (steps(client, "a"), steps(client, "b")) == ([[1]], [[9]])
