"""Any space and any nest: a dataset has equal values for Minari and for Engram, or is refused and leaves nothing."""

import itertools

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
from gymnasium import spaces
from helpers.item_bits import bits_of_nest, insert_columns
from helpers.support import runs_all_tests
from hypothesis import HealthCheck, given, settings

from engram import Store, Table
from engram.errors import InvalidArgumentError, SignatureError
from engram.gymnasium import Episodes
from engram.minari import read_minari, write_minari

NUMBERS = itertools.count()
DTYPES = [np.dtype(code).name for code in "?bhiqBHIQefd"]
OTHER_DTYPES = [*DTYPES, "complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
NAMES = st.sampled_from([*"abcd", "_index_0", "a.b", "é", "A", " "]) | st.text(min_size=1, max_size=3)
ODD_NAMES = st.sampled_from(["", ".", "..", "a/b", "/a", "a/", "./a", "a\0b", "\0"])


def names():
    return st.integers(0, 19).flatmap(lambda number: ODD_NAMES if number == 0 else NAMES)


def is_odd(name):
    return name in ("", ".") or "/" in name or "\0" in name


def shapes():
    return st.lists(st.integers(1, 20).map(lambda size: (size + 3) // 4 if size < 20 else 0), max_size=3).map(tuple)


def boxes():
    def box(shape, dtype):
        low, high = (-np.inf, np.inf) if dtype.startswith("float") else (0, 1)
        if dtype[0] in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return spaces.Box(low, high, shape, np.dtype(dtype).type)

    return st.builds(box, shapes(), st.sampled_from(DTYPES))


def nested(leaves, *, tuples=True):
    """Spaces that consist of others; without `tuples`, dicts only."""

    def containers(parts):
        dicts = st.dictionaries(names(), parts, min_size=1, max_size=3).map(spaces.Dict)
        return st.one_of(dicts, st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple)) if tuples else dicts

    return st.recursive(leaves, containers, max_leaves=4)


def any_space():
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    leaves = st.one_of(
        boxes(),
        boxes(),
        st.builds(
            spaces.Discrete,
            st.integers(1, 5),
            start=st.integers(-3, 3),
            dtype=st.sampled_from([np.int64, np.int64, np.int64, np.int32]),
        ),
        st.integers(1, 4).map(spaces.MultiBinary),
        sizes.map(spaces.MultiBinary),
        sizes.map(spaces.MultiDiscrete),
        st.builds(spaces.MultiDiscrete, sizes, st.sampled_from([np.int64, np.int8])),
        st.builds(spaces.Text, st.integers(1, 5), charset=st.sampled_from(["ab", "é/\0"])),
    )
    return nested(leaves)


def values(draw, space, length):
    """Random bits for `length` values of a space, or of another dtype; and whether a dataset may refuse them."""
    if isinstance(space, spaces.Dict):
        parts = {name: values(draw, part, length) for name, part in space.spaces.items()}
        return {name: part for name, (part, _) in parts.items()}, any(
            odd or is_odd(name) for name, (_, odd) in parts.items()
        )
    if isinstance(space, spaces.Tuple):
        parts = [values(draw, part, length) for part in space.spaces]
        return tuple(part for part, _ in parts), any(odd for _, odd in parts)
    if isinstance(space, spaces.Text):
        texts = np.empty(length, object)
        texts[:] = draw(st.lists(st.text(max_size=3), min_size=length, max_size=length))
        return texts, any("\0" in text for text in texts)
    dtype = np.dtype(draw(st.sampled_from(OTHER_DTYPES)) if draw(st.integers(0, 19)) == 0 else space.dtype)
    shape = (length, *space.shape)
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    may_refuse = dtype.isbuiltin != 1 or 0 in shape or (isinstance(space, spaces.Discrete) and space.dtype != np.int64)
    return (bits & 1 if dtype.kind == "b" else bits).view(dtype).reshape(shape), may_refuse


def has_text(space):
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_text, parts))
    return isinstance(space, spaces.Text)


def arrays(nest):
    """A nest of Minari, in which texts are lists, with arrays only."""
    if isinstance(nest, dict):
        return {name: arrays(each) for name, each in nest.items()}
    if isinstance(nest, tuple):
        return tuple(map(arrays, nest))
    return np.array(nest, object) if isinstance(nest, list) else nest


def check_dataset(draw, path):
    """Writes random episodes of random spaces, and compares what is read."""
    obs, action = draw(any_space()), draw(any_space())
    info = draw(st.none() | nested(boxes(), tuples=False))
    rewards = draw(st.sampled_from(["float32", "float64", "int16", "bool", "float16"]))
    episodes, may_refuse, schemas = [], False, set()
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 4))
        columns = {"obs": values(draw, obs, length + 1), "action": values(draw, action, length)}
        if info is not None:
            columns["extras"] = values(draw, info, length)
        may_refuse |= any(odd for _, odd in columns.values())
        schemas.add(str([[each[:2] for each in bits_of_nest(column)] for column, _ in columns.values()]))
        episodes.append(
            {name: column for name, (column, _) in columns.items()}
            | {
                "reward": np.array(draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)), rewards),
                "terminated": np.arange(length) == length - 1,
                "truncated": np.zeros(length, bool),
            }
        )
    name = draw(st.sampled_from(["", "ns/", "ns/b-v0/"])) + f"x-v{next(NUMBERS)}"
    before = sorted(path.rglob("*"))
    with Store([Table("e"), Table("copy")], seed=0) as store:
        for episode in episodes:
            insert_columns(store, "e", episode)
        try:
            dataset = write_minari(store, "e", name, observation_space=obs, action_space=action)
        except (InvalidArgumentError, SignatureError):
            assert may_refuse or len(schemas) > 1
            assert sorted(path.rglob("*")) == before
            return False
        assert (dataset.observation_space, dataset.action_space) == (obs, action)
        for one, other in zip(episodes, dataset.iterate_episodes(), strict=True):
            assert bits_of_nest(arrays(other.observations)) == bits_of_nest(one["obs"])
            assert bits_of_nest(arrays(other.actions)) == bits_of_nest(one["action"])
            assert bits_of_nest(other.rewards) == bits_of_nest(one["reward"])
            assert other.terminations.tolist() == one["terminated"].tolist()
            if info is not None:
                extras = other.infos if isinstance(info, spaces.Dict) else other.infos["extras"]
                assert bits_of_nest(extras, start=1) == bits_of_nest(one["extras"])
        if has_text(obs) or has_text(action):
            return True
        read_minari(store, name, [Episodes("copy", max_length=100)], infos=info is not None)
        for one, batch in zip(episodes, store.scan("copy", batch_size=None), strict=True):
            assert batch.data["reward"].tolist() == one["reward"].tolist()
            if info is not None and not isinstance(info, spaces.Dict):
                one["extras"] = {"extras": one["extras"]}
            assert all(
                bits_of_nest(batch.data[name]) == bits_of_nest(each) for name, each in one.items() if name != "reward"
            )
    return True


@settings(
    max_examples=200 if runs_all_tests() else 15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_dataset_is_equal_for_minari_and_for_engram_or_refused(datasets_path, data):
    check_dataset(data.draw, datasets_path)
