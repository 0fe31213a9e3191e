"""The learner: one compiled step, from state to state. Hyperparameters are traced: new values need no compilation."""

from typing import Any, NamedTuple

from engram._extras import importing_extra
from engram.agents.ftw import optimizer
from engram.agents.ftw.agent_networks import AgentNetworks, split_networks
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.replay import Replay
from engram.agents.ftw.total_loss import Losses, total_loss
from engram.agents.ftw.trajectory import Batch
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import equinox as eqx
    import jax
    import optax
    from jax import Array


class LearnerState(NamedTuple):
    """The state that a learner step reads and replaces.

    Attributes:
        params: `AgentNetworks` whose leaves are the parameters.
        optimizer: Of RMSProp; its `step` is the number of updates done.
        key: Random key of all later updates.
    """

    params: Any
    optimizer: optimizer.OptimizerState
    key: Array


class Metrics(NamedTuple):
    """Metrics of a learner step.

    Attributes:
        losses: The terms of the loss.
        gradient_norm: f32 `[]`, global norm of the gradients before clipping.
    """

    losses: Losses
    gradient_norm: Array


def init(params: Nest, key: Array) -> LearnerState:
    """Returns the first state."""
    return LearnerState(params, optimizer.init(params), key)


def update(state: LearnerState, batch: Batch, hypers: Hypers, *, static: AgentNetworks) -> tuple[LearnerState, Metrics]:
    """Does one update.

    Args:
        state: The state.
        batch: The batch.
        hypers: Hyperparameters.
        static: What of the networks is no parameter; see `split_networks`.
    """
    key, next_key = jax.random.split(state.key)

    def loss(params: Nest) -> tuple[Array, Losses]:
        return total_loss(eqx.combine(params, static), batch, key, hypers)

    (_, losses), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    params, optimizer_state, norm = optimized(state.params, grads, state.optimizer, hypers)
    return LearnerState(params, optimizer_state, next_key), Metrics(losses, norm)


def optimized(
    params: Nest, grads: Nest, optimizer_state: optimizer.OptimizerState, hypers: Hypers
) -> tuple[Any, optimizer.OptimizerState, Array]:
    """Returns the new parameters, the optimizer's next state, and the norm `[]` of the gradients before clipping."""
    updates, optimizer_state, norm = optimizer.update(
        grads,
        optimizer_state,
        learning_rate=hypers.learning_rate,
        epsilon=hypers.rms_prop_epsilon,
        max_gradient_norm=hypers.max_gradient_norm,
        decay_steps=hypers.learning_rate_decay_steps,
    )
    return optax.apply_updates(params, updates), optimizer_state, norm


learner_step = jax.jit(update, static_argnames="static", donate_argnames="state")
"""`update`, compiled. The buffers of the state are reused for the next one."""


class Learner:
    """Networks that learn from a replay.

    Attributes:
        static: What of the networks is no parameter.
        hypers: Hyperparameters of the next step; they may be replaced, see `Hypers.replace`.
        state: The state.
    """

    def __init__(self, networks: AgentNetworks, hypers: Hypers, key: Array) -> None:
        """Starts with these networks."""
        params, self.static = split_networks(networks)
        # A copy: steps donate the buffers of the state, and the caller may keep the networks and the key.
        self.state = init(*jax.tree.map(lambda x: x.copy(), (params, key)))
        self.hypers = hypers

    @property
    def params(self) -> Nest:
        """The current parameters. The next `learn` makes them unusable; it returns others here."""
        return self.state.params

    def learn(self, replay: Replay, *, timeout: float | None = None) -> Metrics:
        """Does one update with a batch of the replay; waits until the queue has one, at most `timeout` seconds.

        Raises:
            DeadlineExceededError: The queue had no batch in time.
        """
        batch = replay.sample(timeout)
        metrics: Metrics
        self.state, metrics = learner_step(self.state, batch, self.hypers, static=self.static)
        return metrics
