"""Double DQN with prioritized replay, importance weights and n-step returns, from top to bottom.

Actor and learner take turns in one process and share one `engram.Store`. The actor appends each step once; a pattern
turns the stream into items of n + 1 consecutive steps, which the learner draws by priority. One seed, one run: nothing
depends on the clock but the progress reports.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax import Array

import engram
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.result import Progress, Result, Stopped, mean_of_last
from engram.agents.dqn.returns import n_step_return

TABLE = "replay"

SAMPLE_TIMEOUT = 30.0
"""Seconds until a batch that does not come is an error that says why, instead of a silent wait."""


class Step(NamedTuple):
    """What the actor writes at each step; a drawn batch has the same nest with two axes in front, [B, n + 1]."""

    observation: Any  # f32[O]
    action: Any  # i32[], taken after seeing `observation`
    reward: Any  # f32[], received for it
    discount: Any  # f32[]: gamma, or 0 if the action ended the episode


class Layer(NamedTuple):
    """A dense layer; the network is a tuple of them."""

    weight: Any  # f32[I, O]
    bias: Any  # f32[O]


Params: TypeAlias = tuple[Layer, ...]


class LearnerState(NamedTuple):
    """Everything that a learner step reads and replaces."""

    params: Params
    target_params: Params
    opt_state: optax.OptState
    step: Array  # i32[], learner steps done


class Metrics(NamedTuple):
    """What a learner step tells besides its new state."""

    loss: Array  # f32[]
    td_error: Array  # f32[B]


def init_params(key: Array, sizes: tuple[int, ...]) -> Params:
    """He-normal weights (He et al. 2015) and zero biases for layers of `sizes[0] -> ... -> sizes[-1]` units."""
    keys = jax.random.split(key, len(sizes) - 1)
    he_normal = jax.nn.initializers.he_normal()
    shapes = itertools.pairwise(sizes)
    return tuple(Layer(he_normal(k, shape), jnp.zeros(shape[1])) for k, shape in zip(keys, shapes, strict=True))


def q_values(params: Params, observation: Any) -> Any:  # noqa: ANN401 - JAX or NumPy arrays, as given
    """Action values [..., A] of observations [..., O]; works on JAX arrays (to learn) and on NumPy's (to act)."""
    x = observation
    for layer in params[:-1]:
        x = x @ layer.weight + layer.bias
        x = x * (x > 0)
    return x @ params[-1].weight + params[-1].bias


def loss(params: Params, target_params: Params, batch: Step, weight: Array) -> tuple[Array, Array]:
    """Importance-weighted Huber loss of the n-step double-Q error.

    The online network chooses the action at the end of each sequence, the target network values it (van Hasselt et
    al. 2016, eq. 4); the weights correct for drawing by priority (Schaul et al. 2016, section 3.4).

    Args:
        params: Online network, differentiated.
        target_params: Target network, constant.
        batch: Leaves [B, n + 1, ...]; of the last step only the observation counts.
        weight: f32[B], importance weights.

    Returns:
        The loss, f32[], and the errors `target - q`, f32[B].
    """
    q_first = q_values(params, batch.observation[:, 0])
    chosen = jnp.take_along_axis(q_first, batch.action[:, :1], axis=1)[:, 0]
    best = jnp.argmax(q_values(params, batch.observation[:, -1]), axis=1)
    q_last = q_values(target_params, batch.observation[:, -1])
    bootstrap = jnp.take_along_axis(q_last, best[:, None], axis=1)[:, 0]
    target = n_step_return(batch.reward[:, :-1], batch.discount[:, :-1], bootstrap)
    td_error = jax.lax.stop_gradient(target) - chosen
    return jnp.mean(weight * optax.losses.huber_loss(td_error)), td_error


def make_optimizer(config: DQNConfig) -> optax.GradientTransformation:
    """Adam with clipped gradients and a learning rate that falls to a tenth."""
    rate = optax.linear_schedule(
        config.learning_rate, config.learning_rate / 10, config.max_steps // config.learn_period
    )
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))


def init_learner(config: DQNConfig, key: Array, num_inputs: int, num_actions: int) -> LearnerState:
    """Fresh networks (target equal to online) and optimizer."""
    params = init_params(key, (num_inputs, *config.hidden_sizes, num_actions))
    return LearnerState(params, params, make_optimizer(config).init(params), jnp.zeros((), jnp.int32))


@partial(jax.jit, static_argnames="config")
def learner_step(state: LearnerState, batch: Step, weight: Array, *, config: DQNConfig) -> tuple[LearnerState, Metrics]:
    """One gradient step on a batch (leaves [B, n + 1, ...]) with importance weights f32[B]."""
    grad_of_loss = jax.value_and_grad(loss, has_aux=True)
    (value, td_error), grads = grad_of_loss(state.params, state.target_params, batch, weight)
    updates, opt_state = make_optimizer(config).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    step = state.step + 1
    target_params = optax.periodic_update(params, state.target_params, step, config.target_period)
    return LearnerState(params, target_params, opt_state, step), Metrics(value, td_error)


def make_table(config: DQNConfig, num_inputs: int) -> engram.Table:
    """The replay table: drawn by priority, oldest out first, shut to the learner until it holds enough."""
    length = config.n_step + 1
    return engram.Table(
        TABLE,
        max_size=config.replay_size,
        sampler=engram.selectors.Prioritized(config.priority_exponent),
        remover=engram.selectors.Fifo(),
        rate_limiter=engram.rate_limiters.MinSize(config.min_replay_size),
        signature=Step(
            observation=engram.ArraySpec((length, num_inputs), np.float32),
            action=engram.ArraySpec((length,), np.int32),
            reward=engram.ArraySpec((length,), np.float32),
            discount=engram.ArraySpec((length,), np.float32),
        ),
    )


def pad_episode(
    writer: engram.PatternWriter, observation: npt.NDArray[np.float32], *, terminated: bool, n_step: int
) -> None:
    """Close an episode so that each of its steps starts an item, the last one included.

    The final observation is repeated `n_step` times without reward. Behind a terminal step the padding is worth
    nothing. Behind a truncation its discount is 1: standing still costs nothing, so the last steps get shorter n-step
    returns that bootstrap from the final observation, as if the time limit were not there.
    """
    padding = Step(observation, np.int32(0), np.float32(0), np.float32(not terminated))
    for _ in range(n_step):
        writer.append(padding)
    writer.end_episode()


def priority_of(td_error: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """|error| clipped to [0.001, 1] (Schaul et al. 2016, section 4, clip at 1 too).

    New items enter with the pattern's priority of 1, so with the largest there is: each is soon seen once.
    """
    return np.clip(np.abs(td_error), 1e-3, 1.0)


def is_solved(returns: Sequence[float], config: DQNConfig) -> bool:
    """Whether the mean of the last episodes reached the target, if there is one (NaN never does)."""
    return config.solved_return is not None and mean_of_last(returns, config.solved_episodes) >= config.solved_return


def act(params: Params, observation: npt.NDArray[np.float32], epsilon: float, rng: np.random.Generator) -> int:
    """An epsilon-greedy action, on NumPy: for one observation quicker than a call into a compiled function."""
    values = q_values(params, observation)
    return int(rng.integers(len(values)) if rng.random() < epsilon else np.argmax(values))


def train(
    config: DQNConfig, report: Callable[[Progress], None] | None = None, *, report_period: float = 0.25
) -> Result:
    """Play and learn until solved, out of budget or interrupted by Ctrl-C.

    Args:
        config: What to play and how.
        report: Called now and then, between two steps; a KeyboardInterrupt that it raises ends the run like Ctrl-C.
        report_period: Seconds between two reports.

    Raises:
        InvalidArgumentError: If the environment does not exist or does not fit.
    """
    started = reported = time.perf_counter()
    # NumPy seeds: one stream for each source of chance, all from one seed.
    seeds = np.random.SeedSequence(config.seed).generate_state(4).tolist()
    env_seed, actor_seed, learner_seed, store_seed = seeds
    rng = np.random.default_rng(actor_seed)
    returns: list[float] = []
    episode_ends: list[int] = []
    episode_return = 0.0
    stopped: Stopped = "budget"
    step = 0

    with (
        Environment(config.env_id) as env,
        engram.Store([make_table(config, env.num_inputs)], seed=store_seed) as store,
        store.pattern_writer([engram.Pattern(TABLE, num_steps=config.n_step + 1)]) as writer,
    ):
        state = init_learner(config, jax.random.key(learner_seed), env.num_inputs, env.num_actions)
        acting_params = jax.tree.map(np.asarray, state.params)
        try:
            observation = env.reset(seed=env_seed)
            while step < config.max_steps:
                epsilon = 1 - (1 - config.epsilon_end) * min(1.0, step / config.epsilon_steps)
                action = act(acting_params, observation, epsilon, rng)
                outcome = env.step(action)
                discount = 0.0 if outcome.terminated else config.gamma
                writer.append(Step(observation, np.int32(action), np.float32(outcome.reward), np.float32(discount)))
                observation = outcome.observation
                episode_return += outcome.reward
                step += 1

                if outcome.terminated or outcome.truncated:
                    pad_episode(writer, observation, terminated=outcome.terminated, n_step=config.n_step)
                    returns.append(episode_return)
                    episode_ends.append(step)
                    episode_return = 0.0
                    if is_solved(returns, config):
                        stopped = "solved"
                        break
                    observation = env.reset()

                # Learn, once the table holds `min_replay_size` items: the open episode is n items behind its steps.
                warm_up = config.min_replay_size + config.n_step
                if step == warm_up:
                    writer.flush()  # the first sample would wait for items whose chunk is not full yet
                if step >= warm_up and step % config.learn_period == 0:
                    beta = 1 - (1 - config.beta_start) * (1 - step / config.max_steps)
                    batch = store.sample(TABLE, config.batch_size, timeout=SAMPLE_TIMEOUT)
                    weight = batch.importance_weights(beta)
                    state, metrics = learner_step(state, batch.data, weight, config=config)
                    store.update_priorities(TABLE, batch.info.key, priority_of(np.asarray(metrics.td_error)))
                    acting_params = jax.tree.map(np.asarray, state.params)

                now = time.perf_counter()
                if report is not None and now - reported >= report_period:
                    reported = now
                    mean_return = mean_of_last(returns, config.solved_episodes)
                    report(
                        Progress(
                            step=step,
                            returns=returns,
                            mean_return=mean_return,
                            epsilon=epsilon,
                            seconds=now - started,
                            table=store.info()[TABLE],
                        )
                    )
        except KeyboardInterrupt:
            stopped = "interrupted"
        return Result(
            config=config,
            stopped=stopped,
            steps=step,
            learner_steps=int(state.step),
            returns=returns,
            episode_ends=episode_ends,
            seconds=time.perf_counter() - started,
            table=store.info()[TABLE],
            params=acting_params,
        )
