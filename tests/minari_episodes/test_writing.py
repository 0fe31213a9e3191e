"""Tables of episodes become datasets of Minari, and are equal bit for bit when they are read again."""

import dataclasses
import itertools
from types import SimpleNamespace

import gymnasium
import hypothesis.strategies as st
import minari
import numpy as np
import pytest
from gymnasium import spaces
from helpers.item_bits import bits_of
from helpers.minari_datasets import BOX, DISCRETE, buffer, cartpole, dataset_of, item
from helpers.support import case, raises
from hypothesis import HealthCheck, given, settings
from minari.data_collector import EpisodeBuffer

from engram import Store, Table
from engram.errors import InvalidArgumentError, SignatureError, StorageError, UnknownTableError
from engram.gymnasium import Episodes, Sequences, Transitions, VectorWriter
from engram.minari import read_minari, write_minari

NUMBERS = itertools.count()
EPISODES = Episodes("e", max_length=100)


def play_cartpole(store, *kinds, steps=80):
    """Episodes of four environments, of which some are truncated after 15 steps."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, max_episode_steps=15)
    rng = np.random.default_rng(0)
    with VectorWriter(store, envs, kinds) as writer:
        writer.reset(*envs.reset(seed=0))
        for _ in range(steps):
            actions = rng.integers(2, size=4)
            writer.step(actions, *envs.step(actions))
    envs.close()


def test_cartpole_to_minari_and_back(open_store):
    store = open_store(Table("e"), Table("copy"))
    play_cartpole(store, EPISODES)
    dataset = write_minari(store, "e", "CartPole/random-v0", env="CartPole-v1")
    assert dataset.total_episodes == store.info()["e"].size
    assert read_minari(store, "CartPole/random-v0", [Episodes("copy", max_length=100)]) == dataset.total_episodes
    assert bits_of(store, "copy") == bits_of(store, "e")
    ends = {(bool(each.terminations[-1]), bool(each.truncations[-1])) for each in dataset.iterate_episodes()}
    assert ends == {(True, False), (False, True)}
    for episode, sample in zip(dataset.iterate_episodes(), store.scan("e", batch_size=None), strict=True):
        assert episode.observations.tolist() == sample.data["obs"].tolist()
        assert len(episode.observations) == len(episode.actions) + 1
    assert dataset.env_spec.id == "CartPole-v1"
    assert dataset.recover_environment().observation_space == dataset.observation_space
    assert list(minari.list_local_datasets()) == ["CartPole/random-v0"]
    assert dataset.spec.total_steps == sum(len(episode.rewards) for episode in dataset.iterate_episodes())


def test_minari_to_a_table_and_back():
    first = cartpole()
    with Store([Table("e")]) as store:
        read_minari(store, first, [EPISODES])
        second = write_minari(store, "e", "cartpole/copy-v0", env="CartPole-v1")
    for one, other in zip(first.iterate_episodes(), second.iterate_episodes(), strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert (one.observations.dtype, one.actions.dtype) == (other.observations.dtype, other.actions.dtype)


DTYPES = ["float32", "float64", "float16", "int64", "int32", "uint8", "int8"]


def boxes():
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    limits = lambda dtype: (-np.inf, np.inf) if dtype[0] == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)  # noqa: E731
    return st.builds(lambda shape, dtype: spaces.Box(*limits(dtype), shape, dtype), shapes, st.sampled_from(DTYPES))


def nested_spaces():
    def containers(parts):
        return st.one_of(
            st.dictionaries(st.sampled_from("abc"), parts, min_size=1).map(spaces.Dict),
            st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple),
        )

    return st.recursive(boxes(), containers, max_leaves=3)


def values(draw, space):
    """A batch of one value of a space, with random bits."""
    if isinstance(space, spaces.Dict):
        return {name: values(draw, part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(values(draw, part) for part in space.spaces)
    size = int(np.prod(space.shape)) * space.dtype.itemsize
    bits = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(bits, space.dtype).reshape(1, *space.shape)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # NumPy's, for a signalling NaN as a reward
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    obs=nested_spaces(),
    action=nested_spaces(),
    extras=st.none() | st.dictionaries(st.sampled_from("xyz"), boxes(), min_size=1).map(spaces.Dict),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_episodes_come_back_bit_for_bit(datasets_path, *, obs, action, extras, lengths, data):
    name = f"{datasets_path.name}-v{next(NUMBERS)}"
    # With the spaces, a tuple of one part is not taken for a list of one environment.
    envs = SimpleNamespace(num_envs=1, single_observation_space=obs, single_action_space=action)
    with Store([Table("e"), Table("copy")], seed=0) as store:
        with VectorWriter(store, envs, [EPISODES], autoreset_mode="DISABLED") as writer:
            for length in lengths:
                writer.reset(values(data.draw, obs))
                terminated = data.draw(st.booleans())
                for step in range(length):
                    last = step == length - 1
                    writer.step(
                        values(data.draw, action),
                        values(data.draw, obs),
                        np.frombuffer(data.draw(st.binary(min_size=4, max_size=4)), np.float32),
                        np.array([last and terminated]),
                        np.array([last and not terminated]),
                        extras=None if extras is None else values(data.draw, extras),
                    )
        write_minari(store, "e", name, observation_space=obs, action_space=action)
        read_minari(store, name, [Episodes("copy", max_length=100)], infos=extras is not None)
        assert bits_of(store, "copy") == bits_of(store, "e")


def test_images_are_stored_as_they_are():
    """Minari's default is JPEG, which changes them."""
    space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (3, 1, 16, 16, 3), np.uint8)
    with Store([Table("e")]) as store:
        with VectorWriter(store, 1, [EPISODES], autoreset_mode="DISABLED") as writer:
            writer.reset(frames[0])
            for step, last in ((1, False), (2, True)):
                writer.step(np.zeros(1, np.int64), frames[step], np.zeros(1), np.array([last]), np.array([False]))
        dataset = write_minari(store, "e", "images-v0", observation_space=space, action_space=DISCRETE)
    assert np.array_equal(dataset[0].observations, frames[:, 0])


def test_padding_is_not_written(open_store):
    """Sequences that are whole episodes."""
    store = open_store(Table("s"), Table("e"))
    play_cartpole(store, Sequences("s", length=15), EPISODES)
    padded = write_minari(store, "s", "padded-v0", env="CartPole-v1")
    whole = write_minari(store, "e", "whole-v0", env="CartPole-v1")
    for one, other in zip(padded.iterate_episodes(), whole.iterate_episodes(), strict=True):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.rewards, other.rewards)
        assert np.array_equal(one.truncations, other.truncations)


def test_metadata_selection_and_order(open_store):
    store = open_store(Table("e"))
    read_minari(store, dataset_of(*(buffer(n, terminated=True) for n in (1, 2, 3))), [EPISODES])
    keys = [int(sample.info.key[0]) for sample in store.scan("e", batch_size=None)]
    metadata = {"author": "A. Author", "description": "made up", "requirements": ["gymnasium"]}
    dataset = write_minari(
        store,
        "e",
        "selected-v1",
        observation_space=BOX,
        action_space=DISCRETE,
        metadata=metadata,
        keys=keys[1:],
        order="newest_first",
    )
    assert [len(episode.rewards) for episode in dataset.iterate_episodes()] == [3, 2]
    written = dataset.storage.metadata
    assert written["author"] == {"A. Author"}
    assert (written["description"], written["requirements"]) == ("made up", ["gymnasium"])
    assert written["minari_version"] == minari.__version__


@pytest.mark.parametrize(
    ("limit", "value", "per_write"),
    [("_STEPS_PER_WRITE", 12, 4), ("_STEPS_PER_WRITE", 150, 50), ("_BYTES_PER_WRITE", 400, 6)],
)
def test_a_write_is_bounded_in_steps_and_bytes(monkeypatch, limit, value, per_write):
    source = dataset_of(*(buffer(3, terminated=True) for _ in range(50)))
    storage, writes, lengths = type(source.storage), [], []
    update = storage.update_episodes

    def recorded(self, episodes):
        writes.append([each.rewards.size for each in episodes])
        update(self, episodes)

    def counted(self):
        lengths.append(self)
        return len(self.rewards)

    with Store([Table("e")]) as store:
        read_minari(store, source, [EPISODES])
        monkeypatch.setattr(storage, "update_episodes", recorded)
        monkeypatch.setattr(EpisodeBuffer, "__len__", counted)
        monkeypatch.setattr(f"engram.minari.writing.{limit}", value)
        # An episode has 4 observations of 8 bytes, 3 actions of 8, rewards of 4, and 2 flags: 74 bytes.
        write_minari(store, "e", "bounded-v0", observation_space=BOX, action_space=DISCRETE)
    whole, rest = divmod(50, per_write)
    assert writes == [[3] * per_write] * whole + [[3] * rest]
    assert len(lengths) < 150, "the length of an episode is not counted again for each later one"


def test_the_bytes_of_a_write_include_texts(monkeypatch):
    """An array of texts has only references to them."""
    text = spaces.Text(2_000)
    writes = []
    monkeypatch.setattr("engram.minari.writing._write", lambda _, __, episodes, ___: writes.append(len(episodes)))
    monkeypatch.setattr("engram.minari.writing._BYTES_PER_WRITE", 4_000)
    with Store([Table("e")]) as store:
        for _ in range(3):
            insert(store, item(obs=np.array(["x" * 2_000] * 3)))
        write_minari(store, "e", "texts-v0", observation_space=text, action_space=DISCRETE)
    assert writes == [1, 1, 1, 0]


def test_an_empty_table(open_store):
    store = open_store(Table("e"))
    dataset = write_minari(store, "e", "empty-v0", env="CartPole-v1")
    assert (dataset.total_episodes, dataset.total_steps) == (0, 0)
    assert read_minari(store, "empty-v0", [EPISODES]) == 0


# --- errors --------------------------------------------------------------------------------------


def test_transitions_are_not_episodes(open_store, datasets_path):
    store = open_store(Table("t"))
    play_cartpole(store, Transitions("t", discount=0.9), steps=5)
    key = next(store.scan("t", batch_size=None)).info.key[0]
    with raises(
        SignatureError,
        f"item {key}: an episode must have the columns `obs`, `action`, `reward`, `terminated`, `truncated`, as the "
        "Episodes of engram.gymnasium, and may have `valid` and `extras`; got the columns `action`, `discount`, "
        "`next_obs`, `obs`, `reward`",
    ):
        write_minari(store, "t", "CartPole/transitions-v0", env="CartPole-v1")
    assert list(datasets_path.iterdir()) == []


def test_items_without_an_end(open_store):
    store = open_store(Table("e"))
    play_cartpole(store, Episodes("e", max_length=10))
    size = store.info()["e"].size
    options = {"env": "CartPole-v1"}
    with pytest.raises(
        SignatureError,
        match=r"^item \d+: the last step of an episode must have `terminated` or `truncated` True; got False: the item "
        r'is a part of an episode, or one that was abandoned; pass `unfinished="truncate"` to truncate it there$',
    ):
        write_minari(store, "e", "parts-v0", **options)
    dataset = write_minari(store, "e", "parts-v0", unfinished="truncate", **options)
    assert dataset.total_episodes == size
    for episode in dataset.iterate_episodes():
        assert episode.terminations[-1] != episode.truncations[-1]
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any()


def insert(store, data):
    """Inserts an item whose columns differ in length; returns its key."""
    with store.writer() as writer:
        length = len(data["obs"])
        for step in range(length):
            writer.append({name: each[step] if step < len(each) else None for name, each in data.items()})
        history = writer.history
        return writer.create_item("e", 1.0, {name: history[name][[*range(len(data[name]))]] for name in data})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"terminated": np.array([True, True])},
            (
                "`terminated` and `truncated` must be False before the last step, which is 1; got True at step 0: the "
                "item spans several episodes"
            ),
        ),
        ({"terminated": np.array([0, 1])}, "`terminated` must be bool[T]; got int64[2]"),
        ({"reward": np.zeros((2, 1))}, "`reward` must have the shape [T], a number per step; got [2, 1]"),
        (
            {"valid": np.array([False, True])},
            "`valid` must be True for the first steps, at least one, and False after them",
        ),
        ({"terminated": np.ones((2, 1), bool)}, "`terminated` must be bool[T]; got bool[2, 1]"),
        ({"valid": np.ones(1, bool)}, "`valid` must have as many steps as `reward`, 2; got 1"),
        (
            {"obs": np.zeros((3, 5))},
            "`obs` must have the shape [3, 2]: 3 values of shape [2], as its space has; got float64[3, 5]",
        ),
        (
            {"obs": np.zeros((2, 2))},
            "`obs` must have the shape [3, 2]: 3 values of shape [2], as its space has; got float64[2, 2]",
        ),
        (
            {"action": np.zeros((2, 1))},
            "`action` must have the shape [2]: 2 values of shape [], as its space has; got float64[2, 1]",
        ),
    ],
)
def test_items_that_are_no_episodes(changes, text, datasets_path):
    with Store([Table("e")]) as store:
        key = insert(store, item(**changes))
        with raises(SignatureError, f"item {key}: {text}"):
            write_minari(store, "e", "bad-v0", observation_space=BOX, action_space=DISCRETE)
    assert list(datasets_path.iterdir()) == []


def test_nests_that_are_not_those_of_the_spaces(open_store):
    store = open_store(Table("e"))
    key = insert(store, item())
    with raises(
        SignatureError, f"item {key}: `obs` must be a dict of the columns `x`, as its space is; got float32[3, 2]"
    ):
        write_minari(store, "e", "bad-v0", observation_space=spaces.Dict({"x": BOX}), action_space=DISCRETE)
    with raises(SignatureError, f"item {key}: `action` must be a tuple of 1 parts, as its space is; got int64[2]"):
        write_minari(store, "e", "bad-v0", observation_space=BOX, action_space=spaces.Tuple([DISCRETE]))


def test_extras_that_are_no_infos(open_store):
    store = open_store(Table("e"))
    with VectorWriter(store, 1, [EPISODES], autoreset_mode="DISABLED") as writer:
        writer.reset(np.zeros((1, 2), np.float32))
        one, last = np.zeros(1), np.ones(1, bool)
        writer.step(one.astype(np.int64), np.zeros((1, 2), np.float32), one, last, ~last, extras={"a": (one, one)})
    with pytest.raises(
        SignatureError,
        match=r"^item \d+: `extras/a` must be an array of numbers, or a dict of such arrays; got a tuple$",
    ):
        write_minari(store, "e", "bad-v0", observation_space=BOX, action_space=DISCRETE)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("No space left on device")])
def test_an_error_in_the_middle_leaves_nothing(datasets_path, monkeypatch, error):
    """The second write fails."""
    calls = []
    storage = type(dataset_of(buffer(1, terminated=True), name="first-v0").storage)
    update = storage.update_episodes

    def failing(self, episodes):
        calls.append(len(episodes))
        if len(calls) == 2:
            raise error
        update(self, episodes)

    monkeypatch.setattr(storage, "update_episodes", failing)
    with Store([Table("e")]) as store:
        play_cartpole(store, EPISODES)
        monkeypatch.setattr("engram.minari.writing._STEPS_PER_WRITE", 20)
        expected = KeyboardInterrupt if error is KeyboardInterrupt else StorageError
        with pytest.raises(expected):
            write_minari(store, "e", "made/broken-v0", env="CartPole-v1")
    assert len(calls) == 2
    assert [path.name for path in datasets_path.iterdir()] == ["first-v0"]


def test_mistaken_arguments(open_store):
    store = open_store(Table("e"))
    with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 5 (int)"):
        write_minari(5, "e", "x-v0", env="CartPole-v1")
    for name in ("x", "x/", "../x-v0", "made//deep/x-v0"):
        with raises(
            InvalidArgumentError,
            "`dataset_id` must be a name with a version, optionally after a namespace, such as "
            f'"CartPole/noisy-v0"; got {name!r}',
        ):
            write_minari(store, "e", name, env="CartPole-v1")
    dataset_of(buffer(1, terminated=True), name="x-v0")
    with raises(
        InvalidArgumentError,
        "`dataset_id`: the Minari dataset 'x-v0' exists; use another name or version, or delete it with "
        "`minari.delete_dataset('x-v0')`",
    ):
        write_minari(store, "e", "x-v0", env="CartPole-v1")
    with raises(
        InvalidArgumentError,
        "`observation_space` must be a gymnasium.Space, or `env` an environment with one; got None",
    ):
        write_minari(store, "e", "y-v0")
    with raises(
        InvalidArgumentError, "`action_space` must be a gymnasium.Space, or `env` an environment with one; got 5"
    ):
        write_minari(store, "e", "y-v0", observation_space=BOX, action_space=5)
    spec = gymnasium.spec("CartPole-v1")
    for change in (
        {"entry_point": lambda: gymnasium.make("CartPole-v1")},
        {"kwargs": {"sutton_barto_reward": np.True_}},
    ):
        with (
            case(change),
            pytest.raises(
                InvalidArgumentError,
                match=r"^`env`: Minari cannot store how to create the environment: .*; pass `observation_space` and "
                "`action_space` instead, or register it with text as `entry_point` and JSON values as `kwargs`$",
            ),
        ):
            write_minari(store, "e", "y-v0", env=dataclasses.replace(spec, **change))
    with pytest.raises(InvalidArgumentError, match=r"^`env`: the environment cannot be created: .*Unknown"):
        write_minari(store, "e", "y-v0", env="Unknown-v0")
    with pytest.raises(
        InvalidArgumentError,
        match=r"^`env` must be a gymnasium.Env, its id or its spec; for a vector environment, pass the id of the ",
    ):
        write_minari(store, "e", "y-v0", env=gymnasium.make_vec("CartPole-v1", num_envs=2))
    with raises(
        InvalidArgumentError,
        "`metadata` must have only names of ['algorithm_name', 'author', 'author_email', 'code_permalink', "
        "'description', 'requirements']; got 'total_steps'",
    ):
        write_minari(store, "e", "y-v0", env="CartPole-v1", metadata={"total_steps": 5})
    with raises(InvalidArgumentError, "`metadata`: `description` must be a str; got 5 (int)"):
        write_minari(store, "e", "y-v0", env="CartPole-v1", metadata={"description": 5})
    with raises(InvalidArgumentError, '`unfinished` must be "error" or "truncate"; got \'keep\' (str)'):
        write_minari(store, "e", "y-v0", env="CartPole-v1", unfinished="keep")
    with pytest.raises(UnknownTableError):
        write_minari(store, "u", "y-v0", env="CartPole-v1")
    assert sorted(minari.list_local_datasets()) == ["x-v0"]
