"""Creates the items of a table from the episodes of a Minari dataset."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import minari

from engram import _checks
from engram._progress import progress_bar
from engram._text import dropped_items_text
from engram.errors import EngramError, InvalidArgumentError, StorageError
from engram.gymnasium.items import Items
from engram.gymnasium.vector_writer import VectorWriter
from engram.minari.episode import Episode
from engram.table_store import TableStore

__all__ = ["read_minari"]


def read_minari(
    store: TableStore,
    dataset: str | minari.MinariDataset,
    items: Sequence[Items],
    *,
    infos: bool | Iterable[str] = False,
    progress: bool = False,
    timeout: float | None = None,
) -> int:
    """Creates items from all episodes of a Minari dataset, as a `VectorWriter` does from the same steps.

        read_minari(store, "CartPole/noisy-v0", [Transitions("replay", n_step=3, discount=0.99)])

    The last observation of each episode is that of the dataset, and termination stays apart from truncation. An episode
    that has ended with neither is treated as one that was abandoned: see `VectorWriter.reset`. Rewards are stored as
    float32. Text is not supported. One episode at a time is in memory.

    Args:
        store: A `Store` or a `Client`.
        dataset: Id of a dataset on this machine, or a dataset, for example with the result of `filter_episodes`.
        items: `Transitions`, `Sequences` and `Episodes` of `engram.gymnasium` to create; at least one.
        infos: Names of the infos that become the items' `extras`; True for all of them. The extras of a step are the
            info that this step returned. The info that `reset` returned is not stored.
        progress: True for a progress bar on stderr, if that is a terminal, or in a notebook.
        timeout: As in `engram.WriterOptions`, in seconds.

    Returns:
        Number of episodes read.

    Raises:
        SignatureError: An episode has arrays of different lengths, has ended before its last step or lacks an info, or
            its items do not match the table's signature. The items of earlier episodes stay in the table, and so may
            some of this one.
        StorageError: The dataset cannot be read.
        InvalidArgumentError: An argument is invalid, or there is no dataset of this id on this machine.
        BackpressureError, DeadlineExceededError: A table did not accept items in time.
        UnsatisfiableError: An item is larger than a table's `max_bytes`.
        PriorityError: A table rejects the priority of its items.
        UnknownTableError: There is no table of this name.
        ClosedError: The store was closed, or a table dropped.
    """
    _checks.instance_of("`store`", store, TableStore, "an engram.Store or an engram.Client")
    if isinstance(infos, bool):
        names: list[str] | None = None if infos else []
    else:
        names = _checks.elements("`infos`", infos, "True, False or a sequence of names")
    _checks.boolean("`progress`", progress)
    dataset = _loaded(dataset)
    total = int(dataset.total_episodes)

    def new_writer() -> VectorWriter:
        writer = VectorWriter(store, 1, items, autoreset_mode="DISABLED", timeout=timeout)
        writer._nests.lists_are_columns = True  # noqa: SLF001, of a tuple space with one element
        return writer

    new_writer().close()  # checks the arguments
    with (
        progress_bar(f"reading {dataset.id}", total, show=progress) as advance,
        _naming_dataset(dataset.id),
    ):
        # The steps of a writer have the same columns; the infos of a dataset can differ.
        for _, episodes in itertools.groupby(_episodes(dataset, names, advance), lambda each: each[1].columns()):
            with _closing_or_dropping(new_writer()) as writer:
                for number, episode in episodes:
                    _write(writer, episode, number)
                writer.flush(timeout)
    return total


def _episodes(
    dataset: minari.MinariDataset, names: list[str] | None, advance: Callable[[int], object]
) -> Iterator[tuple[int, Episode]]:
    """Yields id and content of each episode with steps. Calls `advance` after each episode."""
    episodes = iter(dataset.iterate_episodes())
    while True:
        try:
            data = next(episodes, None)
            if data is None:
                return
            episode = Episode.of(data, names) if len(data.rewards) else None
        except EngramError:
            raise
        # Those of h5py and Minari.
        except (KeyError, OSError, AssertionError, AttributeError, TypeError, ValueError) as error:
            raise StorageError(f"it cannot be read: {error}") from error
        if episode is not None:
            yield int(data.id), episode
        advance(1)


def _write(writer: VectorWriter, episode: Episode, number: int) -> None:
    """Writes all steps of an episode."""
    obs, actions, rewards, extras = episode.obs, episode.actions, episode.rewards, episode.extras
    terminated, truncated = episode.terminated, episode.truncated
    try:
        writer.reset(obs.row(0))
        for step in range(len(episode)):
            row = slice(step, step + 1)
            writer.step(
                actions.row(step),
                obs.row(step + 1),
                rewards[row],
                terminated[row],
                truncated[row],
                extras=None if extras is None else extras.row(step),
            )
        if not episode.has_ended:
            writer.reset(obs.row(len(episode)))  # abandons it, so that its last items are created
    except EngramError as error:
        raise type(error)(f"episode {number}: {error}") from error


def _loaded(dataset: str | minari.MinariDataset) -> minari.MinariDataset:
    """Returns a dataset, given itself or its id."""
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str):
        raise InvalidArgumentError(
            '`dataset` must be the id of a Minari dataset, such as "CartPole/noisy-v0", or a minari.MinariDataset; got '
            f"{_checks.short_repr(dataset)}"
        )
    try:
        return minari.load_dataset(dataset)
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            f"`dataset`: there is no Minari dataset {dataset!r} on this machine; download it with "
            f"`minari.download_dataset({dataset!r})`, or create it ({error})"
        ) from None
    except (ValueError, KeyError, OSError, ImportError, AssertionError) as error:
        raise StorageError(f"the Minari dataset {dataset!r}: it cannot be read: {error}") from error


@contextmanager
def _closing_or_dropping(writer: VectorWriter) -> Iterator[VectorWriter]:
    """Closes the writer at the end of the `with` block. After an error, items that wait for their table are dropped."""
    try:
        with writer:
            yield writer
    except BaseException:
        # Without the native writer, there is no warning about pending items, and they are dropped even if the error's
        # traceback keeps this writer.
        vars(writer).clear()
        raise


@contextmanager
def _naming_dataset(dataset: str) -> Iterator[None]:
    """Names the dataset in errors of the `with` block, and states that items that waited were dropped."""
    try:
        yield
    except EngramError as error:
        raise type(error)(f"the Minari dataset {dataset!r}: {dropped_items_text(str(error))}") from error
