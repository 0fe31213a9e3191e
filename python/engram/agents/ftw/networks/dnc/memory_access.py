"""The external memory of a DNC: one step of writing and reading."""

import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.dnc import addressing
from engram.agents.ftw.networks.dnc.linkage import TemporalLinkageState, directional_weights, updated_linkage
from engram.agents.ftw.networks.layers import Linear


class AccessState(NamedTuple):
    """The memory and what the next step needs of the last one; zeros at first."""

    memory: jax.Array  # f[B, N, W]
    read_weights: jax.Array  # f[B, R, N]
    write_weights: jax.Array  # f[B, K, N]
    linkage: TemporalLinkageState
    usage: jax.Array  # f[B, N]


class Interface(NamedTuple):
    """What the controller asks of the memory in one step."""

    write_vectors: jax.Array  # f[B, K, W]
    erase_vectors: jax.Array  # f[B, K, W], from 0 to 1
    free_gates: jax.Array  # f[B, R], from 0 to 1: free the slots that were read
    allocation_gates: jax.Array  # f[B, K], from 0 to 1: write by allocation, not by content
    write_gates: jax.Array  # f[B, K], from 0 to 1: write at all
    read_modes: jax.Array  # f[B, R, 2K + 1]; shares of backward (K), forward (K) and content (1), with sum 1
    write_keys: jax.Array  # f[B, K, W]
    write_strengths: jax.Array  # f[B, K], above 0
    read_keys: jax.Array  # f[B, R, W]
    read_strengths: jax.Array  # f[B, R], above 0


class MemoryAccess(eqx.Module):
    """Reads and writes a memory of N slots as a controller's output asks.

    Args:
        in_size: I, size of the controller's output.
        memory_size: N, number of slots.
        word_size: W, numbers per slot.
        num_reads: R, read heads.
        num_writes: K, write heads.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If a size is not an integer of at least 1.
    """

    interface: Linear  # to all fields of `Interface`, one after the other, see `interface_shapes`
    memory_size: int = eqx.field(static=True)
    word_size: int = eqx.field(static=True)
    num_reads: int = eqx.field(static=True)
    num_writes: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        memory_size: int = 128,
        word_size: int = 20,
        num_reads: int = 1,
        num_writes: int = 1,
        *,
        key: jax.Array,
    ) -> None:
        self.memory_size = _checks.integer("`memory_size`", memory_size)
        self.word_size = _checks.integer("`word_size`", word_size)
        self.num_reads = _checks.integer("`num_reads`", num_reads)
        self.num_writes = _checks.integer("`num_writes`", num_writes)
        self.interface = Linear(in_size, sum(map(math.prod, self.interface_shapes().values())), key=key)

    def interface_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each field of `Interface`, without B."""
        k, r, w = self.num_writes, self.num_reads, self.word_size
        return {
            "write_vectors": (k, w),
            "erase_vectors": (k, w),
            "free_gates": (r,),
            "allocation_gates": (k,),
            "write_gates": (k,),
            "read_modes": (r, 2 * k + 1),
            "write_keys": (k, w),
            "write_strengths": (k,),
            "read_keys": (r, w),
            "read_strengths": (r,),
        }

    def __call__(self, x: jax.Array, state: AccessState) -> tuple[jax.Array, AccessState]:
        """Returns the words read, f[B, R, W], and the next state, for a controller's output f[B, I]."""
        interface = self._interface(x)
        usage = addressing.updated_usage(state.usage, state.write_weights, interface.free_gates, state.read_weights)
        write_weights = self._write_weights(interface, state.memory, usage)
        memory = written_memory(state.memory, write_weights, interface.erase_vectors, interface.write_vectors)
        linkage = updated_linkage(state.linkage, write_weights)
        read_weights = self._read_weights(interface, memory, linkage.link, state.read_weights)
        reads = read_weights @ memory
        return reads, AccessState(memory, read_weights, write_weights, linkage, usage)

    def initial_state(self, batch_size: int, dtype: jnp.dtype = jnp.float32) -> AccessState:
        """Returns an empty memory for B elements."""
        n, k = self.memory_size, self.num_writes

        def zeros(*shape: int) -> jax.Array:
            return jnp.zeros((batch_size, *shape), dtype)

        linkage = TemporalLinkageState(zeros(k, n, n), zeros(k, n))
        return AccessState(zeros(n, self.word_size), zeros(self.num_reads, n), zeros(k, n), linkage, zeros(n))

    def _interface(self, x: jax.Array) -> Interface:
        shapes = self.interface_shapes()
        ends = list(itertools.accumulate(map(math.prod, shapes.values())))
        parts = jnp.split(self.interface(x), ends[:-1], axis=-1)
        raw = Interface(
            *(part.reshape(*x.shape[:-1], *shape) for part, shape in zip(parts, shapes.values(), strict=True))
        )
        return raw._replace(
            erase_vectors=jax.nn.sigmoid(raw.erase_vectors),
            free_gates=jax.nn.sigmoid(raw.free_gates),
            allocation_gates=jax.nn.sigmoid(raw.allocation_gates),
            write_gates=jax.nn.sigmoid(raw.write_gates),
            read_modes=jax.nn.softmax(raw.read_modes, axis=-1),
            write_strengths=jax.nn.softplus(raw.write_strengths),
            read_strengths=jax.nn.softplus(raw.read_strengths),
        )

    def _write_weights(self, interface: Interface, memory: jax.Array, usage: jax.Array) -> jax.Array:
        """Returns f[B, K, N]: a mixture of allocation and content, times the write gate."""
        content = addressing.content_weights(memory, interface.write_keys, interface.write_strengths)
        gates = interface.allocation_gates * interface.write_gates
        allocation = addressing.write_allocation_weights(usage, gates)
        by_allocation, written = interface.allocation_gates[..., None], interface.write_gates[..., None]
        return written * (by_allocation * allocation + (1 - by_allocation) * content)

    def _read_weights(
        self, interface: Interface, memory: jax.Array, link: jax.Array, last_read_weights: jax.Array
    ) -> jax.Array:
        """Returns f[B, R, N]: a mixture of backward, forward and content."""
        content = addressing.content_weights(memory, interface.read_keys, interface.read_strengths)
        forward, backward = directional_weights(link, last_read_weights)
        candidates = jnp.concatenate([backward, forward, content[..., None, :]], axis=-2)  # f[B, R, 2K + 1, N]
        return jnp.einsum("...rm,...rmn->...rn", interface.read_modes, candidates)


def written_memory(
    memory: jax.Array, write_weights: jax.Array, erase_vectors: jax.Array, write_vectors: jax.Array
) -> jax.Array:
    """Returns the memory f[B, N, W] after erasing and writing with weights w f[B, K, N].

    M' = M prod_k (1 - w_k e_k^T) + sum_k w_k v_k^T
    """
    erased = write_weights[..., :, None] * erase_vectors[..., None, :]
    return memory * jnp.prod(1 - erased, axis=-3) + jnp.einsum("...kn,...kw->...nw", write_weights, write_vectors)
