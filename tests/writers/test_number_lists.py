"""Lists of numbers, and of one nest per item or step, are refused. Arrays were probably meant, and not columns."""

from collections import deque
from enum import Enum
from typing import Any, NamedTuple

import dm_env
import numpy as np
import optree
import pytest
from helpers.episodes import MAKERS
from helpers.support import case, raises

from engram import ArraySpec, Pattern, Table
from engram.adders import NStepTransitionAdder
from engram.buffers import ReplayBuffer
from engram.compat.ftw.adders.reverb.sequence import SequenceAdder
from engram.errors import SignatureError
from engram.gymnasium import BufferWriter, Transitions, VectorWriter

NUMBER = ArraySpec((), np.int64)
ONE_STEP = [Pattern("any", num_steps=1)]
NO = np.zeros(2, bool)


def refused(what, kind="list of 2 numbers"):
    return (
        f"{what} is a {kind}, and each would be a column of its own; wrap it in numpy.asarray to store one array "
        "column, or use a dict or a named tuple if one column per number is meant"
    )


class Step(NamedTuple):
    action: Any
    obs: Any


@optree.dataclasses.dataclass(namespace="engram")
class Registered:
    ids: object
    x: object


Key = Enum("Key", {"OBS": "obs"}, type=str)


@pytest.fixture
def store(open_store):
    return open_store(Table("any"), Table("signed", signature={"tok": [NUMBER, NUMBER], "x": NUMBER}))


NESTS = [
    ({"obs": [1, 2]}, refused("`obs`")),
    ({"obs": (1.5, True)}, refused("`obs`", "tuple of 2 numbers")),
    ({"obs": [np.float32(1), np.bool_(0), 2j]}, refused("`obs`", "list of 3 numbers")),
    ({"obs": [[1, 2], (3, 4)]}, refused("`obs`", "list of 4 numbers")),
    ({"obs": deque([1])}, refused("`obs`", "deque of 1 number")),
    ({"obs": {"a": np.zeros(2), "b": [1, 2]}}, refused("`obs/b`")),
    ({"obs": [np.zeros(2), [1, 2]]}, refused("`obs/1`")),
    (Step(1, [1.0, 2.0]), refused("`obs`")),
    (Step({"a/b": [[1.0], [2.0]]}, 1), refused(r"`action/a\/b`")),
    ({Key.OBS: [1, 2]}, refused("`obs`")),
    ({1: ([1, 2],)}, refused("`1`", "tuple of 2 numbers")),
    (Registered([5, 6], 1), refused("`ids`")),
    ({"s": Registered(1, {"y": (Registered(deque([5, 6]), 1),)})}, refused("`s/x/y/0/ids`", "deque of 2 numbers")),
    ({"obs": [1, None, 3]}, refused("`obs`", "list of 3 numbers")),
    ({"obs": [None, [None, 3.0]]}, refused("`obs`", "list of 3 numbers")),
    ([1, 2], refused("the nest")),
    ((np.int64(1), [2, 3]), refused("the nest", "tuple of 3 numbers")),
]


def test_lists_of_numbers_are_refused_wherever_they_are_in_a_nest(store):
    with store.writer() as writer, store.pattern_writer(ONE_STEP) as patterns:
        for nest, text in NESTS:
            buffer = ReplayBuffer(10)
            for call in (
                lambda nest=nest: store.insert(nest, {"any": 1.0}),
                lambda nest=nest: writer.append(nest),
                lambda nest=nest: writer.append(nest, partial_step=True),
                lambda nest=nest: patterns.append(nest),
                lambda nest=nest: patterns.append(nest, partial_step=True),
                lambda nest=nest, buffer=buffer: buffer.add(nest),
            ):
                for _ in range(2):  # a refused step leaves no structure that the next one would fit
                    with case(nest), raises(SignatureError, text):
                        call()
            assert len(buffer) == 0
    assert store.info()["any"].size == 0


def test_nests_that_are_meant_are_stored(store):
    class Pair(NamedTuple):
        first: Any
        second: Any

    for nest in (
        {"obs": {"a": 1, "b": 2}},
        {"obs": Pair(1, 2)},
        {"obs": [np.zeros(3), np.zeros(3)]},
        {"obs": [np.asarray(1), np.asarray(2)]},
        {"obs": (np.zeros(3), 2)},
        {"obs": np.asarray([1, 2])},
        {"obs": ()},
        {"obs": Registered([np.zeros(3), np.ones(3)], 1)},
    ):
        nest["x"] = 1
        with store.writer() as writer, store.pattern_writer(ONE_STEP) as patterns:
            store.insert(nest, {"any": 1.0})
            writer.append(nest)
            patterns.append(nest)
        ReplayBuffer(10).add(nest)
    store.insert({"obs": ["a", "b"]}, {"any": 1.0})


def test_a_list_is_refused_after_arrays_in_its_place(store):
    store.insert({"obs": [np.asarray(1), np.asarray(2)]}, {"any": 1.0})
    for obs in ([1, 2], [np.int64(1), np.int64(2)]):
        with raises(SignatureError, refused("`obs`")):
            store.insert({"obs": obs}, {"any": 1.0})
    assert store.info()["any"].size == 1


def test_a_later_step_may_not_replace_an_array_by_a_list(store):
    hint = "; lists are nests: wrap `obs` in numpy.asarray to store one array column$"
    with store.writer() as writer, store.pattern_writer(ONE_STEP) as patterns:
        for each in (writer, patterns):
            each.append({"obs": np.arange(2)})
            with pytest.raises(SignatureError, match=hint):
                each.append({"obs": [1, 2]})
    buffer = ReplayBuffer(10, signature={"obs": ArraySpec((2,), np.int64)})
    with pytest.raises(SignatureError, match=hint):
        buffer.add({"obs": [1, 2]})


def test_a_signature_declares_a_list(store):
    store.insert({"tok": [1, 2], "x": 3}, {"signed": 1.0})
    text = "item does not match the signature of table `signed`: "
    with pytest.raises(SignatureError, match=f"{text}column `x` must be int64\\[\\]; got float64"):
        store.insert({"tok": [1, 2], "x": 1.5}, {"signed": 1.0})
    with raises(SignatureError, refused("`tok`", "list of 3 numbers")):
        store.insert({"tok": [1, 2, 3], "x": 3}, {"signed": 1.0})
    with raises(SignatureError, refused("`tok`")):
        store.insert({"tok": [1, 2], "x": 3}, {"any": 1.0})
    with store.writer() as writer, store.pattern_writer([Pattern("signed", _last)]) as patterns:
        writer.append({"tok": [1, 2], "x": 3})
        writer.create_item("signed", trajectory=_last(writer.history))
        patterns.append({"tok": [4, 5], "x": 6})
        with raises(SignatureError, "all steps of a writer must have the same columns, `tok/0`, `tok/1`, `x`; got `x`"):
            patterns.append({"x": 6})
    items = [item["tok"] for batch in store.scan("signed") for item in _items(batch.data)]
    assert sorted(map(str, items)) == ["[1, 2]", "[1, 2]", "[4, 5]"]
    buffer = ReplayBuffer(10, signature={"tok": [NUMBER, NUMBER]})
    buffer.add({"tok": [1, 2]})
    assert len(buffer) == 1


def _last(history):
    return {"tok": [each[-1] for each in history["tok"]], "x": history["x"][-1]}


def _items(data):
    """The items of a batch, with numbers as leaves."""
    return [{"tok": [int(np.ravel(column[row])[0]) for column in data["tok"]]} for row in range(len(data["tok"][0]))]


def test_calls_that_need_more_axes_refuse_lists_too(store):
    with (
        store.pattern_writer(ONE_STEP) as patterns,
        store.batched_writer(2, ONE_STEP) as batched,
        VectorWriter(store, 2, [Transitions("any", discount=1.0)], autoreset_mode="NEXT_STEP") as vector,
    ):
        vector.reset(np.zeros((2, 3)))
        results = (np.zeros((2, 3)), np.zeros(2), NO, NO)
        buffer = BufferWriter(ReplayBuffer(10, 2), 2, autoreset_mode="NEXT_STEP")
        buffer.reset(np.zeros((2, 3)))
        for name, call in {
            "obs": lambda: store.insert({"obs": [1, 2]}, {"any": 1.0}, time_axis=True),
            "obs ": lambda: store.insert_batch("any", {"obs": [1, 2]}),
            "obs  ": lambda: patterns.append_steps({"obs": [1, 2]}),
            "obs   ": lambda: batched.append_batch({"obs": [1, 2]}),
            "obs    ": lambda: batched.append_steps({"obs": [1, 2]}),
            "obs     ": lambda: ReplayBuffer(10, 2).add_batch({"obs": [1, 2]}),
            "obs      ": lambda: ReplayBuffer(10, 2).add_steps({"obs": [1, 2]}),
            "obs       ": lambda: ReplayBuffer(10).add_episode({"obs": [1, 2]}),
            "action": lambda: vector.step([1, 2], *results),
            "action ": lambda: buffer.step([1, 2], *results),
            "extras": lambda: vector.step(np.zeros(2), *results, extras=[1, 2]),
        }.items():
            with raises(SignatureError, refused(f"`{name.strip()}`")):
                call()


def equal(path, found, each):
    return (
        f"{path} is a {found}, and each would be stored in columns of its own; stack them into one array, as with "
        f"numpy.stack, if each is the value of one {each}; if columns are meant, use a tuple, or a signature that has "
        "them"
    )


CELLS = np.zeros((5, 2, 4))  # 5 environments, items or steps
EQUAL_NESTS = [
    ({"obs": [CELLS] * 3}, "`obs`", "list of 3 values of shape [5, 2, 4]"),
    ({"obs": deque([CELLS])}, "`obs`", "deque of 1 value of shape [5, 2, 4]"),
    ({"obs": [CELLS, CELLS.astype(np.float32)]}, "`obs`", "list of 2 values of shape [5, 2, 4]"),
    ({"a": (CELLS, {"b/c": [{"d": CELLS}] * 3})}, r"`a/1/b\/c`", "list of 3 equal nests"),
    ({"obs": [(CELLS, CELLS), [CELLS, CELLS]]}, "`obs`", "list of 2 equal nests"),
    ({"obs": Registered([CELLS, CELLS], CELLS)}, "`obs/ids`", "list of 2 values of shape [5, 2, 4]"),
    ([(CELLS, CELLS)] * 3, "the nest", "list of 3 equal nests"),
    ([CELLS], "the nest", "list of 1 value of shape [5, 2, 4]"),
]


def calls_with_axes(store, table, signature=None):
    """The calls whose values have an axis of items, steps or environments, each with what a list was meant as."""
    patterns = [Pattern(table, num_steps=1)]
    pattern_writer, batched = store.pattern_writer(patterns), store.batched_writer(5, patterns)
    return [
        ("step", lambda nest: store.insert(nest, {table: 1.0}, time_axis=True)),
        ("item", lambda nest: store.insert_batch(table, nest)),
        ("item", lambda nest: store.insert_batch(table, nest, time_axis=True)),
        ("step", pattern_writer.append_steps),
        ("environment", batched.append_batch),
        ("step", batched.append_steps),
        ("environment", ReplayBuffer(100, 5, signature=signature).add_batch),
        ("step", ReplayBuffer(100, 5, signature=signature).add_steps),
        ("step", ReplayBuffer(100, signature=signature).add_episode),
    ]


def test_lists_of_equal_nests_are_refused_where_values_have_an_axis_of_items_or_steps(store):
    calls = calls_with_axes(store, "any")
    for nest, path, found in EQUAL_NESTS:
        for number, (each, call) in enumerate(calls):
            with case(found, number), raises(SignatureError, equal(path, found, each)):
                call(nest)
    with store.pattern_writer(ONE_STEP) as patterns:
        with raises(SignatureError, equal("`obs`", "list of 3 values of shape [5, 2, 4]", "step")):
            patterns.append_steps({"obs": [CELLS, None, CELLS]})
        patterns.append_steps({"obs": [None, None]})
    assert store.info()["any"].size == 0


def test_nests_of_columns_are_stored_by_calls_with_axes(store):
    for nest in (
        {"obs": (CELLS, CELLS)},
        (CELLS, CELLS),
        {"obs": Step(CELLS, CELLS)},
        {"obs": [CELLS, CELLS[..., :1]]},
        {"obs": [CELLS, {"a": CELLS}]},
        {"obs": [], "x": CELLS},
    ):
        for number, (_, call) in enumerate(calls_with_axes(store, "any")):
            with case(nest, number):
                call(nest)


def test_a_signature_declares_lists_of_equal_nests(open_store):
    for shapes in ([5, 2, 4], [2, 4], [4]):
        spec = ArraySpec(tuple(None for _ in shapes), np.float64)
        store = open_store(Table("signed", signature={"obs": [spec, spec]}), Table("any"))
        store.insert_batch("signed", {"obs": [np.zeros((3, *shapes))] * 2})
        store.insert({"obs": [np.zeros(shapes)] * 2}, {"signed": 1.0}, time_axis=True)
        with raises(SignatureError, equal("`obs`", f"list of 2 values of shape {shapes}", "item")):
            store.insert_batch("any", {"obs": [np.zeros(shapes)] * 2})
        with store.pattern_writer(ONE_STEP) as patterns:
            patterns.append_steps({"obs": [np.zeros(shapes)] * 2})
        with store.batched_writer(5, ONE_STEP) as batched:
            batched.append_steps({"obs": [CELLS] * 2})
        assert store.info()["signed"].size == 4
    spec = ArraySpec((4,), np.float64)
    ReplayBuffer(100, 5, signature={"obs": [spec, spec]}).add_steps({"obs": [CELLS] * 2})


def test_the_environments_of_a_list_may_differ_in_dtype(store):
    text = (
        "`obs` is a {} of 2 equal nests, the number of environments, so that it is unclear whether each is an "
        "environment; stack them into one nest of arrays [2, ...], as with numpy.stack, or use a dict or a named tuple "
        "if each is meant as columns of its own"
    )
    parts = [np.zeros(2), np.zeros(2, np.float32)]
    with store.batched_writer(2, ONE_STEP) as batched:
        for kind in (list, tuple, deque):
            for call in (batched.append_batch, ReplayBuffer(100, 2).add_batch):
                with raises(SignatureError, text.format(kind.__name__)):
                    call({"obs": kind(parts)})


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_adders_refuse_lists_of_numbers(kind, open_store):
    store = open_store(Table("priority_table"))
    good = {"observation": np.zeros(2), "reward": 1.0, "discount": 1.0, "action": 0, "extras": ()}
    for name in good:
        given = good | {name: [1.0, 2.0]}
        with MAKERS[kind](store) as adder:
            adder.add_first(dm_env.restart(observation=given["observation"]))
            step = dm_env.TimeStep(dm_env.StepType.MID, given["reward"], given["discount"], given["observation"])
            with raises(SignatureError, refused(f"`{name}`")):
                adder.add(given["action"], step, given["extras"])
    assert store.info()["priority_table"].size == 0


def test_a_signature_declares_the_lists_of_an_adder(open_store):
    rewards = [ArraySpec((), np.float64)] * 2
    number = ArraySpec((), np.float64)
    signature = {"observation": number, "action": NUMBER, "reward": rewards, "discount": number}
    signature["next_observation"] = number
    store = open_store(Table("t"), Table("declared", signature=signature))
    with NStepTransitionAdder(store, 2, 1.0, priority_fns={"t": 1.0}) as adder:
        adder.add_first(dm_env.restart(observation=0.0))
        adder.add(0, dm_env.TimeStep(dm_env.StepType.MID, [1.0, 2.0], 1.0, 1.0))
        adder.add(0, dm_env.TimeStep(dm_env.StepType.LAST, [3.0, 4.0], 1.0, 2.0))
        adder.flush()
        assert store.info()["t"].size == 2


def test_a_batch_of_lists_of_different_lengths_has_a_hint(store):
    first, second = (store.insert({"obs": [np.asarray(0)] * length}, {"any": 1.0}) for length in (2, 3))
    with pytest.raises(SignatureError) as caught:
        store.sample("any", 100, timeout=0)
    keys = {f"(keys {first} and {second})", f"(keys {second} and {first})"}
    assert any(text in str(caught.value) for text in keys)
    assert str(caught.value).endswith(
        "; sample them one by one, or create the table with a `signature` with fixed sizes, so that it "
        "rejects items that differ; arrays are one column, but each element of a list is a column"
    )


def test_adders_of_ftw_store_lists_as_reverb_does(open_store):
    store = open_store(Table("t"))
    with SequenceAdder(store, 2, 1, priority_fns={"t": 1.0}) as adder:
        adder.add_first(dm_env.restart(observation=[1.0, 2.0]))
        adder.add([3], dm_env.TimeStep(dm_env.StepType.LAST, [4.0], 1.0, [5.0, 6.0]))
    data = store.sample("t", 1).data
    assert [column.tolist() for column in data.observation] == [[[1, 5]], [[2, 6]]]
