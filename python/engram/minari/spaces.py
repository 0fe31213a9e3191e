"""The spaces of a Minari dataset."""

from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Dict, Text, Tuple
from minari.serialization import deserialize_space, serialize_space

from engram import Nest, _checks
from engram._text import columns_text, counted
from engram.errors import InvalidArgumentError, SignatureError

__all__ = ["Env", "Spaces", "check_name", "check_numbers", "checked_spaces", "checked_values"]

Env: TypeAlias = str | EnvSpec | gymnasium.Env[Any, Any]
"""An environment, its id, or its specification."""

Spaces: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""The spaces of the observations and the actions."""


def checked_spaces(
    env: Env | None, observation_space: gymnasium.Space[Any] | None, action_space: gymnasium.Space[Any] | None
) -> tuple[EnvSpec | None, Spaces]:
    """Returns the specification of an environment, if it has one, and the spaces that were given, or else its own."""
    spec = None
    if env is not None:
        spec, (own_observation_space, own_action_space) = _of_environment(env)
        observation_space = own_observation_space if observation_space is None else observation_space
        action_space = own_action_space if action_space is None else action_space
    if spec is not None:
        try:
            spec.to_json()
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"`env`: Minari cannot store how to create the environment: {str(error).rstrip('.')}; pass "
                "`observation_space` and `action_space` instead, or register it with text as `entry_point` and JSON "
                "values as `kwargs`"
            ) from None
    return spec, (_checked("`observation_space`", observation_space), _checked("`action_space`", action_space))


def _checked(what: str, space: object) -> gymnasium.Space[Any]:
    """Returns a space, after checking it."""
    if not isinstance(space, gymnasium.Space):
        raise InvalidArgumentError(
            f"{what} must be a gymnasium.Space, or `env` an environment with one; got {_checks.short_repr(space)}"
        )
    try:
        _check_names(what, space)
        restored = deserialize_space(serialize_space(space))
    except SignatureError as error:
        raise InvalidArgumentError(str(error)) from None
    except (NotImplementedError, TypeError, ValueError, AssertionError) as error:
        raise InvalidArgumentError(
            f"{what} must be a space that Minari stores: Box, Discrete, MultiBinary, MultiDiscrete, Text, or Dict or "
            f"Tuple of them, without arrays of size 0; got {_checks.short_repr(space)} ({error})"
        ) from None
    if restored != space:
        raise InvalidArgumentError(
            f"{what} must be a space that Minari stores as it is; got {_checks.short_repr(space)}, which it would read "
            f"as {_checks.short_repr(restored)}; pass that one, or an equal one"
        )
    return space


def _check_names(what: str, space: gymnasium.Space[Any]) -> None:
    """Checks the names in a space."""
    if isinstance(space, Dict):
        for name, part in space.spaces.items():
            check_name(what, name)
            _check_names(f"{what}/{name}", part)
    elif isinstance(space, Tuple):
        for number, part in enumerate(space.spaces):
            _check_names(f"{what}/{number}", part)


def check_name(what: str, name: object) -> None:
    """Checks a name in a nest, which `what` names in errors: HDF5 gives some names another meaning."""
    if not isinstance(name, str) or name in ("", ".") or "/" in name or "\0" in name:
        raise SignatureError(
            f"{what} must have names that are text, not empty or `.`, and without `/` and NUL, which HDF5 does not "
            f"store as they are; got {name!r}; rename it"
        )


def _of_environment(env: Env) -> tuple[EnvSpec | None, Spaces]:
    """Returns the specification and the spaces of an environment."""
    if isinstance(env, gymnasium.Env):
        return env.spec, (env.observation_space, env.action_space)
    if not isinstance(env, str | EnvSpec):
        raise InvalidArgumentError(
            "`env` must be a gymnasium.Env, its id or its spec; for a vector environment, pass the id of the single "
            f"one; got {_checks.short_repr(env)}"
        )
    try:
        made = gymnasium.make(env)
    except gymnasium.error.Error as error:
        raise InvalidArgumentError(f"`env`: the environment cannot be created: {error}") from error
    made.close()
    return made.spec, (made.observation_space, made.action_space)


def checked_values(space: gymnasium.Space[Any], values: Nest, length: int, what: str) -> Nest:
    """Returns values of a space, after checking that their nest and shapes are those of the space.

    Args:
        space: The space of a single value.
        values: Nest of arrays.
        length: The number of values.
        what: Name of the nest in errors.

    Raises:
        SignatureError: The nest is not that of the space, or arrays differ from it in shape, or in length, or have
            values that HDF5 does not store as they are.
    """
    if isinstance(space, Dict):
        if not isinstance(values, dict) or sorted(values) != sorted(space.spaces):
            raise SignatureError(
                f"{what} must be a dict of {columns_text(sorted(space.spaces))}, as its space is; got {_kind(values)}"
            )
        return {
            name: checked_values(part, values[name], length, f"{what}/{name}") for name, part in space.spaces.items()
        }
    if isinstance(space, Tuple):
        if not isinstance(values, tuple) or len(values) != len(space.spaces):
            raise SignatureError(
                f"{what} must be a tuple of {len(space.spaces)} parts, as its space is; got {_kind(values)}"
            )
        parts = enumerate(zip(space.spaces, values, strict=True))
        return tuple(checked_values(part, each, length, f"{what}/{number}") for number, (part, each) in parts)
    shape = (length, *(space.shape or ()))
    if not isinstance(values, np.ndarray) or values.shape != shape:
        of_space = f"{counted(length, 'value')} of shape {list(shape[1:])}, as its space has"
        raise SignatureError(f"{what} must have the shape {list(shape)}: {of_space}; got {_kind(values)}")
    if not isinstance(space, Text):
        check_numbers(what, values)
    elif not all(isinstance(each, str) and "\0" not in each for each in values.flat):
        raise SignatureError(f"{what} must be text without NUL, as its space is; got {_kind(values)}")
    return values


def check_numbers(what: str, values: Nest) -> None:
    """Checks that values are an array of numbers that HDF5 stores as they are."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufc" or values.dtype.isbuiltin != 1:
        raise SignatureError(
            f"{what} must be an array of bools, integers, floats or complex numbers, and not of bfloat16 or float8, "
            f"which HDF5 does not have; got {_kind(values)}"
        )


def _kind(values: Nest) -> str:
    """Returns what a nest is, for an error text."""
    if isinstance(values, np.ndarray):
        dtype = "text or bytes" if values.dtype == object else values.dtype
        return f"{dtype}{list(values.shape)}"
    if not isinstance(values, dict | tuple | list):
        return f"a {type(values).__name__}"
    if isinstance(values, dict):
        return f"a dict of {columns_text(sorted(map(str, values)))}"
    return f"a {type(values).__name__} of {len(values)} parts"
