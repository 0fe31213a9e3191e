"""Reads the last observations of episodes from the `info` of vector environments with same-step autoreset."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._casts import cast, is_same_kind
from engram._text import nest_text
from engram.buffers._steps import as_array
from engram.errors import EngramError, InvalidArgumentError

__all__ = ["check_structure", "final_observations"]

_SAME_STRUCTURE = '`info["final_obs"]` must have the structure of `obs`'


def final_observations(info: Nest, ended: Sequence[int], obs: Nest) -> list[npt.NDArray[Any]]:
    """Returns the last observations of the environments `ended`, from `info["final_obs"]`.

    Args:
        info: What `step` of the environments returned. `info["final_obs"]` is an array or a list of N objects, of which
            those of the environments in `ended` are observations, or a nest of arrays `[N, ...]`.
        ended: Indices of the environments whose episode ended, ascending.
        obs: The observations that `step` returned, a nest of arrays `[N, ...]`.

    Returns:
        For each column of `obs`, an array `[len(ended), ...]` of its dtype, in C order.

    Raises:
        InvalidArgumentError: A last observation is missing, differs from `obs` in structure, kind of dtype or shape, or
            has a value that the dtype cannot hold; or there is not one per environment.
        SignatureError: A last observation has no numbers, or is a masked array.
    """
    final = info.get("final_obs") if isinstance(info, Mapping) else None
    if final is None:
        raise InvalidArgumentError(
            f'`info` must have "final_obs", the last observations of the episodes that ended (environment {ended[0]}), '
            "because `autoreset_mode` is SAME_STEP; pass the `info` that `step` returned, or create the writer with "
            "the `autoreset_mode` of the environments"
        )
    mask = info.get("_final_obs")
    columns, names, structure = _engram.flatten(obs)
    num_envs = len(columns[0]) if columns else 0
    missing = []
    if mask is not None:
        _check_length("_final_obs", mask, num_envs)
        missing = [env for env in ended if not mask[env]]
    is_list = isinstance(final, list | tuple | deque) and _engram.flatten(final)[2] != structure
    if is_list or (isinstance(final, np.ndarray) and final.dtype == object):
        # One observation per environment; those of the other environments are None.
        _check_length("final_obs", final, num_envs)
        nests = [final[env] for env in ended]
        missing += [env for env, nest in zip(ended, nests, strict=True) if nest is None]
        if missing:
            raise _missing(missing[0])
        flat = [_engram.flatten(nest) for nest in nests]
        for _, _, other in flat:
            check_structure(other, structure, _SAME_STRUCTURE, InvalidArgumentError)
        rows: list[Any] = [list(column) for column in zip(*(leaves for leaves, _, _ in flat), strict=True)]
    else:
        if missing:
            raise _missing(missing[0])
        leaves, _, other = _engram.flatten(final)
        check_structure(other, structure, _SAME_STRUCTURE, InvalidArgumentError)
        arrays = [as_array(leaf, _column(name)) for leaf, name in zip(leaves, names, strict=True)]
        for array in arrays:
            _check_length("final_obs", array, num_envs)
        rows = [array[list(ended)] for array in arrays]
    return [
        _stack([as_array(row, _column(name)) for row in last_rows], np.asarray(column), _column(name))
        for column, last_rows, name in zip(columns, rows, names, strict=True)
    ]


def _column(name: str) -> str:
    return f"obs/{name}" if name else "obs"


def _stack(rows: list[npt.NDArray[Any]], like: npt.NDArray[Any], column: str) -> npt.NDArray[Any]:
    """Returns the rows of a column in the dtype of `like`, in C order."""
    last = np.empty((len(rows), *like.shape[1:]), like.dtype)
    for index, row in enumerate(rows):
        if row.shape != last.shape[1:] or not is_same_kind(row.dtype, like.dtype):
            raise InvalidArgumentError(
                f'`info["final_obs"]` must have {like.dtype}{list(like.shape[1:])} per environment, as column '
                f"`{column}` has; got {row.dtype}{list(row.shape)}"
            )
        last[index] = cast(row, like.dtype, f'`info["final_obs"]`: column `{column}` has', InvalidArgumentError)
    return last


def _check_length(key: str, values: Any, num_envs: int) -> None:  # noqa: ANN401, what an environment returned
    """Checks that an entry of `info` has one element per environment."""
    try:
        given = str(len(values))
    except TypeError:
        given = _checks.short_repr(values)
    if given == str(num_envs):
        return
    raise InvalidArgumentError(
        f'`info["{key}"]` must have one element for each of the {num_envs} environments; got {given}; pass the `info` '
        "that `step` returned"
    )


def check_structure(given: str, expected: str, rule: str, error: type[EngramError]) -> None:
    """Raises `error` if two structures, as `flatten` returns them, differ. `rule` begins its text."""
    if given != expected:
        got, wanted = (
            nest_text(partial(_engram.unflatten, each), len(_engram.names(each))) for each in (given, expected)
        )
        raise error(f"{rule}; got {got}, expected {wanted}, where * is an array")


def _missing(env: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f'`info["final_obs"]` has no observation of environment {env}, whose episode ended in this step; pass the '
        "`info` that `step` returned"
    )
