"""A list of numbers is a nest with a column for each number; errors that this causes hint at arrays."""

from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import raises

from engram import ArraySpec, Pattern, Table
from engram.errors import InvalidArgumentError, SignatureError

HINT = "; lists are nests: wrap `obs` in numpy.asarray to store one array column"


@pytest.fixture
def store(open_store):
    signature = {"obs": ArraySpec((2,), np.int64)}
    return open_store(Table("any"), Table("signed", signature=signature))


def test_a_signature_mismatch_has_the_hint(store):
    with pytest.raises(SignatureError, match=f"`signed`.*{HINT}$"):
        store.insert({"obs": [1, 2]}, {"signed": 1.0})
    store.insert({"obs": np.asarray([1, 2])}, {"signed": 1.0})


def test_the_hint_names_the_list_like_its_columns(store):
    class Step(NamedTuple):
        action: Any
        obs: Any

    key = Enum("Key", {"OBS": "obs"}, type=str)
    for nest, path in [
        (Step(np.int64(1), [1.0, 2.0]), "obs"),
        (Step({"a/b": [[1.0], [2.0]]}, 1), r"action/a\/b"),
        ({key.OBS: [1.0]}, "obs"),
        ({1: ([1.0],)}, "1/0"),
    ]:
        with pytest.raises(SignatureError) as raised:
            store.insert(nest, {"signed": 1.0})
        assert str(raised.value).endswith(HINT.replace("`obs`", f"`{path}`")), path


def test_a_missing_time_axis_has_the_hint(store):
    text = "with time_axis=True every column must have shape [T, ...]; column `obs/0` has shape []"
    with raises(SignatureError, text + HINT):
        store.insert({"obs": [1, 2, 3]}, {"any": 1.0}, time_axis=True)


def test_a_list_of_another_length_has_the_hint(store):
    with store.pattern_writer([Pattern("any", num_steps=1)]) as writer:
        writer.append({"obs": [1, 2]})
        text = "all steps of a writer must have the same columns, `obs/0`, `obs/1`; got `obs/0`, `obs/1`, `obs/2`"
        with raises(SignatureError, text + HINT):
            writer.append({"obs": [1, 2, 3]})


def test_a_whole_column_in_a_pattern_has_the_hint(store):
    writer = store.pattern_writer([Pattern("any", lambda s: {"obs": s["obs"][-1]})])
    with pytest.raises(InvalidArgumentError, match=f"got a whole column for `obs`.*{HINT}$"):
        writer.append({"obs": [1.5, 2.5]})


def test_a_missing_environment_axis_has_the_hint(store):
    with store.batched_writer(2, [Pattern("any", num_steps=1)]) as writer:
        text = "column `obs/0` must have shape [2, ...] with 2 environments; got shape []"
        with raises(SignatureError, text + HINT):
            writer.append_batch({"obs": [1, 2]})


def test_errors_of_create_item_have_the_hint(store):
    with store.writer() as writer:
        writer.append({"obs": [1, 2]})
        with pytest.raises(SignatureError, match=f"`signed`.*{HINT}$"):
            writer.create_item("signed", num_steps=1)
        text = "column `obs/0` of the trajectory must be a slice of the writer's history, such as "
        with raises(SignatureError, text + 'writer.history["obs"][-2:]; got ColumnHistory' + HINT):
            writer.create_item("any", trajectory={"obs": writer.history["obs"][-2:]})


def test_nested_lists_have_the_hint(store):
    text = "with time_axis=True every column must have shape [T, ...]; column `obs/0/0` has shape []"
    with raises(SignatureError, text + HINT):
        store.insert({"obs": [[1, 2], [3, 4]]}, {"any": 1.0}, time_axis=True)


def test_a_batch_of_lists_of_different_lengths_has_a_hint(store):
    store.insert({"obs": [1, 2]}, {"any": 1.0})
    store.insert({"obs": [1, 2, 3]}, {"any": 1.0})
    text = (
        "cannot form one batch; sample them one by one, or insert arrays instead of lists: each element of a list is a"
    )
    with pytest.raises(SignatureError, match=text):
        store.sample("any", 100, timeout=0)


def test_lists_of_arrays_get_no_hint(store):
    with store.pattern_writer([Pattern("any", num_steps=1)]) as writer:
        writer.append({"obs": [np.zeros(1)]})
        with raises(SignatureError, "all steps of a writer must have the same columns, `obs/0`; got `obs/0`, `obs/1`"):
            writer.append({"obs": [np.zeros(1), np.zeros(1)]})
