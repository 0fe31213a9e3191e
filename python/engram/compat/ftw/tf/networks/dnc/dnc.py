"""The DNC: an LSTM that controls a memory."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp

from engram.agents.ftw import networks
from engram.agents.ftw.networks import DNCState, LSTMState
from engram.agents.ftw.networks.dnc.controller import clipped, controlled_access, with_reads
from engram.compat.ftw.tf.networks._lazy_module import Seed, SizedModule
from engram.compat.ftw.tf.networks.dnc.access import MemoryAccess
from engram.compat.ftw.tf.networks.recurrence import LSTM

__all__ = ["DNC", "DNCState", "DNCWrapper"]

State: TypeAlias = DNCState[jax.Array, LSTMState[jax.Array]]


class DNC(SizedModule):
    """A DNC with a linear output; see `engram.agents.ftw.networks.DNC`."""

    def __init__(
        self,
        access_config: Mapping[str, int],
        controller_config: Mapping[str, int],
        output_size: int,
        clip_value: float | None = None,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Keeps the arguments; the weights are made at the first call.

        Args:
            access_config: Arguments of `MemoryAccess`.
            controller_config: Arguments of `LSTM`: `hidden_size`.
            output_size: O.
            clip_value: Bound on the absolute values of output and cells. Default: no bound.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: A size or the seed is invalid.
        """
        super().__init__(seed)

        def make(in_size: int, key: jax.Array) -> networks.DNC:
            sizes = dict(access_config)
            return networks.DNC(
                in_size, **controller_config, output_size=output_size, clip_value=clip_value, key=key, **sizes
            )

        self._make = make
        self._initial = DNCWrapper(LSTM(**controller_config), MemoryAccess(**access_config))

    def __call__(self, x: jax.Array, state: State) -> tuple[jax.Array, State]:
        """Maps inputs `[B, I]` and a state to outputs `[B, O]` and the next state."""
        output: tuple[jax.Array, State] = self.build(x.shape[-1]).module(x, state)
        return output

    def initial_state(self, batch_size: int) -> State:
        """Returns zeros for `batch_size` elements."""
        return self._initial.initial_state(batch_size)


class DNCWrapper:
    """An LSTM and a memory as one core."""

    def __init__(
        self,
        lstm: LSTM,
        memory: MemoryAccess,
        output_layer: Callable[[jax.Array], jax.Array] | None = None,
        clip_value: float | None = None,
    ) -> None:
        """Wraps the parts, which keep their weights.

        Args:
            lstm: The controller.
            memory: The memory.
            output_layer: Maps `concat[h, words read]` to the output. Default: they are the output.
            clip_value: Bound on the absolute values of the LSTM's h and cell, and of what `output_layer` returns; words
                read are not clipped. Default: no bound.
        """
        self._lstm, self._memory = lstm, memory
        self._output_layer, self._clip_value = output_layer, clip_value

    def __call__(self, x: jax.Array, state: State) -> tuple[jax.Array, State]:
        """Maps inputs `[B, I]` and a state to outputs `[B, O]` and the next state."""
        reads_size = state.access_output[0].size
        self._lstm.build(x.shape[-1] + reads_size)
        self._memory.build(self._lstm.hidden_size)
        lstm_state, reads, access_state = controlled_access(
            self._lstm.module,
            self._memory.module,
            x,
            state.controller_state,
            state.access_output,
            access_state=state.access_state,
            clip_value=self._clip_value,
        )
        output = with_reads(lstm_state.hidden, reads)
        if self._output_layer is not None:
            output = clipped(self._output_layer(output), self._clip_value)
        return output, DNCState(reads, access_state, lstm_state)

    def initial_state(self, batch_size: int) -> State:
        """Returns zeros for `batch_size` elements."""
        access_state = self._memory.initial_state(batch_size)
        shape = (batch_size, access_state.read_weights.shape[1], access_state.memory.shape[-1])
        return DNCState(jnp.zeros(shape), access_state, self._lstm.initial_state(batch_size))
