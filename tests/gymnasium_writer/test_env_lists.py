"""Observations and actions that are lists of one nest per environment: the spaces decide what a list is."""

from collections import deque, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from helpers.support import raises

from engram import ArraySpec, Pattern, Table
from engram._checks import short_repr
from engram.buffers import ReplayBuffer, Steps
from engram.errors import SignatureError
from engram.gymnasium import BufferWriter, Sequences, Transitions, VectorWriter

NO = np.zeros(2, bool)
ITEMS = [Transitions("t", discount=1.0), Sequences("s", length=2)]
BOX = spaces.Box(-100, 100, (2,))
DICT = spaces.Dict({"a": BOX, "b": BOX})
TUPLE = spaces.Tuple([BOX, BOX])


def envs_of(observation, action=BOX, mode="NextStep"):
    """Two environments with these spaces; a cell of an observation has the size of the number of environments."""
    return SimpleNamespace(
        num_envs=2,
        metadata={"autoreset_mode": mode},
        single_observation_space=observation,
        single_action_space=action,
    )


def box(step, env, part=0):
    return np.array([step, 10 * env + part], np.float32)


def as_dict(step, env):
    return {"a": box(step, env, 1), "b": box(step, env, 2)}


def as_tuple(step, env):
    return (box(step, env, 1), box(step, env, 2))


def stacked(nests):
    first = nests[0]
    if isinstance(first, dict):
        return {key: np.stack([nest[key] for nest in nests]) for key in first}
    if isinstance(first, tuple):
        return tuple(np.stack(parts) for parts in zip(*nests, strict=True))
    return np.stack(nests)


def play(writer, make, form):
    """Three steps; `form` makes an argument of the list of the environments' nests."""
    writer.reset(form([make(0, env) for env in range(2)]))
    for step in range(1, 4):
        actions = form([box(step, env) for env in range(2)])
        extras = {"extras": np.full((2, 2), step)}
        writer.step(actions, form([make(step, env) for env in range(2)]), np.ones(2), NO, NO, **extras)


def values(nest):
    if isinstance(nest, dict):
        return {key: values(nest[key]) for key in sorted(nest)}
    return [values(each) for each in nest] if isinstance(nest, list | tuple) else np.asarray(nest).tolist()


SPACES = {"dict": (DICT, as_dict), "tuple": (TUPLE, as_tuple), "box": (BOX, box)}


@pytest.mark.parametrize("kind", SPACES)
def test_lists_are_stacked_if_they_fit_the_spaces(kind, open_store):
    space, make = SPACES[kind]
    found = []
    # Two lists of two arrays may also be the parts of a tuple; a tuple in a list is an environment.
    for form in (stacked, list, deque) if kind == "tuple" else (stacked, list, tuple, deque):
        store = open_store(Table("t"), Table("s"))
        with VectorWriter(store, envs_of(space), ITEMS) as writer:
            play(writer, make, form)
        buffer = ReplayBuffer(100, 2)
        play(BufferWriter(buffer, envs_of(space)), make, form)
        contents = [sorted(str(values(batch.data)) for batch in store.scan(name, batch_size=1)) for name in "ts"]
        found.append([*contents, [values(batch.data) for batch in buffer.scan()]])
    assert found[0][0]
    assert all(each == found[0] for each in found)


def test_lists_that_fit_a_tuple_as_environments_and_as_parts_are_refused(open_store):
    text = (
        "`obs` has a list or tuple whose elements could be environments or columns, so it must fit "
        "`envs.single_observation_space`: one nest of arrays [2, ...], or 2 nests; `obs{}` fits as 2 nests and as "
        "lists of environments in a nest; stack these lists into arrays, as with numpy.stack"
    )
    envs_first = [as_tuple(0, env) for env in range(2)]
    for outer, inner in ((tuple, list), (tuple, tuple), (list, list)):
        obs = outer(inner(each) for each in envs_first)
        for nest, space, where in ((obs, TUPLE, ""), ({"x": obs}, spaces.Dict({"x": TUPLE}), "/x")):
            store, buffer = open_store(Table("t")), ReplayBuffer(100, 2)
            with VectorWriter(store, envs_of(space), ITEMS[:1]) as vector:
                for writer in (vector, BufferWriter(buffer, envs_of(space))):
                    with raises(SignatureError, text.format(where)):
                        writer.reset(nest)


def test_parts_of_a_tuple_may_be_lists_of_environments():
    """With different parts, or if their number is not that of the environments, only one meaning fits."""
    for space, parts in (
        (spaces.Tuple([BOX, spaces.Discrete(3)]), ([box(0, 0), box(0, 1)], [1, 2])),
        (spaces.Tuple([BOX] * 3), tuple([box(0, 0, part), box(0, 1, part)] for part in range(3))),
    ):
        buffer = ReplayBuffer(100, 2)
        writer = BufferWriter(buffer, envs_of(space))
        writer.reset(parts)
        writer.step([box(1, env) for env in range(2)], parts, np.ones(2), NO, NO)
        stored = next(iter(buffer.scan())).data["obs"]
        assert values(stored) == values(tuple(np.stack(part) for part in parts))


@pytest.mark.parametrize("form", [list, tuple, deque])
def test_lists_in_an_observation_and_last_observations_are_stacked(open_store, form):
    envs = envs_of(spaces.Dict({"a": BOX, "b": spaces.Dict({"c": BOX})}), spaces.Discrete(3), "SameStep")
    ended = np.array([False, True])
    last = [None, {"a": box(7, 1), "b": {"c": box(8, 1)}}]

    def obs(step):
        return {
            "a": form([box(step, env) for env in range(2)]),
            "b": {"c": stacked([box(step, env) for env in range(2)])},
        }

    store = open_store(Table("t"))
    buffer = ReplayBuffer(100, 2, items=Steps())
    with VectorWriter(store, envs, ITEMS[:1]) as vector:
        for writer in (vector, BufferWriter(buffer, envs)):
            writer.reset(obs(0))
            writer.step(form([1, 2]), obs(1), np.ones(2), ended, NO, {"final_obs": form(last)})
    for batch in (next(iter(buffer.scan())), next(iter(store.scan("t")))):
        assert sorted(batch.data["next_obs"]["a"].tolist()) == [[1, 0], [7, 10]]
        assert sorted(batch.data["next_obs"]["b"]["c"].tolist()) == [[1, 0], [8, 10]]
        assert sorted(batch.data["action"].tolist()) == [1, 2]


def unclear(name, form):
    return (
        f"`{name}` has a {form.__name__} of 2 elements, the number of environments, so it is unclear whether each "
        "is an environment; stack them into one nest of arrays [2, ...], as with numpy.stack, or create the writer "
        "with the vector environment as `envs`, whose spaces decide; a `signature` decides too"
    )


@pytest.mark.parametrize("form", [list, tuple, deque])
def test_lists_are_refused_if_only_the_number_of_environments_is_known(open_store, form):
    store = open_store(Table("t"))
    buffer = ReplayBuffer(100, 2)
    dicts = form([as_dict(0, env) for env in range(2)])
    arrays = form([box(0, env) for env in range(2)])
    with VectorWriter(store, 2, ITEMS[:1], autoreset_mode="NEXT_STEP") as vector:
        for writer in (vector, BufferWriter(buffer, 2, autoreset_mode="NEXT_STEP")):
            unequal = form([as_dict(0, 0), {"a": box(0, 1)}])
            mixed = form([as_tuple(0, 0), [*as_tuple(0, 1)]])
            for obs in (dicts, arrays, {"x": arrays}, unequal, mixed):
                with raises(SignatureError, unclear("obs", form)):
                    writer.reset(obs)
            good = stacked(list(arrays))
            writer.reset(good)
            with raises(SignatureError, unclear("extras", form)):
                writer.step(good, good, np.ones(2), NO, NO, extras=arrays)
            for _ in range(2):
                for name, given in {"action": (arrays, good), "obs": (good, dicts)}.items():
                    with raises(SignatureError, unclear(name, form)):
                        writer.step(*given, np.ones(2), NO, NO)
                writer.step(good, good, np.ones(2), NO, NO)
    assert store.info()["t"].size == 4
    assert len(buffer) == 4


@pytest.mark.parametrize("items", ITEMS, ids=["transitions", "sequences"])
def test_a_signature_decides_without_spaces(open_store, items):
    signature = items.signature(envs_of(DICT), {"e": ArraySpec((2,), np.float32)})
    store = open_store(Table(items.table, signature=signature))
    with VectorWriter(store, 2, [items], autoreset_mode="NEXT_STEP") as writer:
        writer.reset([as_dict(0, env) for env in range(2)])
        for _ in range(2):
            extras = [{"e": box(5, env)} for env in range(2)]
            writer.step(
                [box(3, env) for env in range(2)],
                [as_dict(1, env) for env in range(2)],
                np.ones(2),
                NO,
                NO,
                extras=extras,
            )
    obs = next(iter(store.scan(items.table))).data["obs"]["b"]
    assert obs.reshape(-1, 2)[0].tolist() == [0, 2]


def test_the_signature_of_a_buffer_decides_without_spaces():
    spec = ArraySpec((2,), np.float32)
    scalar, flag = ArraySpec((), np.float32), ArraySpec((), np.bool_)
    pair = (spec, spec)
    signature = {"obs": pair, "action": spec, "reward": scalar, "next_obs": pair, "terminated": flag, "truncated": flag}
    buffer = ReplayBuffer(100, 2, signature=signature)
    writer = BufferWriter(buffer, 2, autoreset_mode="NEXT_STEP")
    play_without_extras(writer, lambda step: stacked([as_tuple(step, env) for env in range(2)]))
    play_without_extras(writer, lambda step: [as_tuple(step, env) for env in range(2)])
    obs = next(iter(buffer.scan())).data["obs"]
    assert obs[1].tolist() == [[0, 2], [0, 2], [0, 12], [0, 12]]


def play_without_extras(writer, obs):
    writer.reset(obs(0))
    writer.step([box(1, env) for env in range(2)], obs(1), np.ones(2), NO, NO)


def test_lists_that_do_not_fit_the_spaces_are_refused(open_store):
    store = open_store(Table("t"))
    text = (
        "`{}` has a list or tuple whose elements could be environments or columns, so it must fit `envs.{}`: one nest "
        "of arrays [2, ...], or 2 nests; got {} for `{}`"
    )
    wrong = [np.zeros((2, 1)), np.zeros((2, 1))]
    shown = "[array([[0.], [0.]]), array([[0.], [0.]])]"
    with VectorWriter(store, envs_of(DICT), ITEMS[:1]) as vector:
        for writer in (vector, BufferWriter(ReplayBuffer(100, 2), envs_of(DICT))):
            for obs, where in ((wrong, "obs"), ({"a": wrong, "b": np.zeros((2, 2))}, "obs/a")):
                with raises(SignatureError, text.format("obs", "single_observation_space", shown, where)):
                    writer.reset(obs)
            for obs in ([{"a": box(0, 0), "b": box(0, 0)}, {"a": box(0, 1)}], [np.zeros((2, 2))] * 3, deque(wrong)):
                with raises(SignatureError, text.format("obs", "single_observation_space", short_repr(obs), "obs")):
                    writer.reset(obs)
            writer.reset(stacked([as_dict(0, env) for env in range(2)]))
            with raises(SignatureError, text.format("action", "single_action_space", shown, "action")):
                writer.step(wrong, stacked([as_dict(0, env) for env in range(2)]), np.ones(2), NO, NO)
    assert store.info()["t"].size == 0


def test_environments_may_differ_in_their_containers(open_store):
    store = open_store(Table("t"))
    rows = [kind(box(0, env, part) for part in range(3)) for env, kind in enumerate((tuple, list))]
    buffer, envs = ReplayBuffer(100, 2), envs_of(spaces.Tuple([BOX] * 3))
    with VectorWriter(store, envs, ITEMS[:1]) as vector:
        for writer in (vector, BufferWriter(buffer, envs)):
            writer.reset(rows)
            writer.step(np.zeros((2, 2)), deque(rows), np.ones(2), NO, NO)
    for batch in (next(iter(buffer.scan())), next(iter(store.scan("t")))):
        assert sorted(batch.data["obs"][1].tolist()) == [[0, 1], [0, 11]]


def test_lists_of_columns_need_spaces_or_a_signature(open_store):
    parts = [np.zeros((2, 4))] * 3
    text = (
        "`obs` is a list of 3 values of shape [2, 4], and each would be stored in columns of its own; stack them into "
        "one array, as with numpy.stack, if each is the value of one environment; if columns are meant, use a tuple, "
        "or a signature that has them"
    )
    space = spaces.Tuple([spaces.Box(-1, 1, (4,))] * 3)
    with (
        VectorWriter(open_store(Table("t")), 2, ITEMS[:1], autoreset_mode="NEXT_STEP") as vector,
        VectorWriter(open_store(Table("t")), envs_of(space), ITEMS[:1]) as with_spaces,
    ):
        for writer in (vector, BufferWriter(ReplayBuffer(100, 2), 2, autoreset_mode="NEXT_STEP")):
            with raises(SignatureError, text):
                writer.reset(parts)
            writer.reset(tuple(parts))
        for writer in (with_spaces, BufferWriter(ReplayBuffer(100, 2), envs_of(space))):
            writer.reset(parts)


def test_masked_elements_are_refused(open_store):
    writer = VectorWriter(open_store(Table("t")), envs_of(BOX), ITEMS[:1])
    with pytest.raises(SignatureError, match="column `obs` is a masked array"):
        writer.reset([np.ma.zeros(2), np.zeros(2)])


PARTS = {"list": [np.zeros(2), np.ones(2)], "tuple": ({"a": np.zeros((2, 3))}, {"a": np.ones((2, 3))})}


@pytest.mark.parametrize("kind", PARTS)
def test_batches_of_other_writers_with_an_element_per_environment_are_refused(open_store, kind):
    spec = ArraySpec((), np.float64) if kind == "list" else {"a": ArraySpec((3,), np.float64)}
    store = open_store(Table("t"))
    parts = PARTS[kind]
    with_time = type(parts)(
        {"a": part["a"][:, np.newaxis]} if kind == "tuple" else part[:, np.newaxis] for part in parts
    )
    text = (
        f"`x` is a {kind} of 2 equal nests, the number of environments, so that it is unclear whether each is "
        "an environment; stack them into one nest of arrays [2, ...], as with numpy.stack, or use a dict or a named "
        "tuple if each is meant as columns of its own"
    )

    def calls(writer, buffer):
        return (
            lambda: writer.append_batch({"x": parts}),
            lambda: writer.append_steps({"x": with_time}),
            lambda: buffer.add_batch({"x": parts}),
            lambda: buffer.add_steps({"x": with_time}),
        )

    patterns = [Pattern("t", num_steps=1)]
    with store.batched_writer(2, patterns) as writer:
        buffer = ReplayBuffer(100, 2)
        for call in calls(writer, buffer):
            with raises(SignatureError, text):
                call()
        with raises(SignatureError, text.replace("`x`", "the nest")):
            buffer.add_batch(parts)
        assert len(buffer) == 0
        buffer.add_batch({"x": (np.zeros(2), np.zeros((2, 3)))})  # no environments: their shapes differ
        writer.append_batch({"x": (np.zeros(2), np.zeros((2, 3)))})
    declared = open_store(Table("t", signature={"x": type(parts)([_with_time(spec)] * 2)}))
    with declared.batched_writer(2, patterns) as writer:
        for call in calls(writer, ReplayBuffer(100, 2, signature={"x": type(parts)([spec, spec])})):
            call()


def _with_time(spec):
    if isinstance(spec, dict):
        return {"a": ArraySpec((1, 3), np.float64)}
    return ArraySpec((1,), np.float64)


def test_a_list_of_steps_or_items_is_refused_where_one_nest_is_expected(open_store):
    store = open_store(Table("t"))
    patterns = [Pattern("t", num_steps=1)]
    writer, batched = store.pattern_writer(patterns), store.batched_writer(3, patterns)
    Row = namedtuple("Row", "x")  # noqa: PYI024
    for rows in ([{"x": np.zeros((3, 1))}, {"x": np.ones((3, 1))}], [Row(np.zeros((3, 1))), Row(np.ones((3, 1)))]):
        for form in (list, tuple, deque):
            steps = form(rows)
            text = f"`{{}}` must be one nest of arrays; got a {form.__name__} of 2 {{}}; stack each column, as with "
            text += "numpy.stack"
            buffers = ReplayBuffer(100), ReplayBuffer(100, 3)
            for call in (writer.append_steps, batched.append_steps, buffers[0].add_episode, buffers[1].add_steps):
                with raises(SignatureError, text.format("steps", "steps")):
                    call(steps)
            with raises(SignatureError, text.format("items", "items")):
                store.insert_batch("t", steps)
    assert store.info()["t"].size == 0
    store.insert_batch("t", ({"x": np.zeros(3)},))
    store.insert_batch("t", ({"x": np.zeros(3)}, {"y": np.zeros(3)}))
    batched.append_batch(({"x": np.zeros(3)}, {"x": np.zeros(3)}))  # observations and next observations
    steps = [{"x": np.zeros(3)}, {"x": np.ones(3)}]
    declared = open_store(Table("t", signature=[{"x": ArraySpec((), np.float64)}] * 2))
    declared.insert_batch("t", steps)
    assert declared.info()["t"].size == 3
