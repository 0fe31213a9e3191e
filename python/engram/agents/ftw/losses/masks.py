"""Which rows of an item count: endings of episodes and padding.

An item has T transitions and T + 1 rows; row t has the observation before transition t, and row T the one after the
last transition. `valid`, `[T, B]`, is 1 where a transition is real. Episodes may end within an item: then row t + 1,
after the last valid transition t, has the final observation, and the rows after it are padding.

How a return ends depends on the environment's discount of the last transition:

* 0, termination: the return bootstraps from 0.
* above 0, truncation: it bootstraps from the value of the final observation.
* The item ends, not the episode: it bootstraps from the value of row T.

In all three cases, that is `reward + discount * value[t + 1]`, so that the losses need no other case than invalid rows.

Padding may have any content. Each loss replaces it by zeros before it computes with it, because `0 * nan` is `nan`.
Gradients with respect to network parameters are a second such product: call `zero_padding` on a batch before the
network sees it.
"""

from engram._extras import importing_extra
from engram.errors import InvalidArgumentError
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    from jax import Array


def row_mask(valid: Array) -> Array:
    """Returns which rows have a real observation, bool `[T + 1, B]`: those before or after a valid transition.

    Args:
        valid: `[T, B]`, nonzero for real transitions.
    """
    valid = valid.astype(bool)
    no_transition = jnp.zeros_like(valid[:1])
    return jnp.concatenate([valid, no_transition]) | jnp.concatenate([no_transition, valid])


def zero_padding(tree: Nest, mask: Array) -> Nest:
    """Returns a pytree of arrays `[T, B, ...]` with zeros where the mask `[T, B]` is 0; NaN there has no effect.

    Raises:
        InvalidArgumentError: An array does not begin with the axes of the mask.
    """

    def with_zeros(array: Array) -> Array:
        if array.shape[: mask.ndim] != mask.shape:
            raise InvalidArgumentError(
                f"`tree`: each array must begin with the axes of the mask, {mask.shape}; got the shape {array.shape}"
            )
        return jnp.where(_broadcast(mask.astype(bool), array), array, jnp.zeros((), array.dtype))

    return jax.tree.map(with_zeros, tree)


def masked_sum(values: Array, valid: Array | None) -> Array:
    """Returns the sum of the values `[T, B, ...]` at valid rows, `[]`; None: all rows are valid."""
    return jnp.sum(values if valid is None else zero_padding(values, valid))


def _broadcast(mask: Array, array: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
