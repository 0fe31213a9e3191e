"""RMSProp with clipped gradients and a decaying learning rate; all settings may be traced values.

RMSProp is that of Graves 2013 without momentum or centring: `ms = decay ms + (1 - decay) g^2` from 0, and
`p -= learning_rate g / sqrt(ms + epsilon)`, with epsilon inside the root.
"""

from typing import Any, NamedTuple

from engram._extras import importing_extra
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array

DECAY = 0.99
"""Default decay of the mean of the squared gradients."""


class OptimizerState(NamedTuple):
    """What the optimizer keeps between updates.

    Attributes:
        mean_square: State of `optax.scale_by_rms`: the mean of each squared gradient, a pytree like the parameters.
        step: i32 `[]`, the number of updates done.
    """

    mean_square: Any
    step: Array


def init(params: Nest) -> OptimizerState:
    """Returns the first state for parameters, a pytree of arrays."""
    return OptimizerState(optax.scale_by_rms(initial_scale=0.0).init(params), jnp.zeros((), jnp.int32))


def update(
    grads: Nest,
    state: OptimizerState,
    *,
    learning_rate: Array | float,
    epsilon: Array | float,
    max_gradient_norm: Array | float = float("inf"),
    decay_steps: Array | int = 0,
    decay: Array | float = DECAY,
) -> tuple[Any, OptimizerState, Array]:
    """Does one update.

    Args:
        grads: The gradients, a pytree like the parameters.
        state: The state, of `init` or of the previous update.
        learning_rate: The learning rate before its decay.
        epsilon: Added to the mean of the squared gradients.
        max_gradient_norm: See `clip_by_global_norm`.
        decay_steps: See `decayed`.
        decay: Decay of the mean of the squared gradients.

    Returns:
        What to add to the parameters (`optax.apply_updates`), the next state, and the gradients' norm `[]` before
        clipping.
    """
    grads, norm = clip_by_global_norm(grads, max_gradient_norm)
    rms = optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=0.0, eps_in_sqrt=True)
    scaled, mean_square = rms.update(grads, state.mean_square)
    rate = decayed(learning_rate, state.step, decay_steps)
    updates = jax.tree.map(lambda grad: -rate * grad, scaled)
    return updates, OptimizerState(mean_square, state.step + 1), norm


def clip_by_global_norm(grads: Nest, max_norm: Array | float) -> tuple[Any, Array]:
    """Scales gradients down to a global L2 norm of `max_norm`; also returns the norm `[]` before."""
    norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in jax.tree.leaves(grads)))
    # Not `max_norm / max(norm, max_norm)`, which is NaN if there is no maximum, inf.
    factor = jnp.where(norm > max_norm, max_norm / norm, 1)
    return jax.tree.map(lambda grad: factor * grad, grads), norm


def decayed(learning_rate: Array | float, step: Array | int, decay_steps: Array | int) -> Array:
    """Returns the learning rate of an update, `[]`: `learning_rate (1 - step / decay_steps)`, at least 0.

    Args:
        learning_rate: The rate of update 0.
        step: Number of updates before this one.
        decay_steps: Number of updates over which the rate decays. 0 or negative: it is constant.
    """
    remaining = jnp.maximum(decay_steps - step, 0)
    # From left to right, in the type of the learning rate: the quotient of two 32-bit integers has 32 bits.
    return jnp.where(
        jnp.asarray(decay_steps) > 0, learning_rate * remaining / jnp.maximum(decay_steps, 1), learning_rate
    )
