"""Nests and their leaves: text with zero bytes, and mappings that cannot be created from pairs."""

import collections

import numpy as np
import pytest

from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_common import lists_to_tuples


@pytest.mark.parametrize("value", [b"a\0", "a\0", np.bytes_(b"a\0"), np.str_("a\0")])
def test_text_keeps_trailing_zero_bytes(value):
    array = _nest.as_array(value)
    assert array.dtype == object
    assert array.item() == b"a\0"
    assert len(array.item()) == 2
    assert len(_nest.as_array(np.array([value], object))[0]) == 2


def test_lists_to_tuples_keeps_the_classes_of_mappings():
    nest = collections.defaultdict(list, b=[1, [2]], a=collections.OrderedDict(x=[3]))
    converted = lists_to_tuples(nest)
    assert converted == {"b": (1, (2,)), "a": {"x": (3,)}}
    assert converted.default_factory is list
    assert type(converted["a"]) is collections.OrderedDict
    assert nest["b"] == [1, [2]]
