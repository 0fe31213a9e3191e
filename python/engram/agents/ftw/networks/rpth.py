"""Recurrent processing with temporal hierarchy (RPTH): slow cores that set the prior of a fast core.

Each slow core steps once per period and proposes a Gaussian prior of the latent variable z; the fast core steps at each
time and proposes the posterior, from which z is sampled. Section "Recurrent processing with temporal hierarchy" of the
paper's supplement; with `memory`, all cores share one memory of a differentiable neural computer.
"""

from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.batch_select import batch_select
from engram.agents.ftw.networks.dnc.controller import DNCState
from engram.agents.ftw.networks.dnc.memory_access import AccessState, MemoryAccess
from engram.agents.ftw.networks.gaussian_head import DEFAULT_CONFIG, GaussianHeadConfig, LocScaleDistributionParameters
from engram.agents.ftw.networks.lstm import LSTMState
from engram.agents.ftw.networks.variational_unit import UnitState, VariationalUnit
from engram.errors import InvalidArgumentError


class RPTHOutput(NamedTuple):
    """Output of a core of any type."""

    z: jax.Array  # f[..., Z]: the sampled latent variable; of the core type "lstm" its output h
    distribution_params: tuple[LocScaleDistributionParameters, ...]  # slow cores' priors, then the posterior


class PeriodicRNNState(NamedTuple):
    """State of RPTH. Zeros at first; cores are in the order slow, ..., slow, fast."""

    core_state: Any  # LSTMState of tuples, or DNCState of tuples with one `access_state`
    output: RPTHOutput  # the last z, and the priors in force (without the posterior)
    step: jax.Array  # i32[B]: steps since the start of the episode


Cores: TypeAlias = list[UnitState]


class RPTH(eqx.Module):
    """Slow cores and a fast core.

    In each step, where n is the number of steps since the start of the episode:

        1. for each slow core i, if n mod period_i = 0:
           h_i, prior_i = core_i(concat[h of all other cores, priors of the slow cores before i])
        2. h_f, posterior = fast core(concat[x, scale_gradient(concat[all h_i, all prior_i]), z])
        3. z' = loc + scale * noise, of the posterior

    With a memory, "h" is `concat[h, words read]`, and a slow core that does not step does not write.

    Args:
        in_size: I, size of the input x.
        hidden_size: H, units of each core.
        num_dimensions: Z, dimensions of the latent variable.
        num_slow_cores: S.
        memory: Memory that the cores share, with inputs of size H. Default: LSTM cores without a memory.
        dnc_clip_value: Bound on the absolute values of each controller's output and cell, and of the projection.
            Default: no bound.
        use_dnc_linear_projection: Whether heads receive a linear projection of `concat[h, words read]` to H, or all of
            it.
        head: Options of the Gaussian heads.
        strict_period_order: Whether several periods are sorted in descending order in each step, so that core 0 is
            always the slowest. If False, their order is the caller's.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If an argument has a wrong type or value.
    """

    slow: tuple[VariationalUnit, ...]
    fast: VariationalUnit
    memory: MemoryAccess | None
    hidden_size: int = eqx.field(static=True)
    num_dimensions: int = eqx.field(static=True)
    strict_period_order: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden_size: int = 256,
        num_dimensions: int = 256,
        *,
        num_slow_cores: int = 1,
        memory: MemoryAccess | None = None,
        dnc_clip_value: float | None = None,
        use_dnc_linear_projection: bool = True,
        head: GaussianHeadConfig = DEFAULT_CONFIG,
        strict_period_order: bool = True,
        key: jax.Array,
    ) -> None:
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        self.num_dimensions = _checks.integer("`num_dimensions`", num_dimensions)
        num_slow = _checks.integer("`num_slow_cores`", num_slow_cores)
        clip_value = None if dnc_clip_value is None else _checks.positive("`dnc_clip_value`", dnc_clip_value)
        _checks.boolean("`use_dnc_linear_projection`", use_dnc_linear_projection)
        _checks.boolean("`strict_period_order`", strict_period_order)
        self.memory, self.strict_period_order = memory, bool(strict_period_order)
        visible_size = hidden_size + (0 if memory is None else memory.num_reads * memory.word_size)
        prior_size = 2 * num_dimensions

        def unit(in_size: int, key: jax.Array) -> VariationalUnit:
            return VariationalUnit(
                in_size, hidden_size, num_dimensions, memory=memory, use_projection=use_dnc_linear_projection,
                clip_value=clip_value, head=head, key=key,
            )  # fmt: skip

        *slow_keys, fast_key = jax.random.split(key, num_slow + 1)
        slow_sizes = [num_slow * visible_size + index * prior_size for index in range(num_slow)]
        self.slow = tuple(map(unit, slow_sizes, slow_keys))
        self.fast = unit(in_size + num_slow * (visible_size + prior_size) + num_dimensions, fast_key)

    def __call__(
        self, x: jax.Array, state: PeriodicRNNState, noise: jax.Array, *, period: jax.Array, gradient_scale: jax.Array
    ) -> tuple[RPTHOutput, PeriodicRNNState]:
        """Takes one step. All arguments may be traced.

        Args:
            x: Inputs f[B, I].
            state: The last state.
            noise: f[B, Z], of the standard normal distribution.
            period: Steps between two steps of a slow core, at least 1: i32[], or i32[S].
            gradient_scale: Factor of gradients that reach slow cores through the fast core's inputs, f[].

        Returns:
            The output and the next state.
        """
        periods = self.periods(period)
        cores, access_state = self._unpack(state.core_state)
        priors: list[LocScaleDistributionParameters] = []
        for index, unit in enumerate(self.slow):
            others = [core.visible() for other, core in enumerate(cores) if other != index]
            inputs = jnp.concatenate([*others, *(values for prior in priors for values in prior)], axis=-1)
            candidate = unit(inputs, cores[index], self.memory, access_state)
            current = (state.output.distribution_params[index], cores[index], access_state)
            prior, cores[index], access_state = batch_select(state.step % periods[index] == 0, candidate, current)
            priors.append(prior)
        from_slow = [core.visible() for core in cores[:-1]] + [values for prior in priors for values in prior]
        from_slow_scaled = scale_gradient(jnp.concatenate(from_slow, axis=-1), gradient_scale)
        inputs = jnp.concatenate([x, from_slow_scaled, state.output.z], axis=-1)
        posterior, cores[-1], access_state = self.fast(inputs, cores[-1], self.memory, access_state)
        z = posterior.sample(noise)
        next_state = PeriodicRNNState(self._pack(cores, access_state), RPTHOutput(z, tuple(priors)), state.step + 1)
        return RPTHOutput(z, (*priors, posterior)), next_state

    def initial_state(self, batch_size: int, dtype: jnp.dtype = jnp.float32) -> PeriodicRNNState:
        """Returns zeros for B elements."""
        cores = [unit.initial_state(batch_size, self.memory, dtype) for unit in (*self.slow, self.fast)]
        access_state = None if self.memory is None else self.memory.initial_state(batch_size, dtype)
        zeros = jnp.zeros((batch_size, self.num_dimensions), dtype)
        priors = tuple(LocScaleDistributionParameters(zeros, zeros) for _ in self.slow)
        step = jnp.zeros(batch_size, jnp.int32)
        return PeriodicRNNState(self._pack(cores, access_state), RPTHOutput(zeros, priors), step)

    def periods(self, period: jax.Array) -> jax.Array:
        """Returns the period of each slow core, i32[S], in the order of the cores."""
        period = jnp.asarray(period)
        if period.shape not in {(), (len(self.slow),)} or (period.ndim == 0 and len(self.slow) > 1):
            raise InvalidArgumentError(
                f"`period` must have one value per slow core; got shape {period.shape}, expected {(len(self.slow),)}"
            )
        periods = period.reshape(-1)
        return -jnp.sort(-periods) if self.strict_period_order else periods

    def _pack(self, cores: Cores, access_state: AccessState | None) -> Any:  # noqa: ANN401, one of two types
        if access_state is None:
            return LSTMState(tuple(core.lstm.hidden for core in cores), tuple(core.lstm.cell for core in cores))
        return DNCState(tuple(core.reads for core in cores), access_state, tuple(core.lstm for core in cores))

    def _unpack(self, core_state: Any) -> tuple[Cores, AccessState | None]:  # noqa: ANN401, one of two types
        if isinstance(core_state, DNCState):
            return list(map(UnitState, core_state.controller_state, core_state.access_output)), core_state.access_state
        return [UnitState(LSTMState(h, c), None) for h, c in zip(*core_state, strict=True)], None


def scale_gradient(x: jax.Array, factor: jax.Array) -> jax.Array:
    """Returns `x` unchanged, and multiplies its gradient by `factor`."""
    constant = jax.lax.stop_gradient(x)
    return constant + jax.lax.stop_gradient(jnp.asarray(factor, x.dtype)) * (x - constant)
