"""The pattern writer: patterns, conditions, ends of episodes, errors."""

from collections import namedtuple

import numpy as np
import pytest
from helpers.support import case, raises

from engram import ArraySpec, Pattern, Table, selectors
from engram.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureError,
    UnknownTableError,
)
from engram.patterns import column, end_of_episode, history_length, step_index, steps_since_applied


@pytest.fixture
def store(open_store):
    return open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))


def items(store, pattern, episodes, *, table="t"):
    """Items that a pattern creates from episodes of numbered steps, as lists."""
    with store.pattern_writer([pattern]) as writer:
        value = 0
        for steps in episodes:
            for _ in range(steps):
                writer.append({"x": value, "y": [np.asarray(value * 10)]})
                value += 1
            writer.end_episode()
    return all_of(store, table)


def all_of(store, table="t"):
    """All items of a table: the column `x`, or the data if it is a single column, as lists."""
    all_data = []
    while store.info()[table].size:
        data = store.sample(table, 1, timeout=0).data
        all_data.append(data["x"][0].tolist() if isinstance(data, dict) else data[0].tolist())
    return all_data


def test_num_steps_selects_the_newest_steps_of_an_episode(store):
    assert items(store, Pattern("t", num_steps=2), [3, 1, 2]) == [[0, 1], [1, 2], [4, 5]]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda s: {"x": s["x"][-1]}, [0, 1, 2, 3]),
        (lambda s: {"x": s["x"][-2]}, [0, 1, 2]),
        (lambda s: {"x": s["x"][-1:]}, [[0], [1], [2], [3]]),
        (lambda s: {"x": s["x"][-3:-1]}, [[0, 1], [1, 2]]),
        (lambda s: {"x": s["x"][-3::2]}, [[0, 2], [1, 3]]),
        (lambda s: {"x": s["y"][0][-2:]}, [[0, 10], [10, 20], [20, 30]]),
        (lambda s: s["x"][-2:], [[0, 1], [1, 2], [2, 3]]),
    ],
)
def test_slices_count_back_from_the_newest_step(store, make, expected):
    assert items(store, Pattern("t", make), [4]) == expected


def test_items_may_be_nests(store):
    Both = namedtuple("Both", "new old")  # noqa: PYI024, as written before typing
    pattern = Pattern("t", lambda s: Both(s["x"][-1], [s["y"][0][-2:], {"z": s["x"][-2:]}]))
    with store.pattern_writer([pattern]) as writer:
        for value in range(2):
            writer.append({"x": value, "y": [np.asarray(value)]})
    data = store.sample("t", 1).data
    assert type(data) is Both
    assert (data.new.tolist(), data.old[0].tolist(), data.old[1]["z"].tolist()) == ([1], [[0, 1]], [[0, 1]])


def test_conditions_select_steps(store):
    cases = [
        ([step_index() == 2], [2, 7]),
        ([step_index() != 2], [0, 1, 3, 4, 5, 6, 8]),
        ([step_index() < 2], [0, 1, 5, 6]),
        ([step_index() <= 1], [0, 1, 5, 6]),
        ([step_index() > 2], [3, 4, 8]),
        ([step_index() >= 3], [3, 4, 8]),
        ([step_index() % 3 == 1], [1, 4, 6]),
        ([step_index() % 2 != 0], [1, 3, 6, 8]),
        ([~(step_index() % 2 == 0)], [1, 3, 6, 8]),
        ([step_index() > 0, step_index() < 3], [1, 2, 6, 7]),
        ([history_length() == 1], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ([history_length() > 1], []),
        ([end_of_episode()], [4, 8]),
        ([~end_of_episode(), step_index() == 4], [4]),
        ([column(lambda s: s["x"]) == 6], [6]),
        ([column(lambda s: s["x"]) >= 7], [7, 8]),
        ([column(lambda s: s["x"]) % 4 == 0], [0, 4, 8]),
        ([column(lambda s: s["y"][0]) == 30], [3]),
        ([column(lambda s: s["y"][0]) == 5], []),
    ]
    for number, (when, expected) in enumerate(cases):
        with case(number, expected):
            assert items(store, Pattern("t", lambda s: s["x"][-1], when=when), [5, 4]) == expected


def test_steps_since_applied_counts_from_the_last_item(store):
    pattern = Pattern("t", lambda s: s["x"][-1], when=[steps_since_applied() >= 3])
    assert items(store, pattern, [8]) == [2, 5]
    n_step = Pattern("t", lambda s: s["x"][-2:], when=[steps_since_applied() >= 2])
    assert items(store, n_step, [6]) == [[0, 1], [2, 3], [4, 5]]


def patterns_of_different_lengths(table):
    """Patterns that apply at history lengths of 2, 3 and 4, and one of three steps, which limits the history to 3."""
    lengths = [Pattern(table, lambda s: s["x"][-1], when=[history_length() == length]) for length in (2, 3, 4)]
    return [*lengths, Pattern("far", num_steps=3)]


@pytest.mark.parametrize("clear", [True, False])
def test_history_length_grows_to_that_of_the_longest_pattern(open_store, clear):
    """The longest pattern has three steps."""
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1), Table("far"))
    with store.pattern_writer(patterns_of_different_lengths("t")) as writer:
        for value in range(8):
            writer.append({"x": value})
            if value == 4:
                writer.end_episode(clear=clear)
    assert all_of(store) == ([1, 2, 3, 4, 6, 7] if clear else [1, 2, 3, 4, 5, 6, 7])


def test_each_environment_has_its_own_history_length(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1), Table("far"))
    with store.batched_writer(2, patterns_of_different_lengths("t")) as writer:
        for value in range(5):
            writer.append_batch({"x": np.array([value, value * 10])}, episode_ends=np.array([value == 2, False]))
    assert all_of(store) == [1, 10, 2, 20, 30, 4, 40]


def test_column_conditions_match_single_integers_only(open_store):
    for values, expected in (
        ([True, False, True], [0, 2]),
        ([1, 0, 1], [0, 2]),
        (np.array([1, 2, 1], np.uint8), [0, 2]),
        ([np.array([1]), np.array([0]), np.array([1])], [0, 2]),
        ([np.array([1, 1])] * 3, []),
        (["1"] * 3, []),
    ):
        store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
        with store.pattern_writer([Pattern("t", lambda s: s["x"][-1], when=[column(lambda s: s["c"]) == 1])]) as writer:
            for number, value in enumerate(values):
                writer.append({"x": number, "c": value})
        assert all_of(store) == expected


def test_a_writer_may_have_several_patterns_and_tables(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1), Table("u"))
    declared = [Pattern("t", num_steps=1), Pattern("t", num_steps=2), Pattern("u", num_steps=3, priority=5.0)]
    with store.pattern_writer(iter(declared)) as writer:
        for value in range(3):
            writer.append({"x": value})
    assert all_of(store) == [[0], [1], [0, 1], [2], [1, 2]]
    batch = store.sample("u", 1)
    assert (batch.data["x"].tolist(), batch.info.priority.tolist()) == ([[0, 1, 2]], [5.0])


def test_partial_steps_are_merged(store):
    with store.pattern_writer([Pattern("t", lambda s: s["x"][-2:]), Pattern("t", lambda s: s["y"][-1])]) as writer:
        writer.append({"x": 0, "y": 0})
        writer.append({"x": 1, "y": None}, partial_step=True)
        assert writer.episode_steps == 1
        writer.append({"x": None, "y": 1})
        assert writer.episode_steps == 2
    assert all_of(store) == [0, [0, 1], 1]


def test_missing_values_create_no_items(store):
    with store.pattern_writer([Pattern("t", lambda s: s["y"][-1]), Pattern("t", lambda s: s["x"][-1])]) as writer:
        for value in range(4):
            writer.append({"x": value, "y": value * 10 if value in {1, 3} else None})
    assert all_of(store) == [0, 10, 1, 2, 30, 3]


def test_items_do_not_contain_steps_before_a_cleared_end(store):
    with store.pattern_writer([Pattern("t", num_steps=2)]) as writer:
        writer.append({"x": 0})
        writer.end_episode(clear=False)
        writer.append({"x": 1})
        writer.end_episode()
        writer.append({"x": 2})
    assert all_of(store) in ([[0, 1]], [])


def test_the_function_of_a_pattern_runs_once(store):
    calls = []

    def make(step):
        calls.append(step)
        return step["x"][-1]

    with store.pattern_writer([Pattern("t", make)]) as writer:
        for value in range(10):
            writer.append({"x": value})
    assert len(calls) == 1


# --- errors ------------------------------------------------------------------------------------

NO_SLICE = 'pattern for table `t`: each leaf of the item must be a slice of a column, such as s["obs"][-2:]; got {}'


BAD_SLICE = (
    "must start before 0 and stop after its start, at most at 0 (the end of the newest step), such as [-3:] or [-3:-1]"
)
BAD_INDEX = "must be a negative integer or a slice of steps, such as [-1] or [-2:]"
ONLY_SELECTS = (
    "pattern for table `t`: for a step with {}, `trajectory` can only select columns and slices of them, such as "
    's["obs"][-2:]; it cannot compute with them or read their attributes: compute before `append`, or after sampling'
)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: s["x"][:], "`x[:]` needs a start that counts back from the newest step, such as [-2:]"),
        (lambda s: s["x"][:-1], "`x[:-1]` needs a start that counts back from the newest step, such as [-2:]"),
        (
            lambda s: s["x"][0],
            "the index of `x[0]` must be negative: it counts back from the newest step, such as [-1]",
        ),
        (lambda s: s["x"][0:], f"`x[0:]` {BAD_SLICE}"),
        (lambda s: s["x"][-2:-2], f"`x[-2:-2]` {BAD_SLICE}"),
        (lambda s: s["x"][-2:1], f"`x[-2:1]` {BAD_SLICE}"),
        (lambda s: s["x"][-2.5:], "the start of `x[-2.5:]` must be an integer; got -2.5 (float)"),
        (lambda s: s["x"][-2:"a"], "the stop of `x[-2:a]` must be an integer; got 'a' (str)"),
        (lambda s: s["x"][-3::-1], "the step of `x[-3::-1]` must be at least 1; got -1"),
        (lambda s: s["x"]["a"], f"the index of `x[a]` {BAD_INDEX}"),
        (lambda s: s["x"][:, 0], f"the index of `x[:, 0]` {BAD_INDEX}"),
        (lambda s: s["x"][-1] / 2, ONLY_SELECTS.format("the columns `x`")),
        (lambda s: s["x"][-2:][0], ONLY_SELECTS.format("the columns `x`")),
        (lambda s: s["x"].mean(), ONLY_SELECTS.format("the columns `x`")),
        (lambda s: np.mean(s["x"]), ONLY_SELECTS.format("the columns `x`")),
        (lambda s: {"o": s["x"]}, NO_SLICE.format("the whole column `x` for `o`")),
        (lambda _: 3, NO_SLICE.format("int")),
        (lambda s: s["y"], "pattern for table `t`: `trajectory` raised KeyError('y') for a step with the columns `x`"),
    ],
)
def test_bad_patterns_raise_at_the_first_step(store, make, text):
    writer = store.pattern_writer([Pattern("t", make)])
    for _ in range(2):
        with raises(InvalidArgumentError, text):
            writer.append({"x": 1})
    assert writer.episode_steps == 0


def test_an_error_for_a_step_that_is_one_array_names_no_columns(store):
    with raises(InvalidArgumentError, ONLY_SELECTS.format("a single array")):
        store.pattern_writer([Pattern("t", lambda s: s.x)]).append(1)


def test_a_column_condition_must_select_one_column(store):
    text = (
        'pattern for table `t`: the function of a `column` condition must select one column, such as s["x"]; got dict'
    )
    with raises(InvalidArgumentError, text):
        store.pattern_writer([Pattern("t", num_steps=1, when=[column(lambda s: s) == 1])]).append({"x": 1})
    text = "the function of a `column` condition raised KeyError('y') for a step with the columns `x`"
    with raises(InvalidArgumentError, f"pattern for table `t`: {text}"):
        store.pattern_writer([Pattern("t", num_steps=1, when=[column(lambda s: s["y"]) == 1])]).append({"x": 1})


NOT_COMPARED = (
    "`when` must be a list of conditions, such as [step_index() % 4 == 0]; got a value that is not compared with "
    "anything"
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs exactly one of `trajectory` and `num_steps`"),
        ({"trajectory": lambda s: s, "num_steps": 1}, "needs exactly one of `trajectory` and `num_steps`"),
        ({"num_steps": 0}, "`num_steps` must be at least 1; got 0"),
        ({"num_steps": 1, "priority": float("nan")}, "`priority` must be a number; got nan"),
        ({"num_steps": 1, "when": step_index() == 0}, "`when` must be a list of conditions; got a single condition"),
        ({"num_steps": 1, "when": step_index()}, NOT_COMPARED),
    ],
)
def test_bad_declarations_are_rejected(arguments, text):
    with raises(InvalidArgumentError, f"pattern for table `t`: {text}"):
        Pattern("t", **arguments)


def test_arguments_of_wrong_types_are_rejected():
    with raises(InvalidArgumentError, "`table` must be a str, the name of a table; got 3 (int)"):
        Pattern(3, num_steps=1)
    with pytest.raises(InvalidArgumentError, match=r"`trajectory` must be a function of a step; got \{'x': 1\}$"):
        Pattern("t", {"x": 1})
    with pytest.raises(InvalidArgumentError, match="each of `when` must be a comparison such as"):
        Pattern("t", num_steps=1, when=[step_index()])
    with raises(
        InvalidArgumentError,
        "a condition has no truth value, so `and`, `or`, `not` and chained comparisons are not possible: `when` is a "
        "list of conditions that must all be true, and `~` negates one; instead of `a or b`, use two patterns, with "
        "`when=[a]` and `when=[~a, b]`",
    ):
        bool(step_index() == 1)
    with raises(InvalidArgumentError, "the operand of a condition must be an integer; got 1.5 (float)"):
        _ = step_index() == 1.5
    with raises(InvalidArgumentError, "the divisor of a condition must be at least 1; got 0"):
        _ = step_index() % 0 == 1
    with raises(InvalidArgumentError, "the remainder of a condition must be at least 0; got -1"):
        _ = step_index() % 2 == -1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "`patterns` must contain at least one pattern; got none"),
        (Pattern("t", num_steps=1), "`patterns` must be a sequence of patterns; got a single pattern"),
        (["t"], "each of `patterns` must be an engram.Pattern; got 't' (str)"),
    ],
)
def test_bad_lists_of_patterns_are_rejected(store, given, text):
    with raises(InvalidArgumentError, text):
        store.pattern_writer(given)
    with raises(InvalidArgumentError, text):
        store.batched_writer(2, given)


def test_a_rejected_first_step_is_not_stored(open_store):
    store = open_store()
    writer = store.pattern_writer([Pattern("t", num_steps=2)])
    with raises(UnknownTableError, "no table `t`; known tables: none"):
        writer.append({"x": 0})
    store.create_table(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    for value in (1, 2):
        writer.append({"x": value})
    writer.close()
    assert all_of(store) == [[1, 2]]


@pytest.mark.parametrize("clear", [True, False])
def test_a_rejected_first_step_of_a_later_episode_keeps_the_history(store, clear):
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        writer.append({"x": np.int32(1)})
        writer.end_episode(clear=clear)
        for _ in range(2):
            with pytest.raises(SignatureError, match="int32"):
                writer.append({"x": np.float32(2)})
        writer.append({"x": np.int32(3)})
    assert all_of(store) == [[1], [3]]


def test_a_rejected_partial_step_keeps_the_other_parts(store):
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        writer.append({"x": 1}, partial_step=True)
        with pytest.raises(SignatureError):
            writer.append({"y": object()})
        writer.append({"y": 2})
        assert writer.episode_steps == 1
    assert store.sample("t", 1, timeout=0).data["x"].tolist() == [[1]]


def test_a_rejected_step_does_not_change_the_columns(store):
    with store.pattern_writer([Pattern("t", lambda s: s["z"][-1])]) as writer:
        writer.append({"a": None, "z": 1.5})
        for bad in ("text", object()):
            with pytest.raises(SignatureError):
                writer.append({"a": 5, "z": bad})
        writer.append({"a": np.uint8(6), "z": 2.5})
    assert all_of(store) == [1.5, 2.5]


def test_steps_must_have_the_same_columns(store):
    writer = store.pattern_writer([Pattern("t", num_steps=1)])
    writer.append({"x": 1})
    with raises(SignatureError, "all steps of a writer must have the same columns, `x`; got `x`, `y`"):
        writer.append({"x": 1, "y": 2})
    with raises(SignatureError, "all steps of a writer must have the same columns, `x`; got `0`"):
        writer.append([np.zeros(1)])
    writer.close()
    assert all_of(store) == [[1]]


def test_the_first_append_checks_the_signature(open_store):
    store = open_store(Table("t", signature={"x": ArraySpec((2,), np.float32)}))
    text = (
        "item does not match the signature of table `t`: column `x` must be float32[2]; got float64[2]; "
        "signature: `x` float32[2]; item: `x` float64[2]"
    )
    writer = store.pattern_writer([Pattern("t", num_steps=2)])
    with raises(SignatureError, text):
        writer.append({"x": 1.0})
    assert writer.episode_steps == 0
    batched = store.batched_writer(3, [Pattern("t", num_steps=2)])
    with raises(SignatureError, text):
        batched.append_batch({"x": np.zeros(3)})


def test_a_double_negation_equals_its_condition():
    condition = step_index() % 4 == 1
    assert ~~condition == condition


@pytest.mark.usefixtures("other_thread")
def test_an_episode_end_that_times_out_keeps_its_items(open_store):
    store = open_store(Table.queue("q", max_size=1))
    writer = store.pattern_writer([Pattern("q", num_steps=1)])
    for value in range(3):
        writer.append({"x": value})
    with raises(
        DeadlineExceededError,
        "2 items are not in their tables after 0.05 s; they stay queued; `q`: inserting waits: "
        "Queue(1) is full: 1 inserted item is not sampled yet",
    ):
        writer.end_episode(0.05)
    assert (writer.pending_items, writer.episode_steps) == (2, 0)
    for value in range(3):
        assert store.sample("q", 1, timeout=5).data["x"].tolist() == [[value]]
    writer.close(5)
