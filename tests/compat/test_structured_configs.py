"""Configs of structured writers: patterns, conditions, priorities, and inferred signatures."""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.pattern_model import PatternSet, stack_column
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw
from engram.compat.reverb._configs import ModuloEq, PatternNode, Priority
from engram.compat.reverb.tensor_spec import BoundedTensorSpec, TensorSpec

STEP = {"a": None, "b": (None, [None])}
REF = sw.create_reference_step(STEP)
C = sw.Condition


class Pair(NamedTuple):
    x: Any
    y: Any


def config(pattern, *conditions, table="t", priority=None):
    return sw.create_config(pattern, table, conditions, priority)


# Patterns


def test_indexing_a_reference_step_returns_pattern_nodes():
    assert REF["b"][1][0][-3:-1:2] == PatternNode(flat_source_index=2, start=-3, stop=-1, step=2)
    assert REF["a"][-2] == REF["a"][:-2] == PatternNode(stop=-2)
    assert [REF["a"][-2:].HasField(name) for name in ("start", "stop", "step")] == [True, False, False]
    with raises(ValueError, "Key must be int or slice but got x (type <class 'str'>)."):
        REF["a"]["x"]


def test_names_for_annotations_exist():
    """Existing code uses these in annotations."""
    transform: sw.PatternTransform = lambda step: step["a"][-1]  # noqa: E731, an annotation
    step: sw.ReferenceStep = REF
    pattern: sw.Pattern = transform(step)
    assert pattern == PatternNode(stop=-1)


def test_patterns_nest():
    pattern = sw.pattern_from_transform(STEP, lambda step: Pair({"z": step["a"][-1]}, [step["b"][0][-2:]]))
    created = config(pattern)
    assert [node.flat_source_index for node in created.flat] == [0, 1]
    assert sw.unpack_pattern(created) == pattern
    assert isinstance(sw.unpack_pattern(created), Pair)
    created.ClearField("pattern_structure")
    assert sw.unpack_pattern(created) == created.flat


def test_comparisons_return_conditions():
    since = C.steps_since_applied()
    assert (since >= 3) == sw.ConditionProto(steps_since_applied=True, ge=3)
    assert (since > 3) == sw.ConditionProto(steps_since_applied=True, ge=4)
    assert (since < 3) == sw.ConditionProto(steps_since_applied=True, ge=3, inverse=True)
    assert (since <= 3) == sw.ConditionProto(steps_since_applied=True, ge=4, inverse=True)
    assert (since == 3) == sw.ConditionProto(steps_since_applied=True, eq=3)
    assert (since != 3) == sw.ConditionProto(steps_since_applied=True, eq=3, inverse=True)
    modulo = ModuloEq(mod=4, eq=1)
    assert (C.step_index() % 4 == 1) == sw.ConditionProto(step_index=True, mod_eq=modulo)
    assert (C.data(STEP)["b"][1][0] % np.int32(4) != 1) == sw.ConditionProto(
        flat_source_index=2, mod_eq=modulo, inverse=True
    )
    assert C.is_end_episode() == sw.ConditionProto(is_end_episode=True, eq=1)
    assert (C.data(STEP)["a"] == np.True_) == (C.data(STEP)["a"] == True)  # noqa: E712, as Reverb's users write it
    with raises(ValueError, "a remainder can be compared with == and != only"):
        C.step_index() % 3 >= 2  # noqa: B015, rejected
    with raises(ValueError, "Condition.eq must be a 32-bit integer; got 4294967296"):
        C.step_index() == 2**32  # noqa: B015, rejected


def test_configs_have_the_interface_of_protobuf_messages():
    created = config({"x": REF["a"][-1]}, C.step_index() == 0)
    twin = copy.deepcopy(created)
    assert (twin, pickle.loads(pickle.dumps(created))) == (created, created)  # noqa: S301, our own
    twin.conditions.append(C.is_end_episode())
    twin.conditions.extend([C.step_index() >= 2])
    assert (len(created.conditions), len(twin.conditions)) == (1, 3)
    assert twin != created
    twin.CopyFrom(created)
    assert twin == created
    assert created.HasField("pattern_structure")
    assert created.priority.WhichOneof("priority_fn") == "constant_fn"
    twin.priority.td_error.flat_source_index = 2
    assert twin.priority == Priority(td_error=Priority.TDError(flat_source_index=2))
    empty = sw.Config()
    assert not empty.HasField("priority")
    empty.flat.append(REF["a"][-1])
    empty.priority.constant_fn.value = 3
    assert empty == sw.Config(flat=[REF["a"][-1]], priority=sw.constant_priority_fn(3.0))
    condition = sw.ConditionProto(step_index=True)
    assert not condition.mod_eq.mod
    assert condition.WhichOneof("cmp") is None
    condition.mod_eq.mod = 3
    assert condition.WhichOneof("cmp") == "mod_eq"
    condition.ge = 1
    assert not condition.HasField("mod_eq")
    assert repr(created) == (
        "flat {\n  stop: -1\n}\npattern_structure: {'x': None}\ntable: \"t\"\npriority {\n  constant_fn {\n"
        "    value: 1\n  }\n}\nconditions {\n  step_index: true\n  eq: 0\n}\n"
    )
    with raises(TypeError, "Config.conditions must be a list of Condition; got 3"):
        created.conditions = [3]
    with raises(TypeError, "`other` must be a Condition; got Config"):
        condition.CopyFrom(created)


def test_writers_copy_their_configs():
    created = config([REF["a"][-1]])
    with serving(table()) as (_, client):
        writer = client.structured_writer([created])
        created.table = "nope"
        writer.append({"a": 1, "b": (2, [3])})
        writer.flush()
        assert client.server_info()["t"].current_size == 1
    assert created.conditions == []


def config_with(**fields):
    """A config with one condition, which has these fields."""
    return config([REF["a"][-1]], sw.ConditionProto(**fields))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (config([REF["a"][:]]), "At least one of `start` and `stop` must be specified."),
        (config([REF["a"][0:]]), "`start` must be < 0 but got 0."),
        (config([REF["a"][-2:1]]), "`stop` must be <= 0 but got 1."),
        (config([REF["a"][-2:-3]]), "`stop` (-3) must be > `start` (-2) when both are specified."),
        (config([REF["a"][:0]]), "`stop` must be < 0 when `start` isn't set but got 0."),
        (config([REF["a"][3]]), "`stop` must be <= 0 but got 3."),
        (config([REF["a"][-4::0]]), "`step` must be > 0 but got 0."),
        (config([REF["a"][:-1:2]]), "`step` must only be set when `start` is set."),
        (config([PatternNode(flat_source_index=-1, stop=-1)]), "`flat_source_index` must be >= 0 but got -1."),
        (sw.Config(table="t"), "`flat` must not be empty."),
        (config([REF["a"][-1]], table=""), "`table` must not be empty."),
        (sw.Config(flat=[REF["a"][-1]], table="t"), "`priority` must set `constant_fn` or `td_error`."),
        (config_with(step_index=True), "Conditions must specify a value for `cmp`."),
        (config_with(eq=1), "Conditions must specify a value for `left`."),
        (config_with(flat_source_index=-1, eq=1), "flat_source_index must be >= 0 but got -1."),
        (config_with(is_end_episode=True, ge=1), "Condition must use `eq=1` when using `is_end_episode`."),
        (config_with(is_end_episode=True, eq=0), "Condition must use `eq=1` when using `is_end_episode`."),
        (
            config_with(is_end_episode=True, eq=1, inverse=True),
            "Condition must use `eq=1` when using `is_end_episode`.",
        ),
        (config([REF["a"][-1]], C.step_index() % 0 == 2), "`mod_eq.mod` must be > 0 but got 0."),
        (config([REF["a"][-1]], C.step_index() % 2 == -1), "`mod_eq.eq` must be >= 0 but got -1."),
        (3, "must be a Config; got int."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_configs_are_rejected(wrong, why):
    client = reverb.Client("localhost:1")
    with raises(ValueError, f"Invalid configuration at position 1: {why}"):
        client.structured_writer([config([REF["a"][-1]]), wrong])


def test_an_empty_list_of_configs_is_rejected():
    with raises(ValueError, "At least one config must be provided."):
        reverb.Client("localhost:1").structured_writer([])


# Signatures

SPEC = {
    "a": TensorSpec([3], np.float32, "own"),
    "b": (BoundedTensorSpec([], np.int64, 0, 9), [np.zeros((2, 2))]),
}


def inferred(*configs):
    return sw.infer_signature(configs, SPEC)


def plain(spec):
    """Name, dtype and shape of a spec, which is TensorFlow's if another test has imported TensorFlow."""
    shape = spec.shape if isinstance(spec.shape, tuple) else tuple(spec.shape.as_list())
    return spec.name, np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)), shape


def test_signatures_are_inferred():
    created = inferred(
        config({"x": (REF["a"][-1], REF["a"][-5:-1:3]), "y": REF["b"][0][-2:], "z": REF["b"][1][0][-1:]})
    )
    assert list(created) == ["x", "y", "z"]
    assert plain(created["x"][0]) == ("x/0", np.float32, (3,))
    assert plain(created["x"][1]) == ("x/1", np.float32, (2, 3))
    assert plain(created["y"]) == ("y", np.int64, (2,))
    assert plain(created["z"]) == ("z", np.float64, (1, 2, 2))


def test_items_of_an_inferred_signature_fit_it():
    configs = [config({"x": REF["a"][-5:-1:3], "y": REF["b"][0][-2]})]
    with serving(table(signature=inferred(*configs))) as (_, client):
        writer = client.structured_writer(configs)
        for number in range(5):
            writer.append({"a": np.full(3, number, np.float32), "b": (number, [np.zeros((2, 2))])})
        writer.flush()
        data = next(client.sample("t", emit_timesteps=False, unpack_as_table_signature=True)).data
    assert (data["x"].tolist(), data["y"].tolist()) == ([[0, 0, 0], [3, 3, 3]], 3)


def test_lengths_that_differ_become_none():
    created = inferred(*[config([REF["a"][start:]]) for start in (-3, -2, -3)])
    assert plain(created[0]) == ("0", np.float32, (None, 3))
    assert plain(inferred(*[config([REF["b"][0][start:]]) for start in (-3, -2)])[0])[2] == (None,)


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ([], "At least one config must be provided."),
        (
            [config([REF["a"][-1]]), config({"x": REF["a"][-1]})],
            "All configs must have exactly the same pattern_structure.",
        ),
        (
            [config([REF["a"][-1]]), config((REF["a"][-1],))],
            "All configs must have exactly the same pattern_structure.",
        ),
        (
            [config([REF["a"][-1]], table="z"), config([REF["a"][-1]])],
            "All configs must target the same table but provided configs included t, z.",
        ),
        (
            [config([REF["a"][-1]]), config([REF["b"][0][-1]])],
            "Configs produce trajectories with multiple dtypes at (0,). Got [dtype('float32'), dtype('int64')].",
        ),
        (
            [config([REF["a"][-1]]), config([REF["a"][-1:]])],
            "Configs produce trajectories with incompatible shapes at (0,). Got [(3,), (1, 3)].",
        ),
        (
            [config([PatternNode(flat_source_index=7, stop=-1)])],
            (
                "Column (0,) of the configs reads leaf 7 of a step (`flat_source_index`, from 0), but `step_spec` has "
                "only 3 leaves."
            ),
        ),
    ],
)
def test_invalid_signatures_are_rejected(configs, text):
    with raises(ValueError, text):
        inferred(*configs)


def test_arguments_that_are_not_configs_or_specs_are_rejected():
    with raises(TypeError, "`each of configs` must be a Config; got 5 (int)"):
        inferred(5)
    with raises(TypeError, "`config` must be a Config; got 5 (int)"):
        sw.unpack_pattern(5)
    unread = {"a": SPEC["a"], "b": (None, [5])}
    assert plain(sw.infer_signature([config([REF["a"][-1]])], unread)[0]) == ("0", np.float32, (3,))
    with raises(TypeError, "leaves of `step_spec` that configs read must have a shape and a dtype; got 5 (int)"):
        sw.infer_signature([config([REF["b"][1][0][-1]])], unread)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sw.create_config([REF["a"][-1]], None), "`table` must be text; got None"),
        (lambda: sw.constant_priority_fn(None), "`value` must be a number; got None"),
        (
            lambda: sw.td_error(None, [0], lambda step: step[0]),
            "`max_priority_weight` must be a number; got None",
        ),
        (
            lambda: sw.td_error(0.9, [0], lambda _: None),
            "`get_field_from_step_fn` must return a leaf of the step; got None",
        ),
    ],
)
def test_none_is_rejected(make, text):
    """A protobuf message would treat None as an unset field."""
    with raises(TypeError, text):
        make()


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.array(0.5), 0.5])
def test_priorities_are_numbers_of_any_kind(number):
    constant = sw.constant_priority_fn(number)
    assert (constant.constant_fn.value, str(constant)) == (0.5, "constant_fn {\n  value: 0.5\n}\n")
    assert sw.td_error(number, {"a": 0}, lambda step: step["a"]).td_error.max_priority_weight == 0.5
    assert sw.constant_priority_fn(np.int64(2)).constant_fn.value == 2
    assert sw.constant_priority_fn(np.True_).constant_fn.value == 1
    with raises(TypeError, "`value` must be a number; got '1' (str)"):
        sw.constant_priority_fn("1")
    with raises(TypeError, "`max_priority_weight` must be a number; got [1] (list)"):
        sw.td_error([1], [0], lambda step: step[0])
    with raises(TypeError, "ConstantPriorityFn.value must be of type float; got '1'"):
        Priority.ConstantPriorityFn(value="1")


# Random configs and steps: the engine creates the same items as `PatternSet`

LEAVES = sw.create_reference_step([None, None])


def random_node(draw):
    start = draw.randint(-4, -1)
    if draw.random() < 0.5:
        return LEAVES[draw.randint(0, 1)][start]
    stop = draw.choice([None, *range(start + 1, 0)])
    return LEAVES[draw.randint(0, 1)][start : stop : draw.choice([None, 1, 2, 3])]


def random_condition(draw):
    subject = draw.choice([C.step_index(), C.steps_since_applied(), C.data([None, None])[1], None])
    if subject is None:
        return sw.ConditionProto(buffer_length=True, ge=draw.randint(0, 4), inverse=draw.random() < 0.3)
    kind = draw.choice(["ge", "lt", "eq", "ne", "mod", "mod", "end"])
    if kind == "end":
        return C.is_end_episode()
    if kind == "mod":
        return subject % draw.randint(1, 3) == draw.randint(0, 2)
    return getattr(subject, f"__{kind}__")(draw.randint(0, 4))


def random_config(draw):
    nodes = [random_node(draw) for _ in range(draw.randint(1, 3))]
    conditions = [random_condition(draw) for _ in range(draw.choice([0, 1, 1, 2]))]
    priority = draw.choice([None, sw.td_error(0.25, [None, None], lambda step: step[1])])
    return sw.create_config(nodes, "t", conditions, priority)


def priority_of(config, columns):
    """The expected priority of an item, given its columns as arrays."""
    if config.priority.HasField("constant_fn"):
        return 1.0
    priority = 0.0
    for node, values in zip(config.flat, columns, strict=True):
        if node.flat_source_index == 1:
            priority = 0.25 * np.abs(values).max() + 0.75 * np.abs(values).mean()
    return priority


def random_call(draw):
    """A whole step, a step in two parts, or an end of the episode, with its arguments."""
    kind = draw.choice(["step"] * 8 + ["parts", "end"])
    if kind == "end":
        return kind, draw.random() < 0.5, None
    return kind, *[None if draw.random() < 0.1 else draw.randint(-2, 5) for _ in range(2)]


@given(draw=st.randoms(use_true_random=True))
def test_the_engine_creates_the_same_items_as_a_pattern_set(draw):
    created = [random_config(draw) for _ in range(4)]
    program = [("step", 0, 0)] * draw.randint(0, 1) + [random_call(draw) for _ in range(30)]
    patterns = PatternSet(created)
    expected = []

    def append(writer, leaves, *, partial):
        writer.append(leaves, partial_step=partial)
        expected.extend(patterns.append(leaves, partial=partial))

    with serving(table(max_times_sampled=1, max_size=1_000)) as (_, client):
        writer = client.structured_writer(created)
        for kind, first, second in program:
            if kind == "step":
                append(writer, [first, second], partial=False)
            elif kind == "parts":
                append(writer, [first, None], partial=True)
                append(writer, [None, second], partial=False)
            else:
                writer.end_episode(first)
                expected.extend(patterns.end_episode(clear=first))
        writer.flush()
        size = client.server_info()["t"].current_size
        samples = list(client.sample("t", size, emit_timesteps=False)) if size else []
    assert len(samples) == len(expected), (created, program)
    for sample, item in zip(samples, expected, strict=True):
        columns = [stack_column(column) for column in item.columns]
        for actual, column in zip(sample.data, columns, strict=True):
            np.testing.assert_array_equal(actual, column, strict=True)
        assert sample.info.priority == pytest.approx(priority_of(created[item.config_index], columns))
