"""Recurrent cores: LSTM, and recurrent processing with temporal hierarchy (RPTH)."""

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from engram import _checks
from engram.agents.ftw import networks
from engram.agents.ftw.hyperparameters import Hyperparameter
from engram.agents.ftw.networks import GaussianHeadConfig, LSTMState, PeriodicRNNState, RPTHOutput
from engram.agents.ftw.networks.initializers import Initializer
from engram.agents.ftw.networks.policy_network import state_batch_size
from engram.compat.ftw.tf.networks._lazy_module import (
    LazyModule,
    Seed,
    SizedModule,
    attach,
    check_is_free,
    random_key,
    value_of,
)
from engram.compat.ftw.tf.networks._variational_units import PeriodicVariationalUnit, VariationalUnit
from engram.compat.ftw.tf.networks.distributional import LocScaleDistributionParameters
from engram.compat.ftw.tf.networks.dnc.access import MemoryAccess
from engram.errors import InvalidArgumentError

__all__ = [
    "LSTM",
    "RPTH",
    "LSTMState",
    "LocScaleDistributionParameters",
    "PeriodicRNNState",
    "PeriodicVariationalUnit",
    "RPTHOutput",
    "RPTHZWrapper",
    "VariationalUnit",
]


class LSTM(SizedModule):
    """An LSTM, in place of Sonnet's; see `engram.agents.ftw.networks.LSTM`."""

    def __init__(self, hidden_size: int, *, seed: Seed | None = None) -> None:
        """Checks the size; the weights are made at the first call.

        Args:
            hidden_size: Units, H.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: `hidden_size` is not an integer of at least 1.
        """
        super().__init__(seed)
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        self._make = lambda in_size, key: networks.LSTM(in_size, hidden_size, key=key)

    def __call__(self, x: jax.Array, state: LSTMState[jax.Array]) -> tuple[jax.Array, LSTMState[jax.Array]]:
        """Maps inputs `[B, I]` and a state to the output `[B, H]` and the next state."""
        state = self.build(x.shape[-1]).module(x, state)
        return state.hidden, state

    def initial_state(self, batch_size: int) -> LSTMState[jax.Array]:
        """Returns zeros `[B, H]` for `batch_size` elements."""
        zeros = jnp.zeros((batch_size, self.hidden_size))
        return LSTMState(zeros, zeros)


class RPTH(LazyModule):
    """A fast core, and one slow core per period; see `engram.agents.ftw.networks.RPTH`."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        period: int | Hyperparameter | Sequence[int | Hyperparameter],
        hidden_size: int = 256,
        num_dimensions: int = 256,
        dnc_clip_value: float | None = None,
        use_dnc_linear_projection: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        init_scale: float = 0.1,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        fixed_scale: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        use_tfd_independent: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        shared_memory: MemoryAccess | None = None,
        strict_period_order: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        scale_gradients_fast_to_slow: float | Hyperparameter = 1.0,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            period: Steps between two steps of the slow core: an integer or an `IntHyperparameter`, or a sequence of
                these for several slow cores. Hyperparameters are read at each call.
            hidden_size: Units of each core, H.
            num_dimensions: Dimensions of the latent variable, Z.
            dnc_clip_value: Bound on outputs and cells of controllers. Default: no bound.
            use_dnc_linear_projection: Whether heads receive a linear projection of output and words read.
            init_scale: Initial scale of the latent variable's distributions.
            min_scale: Is added to the scales.
            tanh_mean: Whether means are bounded to (-1, 1).
            fixed_scale: Whether scales are `init_scale`.
            use_tfd_independent: No effect: it selects a class of TensorFlow Probability.
            w_init: Initial weights of the heads, as one of `jax.nn.initializers`. Default: Sonnet's.
            b_init: Initial biases of the heads, as one of `jax.nn.initializers`. Default: zeros.
            shared_memory: Memory that all cores share. Default: none.
            strict_period_order: Whether several periods are sorted in descending order, at each step.
            scale_gradients_fast_to_slow: Factor of gradients from the fast to the slow cores: a number or a
                `FloatHyperparameter`, read at each call.
            seed: Seed of the weights, and of the noise of calls without `noise`.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        self._period, self._gradient_scale = period, scale_gradients_fast_to_slow
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        self.num_dimensions = _checks.integer("`num_dimensions`", num_dimensions)
        _checks.boolean("`use_tfd_independent`", use_tfd_independent)
        if shared_memory is not None and not isinstance(shared_memory, MemoryAccess):
            got = _checks.short_repr(shared_memory)
            raise InvalidArgumentError(f"`shared_memory` must be a MemoryAccess or None; got {got}")
        self._memory = shared_memory
        head = GaussianHeadConfig(init_scale, min_scale, tanh_mean, fixed_scale, w_init, b_init)
        num_slow_cores = np.size(self.period())
        value_of(scale_gradients_fast_to_slow)

        def make(in_size: int, memory: networks.MemoryAccess | None, key: jax.Array) -> networks.RPTH:
            return networks.RPTH(
                in_size, hidden_size, num_dimensions, num_slow_cores=num_slow_cores, memory=memory,
                dnc_clip_value=dnc_clip_value, use_dnc_linear_projection=use_dnc_linear_projection, head=head,
                strict_period_order=strict_period_order, key=key,
            )  # fmt: skip

        self._make = make
        self._noise_key = random_key(seed)

    def period(self) -> int | tuple[int, ...]:
        """Returns the current period, or those of several slow cores.

        Raises:
            InvalidArgumentError: A period is not an integer of at least 1.
        """
        return period_of(self._period)

    def gradient_scale(self) -> float:
        """Returns the current factor of gradients from the fast to the slow cores."""
        return float(value_of(self._gradient_scale))

    def build(self, in_size: int, key: jax.Array | None = None) -> Self:
        """Makes the weights, unless they exist, for inputs `[..., in_size]`.

        Args:
            in_size: Size of the inputs' last axis.
            key: Random key; no effect if this object has a seed. Default: a random one.

        Returns:
            This object.

        Raises:
            InvalidArgumentError: The memory is a part of another core.
        """
        if self._memory is not None:
            check_is_free(self._memory, self)
        self._make_module(lambda made_key: self._made(in_size, made_key), key)
        if self._memory is not None:
            attach(self._memory, self, lambda: self.module.memory)
        return self

    def __call__(
        self, x: jax.Array, state: PeriodicRNNState, noise: jax.Array | None = None
    ) -> tuple[RPTHOutput, PeriodicRNNState]:
        """Takes one step.

        Args:
            x: Inputs `[B, I]`.
            state: The last state.
            noise: `[B, Z]`, of the standard normal distribution. Default: it is drawn.

        Returns:
            Output and next state.
        """
        if noise is None:
            self._noise_key, key = jax.random.split(self._noise_key)
            noise = jax.random.normal(key, (state_batch_size(state), self.num_dimensions))
        periods = jnp.asarray(self.period())
        output: tuple[RPTHOutput, PeriodicRNNState] = self.build(x.shape[-1]).module(
            x, state, noise, period=periods, gradient_scale=self.gradient_scale()
        )
        return output

    def initial_state(self, batch_size: int) -> PeriodicRNNState:
        """Returns zeros for `batch_size` elements."""
        if self.is_built:
            state: PeriodicRNNState = self.module.initial_state(batch_size)
            return state

        def of_any_weights() -> PeriodicRNNState:
            key = jax.random.key(0)
            memory = None if self._memory is None else self._memory.made(self.hidden_size, key)
            return self._make(1, memory, key).initial_state(batch_size)

        shapes = jax.eval_shape(of_any_weights)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # type: ignore[no-any-return]

    def _made(self, in_size: int, key: jax.Array) -> networks.RPTH:
        key, memory_key = jax.random.split(key)
        memory = None if self._memory is None else self._memory.build(self.hidden_size, memory_key).module
        return self._make(in_size, memory, key)


class RPTHZWrapper:
    """An RPTH whose output is the latent variable only."""

    def __init__(self, rpth_core: RPTH) -> None:
        """Wraps a core, which keeps its weights.

        Args:
            rpth_core: The core.

        Raises:
            InvalidArgumentError: It is not an `RPTH`.
        """
        if not isinstance(rpth_core, RPTH):
            raise InvalidArgumentError(f"`rpth_core` must be an RPTH; got {_checks.short_repr(rpth_core)}")
        self.core = rpth_core

    def __call__(
        self, x: jax.Array, state: PeriodicRNNState, noise: jax.Array | None = None
    ) -> tuple[jax.Array, PeriodicRNNState]:
        """Takes one step as `RPTH` does; returns the latent variable `[B, Z]`, and the next state."""
        output, state = self.core(x, state, noise)
        return output.z, state

    def initial_state(self, batch_size: int) -> PeriodicRNNState:
        """Returns zeros for `batch_size` elements."""
        return self.core.initial_state(batch_size)


def period_of(period: int | Hyperparameter | Sequence[int | Hyperparameter]) -> int | tuple[int, ...]:
    """Returns the current value of a period, or those of several.

    Raises:
        InvalidArgumentError: A period is not an integer of at least 1.
    """
    value = value_of(period)
    if isinstance(value, Sequence) or np.ndim(value) == 1:
        return tuple(_checks.integer("each `period`", _whole(value_of(each))) for each in value)
    return _checks.integer("`period`", _whole(value))


def _whole(value: Any) -> Any:  # noqa: ANN401, a number
    """Returns a float without a fraction as an int; other values unchanged."""
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value
