"""Networks whose weights are made when the sizes of their inputs are known, as Sonnet's are."""

from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np

from engram.agents.ftw.seeds import Seed, seed_sequence
from engram.errors import InvalidArgumentError

__all__ = ["FrameNetwork", "LazyModule", "Seed", "SizedModule", "attach", "check_is_free", "random_key", "value_of"]


class LazyModule:
    """Holds an Equinox module, which is made once, and replaced when its parameters are trained.

    Once a network that contains this one is built, its module has this one's as a part, and this object refers to that
    part.
    """

    def __init__(self, seed: Seed) -> None:
        self._seed = None if seed is None else seed_sequence(seed)
        self._module: Any = None
        self._part: Callable[[], Any] | None = None
        self._owner: LazyModule | None = None

    @property
    def is_built(self) -> bool:
        """Whether the weights exist."""
        return self._part is not None or self._module is not None

    @property
    def module(self) -> Any:  # noqa: ANN401, an Equinox module
        """The Equinox module.

        Raises:
            InvalidArgumentError: There are no weights yet.
        """
        if self._part is not None:
            return self._part()
        if self._module is None:
            raise InvalidArgumentError(
                f"this {type(self).__name__} has no weights yet; call it, or `build` the network that contains it"
            )
        return self._module

    @module.setter
    def module(self, module: Any) -> None:  # noqa: ANN401, an Equinox module
        if self._owner is not None:
            owner = type(self._owner).__name__
            raise InvalidArgumentError(
                f"this {type(self).__name__} is a part of a network; replace the `module` of that {owner}"
            )
        self._module = module

    @property
    def trainable_variables(self) -> list[jax.Array]:
        """The parameters."""
        return jax.tree.leaves(self.module)

    def _make_module(self, make: Callable[[Any], Any], key: jax.Array | None = None) -> Self:
        """Makes the module with a random key, unless it exists: of this object's seed, or else the given one."""
        if not self.is_built:
            self._module = make(_key_of(self._seed) if self._seed is not None or key is None else key)
        return self


class FrameNetwork:
    """A network whose weights depend on the shape of its frames."""

    def build(self, observation_shape: tuple[int, ...], key: jax.Array | None = None) -> Self:
        """Makes the weights, unless they exist.

        Args:
            observation_shape: (H, W, C) of a frame.
            key: Random key; no effect if this object has a seed. Default: a random one.

        Returns:
            This object.

        Raises:
            InvalidArgumentError: The torso cannot process such frames, or is a part of another embedding.
        """
        self._build(tuple(observation_shape), key)
        return self

    def _build(self, observation_shape: tuple[int, ...], key: jax.Array | None) -> None:
        raise NotImplementedError


class SizedModule(LazyModule):
    """A `LazyModule` whose weights depend on the size of its inputs' last axis."""

    _make: Callable[[int, Any], Any]
    """Returns a new Equinox module, given that size and a random key."""

    def build(self, in_size: int, key: jax.Array | None = None) -> Self:
        """Makes the weights, unless they exist, for inputs `[..., in_size]`.

        Args:
            in_size: Size of the inputs' last axis.
            key: Random key; no effect if this object has a seed. Default: a random one.

        Returns:
            This object.
        """
        return self._make_module(lambda made_key: self._make(in_size, made_key), key)


def check_is_free(part: LazyModule, owner: LazyModule) -> None:
    """Checks that no other network contains a part: each network trains weights of its own."""
    if part._owner not in {None, owner}:  # noqa: SLF001, same module
        raise InvalidArgumentError(
            f"this {type(part).__name__} is a part of another {type(part._owner).__name__}, with which it cannot share"  # noqa: SLF001
            " weights; make one for each"
        )


def attach(part: LazyModule, owner: LazyModule, get: Callable[[], Any]) -> None:
    """From now on, the part refers to the module that `get` returns, a part of the owner's."""
    part._owner, part._part, part._module = owner, get, None  # noqa: SLF001, same module


def random_key(seed: Seed) -> jax.Array:
    """Returns a JAX key; seeds are those of `engram.agents.ftw.seeds.seed_sequence`."""
    return _key_of(seed_sequence(seed))


def _key_of(seed: np.random.SeedSequence | None) -> jax.Array:
    sequence = np.random.SeedSequence() if seed is None else seed
    return jax.random.key(int(sequence.generate_state(1)[0]))


def value_of(value: Any) -> Any:  # noqa: ANN401, a value or a hyperparameter
    """Returns a value, or the current one of a `Hyperparameter`."""
    return value.get() if callable(getattr(value, "get", None)) else value
