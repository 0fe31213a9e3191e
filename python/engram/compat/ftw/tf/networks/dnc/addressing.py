"""Where the heads of a DNC write and read, as objects; see `engram.agents.ftw.networks.dnc`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.dnc import addressing
from engram.agents.ftw.networks.dnc.linkage import TemporalLinkageState, directional_weights, updated_linkage

__all__ = ["CosineWeights", "Freeness", "TemporalLinkage", "TemporalLinkageState"]


class CosineWeights:
    """Weights by content: a softmax over the slots of strength times cosine similarity."""

    def __init__(
        self, num_heads: int, word_size: int, strength_op: Callable[[jax.Array], jax.Array] = jax.nn.softplus
    ) -> None:
        """Checks the arguments.

        Args:
            num_heads: Number of heads.
            word_size: Numbers per slot, W.
            strength_op: Maps given strengths to numbers of at least 0.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        self.num_heads = _checks.integer("`num_heads`", num_heads)
        self.word_size = _checks.integer("`word_size`", word_size)
        _checks.function("`strength_op`", strength_op)
        self._strength_op = strength_op

    def __call__(self, memory: jax.Array, keys: jax.Array, strengths: jax.Array) -> jax.Array:
        """Returns the weights of the slots.

        Args:
            memory: `[B, N, W]`.
            keys: `[B, heads, W]`.
            strengths: `[B, heads]`, before `strength_op`.

        Returns:
            `[B, heads, N]`.
        """
        return addressing.content_weights(memory, keys, self._strength_op(strengths))


class TemporalLinkage:
    """The order in which slots were written."""

    def __init__(self, memory_size: int, num_writes: int) -> None:
        """Checks the arguments.

        Args:
            memory_size: Slots, N.
            num_writes: Write heads, K.

        Raises:
            InvalidArgumentError: An argument is not an integer of at least 1.
        """
        self.memory_size = _checks.integer("`memory_size`", memory_size)
        self.num_writes = _checks.integer("`num_writes`", num_writes)

    def __call__(self, write_weights: jax.Array, prev_state: TemporalLinkageState) -> TemporalLinkageState:
        """Returns the state after a write with weights `[B, K, N]`."""
        return updated_linkage(prev_state, write_weights)

    def directional_read_weights(
        self,
        link: jax.Array,
        prev_read_weights: jax.Array,
        forward: bool,  # noqa: FBT001, FTW's signature
    ) -> jax.Array:
        """Returns where a step in the order of writes leads.

        Args:
            link: `[B, K, N, N]`.
            prev_read_weights: `[B, R, N]`.
            forward: Whether the step is forward, or else backward.

        Returns:
            `[B, R, K, N]`.
        """
        return directional_weights(link, prev_read_weights)[0 if forward else 1]

    def initial_state(self, batch_size: int) -> TemporalLinkageState:
        """Returns zeros for `batch_size` elements."""
        shape = (batch_size, self.num_writes, self.memory_size)
        return TemporalLinkageState(jnp.zeros((*shape, self.memory_size)), jnp.zeros(shape))


class Freeness:
    """Which slots are free."""

    def __init__(self, memory_size: int) -> None:
        """Checks the argument.

        Args:
            memory_size: Slots, N.

        Raises:
            InvalidArgumentError: It is not an integer of at least 1.
        """
        self.memory_size = _checks.integer("`memory_size`", memory_size)

    def __call__(
        self, write_weights: jax.Array, free_gate: jax.Array, read_weights: jax.Array, prev_usage: jax.Array
    ) -> jax.Array:
        """Returns the usage after the previous step.

        Args:
            write_weights: Of the previous step, `[B, K, N]`.
            free_gate: `[B, R]`, from 0 to 1.
            read_weights: Of the previous step, `[B, R, N]`.
            prev_usage: `[B, N]`.

        Returns:
            `[B, N]`.
        """
        return addressing.updated_usage(prev_usage, write_weights, free_gate, read_weights)

    def write_allocation_weights(self, usage: jax.Array, write_gates: jax.Array, num_writes: int) -> jax.Array:
        """Returns the weights with which each head allocates slots.

        Args:
            usage: `[B, N]`.
            write_gates: `[B, K]`, the share of its allocation that each head writes.
            num_writes: Write heads, K.

        Returns:
            `[B, K, N]`.
        """
        return addressing.write_allocation_weights(usage, write_gates[..., :num_writes])

    def initial_state(self, batch_size: int) -> jax.Array:
        """Returns zeros `[B, N]` for `batch_size` elements."""
        return jnp.zeros((batch_size, self.memory_size))
