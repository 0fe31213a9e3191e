"""Double DQN on CartPole, with eight environments at once: uniform replay, or n-step returns and prioritized replay.

    python examples/dqn.py
    python examples/dqn.py --n-step 3 --prioritized
    python examples/dqn.py --n-step 3 --prioritized --buffer

The transitions are in a table of a store or, with `--buffer`, made from the steps of a replay buffer.

Van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning"; Schaul et al. 2016, "Prioritized
Experience Replay".
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

TARGET_RETURN = 195.0
"""Mean return of 20 episodes at which the task counts as solved; a random policy has about 20."""

CAPACITY = 50_000  # transitions
NUM_ENVS = 8
STEPS = 6_000  # calls of `envs.step`, which steps all environments
WARM_UP = 125  # steps before the first update
UPDATES_PER_STEP = 4
BATCH_SIZE = 128
TARGET_NETWORK_PERIOD = 100  # updates
DISCOUNT = 0.99
OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))

Network = eqx.nn.MLP


@eqx.filter_jit
def q_values(network: Network, obs: Any) -> jax.Array:
    """Returns the values of all actions, f32[B, A]."""
    return jax.vmap(network)(obs)


@eqx.filter_jit
def update(
    network: Network, target: Network, opt_state: Any, batch: dict[str, Any], weights: Any
) -> tuple[Network, Any, jax.Array]:
    """Does one gradient step; returns the network, the optimizer's state and the TD errors."""

    def loss(network: Network) -> tuple[jax.Array, jax.Array]:
        values = jnp.take_along_axis(q_values(network, batch["obs"]), batch["action"][:, None], 1)[:, 0]
        best = jnp.argmax(q_values(network, batch["next_obs"]), axis=1)
        next_values = jnp.take_along_axis(q_values(target, batch["next_obs"]), best[:, None], 1)[:, 0]
        td_error = batch["reward"] + batch["discount"] * jax.lax.stop_gradient(next_values) - values
        return jnp.mean(weights * optax.losses.huber_loss(td_error)), td_error

    (_, td_error), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state, td_error


class Replay(NamedTuple):
    """Where transitions are written, and sampled from."""

    writer: VectorWriter | BufferWriter
    sample: Callable[[int], engram.Batch | buffers.BufferBatch]
    update_priorities: Callable[[Any, Any], int]


def store_replay(envs: Any, sampler: Any, n_step: int, seed: int) -> Replay:
    """Returns a table of a store."""
    items = Transitions("replay", n_step=n_step, discount=DISCOUNT)
    table = engram.Table("replay", max_size=CAPACITY, sampler=sampler, signature=items.signature(envs))
    store = engram.Store([table], seed=seed)
    return Replay(
        VectorWriter(store, envs, [items]),
        lambda batch_size: store.sample("replay", batch_size, timeout=10),
        lambda keys, priorities: store.update_priorities("replay", keys, priorities),
    )


def buffer_replay(envs: Any, sampler: Any, n_step: int, seed: int) -> Replay:
    """Returns a replay buffer."""
    items = buffers.Transitions(n_step=n_step, discount=DISCOUNT)
    buffer = buffers.ReplayBuffer(CAPACITY, NUM_ENVS, items=items, sampler=sampler, seed=seed)
    return Replay(BufferWriter(buffer, envs), buffer.sample, buffer.update_priorities)


def train(seed: int, *, n_step: int = 1, prioritized: bool = False, use_buffer: bool = False) -> float:
    """Trains until the mean return of 20 episodes reaches `TARGET_RETURN`, or for `STEPS` steps. Returns it."""
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    network = target = eqx.nn.MLP(4, 2, width_size=128, depth=2, key=jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))

    sampler = engram.selectors.Prioritized(0.6) if prioritized else engram.selectors.Uniform()
    replay = (buffer_replay if use_buffer else store_replay)(envs, sampler, n_step, seed)
    obs, info = envs.reset(seed=seed)
    replay.writer.reset(obs, info)
    # `returns` is of the running episodes, `finished` of those that ended, after a placeholder.
    returns, finished, updates = np.zeros(NUM_ENVS), [0.0], 0
    for step in range(STEPS):
        epsilon = max(0.01, 1 - step / 600)
        greedy = np.asarray(q_values(network, obs)).argmax(axis=1)
        actions = np.where(rng.random(NUM_ENVS) < epsilon, rng.integers(2, size=NUM_ENVS), greedy)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        replay.writer.step(actions, obs, rewards, terminated, truncated, info)

        returns += rewards
        ended = terminated | truncated
        finished += returns[ended].tolist()
        returns[ended] = 0
        if np.mean(finished[-20:]) >= TARGET_RETURN:
            break

        for _ in range(UPDATES_PER_STEP if step >= WARM_UP else 0):
            batch = replay.sample(BATCH_SIZE)
            weights = batch.importance_weights(0.4) if prioritized else np.ones(BATCH_SIZE, np.float32)
            network, opt_state, td_error = update(network, target, opt_state, batch.data, weights)
            if prioritized:
                replay.update_priorities(batch.info.key, np.abs(td_error) + 1e-3)
            updates += 1
            if updates % TARGET_NETWORK_PERIOD == 0:
                target = network
    envs.close()
    return float(np.mean(finished[-20:]))


def main() -> None:
    """Trains with the options of the command line, and prints the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-step", type=int, default=1, help="steps of a transition (default: 1)")
    parser.add_argument("--prioritized", action="store_true", help="sample by priority")
    parser.add_argument("--buffer", action="store_true", help="use a replay buffer instead of a table of a store")
    options = parser.parse_args()
    mean = train(options.seed, n_step=options.n_step, prioritized=options.prioritized, use_buffer=options.buffer)
    print(f"mean return: {mean:.0f}")


if __name__ == "__main__":
    main()
