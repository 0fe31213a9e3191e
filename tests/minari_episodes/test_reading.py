"""Items from Minari's datasets are those of a naive model."""

import gc

import gymnasium
import numpy as np
import pytest
from helpers.minari_datasets import buffer, cartpole, dataset_of, model_episode
from helpers.support import BackgroundCall, raises, run_python
from helpers.vector_envs import key_of, sequences, transitions
from minari.data_collector import EpisodeBuffer

from engram import ArraySpec, Store, Table
from engram.errors import (
    BackpressureError,
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureError,
    StorageError,
    UnknownTableError,
)
from engram.gymnasium import Episodes, Sequences, Transitions, VectorWriter
from engram.minari import read_minari


def items_of(store, table):
    return [key_of(sample.data) for sample in store.scan(table, batch_size=None)]


def expected(dataset, items_of_episode, *arguments):
    episodes = map(model_episode, dataset.iterate_episodes())
    return [key_of(item) for episode in episodes for item in items_of_episode(episode, *arguments)]


def test_items_of_terminated_and_truncated_episodes(open_store):
    dataset = cartpole()
    store = open_store(Table("t"), Table("s"), Table("e"))
    kinds = [
        Transitions("t", n_step=3, discount=0.9),
        Sequences("s", length=5, period=3),
        Episodes("e", max_length=100),
    ]
    assert read_minari(store, "cartpole/random-v0", kinds) == 12
    assert items_of(store, "t") == expected(dataset, transitions, 3, 0.9)
    assert items_of(store, "s") == expected(dataset, sequences, 5, 3, "pad")
    assert items_of(store, "e") == expected(dataset, sequences, 100, 100, "cut")
    ends = [
        (sample.data["terminated"][-1], sample.data["truncated"][-1]) for sample in store.scan("e", batch_size=None)
    ]
    assert {(True, False), (False, True)} <= set(ends), "some episodes terminate and some are truncated"


def test_a_part_of_a_dataset(open_store):
    dataset = cartpole().filter_episodes(lambda episode: episode.truncations[-1])
    store = open_store(Table("t"))
    assert 0 < read_minari(store, dataset, [Transitions("t", discount=1.0)]) < 12
    assert items_of(store, "t") == expected(dataset, transitions, 1, 1.0)


def nested(**observations):
    """A dataset of one episode of two steps, with nests as observations and actions."""
    spaces = {"x": gymnasium.spaces.Box(0, 9, (2,), np.float64), "task": gymnasium.spaces.Text(9)}
    actions = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(9), gymnasium.spaces.Box(0, 9, (1,), np.float32)))
    episode = EpisodeBuffer(
        observations=observations,
        actions=(np.array([1, 2]), np.ones((2, 1), np.float32)),
        rewards=np.ones(2),
        terminations=np.array([False, True]),
        truncations=np.zeros(2, bool),
        infos={},
    )
    observation_space = gymnasium.spaces.Dict({name: spaces[name] for name in observations})
    return dataset_of(episode, observation_space=observation_space, action_space=actions)


def test_nested_observations_and_actions(open_store):
    nested(x=np.arange(6.0).reshape(3, 2))
    store = open_store(Table("e"))
    read_minari(store, "made-up-v0", [Episodes("e", max_length=10)])
    (item,) = (sample.data for sample in store.scan("e", batch_size=None))
    assert item["obs"]["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert item["action"][0].tolist() == [1, 2]
    assert item["action"][1].tolist() == [[1], [1]]


def test_text(open_store):
    nested(task=["a", "b", "c"])
    with raises(
        SignatureError,
        "the Minari dataset 'made-up-v0': episode 0: column `obs/task` has text, which a vector writer does not store; "
        "encode it as numbers",
    ):
        read_minari(open_store(Table("e")), "made-up-v0", [Episodes("e", max_length=10)])


def test_infos_become_extras(open_store):
    infos = {"qpos": np.arange(8.0).reshape(4, 2), "goal": {"x": np.arange(4)}}
    dataset_of(buffer(3, truncated=True, infos=infos))
    store = open_store(Table("all"), Table("some"), Table("none"))
    read_minari(store, "made-up-v0", [Episodes("all", max_length=10)], infos=True)
    read_minari(store, "made-up-v0", [Episodes("some", max_length=10)], infos=["qpos"])
    read_minari(store, "made-up-v0", [Episodes("none", max_length=10)])
    items = [sample.data for table in ("all", "some", "none") for sample in store.scan(table, batch_size=None)]
    assert items[0]["extras"]["qpos"].tolist() == items[1]["extras"]["qpos"].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert items[0]["extras"]["goal"]["x"].tolist() == [1, 2, 3]
    assert list(items[1]["extras"]) == ["qpos"]
    assert "extras" not in items[2]


def test_an_episode_without_an_end_is_abandoned(open_store):
    dataset = dataset_of(buffer(4), buffer(3, terminated=True, start=50), buffer(2, start=80))
    store = open_store(Table("t"), Table("e"))
    read_minari(store, dataset, [Transitions("t", n_step=2, discount=0.5), Episodes("e", max_length=10)])
    assert items_of(store, "t") == expected(dataset, transitions, 2, 0.5)
    assert items_of(store, "e") == expected(dataset, sequences, 10, 10, "cut")
    flags = [sample.data["terminated"] | sample.data["truncated"] for sample in store.scan("e", batch_size=None)]
    assert [any(each) for each in flags] == [False, True, False]


def test_an_end_before_the_last_step(open_store):
    bad = buffer(4, terminated=True)
    bad.terminations[1] = True
    dataset_of(buffer(2, terminated=True), bad)
    store = open_store(Table("t"))
    with raises(
        SignatureError,
        "the Minari dataset 'made-up-v0': episode 1: `terminations` and `truncations` must be False before the last "
        "step, which is 3; got True at step 1; split it into several episodes",
    ):
        read_minari(store, "made-up-v0", [Transitions("t", discount=1.0)])
    assert store.info()["t"].size == 2


def test_arrays_of_different_lengths():
    good = buffer(3, terminated=True)
    damaged = [
        ("`observations` must have 4 rows; got shape [3, 2] of the data", {"observations": good.observations[:-1]}),
        ("`actions` must have 3 rows; got shape [2] of the data", {"actions": good.actions[:-1]}),
        ("`terminations` must have 3 rows; got shape [2] of the data", {"terminations": good.terminations[:-1]}),
    ]
    with Store([Table("t")]) as store:
        for number, (text, change) in enumerate(damaged):
            fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
            dataset_of(type(good)(**{**fields, **change}), name=f"damaged-v{number}")
            with raises(SignatureError, f"the Minari dataset 'damaged-v{number}': episode 0: {text}"):
                read_minari(store, f"damaged-v{number}", [Transitions("t", discount=1.0)])


def test_missing_infos():
    dataset_of(buffer(3, terminated=True, infos={"a": np.zeros(4)}), buffer(3, terminated=True))
    with Store([Table("t")]) as store:
        with raises(
            SignatureError, "the Minari dataset 'made-up-v0': episode 0: `infos` must have `b`; got the columns `a`"
        ):
            read_minari(store, "made-up-v0", [Transitions("t", discount=1.0)], infos=["b"])
        with raises(
            SignatureError,
            "the Minari dataset 'made-up-v0': episode 1: `infos` must have an entry; got none; leave out the argument "
            "`infos`",
        ):
            read_minari(store, "made-up-v0", [Transitions("t", discount=1.0)], infos=True)


def test_items_that_do_not_match_the_signature(open_store):
    dataset_of(buffer(3, terminated=True))
    items = Transitions("t", discount=1.0)
    store = open_store(Table("t", signature={"obs": ArraySpec((2,), "float32")}))
    with pytest.raises(SignatureError, match=r"^the Minari dataset 'made-up-v0': episode 0: .* signature of table `t`"):
        read_minari(store, "made-up-v0", [items])


CLOSED = [
    (5, DeadlineExceededError, "2 items are not in their tables after 0.5 s; they are dropped"),
    (
        100,
        BackpressureError,
        r"episode 0: the writer has \d+ items waiting for tables.* \(these items are dropped\), .*",
    ),
]


@pytest.mark.filterwarnings("error")  # such as that of a writer whose items are lost
def test_a_closed_rate_limiter(open_store):
    store = open_store(*(Table.queue(f"t{steps}", max_size=3) for steps, _, _ in CLOSED))
    for steps, _, _ in CLOSED:
        dataset_of(buffer(steps, terminated=True), name=f"steps{steps}-v0")

    def read(steps, error, text):
        table, dataset = f"t{steps}", f"steps{steps}-v0"
        with pytest.raises(
            error, match=f"^the Minari dataset '{dataset}': {text}; `{table}`: inserting waits: "
        ) as caught:
            read_minari(store, dataset, [Transitions(table, discount=1.0)], timeout=0.5)
        return caught

    readings = [BackgroundCall(lambda each=each: read(*each)) for each in CLOSED]
    errors = [reading.result() for reading in readings]  # their tracebacks keep all variables of the calls
    gc.collect()
    for steps, _, _ in CLOSED:
        table = f"t{steps}"
        assert store.info()[table].size == 3, table
        store.sample(table, 3)
        assert store.info()[table].size == 0, f"{table}: no item is inserted later"
    del errors, readings


def test_a_closed_rate_limiter_in_the_only_thread():
    for steps in (5, 100):
        dataset_of(buffer(steps, terminated=True), name=f"steps{steps}-v0")
    output = run_python("""
import engram
from engram.gymnasium import Transitions
from engram.minari import read_minari
engram._engram.set_only_thread_checks(0.1, 0.1)
for steps in (5, 100):
    try:
        store = engram.Store([engram.Table.queue("t", max_size=3)])
        read_minari(store, f"steps{steps}-v0", [Transitions("t", discount=1.0)])
    except (engram.errors.DeadlineExceededError, engram.errors.BackpressureError) as error:
        print(type(error).__name__, error)
""")
    texts = output.splitlines()
    assert [text.split()[0] for text in texts] == ["DeadlineExceededError", "BackpressureError"]
    for text in texts:
        assert " dropped" in text
        assert text.endswith(
            "; this is the only thread of the process, so nothing is sampled while it waits: sample in another thread "
            "meanwhile, or read into a table that does not wait"
        )


def test_a_damaged_dataset(datasets_path):
    dataset_of(buffer(3, terminated=True))
    file = datasets_path / "made-up-v0" / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:500])
    with Store([Table("t")]) as store:
        with pytest.raises(StorageError, match=r"^the Minari dataset 'made-up-v0': it cannot be read: "):
            read_minari(store, "made-up-v0", [Transitions("t", discount=1.0)])
        (datasets_path / "made-up-v0" / "data" / "metadata.json").unlink()
        with pytest.raises(StorageError, match=r"^the Minari dataset 'made-up-v0': it cannot be read: "):
            read_minari(store, "made-up-v0", [Transitions("t", discount=1.0)])


def test_mistaken_arguments():
    items = [Transitions("t", discount=1.0)]
    with Store([Table("t")]) as store:
        with pytest.raises(
            InvalidArgumentError, match=r"^`dataset`: there is no Minari dataset 'no-v0' on this machine; "
        ):
            read_minari(store, "no-v0", items)
        with raises(
            InvalidArgumentError,
            '`dataset` must be the id of a Minari dataset, such as "CartPole/noisy-v0", or a minari.MinariDataset; '
            "got 5",
        ):
            read_minari(store, 5, items)
        with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 5 (int)"):
            read_minari(5, "no-v0", items)
        dataset = dataset_of(buffer(3, terminated=True))
        with raises(InvalidArgumentError, "`infos` must be True, False or a sequence of names; got 'x' (str)"):
            read_minari(store, dataset, items, infos="x")
        with pytest.raises(InvalidArgumentError, match=r"^`items` must contain at least one of "):
            read_minari(store, dataset, [])
        with pytest.raises(UnknownTableError):
            read_minari(store, dataset, [Transitions("u", discount=1.0)])


def test_a_dataset_that_does_not_fit_its_spaces(open_store):
    store = open_store(Table("t"))
    dataset = dataset_of(buffer(2, terminated=True), observation_space=gymnasium.spaces.Text(5))
    with pytest.raises(
        StorageError, match=r"^the Minari dataset 'made-up-v0': it cannot be read: .*has no attribute 'decode'"
    ):
        read_minari(store, dataset, [Transitions("t", discount=0.9)])


def test_errors_of_the_caller_are_not_those_of_the_dataset(monkeypatch):
    def reset(*_):
        raise KeyError("mine")

    monkeypatch.setattr(VectorWriter, "reset", reset)
    with Store([Table("t")]) as store, pytest.raises(KeyError, match="mine"):
        read_minari(store, dataset_of(buffer(2, terminated=True)), [Transitions("t", discount=0.9)])
