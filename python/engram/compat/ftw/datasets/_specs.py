"""Specs of the elements of a dataset, from an environment's specs or from the table's signature."""

from typing import Any, NamedTuple

import numpy as np

from engram import Nest, TableInfo
from engram.adders.step import Step
from engram.compat.ftw.specs import EnvironmentSpecLike
from engram.compat.reverb import _nest, _table_note
from engram.compat.reverb._table_info import signature_of
from engram.compat.reverb.tensor_spec import TensorSpec

__all__ = ["ElementSpecs", "from_environment", "from_signature", "sequence_specs"]


class ElementSpecs(NamedTuple):
    """A nest of specs of an element's data, and for each leaf: whether it belongs to the recurrent state."""

    nest: Any
    is_state: list[bool]


def from_environment(
    environment_spec: EnvironmentSpecLike,
    extra_spec: Nest,
    *,
    transition_adder: bool,
    using_deprecated_adder: bool,
    convert_zero_size_to_none: bool,
) -> ElementSpecs:
    """Returns the specs of the data that adders write for an environment."""

    def specs(nest: Nest) -> Nest:
        return _nest.map_structure(lambda leaf: _spec(leaf, convert_zero_size_to_none), nest)

    for name in ("observations", "actions"):
        if not hasattr(environment_spec, name):
            raise ValueError(f"`environment_spec` must have `{name}`, a nest of specs; got {environment_spec!r}")
    if not _nest.flatten(extra_spec):
        extra_spec = None
    number = TensorSpec((), np.float32)
    observation, action = specs(environment_spec.observations), specs(environment_spec.actions)
    reward, discount = (
        number if getattr(environment_spec, name, None) is None else specs(getattr(environment_spec, name))
        for name in ("rewards", "discounts")
    )
    extras = () if extra_spec is None else specs(extra_spec)
    if transition_adder:
        nest: Any = (observation, action, reward, discount, observation)
    elif using_deprecated_adder:
        nest = (observation, action, reward, discount)
    else:
        nest = Step(observation, action, reward, discount, TensorSpec((), np.bool_), extras)
    if not isinstance(nest, Step) and extra_spec is not None:
        nest = (*nest, extras)
    return ElementSpecs(nest, _is_state(nest))


def from_signature(info: TableInfo, *, steps: bool) -> tuple[ElementSpecs, int | None]:
    """Returns the specs of a step, or of a whole item if not `steps`, and the number of steps per item.

    The number is None for whole items, if the signature does not fix it, and for a table of `engram.compat.reverb`.
    """
    nest = signature_of(info)
    if nest is None:
        raise ValueError(f"table `{info.name}` has no signature; pass an `environment_spec`")
    if not steps or _table_note.decode(info.note).signature is not None:
        return ElementSpecs(nest, _is_state(nest)), None
    shapes = [spec.shape for spec in _nest.flatten(nest)]
    if any(not shape for shape in shapes):
        raise ValueError(f"table `{info.name}` has columns without a time axis; pass an `environment_spec`")
    step = _nest.map_structure(lambda spec: TensorSpec(spec.shape[1:], spec.dtype, spec.name), nest)
    return ElementSpecs(step, _is_state(nest)), shapes[0][0]


def sequence_specs(specs: ElementSpecs, sequence_length: int | None, *, first_state_only: bool) -> Nest:
    """Returns the specs of sequences, `[sequence_length, ...]`; of the state, `[1, ...]` if `first_state_only`."""
    leaves = []
    for spec, state in zip(_nest.flatten(specs.nest), specs.is_state, strict=True):
        length = 1 if state and first_state_only else sequence_length
        shape = None if spec.shape is None else (length, *spec.shape)
        leaves.append(TensorSpec(shape, spec.dtype, spec.name))
    return _nest.unflatten_as(specs.nest, leaves)


def _is_state(nest: Nest) -> list[bool]:
    """For each leaf, True if it is below `core_state` of the extras: of `Step.extras`, or of the last tuple element."""
    last = len(nest) - 1 if isinstance(nest, tuple) else None
    paths = [path for path, _ in _nest.flatten_with_path(nest)]
    return [path[1:2] == ("core_state",) and path[0] in ("extras", last) for path in paths]


def _spec(leaf: Any, convert_zero_size_to_none: bool) -> TensorSpec:  # noqa: ANN401, FBT001, dm_env's specs and the like
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ValueError(f"specs must have `shape` and `dtype`; got {leaf!r}")
    spec = TensorSpec(leaf.shape, leaf.dtype, getattr(leaf, "name", None))
    if convert_zero_size_to_none and spec.shape is not None:
        return TensorSpec(tuple(axis or None for axis in spec.shape), spec.dtype, spec.name)
    return spec
