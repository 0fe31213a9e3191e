"""Stacks lists of one nest per environment, which some vector environments return, into one nest of arrays."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from engram import Nest, _checks
from engram._nest_checks import check_equal_lists, check_number_lists, children_of, env_list_kind, has_doubtful_list
from engram.buffers._steps import as_array
from engram.errors import InvalidArgumentError, SignatureError
from engram.gymnasium.autoreset import VectorEnvs
from engram.gymnasium.items import space_specs

__all__ = ["EnvNests"]

_SPACES = {"obs": "single_observation_space", "action": "single_action_space"}


class EnvNests:
    """What the arguments of a vector writer consist of: nests of arrays `[N, ...]`, or lists of `N` nests.

    If one of their lists or tuples has `N` elements, these are environments or columns; the spaces of the environments
    decide, or a signature.

    Args:
        envs: The vector environment, or the number of environments.
        num_envs: Their number, `N`.
        declared: Returns the specs of one environment's part of an argument, as a signature declares them, or None.

    Attributes:
        lists_are_columns: True if no list or tuple has environments as its elements.
    """

    def __init__(self, envs: VectorEnvs, num_envs: int, declared: Callable[[str], Nest | None]) -> None:
        self._envs, self._num_envs, self._declared = envs, num_envs, declared
        self.lists_are_columns = False

    def stacked(self, name: str, nest: Nest) -> Nest:
        """Returns an argument in which lists of one nest per environment are stacked, if it has any.

        Args:
            name: `"obs"`, `"action"` or `"extras"`.
            nest: The argument.

        Raises:
            SignatureError: The argument has a list, and is neither a nest of arrays as the spaces or a signature
                describe it, nor one with lists of one nest per environment; or there are neither spaces nor a
                signature, and it is unclear what the list is.
        """
        if self.lists_are_columns or nest is None or isinstance(nest, np.ndarray):
            return nest
        if not has_doubtful_list(nest, self._num_envs):
            return nest
        specs, source = self._specs(name)
        if specs is None:
            check_number_lists({name: nest})  # a better error
            if (kind := env_list_kind(nest, self._num_envs)) is not None:
                raise SignatureError(
                    f"`{name}` has a {kind} of {self._num_envs} elements, the number of environments, so it "
                    f"is unclear whether each is an environment; stack them into one nest of arrays [{self._num_envs}, "
                    "...], as with numpy.stack, or create the writer with the vector environment as `envs`, whose "
                    "spaces decide; a `signature` decides too"
                )
            check_equal_lists({name: nest}, "environment")
            return nest
        try:
            return self._stacked(nest, specs, name)
        except _Mismatch as mismatch:
            raise SignatureError(
                f"`{name}` has a list or tuple whose elements could be environments or columns, so it must fit "
                f"{source}: one nest of arrays [{self._num_envs}, ...], or {self._num_envs} nests; {mismatch}"
            ) from None

    def _specs(self, name: str) -> tuple[Nest | None, str]:
        """Returns the specs of one environment's part of an argument, and where they are from; None without."""
        space = getattr(self._envs, _SPACES.get(name, ""), None)
        if space is not None:
            try:
                return space_specs(space), f"`envs.{_SPACES[name]}`"
            except InvalidArgumentError:  # a space without a fixed shape
                pass
        return self._declared(name), "the signature"

    def _stacked(self, nest: Nest, specs: Nest, path: str) -> Nest:
        children = children_of(specs)
        if _is_sequence(nest) and len(nest) == self._num_envs and all(_fits(each, specs, path) for each in nest):
            # Lists of environments as the parts of a tuple: only the types of a list of tuples rule them out.
            is_clear = type(nest) is not type(specs) and all(type(each) is type(specs) for each in nest)
            if children is not None and not is_clear and self._has_parts(nest, children, path):
                raise _Unclear(
                    f"`{path}` fits as {self._num_envs} nests and as lists of environments in a nest; stack "
                    "these lists into arrays, as with numpy.stack"
                )
            return _stack(nest, specs)
        if children is None:
            if children_of(nest) is not None:
                raise _Mismatch(f"got {_checks.short_repr(nest)} for `{path}`")
            return nest
        parts = children_of(nest)
        if parts is None or parts.keys() != children.keys():
            raise _Mismatch(f"got {_checks.short_repr(nest)} for `{path}`")
        return _with_children(nest, {key: self._stacked(parts[key], children[key], f"{path}/{key}") for key in parts})

    def _has_parts(self, nest: Nest, children: dict[Any, Any], path: str) -> bool:
        """True if the elements of a list or tuple also fit as the parts that these are the specs of."""
        parts = children_of(nest) or {}
        try:
            return parts.keys() == children.keys() and all(
                self._stacked(parts[key], children[key], f"{path}/{key}") is not None for key in parts
            )
        except _Mismatch as mismatch:
            return isinstance(mismatch, _Unclear)


class _Mismatch(Exception):  # noqa: N818, becomes another error
    """A nest does not fit specs."""


class _Unclear(_Mismatch):
    """A nest fits specs in two ways."""


def _is_sequence(nest: Nest) -> bool:
    """True for a list, tuple or deque whose elements could be environments."""
    return isinstance(nest, list | tuple | deque) and not hasattr(nest, "_fields")


def _with_children(nest: Nest, children: dict[Any, Any]) -> Nest:
    """Returns a nest like this one with other children; a dict for a node of a registered type."""
    if hasattr(nest, "_fields"):
        return type(nest)(*children.values())
    return type(nest)(children.values()) if isinstance(nest, list | tuple | deque) else children


def _fits(nest: Nest, specs: Nest, path: str) -> bool:
    """True if a nest is one environment's part."""
    children, parts = children_of(specs), children_of(nest)
    if children is None:
        shape = as_array(nest, path).shape if parts is None else None
        return shape is not None and len(shape) == len(specs.shape) and all(map(_size_fits, shape, specs.shape))
    if parts is None or parts.keys() != children.keys():
        return False
    return all(_fits(parts[key], children[key], f"{path}/{key}") for key in children)


def _size_fits(size: int, expected: int | None) -> bool:
    return expected is None or size == expected


def _stack(nests: Nest, specs: Nest) -> Nest:
    """Returns one nest of arrays `[N, ...]` of `N` nests, with the containers of the first."""
    children = children_of(specs)
    if children is None:
        return np.stack([np.asarray(nest) for nest in nests])
    all_parts = [children_of(nest) or {} for nest in nests]
    stacked = {key: _stack([parts[key] for parts in all_parts], children[key]) for key in children}
    return _with_children(nests[0], stacked)
