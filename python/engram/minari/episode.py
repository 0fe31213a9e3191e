"""Converts episodes of Minari's datasets to columns, after checking their lengths and flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import minari
import numpy as np
import numpy.typing as npt

from engram import Nest, _engram
from engram._text import column_text, columns_text, counted
from engram.errors import SignatureError

__all__ = ["Columns", "Episode"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a nest over time.

    Attributes:
        arrays: `[T, ...]` each.
        structure: The nest, as the engine encodes it.
    """

    arrays: list[npt.NDArray[Any]]
    structure: str

    @classmethod
    def of(cls, nest: Nest, length: int, what: str) -> "Columns":
        """Returns the columns of a nest, which `what` names in errors, after checking that they have `length` rows."""
        arrays, names, structure = _engram.flatten(_with_arrays(nest))
        for array, name in zip(arrays, names, strict=True):
            if array.ndim == 0 or len(array) != length:
                raise SignatureError(
                    f"{what} must have {counted(length, 'row')}; got shape {list(array.shape)} of {column_text(name)}"
                )
        return cls(arrays, structure)

    def row(self, index: int) -> Nest:
        """Returns the nest of arrays `[1, ...]` with one row."""
        return _engram.unflatten(self.structure, [array[index : index + 1] for array in self.arrays])


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode of T steps.

    Attributes:
        obs: `[T + 1, ...]`.
        actions: `[T, ...]`.
        rewards: `[T]`.
        terminated: bool `[T]`.
        truncated: bool `[T]`.
        extras: `[T, ...]`: the infos that the steps returned; None if infos are not used.
    """

    obs: Columns
    actions: Columns
    rewards: npt.NDArray[Any]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    extras: Columns | None

    @classmethod
    def of(cls, data: minari.EpisodeData, infos: Sequence[str] | None) -> "Episode":
        """Returns an episode of a dataset.

        Args:
            data: The episode.
            infos: Names of the infos that become extras. None: all of them.

        Raises:
            SignatureError: Arrays differ in length, the episode ends before its last step, or an info is missing.
        """
        what = f"episode {data.id}: "
        length = len(data.rewards)
        rewards, terminated, truncated = (
            Columns.of(each, length, f"{what}`{name}`").arrays[0].reshape(length)
            for name, each in [
                ("rewards", data.rewards),
                ("terminations", data.terminations),
                ("truncations", data.truncations),
            ]
        )
        ended = terminated[:-1] | truncated[:-1]
        if ended.any():
            raise SignatureError(
                f"{what}`terminations` and `truncations` must be False before the last step, which is {length - 1}; "
                f"got True at step {ended.argmax()}; split it into several episodes"
            )
        extras = None
        if infos is None or infos:
            extras = Columns.of(_selected(data.infos, infos, what), length + 1, f"{what}`infos`")
            extras = Columns([array[1:] for array in extras.arrays], extras.structure)
        return cls(
            Columns.of(data.observations, length + 1, f"{what}`observations`"),
            Columns.of(data.actions, length, f"{what}`actions`"),
            rewards,
            terminated,
            truncated,
            extras,
        )

    def __len__(self) -> int:
        return len(self.rewards)

    def columns(self) -> list[tuple[str, list[tuple[str, tuple[int, ...]]]]]:
        """Returns the structure, dtypes and shapes of observations, actions and extras."""
        parts = [self.obs, self.actions, *([] if self.extras is None else [self.extras])]
        return [(part.structure, [(str(array.dtype), array.shape[1:]) for array in part.arrays]) for part in parts]

    @property
    def has_ended(self) -> bool:
        """True if the last step has ended the episode."""
        return bool(self.terminated[-1] or self.truncated[-1])


def _selected(infos: Nest, names: Sequence[str] | None, what: str) -> Nest:
    """Returns the infos of these names; all for None."""
    infos = infos or {}
    if names is None:
        if not infos:
            raise SignatureError(f"{what}`infos` must have an entry; got none; leave out the argument `infos`")
        return infos
    missing = [name for name in names if name not in infos]
    if missing:
        raise SignatureError(f"{what}`infos` must have `{missing[0]}`; got {columns_text(sorted(infos))}")
    return {name: infos[name] for name in names}


def _with_arrays(nest: Nest) -> Nest:
    """Returns a nest whose leaves are arrays. Text is a list in Minari's nests, so lists become arrays too."""
    if isinstance(nest, dict):
        return {name: _with_arrays(each) for name, each in nest.items()}
    if isinstance(nest, tuple):
        return tuple(map(_with_arrays, nest))
    if isinstance(nest, list):
        return np.array(nest, object)
    return np.asarray(nest)
