"""Writes a table of episodes as a Minari dataset."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import gymnasium
import h5py
import minari
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.namespace import NAMESPACE_METADATA_FILENAME, create_namespace, list_local_namespaces
from minari.storage.datasets_root_dir import get_dataset_path

from engram import Nest, _checks, _engram
from engram._complete_output import complete_output
from engram._progress import progress_bar
from engram.errors import InvalidArgumentError, SignatureError, StorageError
from engram.minari.item_episode import check_same_columns, columns_of, episode_of
from engram.minari.spaces import checked_spaces
from engram.scan import Order
from engram.table_store import TableStore

__all__ = ["write_minari"]

_METADATA = {"algorithm_name", "author", "author_email", "code_permalink", "description", "requirements"}
"""Names that `metadata` may have."""

_STEPS_PER_WRITE = 10_000
_BYTES_PER_WRITE = 64 << 20
"""Number of steps, or of bytes, after which the collected episodes are written: each write opens the dataset's file."""

_DATASET_BYTES = 4 << 10
_FILE_BYTES = 64 << 10
_TEXT_BYTES = 64
"""What HDF5 writes in addition to the data, at most: per array and group of an episode, per write, and per text."""


def write_minari(
    store: TableStore,
    table: str,
    dataset_id: str,
    *,
    env: str | EnvSpec | gymnasium.Env[Any, Any] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    unfinished: Literal["error", "truncate"] = "error",
    keys: Iterable[int] | None = None,
    order: Order = "oldest_first",
    progress: bool = False,
) -> minari.MinariDataset:
    """Writes a table of episodes as a dataset of Minari on this machine, in HDF5.

        write_minari(store, "episodes", "CartPole/noisy-v0", env="CartPole-v1")

    Each item is an episode, with the columns that `engram.gymnasium.Episodes` creates: `obs` `[T + 1, ...]`, `action`,
    `reward`, `terminated` and `truncated` `[T, ...]`, optionally `valid` and `extras`. Padding, where `valid` is False,
    is not written. Extras, a nest of dicts or a single array, become `infos` `[T + 1, ...]`, whose first row is zeros;
    a single array becomes the info `extras`. Items of `Sequences` can be written if each is a whole episode.
    Transitions cannot: their episodes are not known.

    The arrays are stored as they are, images without JPEG. The dataset exists only once it is complete. Episodes are
    written when they have 10,000 steps or 64 MiB together: no more than that, and one further episode, is in memory.

    Args:
        store: A `Store` or a `Client`.
        table: Name of the table.
        dataset_id: Id of the dataset, such as `"CartPole/noisy-v0"`. There must be no dataset of this id.
        env: The environment of the episodes, a `gymnasium.Env`, an id or a spec. Its spaces are those of the dataset,
            and users of the dataset can create it again. Default: None; then both spaces are required.
        observation_space: Space of the observations. Default: that of `env`.
        action_space: Space of the actions. Default: that of `env`.
        metadata: Any of `algorithm_name`, `author`, `author_email`, `code_permalink`, `description` and `requirements`,
            as in `minari.create_dataset_from_buffers`.
        unfinished: What becomes of an item whose last step is neither terminated nor truncated, which is a part of a
            longer episode, or an episode that was abandoned. `"error"`: a `SignatureError` is raised. `"truncate"`: the
            item becomes an episode that is truncated there.
        keys: As in `TableStore.scan`.
        order: As in `TableStore.scan`.
        progress: True for a progress bar on stderr, if that is a terminal, or in a notebook.

    Returns:
        The dataset.

    Raises:
        SignatureError: An item is not an episode, does not fit the spaces, has other observations or actions than the
            first, or has names or values that HDF5 does not store as they are: names that are empty, `.` or not text or
            have `/` or NUL, text with NUL, bytes, bfloat16 and float8. Nothing is written.
        StorageError: The dataset cannot be written. Nothing is written.
        InvalidArgumentError: An argument is invalid, the dataset exists, the environment does not, or Minari does not
            store a space as it is.
        UnknownTableError: There is no table of this name.
        ClosedError: The store was closed, or the table dropped.
    """
    _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
    _checks.choice("`unfinished`", unfinished, ("error", "truncate"))
    _checks.boolean("`progress`", progress)
    namespace, target = _target(dataset_id)
    checked_metadata = _checked_metadata(metadata)
    spec, spaces = checked_spaces(env, observation_space, action_space)
    with (
        ExitStack() as until_renamed,
        store.scan(table, batch_size=None, keys=keys, order=order) as scan,
        complete_output(target, is_directory=True, folder=get_dataset_path()) as folder,
        progress_bar(f"writing {dataset_id}", scan.num_items, show=progress) as advance,
    ):
        storage = MinariStorage.new(folder / "data", *spaces, spec, jpeg_encoding=False)
        file = _create(storage)
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__, **checked_metadata})
        episodes: list[EpisodeBuffer] = []
        num_steps = num_bytes = 0  # of `episodes`
        first: dict[str, str] = {}
        for sample in scan:
            episodes.append(episode_of(sample, spaces, truncate=unfinished == "truncate"))
            columns = columns_of(sample.data)
            first = first or columns
            check_same_columns(int(sample.info.key[0]), columns, first)
            num_steps += len(episodes[-1])
            num_bytes += _num_bytes(episodes[-1])
            if num_steps >= _STEPS_PER_WRITE or num_bytes >= _BYTES_PER_WRITE:
                _write(storage, file, episodes, num_bytes)
                episodes.clear()
                num_steps = num_bytes = 0
            advance(1)
        _write(storage, file, episodes, num_bytes)
        _check_readable(folder / "data")
        until_renamed.enter_context(_in_namespace(namespace))
    return minari.load_dataset(dataset_id)


@contextmanager
def _in_namespace(namespace: str | None) -> Iterator[None]:
    """Creates a namespace, if there is none. After an error in the `with` block, removes it, unless it is used."""
    if namespace is None:
        yield
        return
    root, path = get_dataset_path(), get_dataset_path(namespace)
    missing = [each for each in (path, *path.parents) if each.is_relative_to(root) and not each.exists()]
    try:
        try:
            if namespace not in list_local_namespaces():
                create_namespace(namespace)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                if [file.name for file in each.iterdir()] == [NAMESPACE_METADATA_FILENAME]:
                    (each / NAMESPACE_METADATA_FILENAME).unlink()
                each.rmdir()
        raise


def _num_bytes(episode: EpisodeBuffer) -> int:
    """Returns the size of the data of an episode in HDF5, at most."""
    parts = (episode.observations, episode.actions, episode.rewards, episode.terminations, episode.truncations)
    columns = _engram.flatten((*parts, episode.infos) if episode.infos else parts)[0]
    texts = sum(_TEXT_BYTES + 4 * len(text) for column in columns if column.dtype == object for text in column.flat)
    return texts + sum(int(column.nbytes) for column in columns)


def _create(storage: MinariStorage) -> Path:
    """Creates the file of a dataset without episodes; returns its path."""
    file = Path(storage.data_path) / "main_data.hdf5"
    _reserve(file, _FILE_BYTES)
    os.truncate(file, 0)
    h5py.File(file, "w", track_order=True).close()  # as Minari creates it
    return file


def _reserve(file: Path, num_bytes: int) -> None:
    """Extends a file, so that there is disk space for as many more bytes: HDF5 ends the process if it cannot write.

    HDF5 truncates the file to what it has used. On file systems that cannot reserve space, it does nothing.
    """
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), file.stat().st_size, num_bytes)
            except OSError as error:
                if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
                    raise


def _write(storage: MinariStorage, file: Path, episodes: list[EpisodeBuffer], num_bytes: int) -> None:
    """Appends episodes, which have this number of bytes, to a dataset and its file."""
    if episodes:
        _reserve(file, num_bytes + _DATASET_BYTES * sum(map(_num_datasets, episodes)) + _FILE_BYTES)
    try:
        storage.update_episodes(episodes)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"the episodes have values that HDF5 does not support: {error}") from error


def _num_datasets(episode: EpisodeBuffer) -> int:
    """Returns the number of datasets and groups that HDF5 has for an episode."""

    def count(nest: Nest) -> int:
        children = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, tuple) else ()
        return 1 + sum(map(count, children))

    return 4 + count(episode.observations) + count(episode.actions) + count(episode.infos)


def _check_readable(data: Path) -> None:
    """Checks that Minari can read a dataset, before it gets its name."""
    try:
        minari.MinariDataset(data)
    except Exception as error:
        raise StorageError(f"Minari cannot read the dataset that it has written: {error!r}") from error


def _target(dataset_id: str) -> tuple[str | None, Path]:
    """Returns the namespace and the directory of a dataset, which does not exist yet."""
    _checks.text("`dataset_id`", dataset_id)
    try:
        # Minari accepts a namespace with an empty part, but does not list its datasets.
        namespace, _, _ = parse_dataset_id("" if "//" in dataset_id else dataset_id)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            "`dataset_id` must be a name with a version, optionally after a namespace, such as "
            f'"CartPole/noisy-v0"; got {dataset_id!r}'
        ) from None
    try:
        root, target = get_dataset_path(), get_dataset_path(dataset_id)
    except OSError as error:
        raise StorageError(f"cannot write Minari's datasets: {error}") from error
    parents = Path(namespace or "").parts
    if "data" in parents or any(
        (root.joinpath(*parents[:end]) / "data").exists() for end in range(1, len(parents) + 1)
    ):
        raise InvalidArgumentError(
            f"`dataset_id` must not have a namespace that is a dataset, or has a part `data`; got {dataset_id!r}"
        )
    if target.exists():
        raise InvalidArgumentError(
            f"`dataset_id`: the Minari dataset {dataset_id!r} exists; use another name or version, or delete it with "
            f"`minari.delete_dataset({dataset_id!r})`"
        )
    return namespace, target


def _checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as Minari expects it: authors and their addresses as sets."""
    if metadata is None:
        return {}
    _checks.instance_of("`metadata`", metadata, Mapping, "a mapping, such as a dict")
    checked = dict(metadata)
    for name, value in checked.items():
        what = f"`metadata`: `{name}`"
        if name not in _METADATA:
            raise InvalidArgumentError(f"`metadata` must have only names of {sorted(_METADATA)}; got {name!r}")
        if name in {"author", "author_email", "requirements"}:
            texts = [value] if isinstance(value, str) else _checks.elements(what, value, "a str, or an iterable of str")
            for each in texts:
                _checks.text(f"each of {what}", each)
            checked[name] = texts if name == "requirements" else set(texts)
        else:
            _checks.text(what, value)
    return checked
