"""One core of RPTH: a recurrent core with a Gaussian distribution over the latent variable as its output."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from engram.agents.ftw.networks.dnc.controller import clipped, controlled_access, with_reads
from engram.agents.ftw.networks.dnc.memory_access import AccessState, MemoryAccess
from engram.agents.ftw.networks.gaussian_head import GaussianHead, GaussianHeadConfig, LocScaleDistributionParameters
from engram.agents.ftw.networks.layers import Linear
from engram.agents.ftw.networks.lstm import LSTM, LSTMState


class UnitState(NamedTuple):
    """State of one core."""

    lstm: LSTMState[jax.Array]
    reads: jax.Array | None  # words read last, f[B, R, W]; None without a memory

    def visible(self) -> jax.Array:
        """Returns what other cores receive: h, or `concat[h, reads]`."""
        return self.lstm.hidden if self.reads is None else with_reads(self.lstm.hidden, self.reads)


class VariationalUnit(eqx.Module):
    """An LSTM, or an LSTM that controls a memory shared with other cores, with a Gaussian head.

    Args:
        in_size: I, size of the input, without the words that this core read last.
        hidden_size: H.
        num_dimensions: Z.
        memory: The memory, or None. It is an argument of each step, not a part of this module.
        use_projection: Whether the head receives a linear projection of `concat[h, reads]` to H, or all of it.
        clip_value: Bound on the absolute values of h, the cell and the projection. None: no bound.
        head: Options of the head.
        key: Random key of the weights.
    """

    lstm: LSTM
    projection: Linear | None
    head: GaussianHead
    clip_value: float | None = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        num_dimensions: int,
        *,
        memory: MemoryAccess | None,
        use_projection: bool,
        clip_value: float | None,
        head: GaussianHeadConfig,
        key: jax.Array,
    ) -> None:
        l_key, p_key, h_key = jax.random.split(key, 3)
        read_size = 0 if memory is None else memory.num_reads * memory.word_size
        project = memory is not None and use_projection
        self.lstm = LSTM(in_size + read_size, hidden_size, key=l_key)
        self.projection = Linear(hidden_size + read_size, hidden_size, key=p_key) if project else None
        self.head = GaussianHead(hidden_size + (0 if project else read_size), num_dimensions, head, key=h_key)
        self.clip_value = clip_value

    def __call__(
        self, x: jax.Array, state: UnitState, access: MemoryAccess | None, access_state: AccessState | None
    ) -> tuple[LocScaleDistributionParameters, UnitState, AccessState | None]:
        """Returns the distribution, and the next states of this core and of the memory, for inputs f[B, I]."""
        if access is None or access_state is None or state.reads is None:
            state = UnitState(self.lstm(x, state.lstm), None)
        else:
            lstm, reads, access_state = controlled_access(
                self.lstm, access, x, state.lstm, state.reads, access_state=access_state, clip_value=self.clip_value
            )
            state = UnitState(lstm, reads)
        features = state.visible()
        if self.projection is not None:
            features = clipped(self.projection(features), self.clip_value)
        return self.head(features), state, access_state

    def initial_state(self, batch_size: int, access: MemoryAccess | None, dtype: jnp.dtype) -> UnitState:
        """Returns zeros for B elements."""
        shape = None if access is None else (batch_size, access.num_reads, access.word_size)
        return UnitState(self.lstm.initial_state(batch_size, dtype), None if shape is None else jnp.zeros(shape, dtype))
