"""Rings of steps: adding, removing and their errors."""

from collections import OrderedDict, deque
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import alf_buffers
from helpers.alf_buffers import ints
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]


class Pair(NamedTuple):
    image: Any
    rest: Any


@pytest.fixture
def alf():
    return alf_buffers.alf


def number_ring(num_environments, max_length, **options):
    """A ring of single numbers."""
    alf = alf_buffers.alf
    return alf.RingBuffer(alf.TensorSpec((), "int64"), num_environments, max_length, **options)


ACTIONS = st.one_of(
    st.tuples(st.just("enqueue"), st.sets(st.integers(0, 2)), st.just(0)),
    st.tuples(st.just("dequeue"), st.sets(st.integers(0, 2)), st.integers(0, 2)),
    st.tuples(st.just("remove"), st.sets(st.integers(0, 2)), st.integers(0, 6)),
    st.tuples(st.just("clear"), st.sets(st.integers(0, 2)), st.just(0)),
)


class RingModel:
    """A bounded queue per environment."""

    def __init__(self, length):
        self.queues = [deque(maxlen=length) for _ in range(3)]
        self.positions = [0, 0, 0]
        self.value = 0

    def enqueue(self, ring, envs, _):
        assert ring.enqueue(ints([self.value + env for env in envs]), ints(envs)) is True
        for env in envs:
            self.queues[env].append(self.value + env)
            self.positions[env] += 1
        self.value += 3

    def dequeue(self, ring, envs, n):
        if n <= ring.max_length and all(len(self.queues[env]) >= n for env in envs):
            expected = [[self.queues[env].popleft() for _ in range(n)] for env in envs]
            assert ring.dequeue(ints(envs), n).tolist() == expected

    def remove(self, ring, envs, n):
        ring.remove_up_to(n, ints(envs))
        for env in envs:
            for _ in range(min(n, len(self.queues[env]))):
                self.queues[env].popleft()

    def clear(self, ring, envs, _):
        ring.clear(ints(envs))
        for env in envs:
            self.queues[env].clear()
            self.positions[env] = 0


@given(length=st.integers(1, 5), actions=st.lists(ACTIONS, max_size=40))
def test_a_ring_is_a_bounded_queue_per_environment(length, actions):
    ring, model = number_ring(3, length), RingModel(length)
    for action, chosen, n in actions:
        envs = sorted(chosen, reverse=True)
        getattr(model, action)(ring, envs, n)
        sizes = [len(queue) for queue in model.queues]
        assert ring._current_size.tolist() == sizes
        assert ring.get_current_position().tolist() == model.positions
        oldest = [position - size for position, size in zip(model.positions, sizes, strict=True)]
        assert ring.get_earliest_position(ints([[0], [1], [2]])).tolist() == [[each] for each in oldest]
        for size in range(length + 1):
            assert ring.has_data(ints(envs), size) == all(sizes[env] >= size for env in envs)
        assert ring.has_space(ints(envs)) == all(sizes[env] < length for env in envs)


def test_all_environments_are_the_default():
    ring = number_ring(2, 2)
    ring.enqueue(ints([1, 2]))
    ring.enqueue(ints([3, 4]))
    assert not ring.has_space()
    assert ring.has_data(n=2)
    ring.remove_up_to(1)
    assert ring.dequeue().tolist() == [[3], [4]]
    ring.clear()
    assert ring.get_current_position().tolist() == [0, 0]


def test_nests_of_all_containers_are_stored(alf):
    torch = alf_buffers.torch
    spec = Pair(alf.TensorSpec((2,), torch.uint8), {"b": [alf.TensorSpec(())], "a": (alf.TensorSpec((), "bool"), ())})
    ring = alf.RingBuffer(spec, num_environments=1)
    image = torch.tensor([[1, 2]], dtype=torch.uint8)
    ring.enqueue(Pair(image, OrderedDict(a=(np.array([True]), ()), b=[torch.tensor([0.5], requires_grad=True)])))
    image.zero_()
    taken = ring.dequeue()
    assert isinstance(taken, Pair)
    assert taken.image.tolist() == [[[1, 2]]]
    assert taken.rest["a"][0].tolist() == [[True]]
    assert taken.rest["a"][1] == ()
    [leaf] = taken.rest["b"]
    assert (leaf.tolist(), leaf.requires_grad) == ([[0.5]], False)
    assert [*ring.state_dict()] == ["_current_size", "_current_pos", "image", "rest|a|0", "rest|b|0"]
    assert ring.state_dict()["image"].shape == (1, 1024, 2)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "bool", "float8_e4m3fn"])
def test_values_of_size_1_are_repeated_along_the_axes_of_a_step(alf, dtype):
    torch = alf_buffers.torch
    ring = alf.RingBuffer(alf.TensorSpec((2, 3), dtype), 2, max_length=2)
    value = torch.tensor([[[1.0, 0.0, 1.0]], [[0.0, 1.0, 1.0]]])
    expected = value.expand(2, 2, 3)
    ring.enqueue(value.to(ring._spec.dtypes[0]))
    ring.enqueue(torch.zeros(2, 1, 1).to(ring._spec.dtypes[0]), [1, 0])
    taken = ring.dequeue(n=2).to(torch.float32)
    assert torch.equal(taken[:, 0], expected)
    assert not taken[:, 1].any()


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ((1, 3), AssertionError, "`batch` must have 3 steps; got 1"),
        (
            (3,),
            InvalidArgumentError,
            "`batch` must have shape [batch size, 3], where sizes after the first may be 1; got [3]",
        ),
        (
            (3, 2),
            InvalidArgumentError,
            "`batch` must have shape [batch size, 3], where sizes after the first may be 1; got ",
        ),
        (
            (3, 1, 3),
            InvalidArgumentError,
            "`batch` must have shape [batch size, 3], where sizes after the first may be 1; ",
        ),
    ],
)
def test_values_are_not_repeated_for_other_environments(alf, shape, error, text):
    """Nor are axes added, which tensor assignment aligns with the wrong ones."""
    ring = alf.RingBuffer(alf.TensorSpec((3,)), 3)
    with pytest.raises(error) as caught:
        ring.enqueue(alf_buffers.torch.zeros(shape))
    assert str(caught.value).startswith(text)


def test_a_single_tensor_has_a_name_in_the_state():
    assert [*number_ring(1, 2).state_dict()] == ["_current_size", "_current_pos", "_buffer0"]


def test_fields_may_have_the_names_of_attributes(alf):
    ring = alf.RingBuffer({"device": alf.TensorSpec(()), "clear": alf.TensorSpec(())}, num_environments=1)
    ring.enqueue({"device": [1.0], "clear": [2.0]})
    assert ring.device == "cpu"
    assert ring.dequeue()["clear"].tolist() == [[2.0]]


def test_attributes(alf):
    ring = alf.RingBuffer(alf.TensorSpec(()), 3, max_length=5, name="ring")
    assert (ring.num_environments, ring.max_length, ring.device, ring.name) == (3, 5, "cpu", "ring")
    assert ring.circular(ints([-1, 4, 12])).tolist() == [4, 4, 2]
    assert ring.circular(-6) == 4


def test_results_are_copies():
    ring = number_ring(1, 1)
    ring.enqueue(ints([1]))
    position, earliest, taken = ring.get_current_position(), ring.get_earliest_position(), ring.dequeue()
    ring.enqueue(ints([2]))
    ring.enqueue(ints([3]))
    assert (position.tolist(), earliest.tolist(), taken.tolist()) == ([1], [0], [[1]])


def test_values_are_converted_if_the_dtype_can_represent_them(alf):
    torch = alf_buffers.torch
    ring = alf.RingBuffer((alf.TensorSpec((), torch.uint8), alf.TensorSpec(())), num_environments=1)
    ring.enqueue((ints([255]), torch.tensor([0.5], dtype=torch.float64)))
    small, number = ring.dequeue()
    assert (small.dtype, small.tolist()) == (torch.uint8, [[255]])
    assert (number.dtype, number.tolist()) == (torch.float32, [[0.5]])
    unchangeable = np.array([0.25])
    unchangeable.flags.writeable = False
    ring.enqueue((np.array([3], np.int16), unchangeable))
    assert [leaf.tolist() for leaf in ring.dequeue()] == [[[3]], [[0.25]]]


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (
            lambda torch: {"a": torch.zeros(2), "b": torch.zeros(2, 3)},
            InvalidArgumentError,
            "`a` of `batch` must be convertible to torch.int8; got torch.float32",
        ),
        (
            lambda torch: {"a": ints([1, 128]), "b": torch.zeros(2, 3)},
            InvalidArgumentError,
            "`a` of `batch` must be from -128 to 127, the limits of torch.int8; got values from 1 to 128",
        ),
        (
            lambda torch: {"a": ints([1, 2]), "b": torch.zeros(2, 4)},
            InvalidArgumentError,
            "`b` of `batch` must have shape [batch size, 3], where sizes after the first may be 1; got [2, 4]",
        ),
        (
            lambda torch: {"a": ints(1), "b": torch.zeros(2, 3)},
            InvalidArgumentError,
            "`a` of `batch` must have shape [batch size]; got []",
        ),
        (
            lambda torch: {"a": ints([1, 2]), "b": torch.zeros(3, 3)},
            AssertionError,
            "`b` of `batch` must have 2 steps; got 3",
        ),
        (
            lambda torch: {"a": ints([1, 2]), "c": torch.zeros(2, 3)},
            InvalidArgumentError,
            "`batch` must have the structure of `data_spec`, {'a': *, 'b': *}; got {'a': *, 'c': *}",
        ),
    ],
)
def test_a_rejected_batch_changes_nothing(alf, values, error, text):
    torch = alf_buffers.torch
    ring = alf.RingBuffer({"a": alf.TensorSpec((), "int8"), "b": alf.TensorSpec((3,))}, num_environments=2)
    ring.enqueue({"a": ints([1, 2]), "b": torch.ones(2, 3)})
    before = {key: value.clone() for key, value in ring.state_dict().items()}
    with raises(error, text):
        ring.enqueue(values(torch))
    assert all(torch.equal(value, before[key]) for key, value in ring.state_dict().items())


@pytest.mark.parametrize(
    ("env_ids", "error", "text"),
    [
        ([0, 1], AssertionError, "`batch` must have 2 steps; got 1"),
        ([[0]], AssertionError, "`env_ids` must have one axis; got shape [1, 1]"),
        ([1, 1], AssertionError, "`env_ids` must be different; got [1, 1]"),
        ([2], IndexError, "each of `env_ids` must be from 0 to 1; got 2"),
        ([-1], IndexError, "each of `env_ids` must be from 0 to 1; got -1"),
        ([0.0], TypeError, "`env_ids` must be integers; got dtype float64"),
    ],
)
def test_invalid_environments_are_rejected(env_ids, error, text):
    ring = number_ring(2, 4)
    with raises(error, text):
        ring.enqueue(ints([1]), env_ids)
    assert ring._current_size.tolist() == [0, 0]


@pytest.mark.parametrize("method", ["clear", "remove", "dequeue"])
def test_environments_must_be_different_in_all_methods(method):
    ring = number_ring(2, 4)
    calls = {"clear": ring.clear, "remove": lambda ids: ring.remove_up_to(1, ids), "dequeue": ring.dequeue}
    with raises(AssertionError, "`env_ids` must be different; got [0, 0]"):
        calls[method](ints([0, 0]))


def test_more_steps_than_stored_cannot_be_dequeued():
    ring = number_ring(2, 4)
    ring.enqueue(ints([1, 2]))
    ring.enqueue(ints([3]), ints([0]))
    with raises(AssertionError, "each environment must have 2 steps to dequeue; environment 1 has 1"):
        ring.dequeue(n=2)
    with raises(AssertionError, "`n` must be from 0 to 4, the `max_length`; got 5"):
        ring.dequeue(n=5)
    with raises(AssertionError, "`n` must be at least 0; got -1"):
        ring.remove_up_to(-1)
    assert ring._current_size.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            lambda _: {"a": 3},
            "`a` of `data_spec` must have a `shape` and a `dtype` of PyTorch, as a TensorSpec has; got 3",
        ),
        (
            lambda alf: {"a.b": alf.TensorSpec(()), "a": {"b": alf.TensorSpec(())}},
            "the paths of `data_spec` must be different; got ['a.b', 'a.b']",
        ),
        (
            lambda alf: {"_current_pos": alf.TensorSpec(())},
            "`data_spec` must not have the fields _current_size and _current_pos; rename them",
        ),
    ],
)
def test_invalid_specs_are_rejected(alf, spec, text):
    with raises(InvalidArgumentError, text):
        alf.RingBuffer(spec(alf), 1)


def test_invalid_sizes_are_rejected(alf):
    with raises(InvalidArgumentError, "`num_environments` must be at least 1; got 0"):
        alf.RingBuffer(alf.TensorSpec(()), 0)
    with raises(InvalidArgumentError, "`max_length` must be at least 1; got 0"):
        alf.RingBuffer(alf.TensorSpec(()), 1, max_length=0)


INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *FLOATS])
def test_every_dtype_can_be_stored(alf, name):
    torch = alf_buffers.torch
    dtype = getattr(torch, name)
    ring = alf.RingBuffer(alf.TensorSpec((2,), dtype), 3, max_length=1)
    ring.enqueue(torch.tensor([[0, 1], [1, 0]]).to(dtype), ints([2, 0]))
    taken = ring.dequeue(ints([0, 2]))
    assert taken.dtype == dtype
    assert taken.to(torch.complex64).real.tolist() == [[[1, 0]], [[0, 1]]]
    if name in INTEGERS:
        ring.enqueue(torch.tensor([[0, 100], [1, 0], [0, 0]], dtype=torch.uint16))
        assert ring.dequeue(ints([0])).tolist() == [[[0, 100]]]


def test_specs_of_other_libraries_are_accepted(alf):
    torch = alf_buffers.torch
    ring = alf.RingBuffer([torch.zeros(2, dtype=torch.int16)], 1)
    assert ring.state_dict()["0"].dtype == torch.int16
