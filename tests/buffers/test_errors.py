"""Errors of replay buffers: their texts, and that a rejected call leaves the buffer unchanged."""

import numpy as np
import pytest
from helpers.support import raises

import engram.gymnasium
from engram import ArraySpec, selectors
from engram.buffers import ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import InvalidArgumentError, OutOfMemoryError, PriorityError, SignatureError, UnsatisfiableError

STEP = {"obs": np.zeros(4, np.float32), "action": np.int64(1), "reward": 0.5}
TRANSITION = {"obs": 0.0, "reward": 1.0, "next_obs": 0.0, "terminated": False, "truncated": False}


def batch(n, **replaced):
    return {"obs": np.zeros((n, 4), np.float32), "action": np.ones(n, np.int64), "reward": np.zeros(n)} | replaced


CONSTRUCTORS = [
    (lambda: ReplayBuffer(0), InvalidArgumentError, "`capacity` must be at least 1; got 0"),
    (lambda: ReplayBuffer(1.5), InvalidArgumentError, "`capacity` must be an integer; got 1.5 (float)"),
    (lambda: ReplayBuffer(5, 0), InvalidArgumentError, "`num_envs` must be at least 1; got 0"),
    (lambda: ReplayBuffer(5, seed=-1), InvalidArgumentError, "`seed` must be at least 0; got -1"),
    (
        lambda: ReplayBuffer(5, items=Steps),
        InvalidArgumentError,
        (
            "`items` must be one of engram.buffers: Steps(), Transitions(...), Sequences(...), Episodes(...); got the "
            "class Steps itself; call it"
        ),
    ),
    (
        lambda: ReplayBuffer(5, items=engram.gymnasium.Transitions("t", discount=1.0)),
        InvalidArgumentError,
        (
            "`items` must be one of engram.buffers: Steps(), Transitions(...), Sequences(...), Episodes(...); those of "
            f"engram.gymnasium are for tables; got {engram.gymnasium.Transitions('t', discount=1.0)!r} (Transitions)"
        ),
    ),
    (
        lambda: ReplayBuffer(5, sampler=selectors.Fifo()),
        InvalidArgumentError,
        (
            "`sampler` must be selectors.Uniform(), selectors.Prioritized(...) or engram.buffers.RecentMix(...); got "
            "Fifo() (Fifo)"
        ),
    ),
    (
        lambda: ReplayBuffer(9, 2, items=Sequences(length=4, burn_in=2)),
        InvalidArgumentError,
        "`capacity` must be at least 12 for 2 environments and items of up to 6 steps; got 9",
    ),
    (
        lambda: ReplayBuffer(5, items=Transitions(n_step=6, discount=1.0)),
        InvalidArgumentError,
        "`capacity` must be at least 6 for 1 environment and items of up to 6 steps; got 5",
    ),
    (
        lambda: ReplayBuffer(5, signature={"x": ArraySpec((None,), "float32")}),
        SignatureError,
        "the shape of column `x` in `signature` must have fixed sizes; it has None",
    ),
    (
        lambda: ReplayBuffer(5, signature={"x": ArraySpec((), str)}),
        SignatureError,
        "column `x` has text, which a replay buffer does not store; encode it as numbers",
    ),
    (
        lambda: ReplayBuffer(2**40, signature={"x": ArraySpec((2**20,), "float32")}),
        OutOfMemoryError,
        f"column `x` of the replay buffer needs {2**62} bytes, more than can be allocated",
    ),
    (
        lambda: ReplayBuffer(2**40, signature={"x": ArraySpec((2**40,), "float32")}),
        OutOfMemoryError,
        "column `x` of the replay buffer needs 2^64 or more bytes, more than can be allocated",
    ),
    (
        lambda: Transitions(n_step=0, discount=1.0),
        InvalidArgumentError,
        "Transitions: `n_step` must be at least 1; got 0",
    ),
    (lambda: Transitions(discount=2), InvalidArgumentError, "Transitions: `discount` must be from 0 to 1; got 2"),
    (lambda: Sequences(length=0), InvalidArgumentError, "Sequences: `length` must be at least 1; got 0"),
    (lambda: Sequences(length=1, burn_in=-1), InvalidArgumentError, "Sequences: `burn_in` must be at least 0; got -1"),
    (
        lambda: Sequences(length=1, at_end="cut"),
        InvalidArgumentError,
        'Sequences: `at_end` must be "pad" or "continue"; got \'cut\' (str)',
    ),
]


@pytest.mark.parametrize(("create", "error", "text"), CONSTRUCTORS)
def test_errors_of_constructors(create, error, text):
    with raises(error, text):
        create()


COLUMNS = [
    (
        Transitions(discount=1.0),
        {"obs": 0.0, "reward": 1.0, "terminated": False},
        (
            "items=Transitions(...) needs steps with `next_obs`, `reward`, `terminated`, `truncated`; `next_obs`, "
            "`truncated` missing; got `obs`, `reward`, `terminated`"
        ),
    ),
    (
        Transitions(discount=1.0),
        (np.zeros(1), np.zeros(1)),
        (
            "items=Transitions(...) needs steps that are dicts with `next_obs`, `reward`, `terminated`, `truncated`; "
            "got a tuple"
        ),
    ),
    (
        Sequences(length=2),
        np.zeros(4),
        "items=Sequences(...) needs steps that are dicts with `terminated`, `truncated`; got a single array",
    ),
    (
        Transitions(discount=1.0),
        TRANSITION | {"discount": 1.0},
        "items=Transitions(...) adds `discount` to each item, so steps must not have an entry of that name; rename it",
    ),
    (
        Transitions(discount=1.0),
        TRANSITION | {"reward": {"a": 1.0}},
        "items=Transitions(...): `reward` of a step must be a single value; got a nest",
    ),
    (
        Transitions(discount=1.0),
        TRANSITION | {"reward": np.zeros(2)},
        "column `reward` must be one float32, float64 or integer per step; got float64[2]",
    ),
    (
        Transitions(discount=1.0),
        TRANSITION | {"reward": True},
        "column `reward` must be one float32, float64 or integer per step; got bool[]",
    ),
    (
        Transitions(discount=1.0),
        TRANSITION | {"terminated": 0.0},
        "column `terminated` must be one bool per step; got float64[]",
    ),
    (
        Sequences(length=2),
        {"obs": 0.0, "terminated": False},
        "items=Sequences(...) needs steps with `terminated`, `truncated`; `truncated` missing; got `obs`, `terminated`",
    ),
    (
        Sequences(length=2),
        TRANSITION | {"valid": 1.0},
        "items=Sequences(...) adds `valid` to each item, so steps must not have an entry of that name; rename it",
    ),
    (Steps(), {"x": "text"}, "column `x` must be an array of numbers or a number; got text"),
    (Steps(), {"x": None}, "column `x` must be an array of numbers or a number; got a NoneType"),
    (
        Steps(),
        {"x": np.array([None])},
        "column `x` must be an array of numbers or a number; got an array of dtype object",
    ),
]


@pytest.mark.parametrize(("items", "step", "text"), COLUMNS)
def test_columns_that_items_need(items, step, text):
    buffer = ReplayBuffer(5, items=items)
    with raises(SignatureError, text):
        buffer.add(step)
    assert len(buffer) == 0
    if items != Steps():
        buffer.add(TRANSITION)  # the rejected step was not learned from
        assert len(buffer) == 1


@pytest.fixture(params=["learned", "declared"])
def buffer(request):
    """A buffer of two environments with 3 steps each."""
    specs = {"obs": ArraySpec((4,), "float32"), "action": ArraySpec((), "int64"), "reward": ArraySpec((), "float64")}
    opened = ReplayBuffer(20, 2, signature=specs if request.param == "declared" else None, seed=0)
    for _ in range(3):
        opened.add_batch(batch(2))
    return opened


OTHER_KIND = (
    "column `action` must be int64, or of the same kind; got {}; convert it, or declare the dtype in `signature`"
)
MASKED = (
    "column `{}` is a masked array, and its masked elements would be stored as if they were valid; pass "
    "`array.filled(value)`, or its data and its mask as two columns"
)
REJECTED_STEPS = [
    (
        lambda buffer: buffer.add({"obs": STEP["obs"]}, env_id=0),
        "all steps of a replay buffer must have the same columns, `action`, `obs`, `reward`; got `obs`",
    ),
    (
        lambda buffer: buffer.add(STEP | {"obs": np.zeros(5, np.float32)}, env_id=0),
        "column `obs` must have shape [4]; got [5]",
    ),
    (
        lambda buffer: buffer.add_batch(batch(3)),
        "column `action` must have shape [2], with the environments first; got [3]",
    ),
    (
        lambda buffer: buffer.add_batch(batch(2), env_ids=[1]),
        "column `action` must have shape [1], with the environments first; got [2]",
    ),
    (
        lambda buffer: buffer.add_steps(batch(2)),
        "column `action` must have shape [2, T], with the environments first, and their T steps second; got [2]",
    ),
    (
        lambda buffer: buffer.add_steps(
            {"obs": np.zeros((2, 5, 4), np.float32), "action": np.zeros((2, 6), np.int64), "reward": np.zeros((2, 6))}
        ),
        "column `obs` must have shape [2, 6, 4], with the environments first, and their T steps second; got [2, 5, 4]",
    ),
    (
        lambda buffer: buffer.add(STEP | {"action": 0.5}, env_id=0),
        OTHER_KIND.format("float64"),
    ),
    (
        lambda buffer: buffer.add_batch(batch(2, action=np.zeros(2, np.float32))),
        OTHER_KIND.format("float32"),
    ),
    (
        lambda buffer: buffer.add(STEP | {"reward": 1j}, env_id=0),
        (
            "column `reward` must be float64, or of the same kind; got complex128; convert it, or declare the dtype in "
            "`signature`"
        ),
    ),
    (
        lambda buffer: buffer.add(STEP | {"action": 2**63}, env_id=0),
        f"column `action` is {2**63}, which int64 cannot hold",
    ),
    (
        lambda buffer: buffer.add(STEP | {"reward": "a"}, env_id=0),
        "column `reward` must be an array of numbers or a number; got text",
    ),
    (
        lambda buffer: buffer.add(STEP | {"obs": np.ma.masked_equal(STEP["obs"], 0)}, env_id=0),
        MASKED.format("obs"),
    ),
    (
        lambda buffer: buffer.add(STEP | {"reward": np.ma.masked}, env_id=0),
        MASKED.format("reward"),
    ),
    (
        lambda buffer: buffer.add_batch(batch(2, reward=np.ma.zeros(2))),
        MASKED.format("reward"),
    ),
    (
        lambda buffer: buffer.add_steps({name: np.ma.array(column[:, None]) for name, column in batch(2).items()}),
        MASKED.format("action"),
    ),
    (
        lambda buffer: buffer.add(STEP | {"obs": [0.0] * 4}, env_id=0),
        (
            "all steps of a replay buffer must have the same columns, `action`, `obs`, `reward`; got `action`, "
            "`obs/0`, `obs/1`, `obs/2`, `obs/3`, `reward`; lists are nests: wrap `obs` in numpy.asarray to store one "
            "array column"
        ),
    ),
]


@pytest.mark.parametrize(("add", "text"), REJECTED_STEPS)
def test_rejected_steps_change_nothing(buffer, add, text):
    with raises(SignatureError, text):
        add(buffer)
    assert len(buffer) == buffer.num_items == 6
    buffer.add(STEP, env_id=1)
    assert len(buffer) == 7


ENV_IDS = [
    (
        lambda buffer: buffer.add(STEP),
        "`env_id` must be given, because the buffer has 2 environments; use `add_batch` to add a step of each",
    ),
    (lambda buffer: buffer.add(STEP, env_id=2), "`env_id` must be from 0 to 1; got 2"),
    (lambda buffer: buffer.add(STEP, env_id=-1), "`env_id` must be from 0 to 1; got -1"),
    (lambda buffer: buffer.add(STEP, env_id="a"), "`env_id` must be an integer; got 'a' (str)"),
    (lambda buffer: buffer.add_batch(batch(2), env_ids=[0, 2]), "each of `env_ids` must be from 0 to 1; got 2"),
    (lambda buffer: buffer.add_batch(batch(1), env_ids=[-1]), "each of `env_ids` must be from 0 to 1; got -1"),
    (
        lambda buffer: buffer.add_batch(batch(2), env_ids=[1, 1]),
        "`env_ids` must name each environment at most once; got 1 twice",
    ),
    (
        lambda buffer: buffer.add_batch(batch(2), env_ids=[True, False]),
        "`env_ids` must be integers with one axis; got [True, False]; for a mask, pass np.flatnonzero(mask)",
    ),
    (
        lambda buffer: buffer.add_steps(batch(2), env_ids=[[0]]),
        "`env_ids` must be integers with one axis; got [[0]]; for a mask, pass np.flatnonzero(mask)",
    ),
]


EPISODES_TO_END = [
    ([0, 2], "each of `env_ids` must be from 0 to 1; got 2"),
    (np.array([-1]), "each of `env_ids` must be from 0 to 1; got -1"),
    ([0, 1, 0], "`env_ids` must name each environment at most once; got 0 twice"),
    (1, "`env_ids` must be integers with one axis; got 1; for a mask, pass np.flatnonzero(mask)"),
    (
        np.array([True, False]),
        "`env_ids` must be integers with one axis; got array([ True, False]); for a mask, pass np.flatnonzero(mask)",
    ),
]


@pytest.mark.parametrize(("env_ids", "text"), EPISODES_TO_END)
@pytest.mark.parametrize("first", [False, True])
def test_rejected_ends_of_episodes_change_nothing(env_ids, text, first):
    buffer = ReplayBuffer(20, 2, items=Transitions(n_step=2, discount=1.0))
    if not first:
        buffer.add(TRANSITION, env_id=0)
    with raises(InvalidArgumentError, text):
        buffer.end_episodes(env_ids=env_ids)
    assert buffer.num_items == 0
    buffer.end_episodes(env_ids=[1])
    assert buffer.num_items == 0
    buffer.end_episodes()
    assert buffer.num_items == int(not first)


@pytest.mark.parametrize(("add", "text"), ENV_IDS)
def test_rejected_environments_change_nothing(buffer, add, text):
    with raises(InvalidArgumentError, text):
        add(buffer)
    assert len(buffer) == 6


def test_the_first_call_also_rejects_environments():
    buffer = ReplayBuffer(20, 2)
    for add, text in ENV_IDS[:-1]:  # the last one is rejected for its columns
        with raises(InvalidArgumentError, text):
            add(buffer)
    with raises(
        SignatureError,
        "column `action` must have shape [num_envs, ...]; got []; for a single step, use `ReplayBuffer.add`",
    ):
        buffer.add_batch(STEP)
    with raises(
        SignatureError,
        "column `action` must have shape [num_envs, T, ...]; got [2]; if there is one environment, add an axis "
        "of size 1 in front",
    ):
        buffer.add_steps(batch(2))
    assert len(buffer) == 0


def test_samples_of_too_few_items():
    empty = "the replay buffer is empty; add steps before sampling"
    buffer = ReplayBuffer(20, items=Transitions(n_step=3, discount=1.0))
    with raises(UnsatisfiableError, empty):
        buffer.sample(1)
    buffer.add(TRANSITION)
    with raises(
        UnsatisfiableError,
        "the replay buffer has 1 step and no item yet; an item needs 3 consecutive steps of one environment, or the "
        "end of an episode",
    ):
        buffer.sample(1)
    assert list(buffer.epoch(1)) == []
    buffer.clear()
    with raises(UnsatisfiableError, empty):
        buffer.sample(1)
    buffer = ReplayBuffer(20, items=Sequences(length=2, at_end="continue"))
    assert list(buffer.epoch(1)) == []
    buffer.add(TRANSITION)
    with raises(
        UnsatisfiableError,
        "the replay buffer has 1 step and no item yet; an item needs 2 consecutive steps of one environment",
    ):
        buffer.sample(1)


def test_arguments_of_sample_and_epoch(buffer):
    with raises(InvalidArgumentError, "`batch_size` must be at least 1; got 0"):
        buffer.sample(0)
    with raises(InvalidArgumentError, f"`batch_size` must be at most {2**24}; got {2**24 + 1}"):
        buffer.sample(2**24 + 1)
    with raises(InvalidArgumentError, "`replacement` must be True or False; got 1 (int)"):
        buffer.sample(1, replacement=1)
    with raises(InvalidArgumentError, "`batch_size` must be at least 1; got 0"):
        buffer.epoch(0)
    with raises(InvalidArgumentError, "`drop_last` must be True or False; got None"):
        buffer.epoch(1, drop_last=None)
    with raises(InvalidArgumentError, "`batch_size` must be an integer; got 'a' (str)"):
        buffer.scan("a")
    with raises(InvalidArgumentError, "`steps` must be True or False; got 1 (int)"):
        buffer.scan(1, steps=1)
    with raises(UnsatisfiableError, "`batch_size` must be at most the number of items, 6, without replacement; got 7"):
        buffer.sample(7, replacement=False)


def test_a_prioritized_sampler_draws_with_replacement():
    buffer = ReplayBuffer(20, sampler=selectors.Prioritized(0.6))
    buffer.add(STEP)
    with raises(InvalidArgumentError, "`replacement` must be True with a Prioritized sampler; got False"):
        buffer.sample(1, replacement=False)


def wrong_outputs(data):
    """Wrong values of `out`, and the text of the error."""
    like = "must be a nest of arrays like `data` of a batch of this buffer"
    right = (
        "`out`: column `obs` must be a writable array of dtype float32 and shape [4, 4] in C order, and aligned; got "
    )
    frozen = data["obs"].copy()
    frozen.flags.writeable = False
    yield {"obs": data["obs"]}, f"`out` {like}"
    yield data | {"obs": np.zeros((5, 4), np.float32)}, f"{right}float32[5, 4]"
    yield data | {"obs": np.zeros((4, 4))}, f"{right}float64[4, 4]"
    yield data | {"obs": np.zeros((4, 4), np.float32, "F")}, f"{right}float32[4, 4]"
    yield data | {"obs": frozen}, f"{right}float32[4, 4]"
    yield data | {"obs": 1.0}, f"{right}float"
    shared = np.zeros(40, np.uint8)
    overlapping = {"action": shared[:32].view(np.int64), "reward": shared[8:].view(np.float64)}
    yield data | overlapping, "the arrays of `out` must not overlap; pass a different array for each column"


def test_wrong_outputs(buffer):
    data = buffer.sample(4).data
    before = [column.copy() for column in data.values()]
    for out, text in wrong_outputs(data):
        with raises(InvalidArgumentError, text):
            buffer.sample(4, out=out)
    assert all((column == old).all() for column, old in zip(data.values(), before, strict=True))


def test_rejected_priorities_change_nothing():
    buffer = ReplayBuffer(20, sampler=selectors.Prioritized(0.6), seed=0)
    assert buffer.update_priorities([1, 2], [1.0, 2.0]) == 0
    buffer.add_steps({"x": np.arange(5)[None]})
    keys = np.arange(5)
    bad = "a Prioritized selector needs a finite value that is not negative"
    for priority, text in [
        (np.nan, "priority for the replay buffer is NaN; it must be a number"),
        (-1.0, f"priority for the replay buffer is -1; {bad}"),
        (np.inf, f"priority for the replay buffer is inf; {bad}"),
    ]:
        with raises(PriorityError, text):
            buffer.update_priorities(keys, [2, 2, 2, 2, priority])
    with raises(InvalidArgumentError, "`keys` and `priorities` must have the same length; got 5 and 1"):
        buffer.update_priorities(keys, [1.0])
    with raises(InvalidArgumentError, "`keys` must be integers; got float64"):
        buffer.update_priorities([0.5], [1.0])
    with raises(InvalidArgumentError, "`priorities` must have one axis; got shape (1, 1)"):
        buffer.update_priorities([0], [[1.0]])
    assert buffer.sample(20).info.priority.tolist() == [1.0] * 20


def test_priorities_need_a_prioritized_sampler(buffer):
    text = "priorities need a Prioritized sampler; create the buffer with `sampler=selectors.Prioritized(...)`"
    for each in (buffer, ReplayBuffer(3)):
        with raises(InvalidArgumentError, text):
            each.update_priorities([0], [1.0])


def test_arguments_of_importance_weights(buffer):
    with raises(InvalidArgumentError, '`normalize` must be "batch", "buffer" or None; got \'table\' (str)'):
        buffer.sample(1).importance_weights(normalize="table")
    with raises(InvalidArgumentError, "`beta` must be finite; got inf"):
        buffer.sample(1).importance_weights(np.inf)


def test_integers_of_another_kind_are_stored_if_they_are_in_range():
    buffer = ReplayBuffer(4, signature={"x": ArraySpec((), np.uint8)}, seed=0)
    buffer.add({"x": np.int64(3)})
    assert buffer.sample(1).data["x"].tolist() == [3]
    with raises(SignatureError, "column `x` has -1, which uint8 cannot hold"):
        buffer.add({"x": np.int64(-1)})


def test_finite_numbers_that_a_narrower_float_cannot_hold_are_rejected():
    text = "column `x` {} {}, which {} cannot hold; its largest value is {}"
    for dtype, value, largest in ((np.float32, 1e39, "3.4028235e+38"), (np.float16, 70000.0, "65504")):
        buffer = ReplayBuffer(8, signature={"x": ArraySpec((), dtype)}, seed=0)
        name = np.dtype(dtype).name
        with raises(SignatureError, text.format("is", value, name, largest)):
            buffer.add({"x": value})
        for array in (np.float64(-value), np.array(-value)):
            with raises(SignatureError, text.format("has", -value, name, largest)):
                buffer.add({"x": array})
        with raises(SignatureError, text.format("has", value, name, largest)):
            buffer.add_episode({"x": np.array([0.1, np.inf, value])})
        buffer.add_episode({"x": np.array([0.1, -np.inf, np.nan])})
        buffer.add({"x": np.int64(2**11 + 1)})
        [stored] = [batch.data["x"].tolist() for batch in buffer.scan(batch_size=8)]
        np.testing.assert_array_equal(stored, np.array([0.1, -np.inf, np.nan, 2**11 + 1]).astype(dtype))


def test_without_replacement_is_rejected_with_priorities_before_there_are_items():
    buffer = ReplayBuffer(4, sampler=selectors.Prioritized(), seed=0)
    with raises(InvalidArgumentError, "`replacement` must be True with a Prioritized sampler; got False"):
        buffer.sample(1, replacement=False)
