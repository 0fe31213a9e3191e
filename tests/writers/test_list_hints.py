"""Errors about a list of numbers, whose columns a signature has or which a later step has, hint at arrays."""

import numpy as np
import pytest
from helpers.support import raises

from engram import ArraySpec, Pattern, Table
from engram.errors import InvalidArgumentError, SignatureError
from engram.patterns import column

HINT = "; lists are nests: wrap `obs` in numpy.asarray to store one array column"


@pytest.fixture
def store(open_store):
    number = ArraySpec((), np.int64)
    return open_store(
        Table("any"),
        Table("signed", signature={"obs": ArraySpec((2,), np.int64)}),
        Table("with_list", signature={"obs": [number, number], "x": number}),
    )


def test_a_list_of_another_length_has_the_hint(store):
    with store.pattern_writer([Pattern("any", num_steps=1)]) as writer:
        writer.append({"obs": [1, 2]})
        text = "all steps of a writer must have the same columns, `obs/0`, `obs/1`; got `obs/0`, `obs/1`, `obs/2`"
        with raises(SignatureError, text + HINT):
            writer.append({"obs": [1, 2, 3]})


def test_a_whole_column_in_a_pattern_has_the_hint(store):
    writer = store.pattern_writer([Pattern("any", lambda s: {"last": s["obs"][-1]})])
    text = 'each leaf of the item must be a slice of a column, such as s["obs"][-2:]; got the whole column `obs/1`'
    with raises(InvalidArgumentError, f"pattern for table `any`: {text} for `last`{HINT}"):
        writer.append({"obs": [1.5, 2.5]})


def test_a_pattern_that_uses_a_list_as_a_column_has_the_hint(store):
    for pattern, text in (
        (
            Pattern("any", lambda s: s["obs"][5]),
            "`trajectory` raised IndexError('list index out of range') for a step with the columns `obs/0`, `obs/1`",
        ),
        (
            Pattern("any", num_steps=1, when=[column(lambda s: s["obs"]) == 1]),
            'the function of a `column` condition must select one column, such as s["x"]; got list',
        ),
    ):
        with raises(InvalidArgumentError, f"pattern for table `any`: {text}{HINT}"):
            store.pattern_writer([pattern]).append({"obs": [1, 2]})


def test_errors_of_create_item_have_the_hint(store):
    with store.writer() as writer:
        writer.append({"obs": [1, 2]})
        with pytest.raises(SignatureError, match=f"`signed`.*{HINT}$"):
            writer.create_item("signed", num_steps=1)
        text = "column `obs/0` of the trajectory must be a slice of the writer's history, such as "
        in_steps = "; lists are nests: wrap the list in numpy.asarray in the steps, to store one array column"
        with raises(SignatureError, text + 'writer.history["obs"][-2:]; got ColumnHistory' + in_steps):
            writer.create_item("any", trajectory={"obs": writer.history["obs"][-2:]})


def test_lists_of_arrays_get_no_hint(store):
    with store.pattern_writer([Pattern("any", num_steps=1)]) as writer:
        writer.append({"obs": [np.zeros(1)]})
        with raises(SignatureError, "all steps of a writer must have the same columns, `obs/0`; got `obs/0`, `obs/1`"):
            writer.append({"obs": [np.zeros(1), np.zeros(1)]})


def test_errors_about_other_columns_and_arguments_have_no_hint(store):
    columns = "`obs/0` int64[], `obs/1` int64[], `x` {}[]"
    text = (
        "item does not match the signature of table `with_list`: column `x` must be int64[]; got float64[]; signature: "
        f"{columns.format('int64')}; item: {columns.format('float64')}"
    )
    with raises(SignatureError, text):
        store.insert({"obs": [1, 2], "x": 1.5}, {"with_list": 1.0})
    with store.writer() as writer:
        writer.append({"obs": [1, 2], "x": 1})
        with raises(SignatureError, "column `x` must keep its dtype; got float64[] after int64[]"):
            writer.append({"obs": [1, 2], "x": np.float64(1)})
        text = "`num_steps` is 2, but only 1 step was appended in this episode; append more steps first, or "
        with raises(InvalidArgumentError, text + "select fewer"):
            writer.create_item("any", num_steps=2)
    with store.pattern_writer([Pattern("any", num_steps=1)]) as writer:
        writer.append({"obs": [1, 2]})
        text = "all steps of a writer must have the same columns, `obs/0`, `obs/1`; got `obs/0`, `obs/1`, `x`"
        with raises(SignatureError, text):
            writer.append({"obs": [1, 2], "x": 1})
    text = "`trajectory` raised KeyError('y') for a step with the columns `obs/0`, `obs/1`"
    with raises(InvalidArgumentError, f"pattern for table `any`: {text}"):
        store.pattern_writer([Pattern("any", lambda s: s["y"])]).append({"obs": [1, 2]})
