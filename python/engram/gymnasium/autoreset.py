"""What vector environments state: their number and their autoreset mode."""

from typing import Any, TypeAlias

import numpy as np

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["AutoresetMode", "VectorEnvs", "autoreset_mode_of", "check_unpacked", "num_envs_of"]

VectorEnvs: TypeAlias = Any
"""A `gymnasium.vector.VectorEnv`, or the number of environments."""

AutoresetMode: TypeAlias = Any
"""A `gymnasium.vector.AutoresetMode`, or its name."""

_MODES = {"NextStep": "NEXT_STEP", "SameStep": "SAME_STEP", "Disabled": "DISABLED"}
"""The modes of `gymnasium.vector.AutoresetMode`: names by value."""


def num_envs_of(envs: VectorEnvs) -> int:
    """Returns the number of environments of a vector environment, or the number that was given instead."""
    if not hasattr(envs, "num_envs") and not hasattr(envs, "__index__"):
        raise InvalidArgumentError(
            "`envs` must be a vector environment, such as gymnasium.make_vec(...), or the number of environments; got "
            f"{_checks.short_repr(envs)}"
        )
    return _checks.integer("`envs`", getattr(envs, "num_envs", envs), high=_checks.MAX_I32)


def autoreset_mode_of(envs: VectorEnvs, given: AutoresetMode | None) -> str:
    """Returns the name of the autoreset mode that was given, or else that of the environments."""
    declared = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    if given is None and declared is None:
        raise InvalidArgumentError(
            '`autoreset_mode` must be given, because `envs` has no metadata["autoreset_mode"]: "NEXT_STEP", '
            '"SAME_STEP" or "DISABLED", as the environments were created with'
        )
    name = _mode_name(declared if given is None else given)
    if declared is not None and name != _mode_name(declared):
        raise InvalidArgumentError(
            f"`autoreset_mode` must be that of `envs`, {_mode_name(declared)}; got {name}; leave it out"
        )
    return name


def _mode_name(mode: AutoresetMode) -> str:
    value = getattr(mode, "value", mode)  # that of a gymnasium.vector.AutoresetMode
    if isinstance(value, str):
        name = _MODES.get(value, value)
        if name in _MODES.values():
            return name
    raise InvalidArgumentError(
        '`autoreset_mode` must be a gymnasium.vector.AutoresetMode, "NEXT_STEP", "SAME_STEP" or "DISABLED"; got '
        f"{_checks.short_repr(mode)}"
    )


def check_unpacked(obs: object, info: object) -> None:
    """Checks that the observations are not the pair of observations and info that `reset` of the environments returns.

    An empty dict, or a dict with a mask `_key` for a `key`, is an info and not an observation.
    """
    if info is None and type(obs) is tuple and len(obs) == 2 and isinstance(obs[1], dict):  # noqa: PLR2004, a pair
        masks = (obs[1].get(f"_{name}") for name in obs[1])
        if not obs[1] or any(isinstance(mask, np.ndarray) and mask.dtype == np.bool_ for mask in masks):
            raise InvalidArgumentError(
                "`obs` must be observations; got a pair of observations and info, as `reset` of the environments "
                "returns; unpack it: `writer.reset(*envs.reset())`"
            )
