"""The actor-critic's losses: policy gradient, baseline and entropy (Espeholt et al. 2018, section 4.2).

Each is a sum over time and batch. `valid`, `[T, B]`, is nonzero for the transitions that count; by default all do.
"""

from engram._extras import importing_extra
from engram.agents.ftw.actions import NumActions, entropy, log_prob
from engram.agents.ftw.losses.masks import masked_sum, zero_padding

with importing_extra("agents", "engram.agents"):
    import jax
    from jax import Array


def policy_gradient_loss(
    logits: Array, actions: Array, advantages: Array, num_actions: NumActions, *, valid: Array | None = None
) -> Array:
    """Returns the sum of `-log pi(a_t) advantage_t`, `[]`.

    Args:
        logits: `[T, B, L]`, of the target policy.
        actions: int `[T, B]`, or `[T, B, G]` if decomposed.
        advantages: `[T, B]`; no gradient passes through them.
        num_actions: See `engram.agents.ftw.actions`.
        valid: See the module.
    """
    if valid is not None:
        logits, actions, advantages = zero_padding((logits, actions, advantages), valid)
    return -masked_sum(log_prob(logits, actions, num_actions) * jax.lax.stop_gradient(advantages), valid)


def baseline_loss(vs: Array, values: Array, *, valid: Array | None = None) -> Array:
    """Returns the sum of `(vs_t - V_t)^2 / 2`, `[]`.

    Args:
        vs: `[T, B]`, the targets; no gradient passes through them.
        values: `[T, B]`.
        valid: See the module.
    """
    if valid is not None:
        vs, values = zero_padding((vs, values), valid)
    return masked_sum((jax.lax.stop_gradient(vs) - values) ** 2, valid) / 2


def entropy_loss(logits: Array, num_actions: NumActions, *, valid: Array | None = None) -> Array:
    """Returns minus the sum of the policy's entropies, `[]`, so that a positive cost rewards entropy.

    Args:
        logits: `[T, B, L]`.
        num_actions: See `engram.agents.ftw.actions`.
        valid: See the module.
    """
    if valid is not None:
        logits = zero_padding(logits, valid)
    return -masked_sum(entropy(logits, num_actions), valid)
