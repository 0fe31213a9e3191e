"""Single cores of RPTH: a recurrent core with a Gaussian head, which may step only once per period."""

from typing import Any

import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.hyperparameters import Hyperparameter
from engram.agents.ftw.networks import DNCState, GaussianHeadConfig, LSTMState, PeriodicRNNState, variational_unit
from engram.agents.ftw.networks.batch_select import batch_select
from engram.agents.ftw.networks.gaussian_head import LocScaleDistributionParameters
from engram.agents.ftw.networks.initializers import Initializer
from engram.agents.ftw.networks.variational_unit import UnitState
from engram.compat.ftw.tf.networks._lazy_module import Seed, SizedModule, value_of
from engram.compat.ftw.tf.networks.dnc.access import MemoryAccess

__all__ = ["PeriodicVariationalUnit", "VariationalUnit"]


class VariationalUnit(SizedModule):
    """An LSTM, with or without a memory, and a Gaussian head on its output."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        hidden_size: int,
        num_dimensions: int,
        shared_memory: MemoryAccess | None = None,
        dnc_clip_value: float | None = None,
        use_dnc_linear_projection: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        init_scale: float = 0.1,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        fixed_scale: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            hidden_size: Units, H.
            num_dimensions: Dimensions of the distribution, Z.
            shared_memory: The memory. Default: none.
            dnc_clip_value: Bound on output and cell of the controller. Default: no bound.
            use_dnc_linear_projection: Whether the head receives a linear projection of output and words read.
            init_scale: Initial scale.
            min_scale: Is added to the scale.
            tanh_mean: Whether the mean is bounded to (-1, 1).
            fixed_scale: Whether the scale is `init_scale`.
            w_init: Initial weights of the head, as one of `jax.nn.initializers`. Default: Sonnet's.
            b_init: Initial biases of the head, as one of `jax.nn.initializers`. Default: zeros.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        self.num_dimensions = _checks.integer("`num_dimensions`", num_dimensions)
        self._memory = shared_memory
        head = GaussianHeadConfig(init_scale, min_scale, tanh_mean, fixed_scale, w_init, b_init)

        def make(in_size: int, key: jax.Array) -> variational_unit.VariationalUnit:
            key, memory_key = jax.random.split(key)
            return variational_unit.VariationalUnit(
                in_size, hidden_size, num_dimensions,
                memory=None if shared_memory is None else shared_memory.build(hidden_size, memory_key).module,
                use_projection=use_dnc_linear_projection, clip_value=dnc_clip_value, head=head, key=key,
            )  # fmt: skip

        self._make = make

    def __call__(self, x: jax.Array, state: Any) -> tuple[LocScaleDistributionParameters, Any]:  # noqa: ANN401, LSTMState or DNCState
        """Maps inputs `[B, I]` and a state to mean and scale `[B, Z]` and the next state."""
        self.build(x.shape[-1])
        if self._memory is None:
            params, unit, _ = self.module(x, UnitState(state, None), None, None)
            return params, unit.lstm
        unit = UnitState(state.controller_state, state.access_output)
        params, unit, access_state = self.module(x, unit, self._memory.module, state.access_state)
        return params, DNCState(unit.reads, access_state, unit.lstm)

    def initial_state(self, batch_size: int) -> Any:  # noqa: ANN401, LSTMState or DNCState
        """Returns zeros for `batch_size` elements."""
        zeros = jnp.zeros((batch_size, self.hidden_size))
        lstm = LSTMState(zeros, zeros)
        if self._memory is None:
            return lstm
        access_state = self._memory.initial_state(batch_size)
        shape = (batch_size, access_state.read_weights.shape[1], access_state.memory.shape[-1])
        return DNCState(jnp.zeros(shape), access_state, lstm)


class PeriodicVariationalUnit(VariationalUnit):
    """The same, where state and output change only once per period."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        period: int | Hyperparameter,
        hidden_size: int,
        num_dimensions: int,
        shared_memory: MemoryAccess | None = None,
        dnc_clip_value: float | None = None,
        use_dnc_linear_projection: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        init_scale: float = 0.1,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        fixed_scale: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        The other arguments and errors are those of `VariationalUnit`.

        Args:
            period: Steps between two changes: an integer, or an `IntHyperparameter`, read at each call.
        """
        super().__init__(
            hidden_size, num_dimensions, shared_memory, dnc_clip_value, use_dnc_linear_projection, init_scale,
            min_scale, tanh_mean, fixed_scale, w_init, b_init, seed=seed,
        )  # fmt: skip
        _checks.integer("`period`", value_of(period))
        self._period = period

    def __call__(
        self, x: jax.Array, state: PeriodicRNNState
    ) -> tuple[LocScaleDistributionParameters, PeriodicRNNState]:
        """Maps inputs `[B, I]` and a state to mean and scale `[B, Z]` and the next state."""
        candidate = super().__call__(x, state.core_state)
        due = state.step % _checks.integer("`period`", value_of(self._period)) == 0
        current: Any = (state.output, state.core_state)
        params, core_state = batch_select(due, candidate, current)
        return params, PeriodicRNNState(core_state, params, state.step + 1)

    def initial_state(self, batch_size: int) -> PeriodicRNNState:
        """Returns zeros for `batch_size` elements."""
        zeros = jnp.zeros((batch_size, self.num_dimensions))
        params = LocScaleDistributionParameters(zeros, zeros)
        step = jnp.zeros(batch_size, jnp.int32)
        return PeriodicRNNState(super().initial_state(batch_size), params, step)  # type: ignore[arg-type]  # of one core
