"""An option of the published agent: one optimizer per task, in place of one for the sum of all losses.

The actor-critic, pixel control and reward prediction update the same parameters one after the other. Each has RMSProp
statistics and a clipped gradient norm of its own.
"""

from collections.abc import Callable

from engram._extras import importing_extra
from engram.agents.ftw import optimizer
from engram.agents.ftw.agent_networks import AgentNetworks
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.learner import LearnerState, Metrics, optimized
from engram.agents.ftw.total_loss import Losses, actor_critic_losses, pixel_control_loss, reward_prediction_loss
from engram.agents.ftw.trajectory import Batch, to_trajectories
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from jax import Array

NUM_TASKS = 3


def init(params: Nest, key: Array) -> LearnerState:
    """Returns the first state; its optimizer is a tuple, in the order of the updates."""
    return LearnerState(params, tuple(optimizer.init(params) for _ in range(NUM_TASKS)), key)  # type: ignore[arg-type]  # see above


def update(state: LearnerState, batch: Batch, hypers: Hypers, *, static: AgentNetworks) -> tuple[LearnerState, Metrics]:
    """Does one update per task; those of auxiliary tasks only if the batch has data for them.

    Args:
        state: The state.
        batch: The batch.
        hypers: Hyperparameters.
        static: What of the networks is no parameter; see `engram.agents.ftw.agent_networks.split_networks`.
    """
    key, next_key = jax.random.split(state.key)
    main_key, control_key = jax.random.split(key)

    def main(networks: AgentNetworks) -> tuple[Array, Nest]:
        terms = actor_critic_losses(networks, to_trajectories(batch.items, networks.policy), main_key, hypers)
        return sum(terms, jnp.zeros(())), terms

    def control(networks: AgentNetworks) -> tuple[Array, Nest]:
        trajectories = to_trajectories(batch.pixel_control, networks.policy)
        return hypers.pixel_control_cost * pixel_control_loss(networks, trajectories, control_key, hypers), ()

    def prediction(networks: AgentNetworks) -> tuple[Array, Nest]:
        assert batch.windows is not None  # noqa: S101, the task is on
        return hypers.reward_prediction_cost * reward_prediction_loss(networks, batch.windows, hypers), ()

    def step(params: Nest, optimizer_state: Nest, loss: Callable[[AgentNetworks], Nest]) -> Nest:
        value, grads = jax.value_and_grad(lambda p: loss(eqx.combine(p, static)), has_aux=True)(params)
        params, optimizer_state, norm = optimized(params, grads, optimizer_state, hypers)
        return value, (params, optimizer_state), norm

    optimizers: list[Nest] = list(state.optimizer)
    (_, terms), (params, optimizers[0]), norm = step(state.params, optimizers[0], main)
    auxiliary = [jnp.zeros(())] * 2
    tasks = ((static.pixel_control, control), (static.reward_prediction, prediction))
    for index, (head, loss) in enumerate(tasks):
        if head is not None:
            (value, _), new, _ = step(params, optimizers[index + 1], loss)
            old = (params, optimizers[index + 1])
            params, optimizers[index + 1] = _where(batch.auxiliary_weight > 0, new, old)
            auxiliary[index] = batch.auxiliary_weight * value
    losses = Losses(sum((*terms, *auxiliary), jnp.zeros(())), *terms, *auxiliary)
    return LearnerState(params, tuple(optimizers), next_key), Metrics(losses, norm)  # type: ignore[arg-type]  # see `init`


def _where(condition: Array, new: Nest, old: Nest) -> Nest:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
