"""Soft actor-critic on Pendulum.

    python examples/sac.py
    python examples/sac.py --buffer

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications": two critics, and a temperature that is adjusted
so that the policy keeps an entropy of minus the number of action dimensions.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import engram
from engram import buffers
from engram.gymnasium import BufferWriter, Transitions, VectorWriter

TARGET_RETURN = -250.0
"""Mean return of 20 episodes at which the task counts as solved; a random policy has about -1,200."""

NUM_ENVS = 4
STEPS = 5_000  # calls of `envs.step`, which steps all environments
WARM_UP = 250  # steps with random actions before the first update
UPDATES_PER_STEP = 2
BATCH_SIZE = 128
CAPACITY = 20_000
DISCOUNT = 0.98
AVERAGE_RATE = 0.01  # share of the critics that each update adds to the target critics
REWARD_DIVISOR = 8
MAX_TORQUE = 2.0
OPTIMIZER = optax.adam(1e-3)


class Networks(NamedTuple):
    """The policy, the critics and the temperature: all that the optimizer trains."""

    policy: eqx.nn.MLP  # observation -> mean and log of the standard deviation
    critics: tuple[eqx.nn.MLP, eqx.nn.MLP]  # observation and action -> value
    log_temperature: jax.Array


def sample_action(policy: eqx.nn.MLP, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns an action from -1 to 1, f32[1], and the log of its probability density."""
    mean, log_std = jnp.split(policy(obs), 2)
    log_std = jnp.clip(log_std, -5, 2)
    noise = jax.random.normal(key, mean.shape)
    before_tanh = mean + jnp.exp(log_std) * noise
    log_density = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # The logarithm of the derivative of tanh, in a form that does not underflow (appendix C).
    log_slope = 2 * (jnp.log(2) - before_tanh - jax.nn.softplus(-2 * before_tanh))
    return jnp.tanh(before_tanh), jnp.sum(log_density - log_slope)


@eqx.filter_jit
def act(policy: eqx.nn.MLP, obs: Any, key: jax.Array) -> jax.Array:
    """Returns actions for N environments, f32[N, 1]."""
    return jax.vmap(sample_action, (None, 0, 0))(policy, obs, jax.random.split(key, len(obs)))[0]


def lowest_value(critics: tuple[eqx.nn.MLP, eqx.nn.MLP], obs: jax.Array, action: jax.Array) -> jax.Array:
    """Returns the smaller of the critics' values."""
    inputs = jnp.concatenate([obs, action])
    return jnp.minimum(critics[0](inputs)[0], critics[1](inputs)[0])


def loss(networks: Networks, target_critics: Any, batch: dict[str, Any], key: jax.Array) -> jax.Array:
    """Returns the summed losses of critics, policy and temperature (equations 5, 7 and 18), averaged over the batch."""
    temperature = jnp.exp(networks.log_temperature)
    stop_gradient = jax.lax.stop_gradient

    def transition_loss(transition: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        next_key, key = jax.random.split(key)
        next_action, next_log_density = sample_action(networks.policy, transition["next_obs"], next_key)
        next_value = lowest_value(target_critics, transition["next_obs"], next_action) - temperature * next_log_density
        value = stop_gradient(transition["reward"] / REWARD_DIVISOR + transition["discount"] * next_value)
        inputs = jnp.concatenate([transition["obs"], transition["action"] / MAX_TORQUE])
        critic_loss = sum((critic(inputs)[0] - value) ** 2 for critic in networks.critics)

        action, log_density = sample_action(networks.policy, transition["obs"], key)
        critics = jax.tree.map(lambda leaf: stop_gradient(leaf) if eqx.is_array(leaf) else leaf, networks.critics)
        policy_loss = stop_gradient(temperature) * log_density - lowest_value(critics, transition["obs"], action)
        temperature_loss = -networks.log_temperature * stop_gradient(log_density - 1.0)  # the entropy's target is -1
        return critic_loss + policy_loss + temperature_loss

    return jnp.mean(jax.vmap(transition_loss)(batch, jax.random.split(key, BATCH_SIZE)))


@eqx.filter_jit
def update(
    networks: Networks, target_critics: Any, opt_state: Any, batch: dict[str, Any], key: jax.Array
) -> tuple[Networks, Any, Any]:
    """Does one gradient step; returns the networks, the target critics and the optimizer's state."""
    gradients = eqx.filter_grad(loss)(networks, target_critics, batch, key)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    networks = eqx.apply_updates(networks, changes)
    averaged = jax.tree.map(
        lambda old, new: old + AVERAGE_RATE * (new - old) if eqx.is_array(old) else old,
        target_critics,
        networks.critics,
    )
    return networks, averaged, opt_state


def store_replay(envs: Any, seed: int) -> tuple[VectorWriter, Callable[[], Any]]:
    """Returns a writer to a table of a store, and a function that samples a batch from it."""
    items = Transitions("replay", discount=DISCOUNT)
    table = engram.Table("replay", max_size=CAPACITY, signature=items.signature(envs))
    store = engram.Store([table], seed=seed)
    return VectorWriter(store, envs, [items]), lambda: store.sample("replay", BATCH_SIZE, timeout=10).data


def buffer_replay(envs: Any, seed: int) -> tuple[BufferWriter, Callable[[], Any]]:
    """Returns a writer to a replay buffer, and a function that samples a batch from it."""
    items = buffers.Transitions(discount=DISCOUNT)
    buffer = buffers.ReplayBuffer(CAPACITY, NUM_ENVS, items=items, seed=seed)
    return BufferWriter(buffer, envs), lambda: buffer.sample(BATCH_SIZE).data


def train(seed: int, *, use_buffer: bool = False) -> float:
    """Trains until the mean return of 20 episodes reaches `TARGET_RETURN`, or for `STEPS` steps. Returns it."""
    rng = np.random.default_rng(seed)
    key, *keys = jax.random.split(jax.random.key(seed), 4)
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=NUM_ENVS)
    first, second = (eqx.nn.MLP(4, 1, width_size=128, depth=2, key=each) for each in keys[:2])
    networks = Networks(eqx.nn.MLP(3, 2, width_size=128, depth=2, key=keys[2]), (first, second), jnp.zeros(()))
    target_critics = networks.critics
    opt_state = OPTIMIZER.init(eqx.filter(networks, eqx.is_array))

    writer, sample = (buffer_replay if use_buffer else store_replay)(envs, seed)
    obs, info = envs.reset(seed=seed)
    writer.reset(obs, info)
    # `returns` is of the running episodes, `finished` of those that ended, after a placeholder.
    returns, finished = np.zeros(NUM_ENVS), [-2_000.0]
    for step in range(STEPS):
        if step < WARM_UP:
            actions = rng.uniform(-MAX_TORQUE, MAX_TORQUE, (NUM_ENVS, 1)).astype(np.float32)
        else:
            key, act_key = jax.random.split(key)
            actions = MAX_TORQUE * np.asarray(act(networks.policy, obs, act_key))
        obs, rewards, terminated, truncated, info = envs.step(actions)
        writer.step(actions, obs, rewards, terminated, truncated, info)

        returns += rewards
        ended = terminated | truncated
        finished += returns[ended].tolist()
        returns[ended] = 0
        if np.mean(finished[-20:]) >= TARGET_RETURN:
            break

        for _ in range(UPDATES_PER_STEP if step >= WARM_UP else 0):
            key, update_key = jax.random.split(key)
            batch = sample()
            networks, target_critics, opt_state = update(networks, target_critics, opt_state, batch, update_key)
    envs.close()
    return float(np.mean(finished[-20:]))


def main() -> None:
    """Trains with the options of the command line, and prints the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--buffer", action="store_true", help="use a replay buffer instead of a table of a store")
    options = parser.parse_args()
    print(f"mean return: {train(options.seed, use_buffer=options.buffer):.0f}")


if __name__ == "__main__":
    main()
