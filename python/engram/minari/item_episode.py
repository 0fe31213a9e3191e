"""Converts an item of a table to an episode of a Minari dataset."""

import numpy as np
import numpy.typing as npt
from minari.data_collector import EpisodeBuffer

from engram import Nest, _engram
from engram._text import columns_text
from engram.batch import Sample
from engram.errors import SignatureError
from engram.minari.spaces import Spaces, check_name, check_numbers, checked_values

__all__ = ["check_same_columns", "columns_of", "episode_of"]

_COLUMNS = ("obs", "action", "reward", "terminated", "truncated")
"""Parts that an item must have."""

_OPTIONAL = ("valid", "extras")


def episode_of(sample: Sample, spaces: Spaces, *, truncate: bool) -> EpisodeBuffer:
    """Returns an item as an episode.

    Args:
        sample: The item.
        spaces: Spaces of the observations and the actions.
        truncate: True to make the last step truncated if it is neither terminated nor truncated.

    Raises:
        SignatureError: The item is not an episode, or does not fit the spaces.
    """
    data, what = sample.data, f"item {sample.info.key[0]}: "
    if not isinstance(data, dict) or not set(_COLUMNS) <= {*data} <= {*_COLUMNS, *_OPTIONAL}:
        raise SignatureError(
            f"{what}an episode must have {columns_text(_COLUMNS)}, as the Episodes of engram.gymnasium, and may have "
            f"`valid` and `extras`; got {columns_text(_engram.flatten(data)[1])}"
        )
    steps = _num_steps(data, what)
    terminated, truncated = (_flags(data[name][:steps], f"{what}`{name}`") for name in ("terminated", "truncated"))
    if (terminated | truncated)[:-1].any():
        raise SignatureError(
            f"{what}`terminated` and `truncated` must be False before the last step, which is {steps - 1}; got True at "
            f"step {(terminated | truncated).argmax()}: the item spans several episodes"
        )
    if not (terminated[-1] or truncated[-1]):
        if not truncate:
            raise SignatureError(
                f"{what}the last step of an episode must have `terminated` or `truncated` True; got False: the item is "
                'a part of an episode, or one that was abandoned; pass `unfinished="truncate"` to truncate it there'
            )
        truncated[-1] = True
    obs_space, action_space = spaces
    padding = len(data["reward"]) - steps
    return EpisodeBuffer(
        observations=checked_values(obs_space, _cut(data["obs"], padding), steps + 1, f"{what}`obs`"),
        actions=checked_values(action_space, _cut(data["action"], padding), steps, f"{what}`action`"),
        rewards=data["reward"][:steps],
        terminations=terminated,
        truncations=truncated,
        infos=_infos(_cut(data["extras"], padding), what) if "extras" in data else {},
    )


def columns_of(data: dict[str, Nest]) -> dict[str, str]:
    """Returns dtype and shape of the observations and actions of an item, by name of the column."""
    columns, names, _ = _engram.flatten({name: data[name] for name in ("obs", "action")})
    dtypes = ["text" if column.dtype == object else str(column.dtype) for column in columns]
    shapes = [list(column.shape[1:]) for column in columns]
    return {name: f"{dtype}{shape}" for name, dtype, shape in zip(names, dtypes, shapes, strict=True)}


def check_same_columns(key: int, columns: dict[str, str], first: dict[str, str]) -> None:
    """Checks that an item has the observations and actions of the first one: an environment's spaces do not change.

    Raises:
        SignatureError: It has others.
    """
    if columns == first:
        return
    if columns.keys() != first.keys():
        got, expected = columns_text(sorted(columns)), columns_text(sorted(first))
    else:
        name = next(name for name in columns if columns[name] != first[name])
        got, expected = f"column `{name}` {columns[name]}", first[name]
    raise SignatureError(
        f"item {key}: the episodes of a dataset must have the same observations and actions; got {got}, and in the "
        f"first item {expected}; write them to several datasets, with `keys`"
    )


def _num_steps(data: dict[str, Nest], what: str) -> int:
    """Returns the number of steps that are not padding."""
    reward = data["reward"]
    if not isinstance(reward, np.ndarray) or reward.ndim != 1:
        shape = list(getattr(reward, "shape", ()))
        raise SignatureError(f"{what}`reward` must have the shape [T], a number per step; got {shape}")
    check_numbers(f"{what}`reward`", reward)
    if reward.dtype.kind == "c":
        raise SignatureError(f"{what}`reward` must have real numbers; got {reward.dtype}")
    valid = _flags(data.get("valid", np.ones(len(reward), bool)), f"{what}`valid`")
    steps = int(valid.sum())
    if len(valid) != len(reward):
        raise SignatureError(f"{what}`valid` must have as many steps as `reward`, {len(reward)}; got {len(valid)}")
    if not steps or not valid[:steps].all():
        raise SignatureError(f"{what}`valid` must be True for the first steps, at least one, and False after them")
    return steps


def _flags(values: Nest, what: str) -> npt.NDArray[np.bool_]:
    """Returns a copy of flags `[T]`."""
    if not isinstance(values, np.ndarray) or values.dtype != bool or values.ndim != 1:
        got = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else type(values).__name__
        raise SignatureError(f"{what} must be bool[T]; got {got}")
    return values.copy()


def _cut(nest: Nest, padding: int) -> Nest:
    """Returns a nest without the last rows of its arrays."""
    columns, _, structure = _engram.flatten(nest)
    return _engram.unflatten(structure, [column[: len(column) - padding] for column in columns])


def _infos(extras: Nest, what: str) -> dict[str, Nest]:
    """Returns extras as infos, which have one more row: the first one, of zeros."""

    def with_first_row(nest: Nest, name: str) -> Nest:
        if isinstance(nest, dict):
            for key in nest:
                check_name(f"{what}`{name}`", key)
            return {key: with_first_row(each, f"{name}/{key}") for key, each in nest.items()}
        if isinstance(nest, tuple | list):
            got = f"a {type(nest).__name__}"
            raise SignatureError(f"{what}`{name}` must be an array of numbers, or a dict of such arrays; got {got}")
        check_numbers(f"{what}`{name}`", nest)
        return np.concatenate([np.zeros_like(nest[:1]), nest])

    infos = with_first_row(extras, "extras")
    return infos if isinstance(extras, dict) else {"extras": infos}
