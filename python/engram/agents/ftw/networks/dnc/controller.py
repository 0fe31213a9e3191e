"""An LSTM that controls a memory, and the DNC: such a controller with a memory of its own."""

from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.dnc.memory_access import AccessState, MemoryAccess
from engram.agents.ftw.networks.layers import Linear
from engram.agents.ftw.networks.lstm import LSTM, LSTMState

Reads = TypeVar("Reads")
ControllerStates = TypeVar("ControllerStates")


class DNCState(NamedTuple, Generic[Reads, ControllerStates]):
    """State of one controller and its memory, or of several controllers that share a memory (then tuples)."""

    access_output: Reads  # words read last: f[B, R, W] of each controller
    access_state: AccessState
    controller_state: ControllerStates  # LSTMState[jax.Array] of each controller


class DNC(eqx.Module):
    """A DNC: the LSTM's input is `concat[x, reads]`, the output is linear in `concat[h, reads']`.

    Args:
        in_size: I, size of the input.
        hidden_size: H, units of the LSTM.
        output_size: O, size of the output.
        memory_size: N, number of memory slots.
        word_size: W, numbers per slot.
        num_reads: R, read heads.
        num_writes: K, write heads.
        clip_value: Bound on the absolute values of the LSTM's output and cell, and of the output. Default: no bound.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If a size is not an integer of at least 1, or `clip_value` is not above 0.
    """

    controller: LSTM
    access: MemoryAccess
    output: Linear
    clip_value: float | None = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        output_size: int,
        *,
        memory_size: int = 128,
        word_size: int = 20,
        num_reads: int = 1,
        num_writes: int = 1,
        clip_value: float | None = None,
        key: jax.Array,
    ) -> None:
        c_key, a_key, o_key = jax.random.split(key, 3)
        self.clip_value = None if clip_value is None else _checks.positive("`clip_value`", clip_value)
        self.access = MemoryAccess(hidden_size, memory_size, word_size, num_reads, num_writes, key=a_key)
        read_size = num_reads * word_size
        self.controller = LSTM(in_size + read_size, hidden_size, key=c_key)
        self.output = Linear(hidden_size + read_size, output_size, key=o_key)

    def __call__(
        self, x: jax.Array, state: DNCState[jax.Array, LSTMState[jax.Array]]
    ) -> tuple[jax.Array, DNCState[jax.Array, LSTMState[jax.Array]]]:
        """Returns outputs f[B, O] and the next state for inputs f[B, I]."""
        lstm, reads, access_state = controlled_access(
            self.controller,
            self.access,
            x,
            state.controller_state,
            state.access_output,
            access_state=state.access_state,
            clip_value=self.clip_value,
        )
        output = clipped(self.output(with_reads(lstm.hidden, reads)), self.clip_value)
        return output, DNCState(reads, access_state, lstm)

    def initial_state(
        self, batch_size: int, dtype: jnp.dtype = jnp.float32
    ) -> DNCState[jax.Array, LSTMState[jax.Array]]:
        """Returns zeros for B elements."""
        reads = jnp.zeros((batch_size, self.access.num_reads, self.access.word_size), dtype)
        access_state = self.access.initial_state(batch_size, dtype)
        return DNCState(reads, access_state, self.controller.initial_state(batch_size, dtype))


def controlled_access(
    lstm: LSTM,
    access: MemoryAccess,
    x: jax.Array,
    lstm_state: LSTMState[jax.Array],
    reads: jax.Array,
    *,
    access_state: AccessState,
    clip_value: float | None,
) -> tuple[LSTMState[jax.Array], jax.Array, AccessState]:
    """Steps an LSTM on `concat[x, reads]`, and then the memory on its output h.

    Args:
        lstm: The controller.
        access: The memory that it controls.
        x: Inputs f[B, I].
        lstm_state: State of the controller.
        reads: Words that this controller read last, f[B, R, W].
        access_state: State of the memory.
        clip_value: Bound on the absolute values of h and of the cell. None: no bound.

    Returns:
        The controller's next state, the words read, f[B, R, W], and the memory's next state.
    """
    lstm_state = lstm(with_reads(x, reads), lstm_state)
    lstm_state = LSTMState(*(clipped(values, clip_value) for values in lstm_state))
    reads, access_state = access(lstm_state.hidden, access_state)
    return lstm_state, reads, access_state


def with_reads(x: jax.Array, reads: jax.Array) -> jax.Array:
    """Returns `concat[x, reads]`, f[B, I + R * W], of inputs f[B, I] and words f[B, R, W]."""
    return jnp.concatenate([x, reads.reshape(len(x), -1)], axis=-1)


def clipped(x: jax.Array, clip_value: float | None) -> jax.Array:
    """Clips to `[-clip_value, clip_value]`; returns `x` if that is None."""
    return x if clip_value is None else jnp.clip(x, -clip_value, clip_value)
