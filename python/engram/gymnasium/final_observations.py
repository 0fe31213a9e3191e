"""Reads the last observations of episodes from the `info` of vector environments with same-step autoreset."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._text import nest_text
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
        InvalidArgumentError: A last observation is missing, or differs from `obs` in structure, dtype or shape.
    """
    final = info.get("final_obs") if isinstance(info, Mapping) else None
    if final is None:
        raise InvalidArgumentError(
            f'`info` must have "final_obs", the last observations of the episodes that ended (environment {ended[0]}), '
            "because `autoreset_mode` is SAME_STEP; pass the `info` that `step` returned, or create the writer with "
            "the `autoreset_mode` of the environments"
        )
    mask = info.get("_final_obs")
    missing = [] if mask is None else [env for env in ended if not mask[env]]
    columns, names, structure = _engram.flatten(obs)
    is_list = isinstance(final, list | tuple) and _engram.flatten(final)[2] != structure
    if is_list or (isinstance(final, np.ndarray) and final.dtype == object):
        # One observation per environment; those of the other environments are None.
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
        rows = [np.asanyarray(leaf)[list(ended)] for leaf in leaves]
    last: list[npt.NDArray[Any]] = []
    for column, last_rows, name in zip(columns, rows, names, strict=True):
        for row in last_rows:
            _checks.column_not_masked(f"obs/{name}" if name else "obs", row)
        like = np.asarray(column)
        try:
            # Casts like Gymnasium, which copies the observations of all environments into one array.
            last.append(np.stack(last_rows, out=np.empty((len(ended), *like.shape[1:]), like.dtype)))
        except (TypeError, ValueError) as error:
            column_text = f"column `obs/{name}`" if name else "`obs`"
            raise InvalidArgumentError(
                f'`info["final_obs"]` must have {like.dtype}{list(like.shape[1:])} per environment, as {column_text} '
                f"has: {error}"
            ) from None
    return last


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
