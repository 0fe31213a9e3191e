"""The order in which the slots of a memory were written. Graves et al. (2016), "Methods".

B may be any leading axes; N is the number of memory slots, K write heads, R read heads. Time and memory of all
functions, and of their gradients, grow with N squared.

The gradients are written out as matrix products: those that JAX derives are sums over rows and columns and transposed
products, for which XLA takes seven times as long on CPUs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TemporalLinkageState(NamedTuple):
    """The order in which slots were written, for each write head."""

    link: jax.Array  # L: f[B, K, N, N]; L[i, j] is the degree to which slot i was written just after slot j
    precedence_weights: jax.Array  # p: f[B, K, N]; the degree to which each slot was written last


def updated_linkage(linkage: TemporalLinkageState, write_weights: jax.Array) -> TemporalLinkageState:
    """Returns the linkage after a write with weights w, f[B, K, N].

    L'[i, j] = (1 - w_i - w_j) L[i, j] + w_i p_j, with a zero diagonal
    p' = (1 - sum_i w_i) p + w
    """
    link, precedence = linkage
    next_precedence = (1 - write_weights.sum(axis=-1, keepdims=True)) * precedence + write_weights
    return TemporalLinkageState(_updated_link(link, precedence, write_weights), next_precedence)


@jax.custom_vjp
def directional_weights(link: jax.Array, read_weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns where a step forward, and a step backward, in the order of writes leads: each f[B, R, K, N].

    Args:
        link: f[B, K, N, N].
        read_weights: Those of the previous step, f[B, R, N].
    """
    reads = read_weights[..., None, :, :]  # f[B, 1, R, N]
    forward = _transposed(link @ _transposed(reads))  # f[B, K, R, N]
    return forward.swapaxes(-3, -2), (reads @ link).swapaxes(-3, -2)


@jax.custom_vjp
def _updated_link(link: jax.Array, precedence: jax.Array, write_weights: jax.Array) -> jax.Array:
    decayed = _decay(write_weights) * link
    return _without_diagonal(decayed + write_weights[..., :, None] * precedence[..., None, :])


def _decay(write_weights: jax.Array) -> jax.Array:
    """Returns `1 - w_i - w_j`, f[B, K, N, N]."""
    return 1 - write_weights[..., :, None] - write_weights[..., None, :]


def _without_diagonal(matrices: jax.Array) -> jax.Array:
    return jnp.where(jnp.eye(matrices.shape[-1], dtype=bool), 0, matrices)


def _transposed(matrices: jax.Array) -> jax.Array:
    return matrices.swapaxes(-2, -1)


def _updated_link_forward(
    link: jax.Array, precedence: jax.Array, write_weights: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _updated_link(link, precedence, write_weights), (link, precedence, write_weights)


def _updated_link_backward(
    residuals: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """With G the gradient of L': of L it is (1 - w_i - w_j) G, of p G^T w, of w G p minus the sums of G L.

    The sums are over the rows and over the columns.
    """
    link, precedence, write_weights = residuals
    gradient = _without_diagonal(gradient)
    product = gradient * link
    ones = jnp.ones((link.shape[-1], 1), link.dtype)
    row_sums, column_sums = product @ ones, _transposed(_transposed(ones) @ product)
    of_write_weights = gradient @ precedence[..., None] - row_sums - column_sums
    of_precedence = write_weights[..., None, :] @ gradient
    return _decay(write_weights) * gradient, of_precedence[..., 0, :], of_write_weights[..., 0]


def _directional_weights_forward(
    link: jax.Array, read_weights: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    return directional_weights(link, read_weights), (link, read_weights)


def _directional_weights_backward(
    residuals: tuple[jax.Array, jax.Array], gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """With F and D the gradients of forward and backward: of L it is F^T W + W^T D, of the read weights F L + D L^T."""
    link, read_weights = residuals
    of_forward, of_backward = (gradient.swapaxes(-3, -2) for gradient in gradients)  # f[B, K, R, N]
    reads = jnp.broadcast_to(read_weights[..., None, :, :], of_forward.shape)
    left, right = jnp.concatenate([of_forward, reads], axis=-2), jnp.concatenate([reads, of_backward], axis=-2)
    of_reads = of_forward @ link + _transposed(link @ _transposed(of_backward))
    return _transposed(left) @ right, of_reads.sum(axis=-3)


_updated_link.defvjp(_updated_link_forward, _updated_link_backward)
directional_weights.defvjp(_directional_weights_forward, _directional_weights_backward)
