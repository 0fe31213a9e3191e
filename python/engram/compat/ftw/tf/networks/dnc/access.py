"""The memory of a DNC."""

import jax

from engram import _checks
from engram.agents.ftw import networks
from engram.agents.ftw.networks import AccessState
from engram.compat.ftw.tf.networks._lazy_module import Seed, SizedModule

__all__ = ["AccessState", "MemoryAccess"]


class MemoryAccess(SizedModule):
    """Reads and writes a memory; see `engram.agents.ftw.networks.MemoryAccess`."""

    def __init__(
        self,
        memory_size: int = 128,
        word_size: int = 20,
        num_reads: int = 1,
        num_writes: int = 1,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the sizes; the weights are made at the first call.

        Args:
            memory_size: Slots, N.
            word_size: Numbers per slot, W.
            num_reads: Read heads, R.
            num_writes: Write heads, K.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: A size is not an integer of at least 1.
        """
        super().__init__(seed)
        named = {"memory_size": memory_size, "word_size": word_size, "num_reads": num_reads, "num_writes": num_writes}
        self._sizes = [_checks.integer(f"`{name}`", size) for name, size in named.items()]
        self._make = self.made

    def made(self, in_size: int, key: jax.Array) -> networks.MemoryAccess:
        """Returns a new Equinox module of these sizes, which this object does not keep.

        Args:
            in_size: Size of the inputs' last axis.
            key: Random key.

        Raises:
            InvalidArgumentError: A size is not an integer of at least 1.
        """
        return networks.MemoryAccess(in_size, *self._sizes, key=key)

    def __call__(self, x: jax.Array, state: AccessState) -> tuple[jax.Array, AccessState]:
        """Maps a controller's output `[B, I]` and a state to the words read `[B, R, W]` and the next state."""
        output: tuple[jax.Array, AccessState] = self.build(x.shape[-1]).module(x, state)
        return output

    def initial_state(self, batch_size: int) -> AccessState:
        """Returns an empty memory for `batch_size` elements."""
        made = self.module if self.is_built else self.made(1, jax.random.key(0))
        state: AccessState = made.initial_state(batch_size)
        return state
