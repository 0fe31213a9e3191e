"""The learner: Double DQN with prioritized replay, importance weights and n-step returns, in JAX."""

from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import engram
from engram._extras import importing_extra
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Spaces
from engram.agents.dqn.network import Layer, Params, layer_shapes, q_values
from engram.agents.dqn.returns import n_step_return
from engram.agents.dqn.tables import REPLAY, Step

with importing_extra("agents", "engram.agents"):
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array


LOSSES = 100
"""Number of learner steps whose mean loss is reported."""


class LearnerState(NamedTuple):
    """The state that a learner step reads and replaces."""

    params: Params
    target_params: Params
    opt_state: optax.OptState
    step: Array  # i32[], learner steps done


class Metrics(NamedTuple):
    """Metrics of a learner step."""

    loss: Array  # f32[]
    td_error: Array  # f32[B]


def init_params(key: Array, shapes: list[tuple[int, ...]]) -> Params:
    """Returns He-normal weights (He et al. 2015) of these shapes, and zero biases."""
    keys = jax.random.split(key, len(shapes))
    he_normal = jax.nn.initializers.he_normal()
    return tuple(Layer(he_normal(k, shape), jnp.zeros(shape[-1])) for k, shape in zip(keys, shapes, strict=True))


def loss(params: Params, target_params: Params, batch: Step, weight: Array) -> tuple[Array, Array]:
    """Returns the importance-weighted Huber loss of the n-step double-Q error.

    The online network chooses the action at the end of each sequence, the target network evaluates it (van Hasselt et
    al. 2016, eq. 4); the weights correct for prioritized sampling (Schaul et al. 2016, section 3.4).

    Args:
        params: Online network, differentiated.
        target_params: Target network, constant.
        batch: A batch as described by `Step`; of the last step, only the observation is used.
        weight: f32[B], importance weights.

    Returns:
        The loss, f32[], and the errors `target - q`, f32[B].
    """
    stack = batch.observation.shape[1] - batch.reward.shape[1] + 1
    first, last = batch.observation[:, :stack], batch.observation[:, -stack:]
    q_first = q_values(params, first)
    q_taken = jnp.take_along_axis(q_first, batch.action[:, :1], axis=1)[:, 0]
    best = jnp.argmax(q_values(params, last), axis=1)
    q_last = q_values(target_params, last)
    bootstrap = jnp.take_along_axis(q_last, best[:, None], axis=1)[:, 0]
    target = n_step_return(batch.reward[:, :-1], batch.discount[:, :-1], bootstrap)
    td_error = jax.lax.stop_gradient(target) - q_taken
    return jnp.mean(weight * optax.losses.huber_loss(td_error)), td_error


def make_optimizer(config: DQNConfig) -> optax.GradientTransformation:
    """Returns Adam with clipped gradients and a learning rate that decays to a tenth."""
    learning_rate = optax.linear_schedule(
        config.learning_rate, config.learning_rate / 10, config.max_steps // config.learn_period
    )
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(learning_rate))


def init_learner(config: DQNConfig, key: Array, spaces: Spaces) -> LearnerState:
    """Returns the first state: random parameters, an equal target network and a new optimizer."""
    params = init_params(key, layer_shapes(config, spaces))
    return LearnerState(params, params, make_optimizer(config).init(params), jnp.zeros((), jnp.int32))


@partial(jax.jit, static_argnames="config")
def learner_step(state: LearnerState, batch: Step, weight: Array, *, config: DQNConfig) -> tuple[LearnerState, Metrics]:
    """Does one gradient step on a batch, as described by `Step`, with importance weights f32[B]."""
    grad_of_loss = jax.value_and_grad(loss, has_aux=True)
    (value, td_error), grads = grad_of_loss(state.params, state.target_params, batch, weight)
    updates, opt_state = make_optimizer(config).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    step = state.step + 1
    target_params = optax.periodic_update(params, state.target_params, step, config.target_period)
    return LearnerState(params, target_params, opt_state, step), Metrics(value, td_error)


def priority_of(td_error: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns |error| clipped to [0.001, 1]; Schaul et al. 2016, section 4, also clip at 1.

    New items have the largest priority, the pattern's default of 1, so that each is likely to be sampled soon.
    """
    return np.clip(np.abs(td_error), 1e-3, 1.0)


class Learner:
    """A network that learns from a store."""

    def __init__(self, config: DQNConfig, spaces: Spaces, *, seed: int) -> None:
        """Starts with a random network."""
        self._config = config
        self._state = init_learner(config, jax.random.key(seed), spaces)
        self.steps = 0
        """Number of learner steps done."""
        self._losses: deque[Array] = deque(maxlen=LOSSES)

    @property
    def mean_loss(self) -> float:
        """Mean loss of the last 100 learner steps, or of all if there are fewer; NaN before the first."""
        return float(np.mean([np.asarray(loss) for loss in self._losses])) if self._losses else float("nan")

    @property
    def params(self) -> Params:
        """The current network, as NumPy arrays."""
        params: Params = jax.tree.map(np.asarray, self._state.params)
        return params

    def learn(self, store: engram.TableStore, step: int, *, timeout: float) -> None:
        """Samples a batch, learns from it and updates its priorities.

        Args:
            store: The store with the replay table.
            step: Number of environment steps done, on which the importance weights depend.
            timeout: Seconds to wait for the batch.

        Raises:
            DeadlineExceededError: No batch was available in time.
        """
        config = self._config
        beta = 1 - (1 - config.beta_start) * (1 - step / config.max_steps)
        batch = store.sample(REPLAY, config.batch_size, timeout=timeout)
        self._state, metrics = learner_step(self._state, batch.data, batch.importance_weights(beta), config=config)
        store.update_priorities(REPLAY, batch.info.key, priority_of(np.asarray(metrics.td_error)))
        self._losses.append(metrics.loss)
        self.steps += 1
