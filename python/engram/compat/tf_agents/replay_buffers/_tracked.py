"""Attributes as a `tf.train.Checkpoint` finds them in TF-Agents' objects: either restores what the other saved."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import tensorflow as tf

from engram.nests import Nest

__all__ = ["Tracked", "TrackedTable", "Untracked", "as_tracked"]


class TrackedTable(tf.Module):
    """The slots of a table, and their values in checkpoints."""

    def __init__(self, tensor_spec: Nest, name: str | None = None) -> None:
        """Names the slots of a nest of `tf.TensorSpec`."""
        super().__init__(name=name)
        names: list[str] = []
        for spec in tf.nest.flatten(tensor_spec):
            names.append(_unique(spec.name or "slot", names))
        self._names = Untracked(tf.nest.pack_sequence_as(tensor_spec, names))

    @property
    def slots(self) -> Nest:
        """Nest with the structure of `tensor_spec` whose leaves are the names of the slots."""
        return self._names.value

    def _track(self, values: Sequence[Any]) -> None:
        """Tracks the values of the slots, in their order."""
        self._tensor_spec = self._slots = as_tracked(self.slots)
        self._storage = as_tracked(tf.nest.pack_sequence_as(self.slots, values))
        # TF-Agents tracks the values here, too, by names that slots of another table may have. Without them, values are
        # found by their place in `_storage` only.
        self._slot2storage_map: dict[str, Any] = {}


class Tracked(NamedTuple):
    """What a checkpoint has of a replay buffer."""

    data_table: Any
    id_table: Any
    last_id: Any


class Untracked:
    """A value that `tf.Module` does not replace by a container of its own."""

    def __init__(self, value: Nest) -> None:
        self.value = value


def _unique(name: str, used: Sequence[str]) -> str:
    """Returns the name, with a number if it is used."""
    numbered = (f"{name}_{number}" if number else name for number in count())
    return next(each for each in numbered if each not in used)


def as_tracked(nest: Nest) -> Nest:
    """Returns a nest of dicts, with the names that containers of this nest have in checkpoints as keys."""
    if isinstance(nest, Mapping):
        children = {str(key): value for key, value in nest.items()}
    elif isinstance(nest, list | tuple):
        children = dict(zip(getattr(nest, "_fields", ()), nest, strict=False))
        children |= {str(number): value for number, value in enumerate(nest)}
    elif tf.nest.is_nested(nest):
        children = {str(number): value for number, value in enumerate(tf.nest.flatten(nest))}
    else:
        return nest
    return {key: as_tracked(value) for key, value in children.items()}
