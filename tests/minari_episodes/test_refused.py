"""What a dataset cannot have is refused, with nothing written: spaces, names, values, metadata and ids; full disks."""

import errno
import fcntl
import os
import warnings

import gymnasium
import minari
import ml_dtypes
import numpy as np
import pytest
from gymnasium import spaces
from helpers.item_bits import insert_columns
from helpers.minari_datasets import BOX, DISCRETE, buffer, dataset_of, item
from helpers.support import case, raises, run_python

from engram import Store, Table
from engram.errors import InvalidArgumentError, SignatureError, StorageError
from engram.gymnasium import Episodes
from engram.minari import read_minari, write_minari

NUMBER = spaces.Box(-1, 1, (), np.float32)


@pytest.fixture
def store():
    with Store([Table("e"), Table("copy")]) as opened:
        yield opened


def write(store, observation_space=BOX, action_space=DISCRETE, dataset_id="x-v0", **options):
    return write_minari(
        store, "e", dataset_id, observation_space=observation_space, action_space=action_space, **options
    )


def test_spaces_that_minari_does_not_store(store, datasets_path):
    kinds = (
        "must be a space that Minari stores: Box, Discrete, MultiBinary, MultiDiscrete, Text, or Dict or Tuple of "
        "them, without arrays of size 0; got "
    )
    empty = spaces.Box(-1, 1, (0, 3), np.float32)
    for space, text in [
        (empty, f"{kinds}{empty!r} (Box low.shape doesn't match provided shape, low.shape=(0,), shape=(0, 3))"),
        (spaces.Sequence(NUMBER), f"{kinds}{spaces.Sequence(NUMBER)!r} (No serialization method available for "),
        (spaces.Tuple([spaces.OneOf([NUMBER])]), f"{kinds}Tuple(OneOf("),
        (
            spaces.Discrete(5, dtype=np.int32),
            (
                "must be a space that Minari stores as it is; got Discrete(5, dtype=int32), which it would read as "
                "Discrete(5); pass that one, or an equal one"
            ),
        ),
    ]:
        with case(space):
            with pytest.raises(InvalidArgumentError) as caught:
                write(store, space)
            assert str(caught.value).startswith(f"`observation_space` {text}")
            with pytest.raises(InvalidArgumentError) as caught:
                write(store, action_space=space)
            assert str(caught.value).startswith(f"`action_space` {text}")
    assert not list(datasets_path.glob("*"))


NAME = (
    "must have names that are text, not empty or `.`, and without `/` and NUL, which HDF5 does not store as they are; "
    "got {!r}; rename it"
)


@pytest.mark.parametrize("name", ["", ".", "a/b", "/a", "a/", "./a", "a\0b", 1])
def test_names_with_a_meaning_in_hdf5(store, datasets_path, name):
    with raises(InvalidArgumentError, f"`observation_space`/x {NAME.format(name)}"):
        write(store, spaces.Dict({"x": spaces.Dict({name: NUMBER})}))
    key = insert_columns(store, "e", item(extras={name: np.zeros(2)}))
    with raises(SignatureError, f"item {key}: `extras` {NAME.format(name)}"):
        write(store)
    assert not list(datasets_path.glob("*"))


NUMBERS = (
    "must be an array of bools, integers, floats or complex numbers, and not of bfloat16 or float8, which HDF5 does "
    "not have; got "
)


@pytest.mark.parametrize(
    ("space", "changes", "text"),
    [
        (BOX, {"obs": np.zeros((3, 2), ml_dtypes.bfloat16)}, f"`obs` {NUMBERS}bfloat16[3, 2]"),
        (BOX, {"obs": np.zeros((3, 2), ml_dtypes.float8_e5m2)}, f"`obs` {NUMBERS}float8_e5m2[3, 2]"),
        (BOX, {"extras": {"a": np.zeros(2, ml_dtypes.bfloat16)}}, f"`extras/a` {NUMBERS}bfloat16[2]"),
        (BOX, {"reward": np.zeros(2, ml_dtypes.bfloat16)}, f"`reward` {NUMBERS}bfloat16[2]"),
        (BOX, {"reward": np.array(["a", "b"])}, f"`reward` {NUMBERS}text or bytes[2]"),
        (BOX, {"reward": np.zeros(2, np.complex64)}, "`reward` must have real numbers; got complex64"),
        (NUMBER, {"obs": np.array(["a", "b", "c"])}, f"`obs` {NUMBERS}text or bytes[3]"),
        (spaces.Text(5), {"obs": np.zeros(3)}, "`obs` must be text without NUL, as its space is; got float64[3]"),
        (
            spaces.Text(5),
            {"obs": np.array([b"a", b"b", b"c"])},
            "`obs` must be text without NUL, as its space is; got text or bytes[3]",
        ),
        (
            spaces.Text(5),
            {"obs": np.array(["a", "b\0b", "c"])},
            "`obs` must be text without NUL, as its space is; got text or bytes[3]",
        ),
    ],
)
def test_values_that_hdf5_does_not_store(store, datasets_path, space, changes, text):
    key = insert_columns(store, "e", item(**changes))
    with raises(SignatureError, f"item {key}: {text}"):
        write(store, space)
    assert not list(datasets_path.glob("*"))


def test_episodes_with_other_columns_than_the_first(store, datasets_path):
    first = insert_columns(store, "e", item())
    key = insert_columns(store, "e", item(action=np.zeros(2, np.int32)))
    with raises(
        SignatureError,
        f"item {key}: the episodes of a dataset must have the same observations and actions; got column `action` "
        "int32[], and in the first item int64[]; write them to several datasets, with `keys`",
    ):
        write(store, keys=[first, key])
    assert not list(datasets_path.glob("*"))


@pytest.mark.usefixtures("datasets_path")
def test_episodes_with_other_rewards_and_extras_than_the_first(store):
    keys = [
        insert_columns(store, "e", item(**changes))
        for changes in ({}, {"reward": np.ones(2)}, {"valid": np.ones(2, bool)}, {"extras": {"x": np.ones(2)}})
    ]
    episodes = list(write(store, keys=keys).iterate_episodes())
    assert [episode.rewards.sum() for episode in episodes] == [0, 2, 0, 0]
    assert episodes[3].infos["x"].tolist() == [0, 1, 1]


@pytest.mark.usefixtures("datasets_path")
def test_extras_that_differ_between_episodes_are_read(store):
    extras = [np.array([2, 3], np.int8), np.array([True, False]), np.array([1.5, 2.5])]
    keys = [insert_columns(store, "e", item(extras={"x": each})) for each in extras]
    assert read_minari(store, write(store, keys=keys), [Episodes("copy", max_length=9)], infos=True) == 3
    copies = [sample.data["extras"]["x"] for sample in store.scan("copy", batch_size=None)]
    assert [(each.dtype, each.tolist()) for each in copies] == [(each.dtype, each.tolist()) for each in extras]


def test_a_namespace_is_created_with_its_first_dataset(store, datasets_path, monkeypatch):
    """A writer that fails removes no namespace that another one needs."""
    existed = []
    fallocate = os.posix_fallocate

    def record(*args):
        existed.append((datasets_path / "new").exists())
        fallocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", record)
    insert_columns(store, "e", item())
    write(store, dataset_id="new/x-v0")
    assert existed
    assert not any(existed)
    assert minari.list_local_datasets().keys() == {"new/x-v0"}


@pytest.mark.usefixtures("datasets_path")
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_cannot_reserve_space(store, monkeypatch, code):
    def fallocate(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    insert_columns(store, "e", item())
    assert write(store).total_episodes == 1


@pytest.mark.usefixtures("datasets_path")
def test_space_is_reserved_for_the_data_once(store, monkeypatch):
    sizes = []
    fallocate = os.posix_fallocate

    def record(descriptor, offset, size):
        sizes.append(size)
        fallocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", record)
    insert_columns(store, "e", item(extras={"x": np.zeros((2, 1_000_000), np.uint8)}))
    write(store)
    assert 3_000_000 < max(sizes) < 3_200_000  # infos have a row more


def test_metadata(store, datasets_path):
    for metadata, text in [
        (5, "`metadata` must be a mapping, such as a dict; got 5 (int)"),
        ({"author": 5}, "`metadata`: `author` must be a str, or an iterable of str; got 5 (int)"),
        ({"author": ["a", 5]}, "each of `metadata`: `author` must be a str; got 5 (int)"),
        ({"requirements": [5]}, "each of `metadata`: `requirements` must be a str; got 5 (int)"),
    ]:
        with case(metadata), raises(InvalidArgumentError, text):
            write(store, metadata=metadata)
    assert not list(datasets_path.glob("*"))
    assert write(store, metadata={"requirements": "gymnasium"}).storage.metadata["requirements"] == ["gymnasium"]


def test_namespaces_in_which_minari_would_not_find_a_dataset(store, datasets_path):
    dataset_of(buffer(1, terminated=True), name="made/first-v0")
    before = sorted(datasets_path.rglob("*"))
    for name in ("data/x-v0", "made/data/x-v0", "made/first-v0/x-v0", "made/first-v0/deep/x-v0"):
        with raises(
            InvalidArgumentError,
            f"`dataset_id` must not have a namespace that is a dataset, or has a part `data`; got {name!r}",
        ):
            write(store, dataset_id=name)
    assert sorted(datasets_path.rglob("*")) == before
    insert_columns(store, "e", item(reward=np.zeros(2, np.complex64)))
    for name in ("made/x-v0", "new/deep/x-v0"):
        with pytest.raises(SignatureError):
            write(store, dataset_id=name)
        assert sorted(datasets_path.rglob("*")) == before, "a new namespace was removed"
    store.reset("e")
    for name in ("made/x-v0", "new/deep/x-v0"):
        write(store, dataset_id=name)
    assert sorted(minari.list_local_datasets()) == ["made/first-v0", "made/x-v0", "new/deep/x-v0"]


def test_a_directory_of_datasets_that_is_a_file(store, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"^cannot write Minari's datasets: "):
        write(store)


def test_an_environment_that_minari_cannot_read_again(store, datasets_path, monkeypatch):
    spec = gymnasium.make("CartPole-v1").spec
    monkeypatch.setattr(type(spec), "to_json", lambda _: '{"id": 5}')
    with (
        warnings.catch_warnings(),
        pytest.raises(StorageError, match=r"^Minari cannot read the dataset that it has written: "),
    ):
        write_minari(store, "e", "x-v0", env=spec)
    assert not list(datasets_path.glob("*"))


def test_a_directory_that_is_in_use(store, tmp_path, monkeypatch):
    """The directory of the checkpoints of a run that trains."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with (tmp_path / "engram.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=rf"cannot be written: a run trains in {tmp_path}; wait until"):
            write(store, dataset_id="checkpoints/x-v0")
    assert [path.name for path in tmp_path.iterdir()] == ["engram.lock"]
    write(store, dataset_id="checkpoints/x-v0")


def test_a_full_disk(datasets_path):
    """Without space for it, HDF5 would end the process."""
    code = f"""
import sys
sys.path.append({str(__file__.rpartition("/minari_episodes")[0])!r})
import numpy as np
from helpers.full_disk import limit_file_size
from helpers.item_bits import insert_columns
from helpers.minari_datasets import BOX, DISCRETE
from engram import Store, Table
from engram.errors import StorageError
from engram.gymnasium import Episodes
from engram.minari import read_minari, write_minari

with Store([Table("e")]) as store:
    for _ in range(20):
        insert_columns(store, "e", {{
            "obs": np.zeros((51, 2), np.float32), "action": np.zeros(50, np.int64), "reward": np.zeros(50),
            "terminated": np.arange(50) == 49, "truncated": np.zeros(50, bool), "extras": np.ones((50, 20)),
        }})
    texts = []
    for limit in (100, 2_000, 12_000, 100_000, 300_000, 500_000):
        limit_file_size(limit)
        try:
            write_minari(store, "e", "ns/full-v0", observation_space=BOX, action_space=DISCRETE)
        except StorageError as error:
            texts.append(str(error))
        limit_file_size(None)
    print(set(texts), len(texts))
    print(write_minari(store, "e", "ns/full-v0", observation_space=BOX, action_space=DISCRETE).total_episodes)
"""
    target = datasets_path / "ns" / "full-v0"
    assert run_python(code).splitlines() == [f"{{'cannot write {target}: File too large'}} 6", "20"]
    assert sorted(path.name for path in datasets_path.iterdir()) == ["ns"]
