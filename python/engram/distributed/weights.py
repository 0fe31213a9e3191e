"""Weights that a learner publishes and workers read, through Ray's object store."""

from typing import Any

from engram.distributed._ray import ray
from engram.nests import Nest

__all__ = ["Weights"]


class _Holder:
    """Holds a reference to the newest weights; the weights themselves are in the object store."""

    def __init__(self) -> None:
        self._version = 0
        self._ref: list[Any] = []

    def set(self, ref: list[Any]) -> int:
        self._version, self._ref = self._version + 1, ref
        return self._version

    def get(self, after: int) -> tuple[int, list[Any]]:
        return self._version, self._ref if self._version > after else []


class Weights:
    """The newest weights of a learner. Workers can have a copy of this object: it refers to the same weights.

        weights = distributed.Weights()
        weights.publish(params)          # in the learner
        version, params = weights.get()  # in a worker

    Each node fetches a version once, however many workers read it. The weights are lost if the process that has
    published them ends.
    """

    def __init__(self) -> None:
        """Creates the actor that refers to the weights."""
        self._holder = ray.remote(_Holder).options(num_cpus=0).remote()

    def publish(self, weights: Nest) -> int:
        """Makes weights visible to all workers.

        Args:
            weights: Any nest of arrays. Workers get NumPy arrays that they cannot write to.

        Returns:
            The version of these weights: 1, 2, ...
        """
        version: int = ray.get(self._holder.set.remote([ray.put(weights)]))
        return version

    def get(self, after: int = 0) -> tuple[int, Any]:
        """Returns the newest weights, and their version.

        Args:
            after: Version that the caller has. If there is no newer one, the weights are None. Default: none.

        Returns:
            The newest version, 0 if none was published; and its weights, or None if it is not above `after`.
        """
        version, ref = ray.get(self._holder.get.remote(after))
        return version, ray.get(ref[0]) if ref else None
