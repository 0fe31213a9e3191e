"""Where the heads of a DNC write and read: by content and by free slots. By order of writes: `linkage.py`.

B may be any leading axes; N is the number of memory slots, W their word size, K write heads, R read heads. The
equations are those of Graves et al. (2016), "Methods"; each function states what it does where several heads write.
"""

import jax
import jax.numpy as jnp

EPSILON = 1e-6
"""Keeps norms above 0, and usages above 0 in the allocation."""


def content_weights(memory: jax.Array, keys: jax.Array, strengths: jax.Array) -> jax.Array:
    """Returns f[B, heads, N]: a softmax over the slots of strength times cosine similarity to the key.

    Args:
        memory: f[B, N, W].
        keys: f[B, heads, W].
        strengths: f[B, heads], at least 0.
    """
    products = jnp.einsum("...hw,...nw->...hn", keys, memory)
    norms = _norm(keys)[..., :, None] * _norm(memory)[..., None, :]
    return jax.nn.softmax(strengths[..., None] * products / (norms + EPSILON), axis=-1)


def _norm(vectors: jax.Array) -> jax.Array:
    """Euclidean norm over the last axis, with a gradient at 0."""
    return jnp.sqrt(jnp.sum(vectors**2, axis=-1) + EPSILON)


def updated_usage(
    usage: jax.Array, write_weights: jax.Array, free_gates: jax.Array, read_weights: jax.Array
) -> jax.Array:
    """Returns the usage f[B, N] after the previous step: writes raise it, and reads with an open free gate lower it.

        u' = (u + (1 - u) (1 - prod_k (1 - w_k))) prod_r (1 - f_r w_r)

    No gradient reaches the write weights.

    Args:
        usage: u, f[B, N], from 0 to 1.
        write_weights: w_k of the previous step, f[B, K, N].
        free_gates: f_r, f[B, R].
        read_weights: w_r of the previous step, f[B, R, N].
    """
    written = 1 - jnp.prod(1 - jax.lax.stop_gradient(write_weights), axis=-2)
    retained = jnp.prod(1 - free_gates[..., None] * read_weights, axis=-2)
    return (usage + (1 - usage) * written) * retained


def allocation_weights(usage: jax.Array) -> jax.Array:
    """Returns f[B, N]: most of the weight is on the slots with the lowest usage.

    With slots in ascending order of usage (of equal ones the lower index first), a = (1 - u) times the product of the
    usages of all slots before it.
    """
    usage = EPSILON + (1 - EPSILON) * usage
    order = jnp.argsort(usage, axis=-1, stable=True)
    ascending = jnp.take_along_axis(usage, order, axis=-1)
    product = jnp.cumprod(ascending, axis=-1)
    product_before = jnp.concatenate([jnp.ones_like(product[..., :1]), product[..., :-1]], axis=-1)
    weights = (1 - ascending) * product_before
    return jnp.put_along_axis(jnp.zeros_like(usage), order, weights, axis=-1, inplace=False)


def write_allocation_weights(usage: jax.Array, gates: jax.Array) -> jax.Array:
    """Returns f[B, K, N]: the allocation of each write head, after the heads before it took their slots.

    Args:
        usage: f[B, N].
        gates: Allocation gate times write gate of each head, f[B, K]: the share of its allocation that a head writes.
    """
    weights = []
    for head in range(gates.shape[-1]):
        allocation = allocation_weights(usage)
        usage = usage + (1 - usage) * gates[..., head, None] * allocation
        weights.append(allocation)
    return jnp.stack(weights, axis=-2)
