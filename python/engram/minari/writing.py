"""Writes a table of episodes as a Minari dataset."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium
import minari
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.namespace import create_namespace, list_local_namespaces
from minari.storage.datasets_root_dir import get_dataset_path

from engram import Nest, _checks, _engram
from engram._complete_output import complete_output
from engram._progress import progress_bar
from engram.errors import InvalidArgumentError, SignatureError
from engram.minari.item_episode import episode_of
from engram.minari.spaces import checked_spaces
from engram.scan import Order
from engram.table_store import TableStore

__all__ = ["write_minari"]

_METADATA = {"algorithm_name", "author", "author_email", "code_permalink", "description", "requirements"}
"""Names that `metadata` may have."""

_STEPS_PER_WRITE = 10_000
_BYTES_PER_WRITE = 64 << 20
"""Number of steps, or of bytes, after which the collected episodes are written: each write opens the dataset's file."""


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
        SignatureError: An item is not an episode, or does not fit the spaces. Nothing is written.
        StorageError: The dataset cannot be written. Nothing is written.
        InvalidArgumentError: An argument is invalid, the dataset exists, or the environment does not.
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
        store.scan(table, batch_size=None, keys=keys, order=order) as scan,
        complete_output(target, is_directory=True, folder=get_dataset_path()) as folder,
        progress_bar(f"writing {dataset_id}", scan.num_items, show=progress) as advance,
    ):
        storage = MinariStorage.new(folder / "data", *spaces, spec, jpeg_encoding=False)
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__, **checked_metadata})
        episodes: list[EpisodeBuffer] = []
        num_steps = num_bytes = 0  # of `episodes`
        for sample in scan:
            episodes.append(episode_of(sample, spaces, truncate=unfinished == "truncate"))
            num_steps += len(episodes[-1])
            num_bytes += _num_bytes(sample.data)
            if num_steps >= _STEPS_PER_WRITE or num_bytes >= _BYTES_PER_WRITE:
                _write(storage, episodes)
                episodes.clear()
                num_steps = num_bytes = 0
            advance(1)
        _write(storage, episodes)
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
    return minari.load_dataset(dataset_id)


def _num_bytes(nest: Nest) -> int:
    """Returns the size of a nest of arrays in memory."""
    columns = _engram.flatten(nest)[0]
    texts = sum(sum(map(sys.getsizeof, column.flat)) for column in columns if column.dtype == object)
    return texts + sum(int(column.nbytes) for column in columns)


def _write(storage: MinariStorage, episodes: list[EpisodeBuffer]) -> None:
    """Appends episodes to a dataset."""
    try:
        storage.update_episodes(episodes)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"the episodes have values that HDF5 does not support: {error}") from error


def _target(dataset_id: str) -> tuple[str | None, Path]:
    """Returns the namespace and the directory of a dataset, which does not exist yet."""
    _checks.text("`dataset_id`", dataset_id)
    try:
        namespace, _, _ = parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            "`dataset_id` must be a name with a version, optionally after a namespace, such as "
            f'"CartPole/noisy-v0"; got {dataset_id!r}'
        ) from None
    target = get_dataset_path(dataset_id)
    if target.exists():
        raise InvalidArgumentError(
            f"`dataset_id`: the Minari dataset {dataset_id!r} exists; use another name or version, or delete it with "
            f"`minari.delete_dataset({dataset_id!r})`"
        )
    return namespace, target


def _checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as Minari expects it: authors and their addresses as sets."""
    checked = dict(metadata or {})
    for name, value in checked.items():
        if name not in _METADATA:
            raise InvalidArgumentError(f"`metadata` must have only names of {sorted(_METADATA)}; got {name!r}")
        if name in {"author", "author_email"}:
            checked[name] = {value} if isinstance(value, str) else set(value)
        elif name == "requirements":
            checked[name] = list(value)
        else:
            _checks.text(f"`metadata`: `{name}`", value)
    return checked
