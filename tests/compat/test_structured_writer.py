"""`StructuredWriter`: the items that it creates, which are those of Reverb 0.14, and invalid steps."""

import numpy as np
import pytest
from helpers.compat_tables import items, samples, serving, table
from helpers.pattern_model import PatternSet, stack_column
from helpers.support import raises, wait_until

from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw

STEP = {"a": None, "b": None}
REF = sw.create_reference_step(STEP)
LAST = [REF["a"][-1]]
C = sw.Condition


def config(pattern, *conditions, table="t", priority=None):
    return sw.create_config(pattern, table, conditions, priority)


def add(a, b=None, *, partial=False):
    """A call of a program: an append of a step. By default, `b` is ten times `a`."""
    return ("append", {"a": a, "b": a * 10 if b is None else b}, partial)


def part(partial=True, **leaves):  # noqa: FBT002, reads well
    """An append of the given leaves. The step remains open unless `partial` is False."""
    return ("append", {"a": leaves.get("a"), "b": leaves.get("b")}, partial)


def end(clear=True):  # noqa: FBT002, reads well
    """An end of the episode."""
    return ("end", clear)


def steps(*numbers):
    return [add(number) for number in numbers]


BUFFER_OF_TWO = sw.ConditionProto(buffer_length=True, ge=2)
BY_A = sw.td_error(0.25, STEP, lambda step: step["a"])

# By name: configs, a program, and the columns of the items that it creates in the tables `t` and `u`, in order.
PROGRAMS = {
    "every step": ([config(LAST)], steps(0, 1), [[0], [1]], []),
    "slices": (
        [config({"y": REF["b"][-1], "x": REF["a"][-2:]})],
        steps(0, 1, 2),
        [[[0, 1], 10], [[1, 2], 20]],
        [],
    ),
    "strides": (
        [config([REF["a"][-5::2], REF["b"][-4:-1:2]])],
        steps(*range(7)),
        [[[0, 2, 4], [10, 30]], [[1, 3, 5], [20, 40]], [[2, 4, 6], [30, 50]]],
        [],
    ),
    "several": (
        [
            config([REF["a"][-3:-1], REF["b"][-1]]),
            config(LAST, C.step_index() >= 2, C.step_index() % 2 == 0, table="u"),
        ],
        [*steps(*range(4)), end(), *steps(10, 11, 12)],
        [[[0, 1], 20], [[1, 2], 30], [[10, 11], 120]],
        [[2], [12]],
    ),
    "steps since, over episodes": (
        [config(LAST, C.steps_since_applied() >= 2)],
        [*steps(0, 1, 2), end(), *steps(10, 11, 12, 13)],
        [[1], [10], [12]],
        [],
    ),
    "steps since, with steps missing": (
        [config([REF["a"][-2:]], C.steps_since_applied() >= 2)],
        [*steps(*range(4)), end(), *steps(*range(10, 15))],
        [[[0, 1]], [[2, 3]], [[10, 11]], [[12, 13]]],
        [],
    ),
    "steps since, of steps without a value, too": (
        [config(LAST, C.steps_since_applied() == 3), config(LAST, C.steps_since_applied() >= 3, table="u")],
        [*steps(*range(5)), part(partial=False, b=50), *steps(*range(6, 12))],
        [[2]],
        [[2], [6], [9]],
    ),
    "steps since, equal": ([config(LAST, C.steps_since_applied() == 3)], steps(*range(7)), [[2], [5]], []),
    "end of episode": (
        [config(LAST, C.is_end_episode())],
        [*steps(0, 1), end(), add(2), end(clear=False), end()],
        [[1], [2]],
        [],
    ),
    "end of an episode once": ([config(LAST)], [add(0), end()], [[0]], []),
    "end of episode of several": (
        [config(LAST, C.step_index() == 1), config(LAST, C.is_end_episode(), table="u")],
        [*steps(0, 1), end(), end(), add(2), end()],
        [[1]],
        [[1], [2]],
    ),
    "episodes kept": (
        [config([REF["a"][-2:]], C.step_index() % 2 == 0)],
        [*steps(*range(4)), end(clear=False), *steps(*range(10, 15))],
        [[[1, 2]], [[3, 10]], [[11, 12]], [[13, 14]]],
        [],
    ),
    "comparisons": (
        [
            config(LAST, C.step_index() > 1, C.step_index() < 4, C.step_index() != 2),
            config(LAST, C.step_index() <= 3, C.step_index() % 2 != 1, table="u"),
        ],
        steps(*range(6)),
        [[3]],
        [[0], [2]],
    ),
    "values missing": (
        [config([REF["b"][-3:]])],
        [*steps(0, 1), part(a=4, partial=False), *steps(2, 3, 4, 5)],
        [[[20, 30, 40]], [[30, 40, 50]]],
        [],
    ),
    "data": (
        [config(LAST, C.data(STEP)["b"] >= 10), config(LAST, C.data(STEP)["b"] < 10, table="u")],
        [add(0), add(1), part(a=2, partial=False), add(3)],
        [[1], [3]],
        [[0]],
    ),
    "data of other kinds": (
        [config([REF["b"][-1]], C.data(STEP)["a"] < 10)],
        [("append", {"a": 1.5, "b": 1}, False), ("append", {"a": 2.5, "b": 2}, False)],
        [],
        [],
    ),
    "one element is a number": (
        [config([REF["b"][-1]], C.data(STEP)["a"] >= 200)],
        [("append", {"a": np.array([[value]], np.uint8), "b": value}, False) for value in (250, 2)],
        [[250]],
        [],
    ),
    "bools": (
        [config([REF["b"][-1]], C.data(STEP)["a"] == 1)],
        [("append", {"a": value, "b": int(value)}, False) for value in (True, False)],
        [[1]],
        [],
    ),
    "remainders round down": (
        [config(LAST, C.data(STEP)["b"] % 3 == 1)],
        [add(0, -2), add(1, 4), add(2, 2)],
        [[0], [1]],
        [],
    ),
    "partial steps": (
        [config([REF["a"][-1], REF["b"][-2]])],
        [add(0), part(a=1), part(b=5, partial=False), add(2)],
        [[1, 0], [2, 5]],
        [],
    ),
    "partial from the first step on": (
        [config(LAST), config([REF["b"][-1]], table="u")],
        [part(a=1), part(b=5, partial=False), part(), part(a=7, b=8, partial=False)],
        [[1], [7]],
        [[5], [8]],
    ),
    "a condition becomes true within a step": (
        [config(LAST, C.data(STEP)["b"] == 5)],
        [part(a=1), part(b=5, partial=False), part(b=5), part(a=9, partial=False)],
        [[1], [9]],
        [],
    ),
    "an end of episode within a step": ([config([REF["b"][-1]])], [part(a=1, b=2), end(), add(2)], [[2], [20]], []),
    "buffer length": (
        [config(LAST, BUFFER_OF_TWO), config([REF["a"][-4:]], table="u")],
        [*steps(*range(5)), end(), *steps(6, 7)],
        [[1], [2], [3], [4], [7]],
        [[[0, 1, 2, 3]], [[1, 2, 3, 4]]],
    ),
    "buffer length is limited by the longest pattern": (
        [config(LAST, sw.ConditionProto(buffer_length=True, eq=1)), config([REF["a"][-3:]], table="u")],
        steps(*range(4)),
        [[0]],
        [[[0, 1, 2]], [[1, 2, 3]]],
    ),
}


@pytest.fixture
def client():
    with serving(*[table(name, max_times_sampled=1) for name in "tu"], reverb.Table.queue("queue", 1)) as (_, client):
        yield client


def run(writer, program):
    for kind, *arguments in program:
        if kind == "end":
            writer.end_episode(*arguments)
        else:
            writer.append(arguments[0], partial_step=arguments[1])


@pytest.mark.parametrize(("configs", "program", "t", "u"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("begin", ["whole", "part"])
def test_programs_create_the_items_of_reverb(client, configs, program, t, u, begin):  # noqa: PLR0917, a fixture and parameters
    """Also if the first append has no values."""
    writer = client.structured_writer(configs)
    if begin == "part":
        run(writer, [part()])
    run(writer, program)
    writer.flush()
    assert (items(client), items(client, "u")) == (t, u)


@pytest.mark.parametrize(("configs", "program", "t", "u"), PROGRAMS.values(), ids=PROGRAMS)
def test_pattern_sets_create_the_items_of_reverb(configs, program, t, u):
    patterns = PatternSet(configs)
    items_by_table = {"t": [], "u": []}
    for kind, *arguments in program:
        if kind == "end":
            new_items = patterns.end_episode(clear=arguments[0])
        else:
            leaves = [arguments[0]["a"], arguments[0]["b"]]
            new_items = patterns.append(leaves, partial=arguments[1])
        for item in new_items:
            columns = [stack_column(column).tolist() for column in item.columns]
            items_by_table[configs[item.config_index].table].append(columns)
    assert items_by_table == {"t": t, "u": u}


# Priorities


@pytest.mark.parametrize(
    ("pattern", "priority", "dtype", "priorities"),
    [
        (LAST, None, np.int64, [1.0, 1.0, 1.0, 1.0]),
        (LAST, sw.constant_priority_fn(-2), np.int64, [-2.0, -2.0, -2.0, -2.0]),
        ([REF["a"][-3:]], BY_A, np.int32, [22.75, 15.75]),
        ([REF["a"][-3:]], BY_A, np.float64, [22.75, 15.75]),
        ([REF["a"][-1], REF["b"][-1]], BY_A, np.float32, [28.0, 21.0, 14.0, 7.0]),
        ([REF["a"][-1:], REF["a"][-3:]], BY_A, np.int64, [22.75, 15.75]),
        ([REF["b"][-1]], BY_A, np.int64, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_priorities_are_constants_or_computed_from_td_errors(client, pattern, priority, dtype, priorities):
    """TD errors are read from the last column of their leaf; an item without a column of the leaf has priority 0."""
    writer = client.structured_writer([config(pattern, priority=priority)])
    for number in range(-4, 0):
        writer.append({"a": dtype(number * 7), "b": 0})
    writer.flush()
    assert [sample.info.priority for sample in samples(client, "t")] == priorities


TD_ERROR = "TD errors must be one float32, float64, int32 or int64 per step; column `0` of the item has"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones(2), "float64[2]"),
        (np.int8(1), "int8[]"),
        ("text", "string[]"),
    ],
)
def test_invalid_priorities_are_rejected(client, value, text):
    """The step is stored, and the items of other configs are created."""
    writer = client.structured_writer([config([REF["a"][-1:]], priority=BY_A), config([REF["b"][-2:]], table="u")])
    for number in range(2):
        with raises(ValueError, f"{TD_ERROR} {text}"):
            writer.append({"a": value, "b": number})
    writer.flush()
    assert (items(client), items(client, "u")) == ([], [[[0, 1]]])


def test_an_item_with_an_invalid_priority_is_created_in_no_later_step(client):
    """Each append to the step tries again to create the item. In the next step, the condition no longer holds."""
    configs = [config([REF["a"][-1]], C.steps_since_applied() == 2, priority=BY_A)]
    writer = client.structured_writer(configs)
    writer.append({"a": 1.0, "b": 0})
    text = (
        "the TD errors in column `0` of the item give an invalid priority: priority for table `t` is NaN; it must be a "
        "number"
    )
    for partial in (True, False):
        with raises(ValueError, text):
            writer.append({"a": np.nan if partial else None, "b": None}, partial_step=partial)
        assert writer.step_is_open is partial
    writer.append({"a": 3.0, "b": 0})
    writer.flush()
    assert items(client) == []
    with raises(ValueError, text):
        client.structured_writer([config([REF["a"][-1]], priority=BY_A)]).append({"a": np.nan, "b": 0})


# Invalid steps


@pytest.mark.parametrize("begin", ["whole", "part"])
@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ({"a": 1}, ValueError, "Flattened data has an unexpected length, got 1 but wanted 2."),
        (
            {"a": 1, "b": 2.5},
            ValueError,
            "Tensor of wrong dtype provided for column 1 (path=('b',)). Got double but expected int64.",
        ),
        (
            {"a": 1, "b": np.zeros(3, int)},
            ValueError,
            "Tensor of incompatible shape provided for column 1 (path=('b',)). Got [3] which is incompatible with [].",
        ),
        ({"a": np.datetime64("2020-01-01"), "b": 1}, TypeError, None),
    ],
    ids=repr,
)
def test_invalid_steps_are_rejected(client, data, error, text, begin):
    writer = client.structured_writer([config({"x": REF["a"][-2:], "y": REF["b"][-1]})])
    if begin == "part":
        writer.append({"a": None, "b": None}, partial_step=True)
    writer.append({"a": 0, "b": 0})
    with pytest.raises(error) as raised:
        writer.append(data)
    assert text is None or str(raised.value) == text
    writer.append((1, 10))  # only the leaves are compared
    writer.flush()
    assert items(client) == [[[0, 1], 10]]


@pytest.mark.parametrize("begin", ["whole", "part"])
def test_a_value_can_be_set_once_per_step(client, begin):
    writer = client.structured_writer([config([REF["a"][-1], REF["b"][-1]])])
    if begin == "part":
        writer.append({"a": None, "b": None}, partial_step=True)
    assert writer.step_is_open is (begin == "part")
    writer.append({"a": 0, "b": 0})
    assert not writer.step_is_open
    writer.append({"a": None, "b": 1}, partial_step=True)
    assert writer.step_is_open
    with raises(RuntimeError, "A value for column 1 was provided by multiple append calls in the same step."):
        writer.append({"a": 1, "b": 2})
    assert writer.step_is_open
    writer.append({"a": 1, "b": None})
    assert not writer.step_is_open
    writer.flush()
    assert items(client) == [[0, 0], [1, 1]]


def test_leaves_that_no_config_reads_are_ignored(client):
    """A missing leaf that a config reads is an error."""
    writer = client.structured_writer([config(LAST)])
    for number, other in enumerate((0, "text", object())):
        writer.append({"a": number, "b": other})
    writer.flush()
    assert items(client) == [[0], [1], [2]]
    writer = client.structured_writer([config(sw.create_reference_step([0] * 6)[5][-1])])
    with raises(ValueError, "a config reads leaf 5 of a step (`flat_source_index`, from 0); steps have only 2 leaves"):
        writer.append({"a": 1, "b": 2})


def test_each_append_to_an_unknown_table_raises(client):
    writer = client.structured_writer([config(LAST, table="nope")])
    for value in (1, 1.5):  # a rejected step does not set a dtype
        with raises(RuntimeError, "Priority table nope was not found; known tables: `queue`, `t`, `u`"):
            writer.append({"a": value, "b": 2})
    writer.flush()


def test_a_failed_first_step_sets_no_dtype(client):
    writer = client.structured_writer([config(LAST)])
    with pytest.raises(TypeError):
        writer.append({"a": object(), "b": 2})
    writer.append({"a": 1, "b": 2})
    writer.flush()
    assert items(client) == [[1]]


# Sending


def test_items_are_sent_without_a_flush(client):
    """The first items are sent immediately, later ones after as many steps as the patterns need."""
    writer = client.structured_writer([config([REF["a"][-3:]])])
    for number in range(4):
        writer.append({"a": number, "b": 0})
        wait_until(lambda number=number: client.server_info()["t"].current_size == max(0, number - 1))
    for number in range(4, 40):
        writer.append({"a": number, "b": 0})
    wait_until(lambda: client.server_info()["t"].current_size >= 36)


def test_flush_and_end_episode_raise_after_their_timeouts(client):
    writer = client.structured_writer([config(LAST, table="queue")])
    writer.flush()
    writer.end_episode()
    for number in range(3):
        writer.append({"a": number, "b": 0})
    for timeout in (0, 30):
        with pytest.raises(reverb.DeadlineExceededError, match=r"^Flush call did not complete within provided timeout"):
            writer.flush(timeout_ms=timeout)
    writer.flush(2, timeout_ms=30)
    with pytest.raises(reverb.DeadlineExceededError, match=r"^End episode call did not complete within"):
        writer.end_episode(timeout_ms=30)
    with raises(ValueError, "block_until_num_items must be >= 0, got -1"):
        writer.flush(-1)
    values = [next(client.sample("queue", emit_timesteps=False)).data[0].tolist() for _ in range(3)]
    assert values == [0, 1, 2]


def test_garbage_collected_writers_send_their_items(client):
    writer = client.structured_writer([config([REF["a"][-30:-1]]), config(LAST, table="u")])
    for number in range(15):
        writer.append({"a": number, "b": 0})
    del writer
    wait_until(lambda: client.server_info()["u"].current_size == 15)
