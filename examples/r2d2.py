"""Recurrent Q-learning on CartPole without velocities: stored states, burn-in and prioritized sequences.

    python examples/r2d2.py
    python examples/r2d2.py --buffer

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning". The recurrent state before
each action is stored with the step. The learner starts from the state of a sequence's first step, and unrolls the first
`BURN_IN` steps without learning from them. Episodes shorter than a sequence are padded, not skipped.
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
from engram.gymnasium import BufferWriter, Sequences, VectorWriter

TARGET_RETURN = 100.0
"""Mean return of 20 episodes at which the task counts as solved; a random policy has about 20."""

NUM_ENVS = 8
STEPS = 20_000  # calls of `envs.step`, which steps all environments
WARM_UP = 250  # steps before the first update
UPDATE_EVERY = 1  # steps
LENGTH, PERIOD, BURN_IN = 20, 10, 5  # steps of a sequence, from one to the next, and without learning
CAPACITY = 10_000  # sequences of a table
BATCH_SIZE = 32  # sequences
TARGET_NETWORK_PERIOD = 100  # updates
DISCOUNT = 0.98
UNITS = 64
OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))


class Network(eqx.Module):
    """A recurrent network of action values."""

    encoder: eqx.nn.Linear
    cell: eqx.nn.GRUCell
    head: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        """Starts with random weights."""
        encoder_key, cell_key, head_key = jax.random.split(key, 3)
        self.encoder = eqx.nn.Linear(2, UNITS, key=encoder_key)
        self.cell = eqx.nn.GRUCell(UNITS, UNITS, key=cell_key)
        self.head = eqx.nn.MLP(UNITS, 2, UNITS, depth=1, key=head_key)

    def __call__(self, state: jax.Array, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the next state f32[U] and the values of the actions, f32[A]."""
        state = self.cell(jax.nn.relu(self.encoder(obs)), state)
        return state, self.head(state)


@eqx.filter_jit
def act(network: Network, state: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the next states f32[N, U] and the greedy actions i32[N]."""
    state, values = jax.vmap(network)(state, obs)
    return state, jnp.argmax(values, axis=1)


def unroll(network: Network, state: jax.Array, obs: jax.Array, is_first: jax.Array) -> jax.Array:
    """Returns the values of the actions after the burn-in, f32[T + 1 - BURN_IN, A]. The burn-in only sets the state."""

    def step(state: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        obs, is_first = inputs
        return network(jnp.where(is_first, 0, state), obs)

    state, _ = jax.lax.scan(step, state, (obs[:BURN_IN], is_first[:BURN_IN]))
    _, values = jax.lax.scan(step, jax.lax.stop_gradient(state), (obs[BURN_IN:], is_first[BURN_IN:]))
    return values


@eqx.filter_jit
def update(
    network: Network, target: Network, opt_state: Any, batch: dict[str, Any], weights: Any
) -> tuple[Network, Any, jax.Array]:
    """Does one gradient step; returns the network, the optimizer's state and the sequences' priorities f32[B]."""
    state = batch["extras"]["state"][:, 0]
    learned = {name: batch[name][:, BURN_IN:] for name in ("action", "reward", "terminated", "valid")}

    def loss(network: Network) -> tuple[jax.Array, jax.Array]:
        values = jax.vmap(unroll, (None, 0, 0, 0))(network, state, batch["obs"], batch["is_first"])
        target_values = jax.vmap(unroll, (None, 0, 0, 0))(target, state, batch["obs"], batch["is_first"])
        value = jnp.take_along_axis(values[:, :-1], learned["action"][:, :, None], 2)[:, :, 0]
        best = jnp.argmax(values[:, 1:], axis=2)
        next_value = jnp.take_along_axis(target_values[:, 1:], best[:, :, None], 2)[:, :, 0]
        bootstrap = DISCOUNT * jnp.where(learned["terminated"], 0, next_value)
        td_error = (jax.lax.stop_gradient(learned["reward"] + bootstrap) - value) * learned["valid"]
        losses = jnp.sum(optax.losses.huber_loss(td_error), axis=1) / (LENGTH - BURN_IN)
        return jnp.mean(weights * losses), td_error

    (_, td_error), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    error = jnp.abs(td_error)
    count = jnp.maximum(jnp.sum(learned["valid"], axis=1), 1)
    priority = 0.9 * jnp.max(error, axis=1) + 0.1 * jnp.sum(error, axis=1) / count  # section 2.3
    return eqx.apply_updates(network, changes), opt_state, priority


def positions(obs: np.ndarray) -> np.ndarray:
    """Returns the position of the cart and the angle of the pole, without their velocities."""
    return obs[:, [0, 2]]


class Replay(NamedTuple):
    """Where sequences are written, and sampled from."""

    writer: VectorWriter | BufferWriter
    sample: Callable[[int], engram.Batch | buffers.BufferBatch]
    update_priorities: Callable[[Any, Any], int]
    columns: Callable[[Any], dict[str, Any]]
    """The columns of a batch, with `obs` f32[B, T + 1, 2] and `is_first` bool[B, T + 1]."""


def store_replay(envs: Any, sampler: Any, seed: int) -> Replay:
    """Returns a table of a store, whose items are sequences."""
    items = Sequences("replay", length=LENGTH, period=PERIOD, at_end="pad")
    store = engram.Store([engram.Table("replay", max_size=CAPACITY, sampler=sampler)], seed=seed)

    def columns(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"is_first": np.zeros(batch["obs"].shape[:2], bool)}

    return Replay(
        VectorWriter(store, envs, [items]),
        lambda batch_size: store.sample("replay", batch_size, timeout=10),
        lambda keys, priorities: store.update_priorities("replay", keys, priorities),
        columns,
    )


def buffer_replay(envs: Any, sampler: Any, seed: int) -> Replay:
    """Returns a replay buffer, which makes sequences from steps when it samples."""
    items = buffers.Sequences(length=LENGTH - BURN_IN, burn_in=BURN_IN)
    buffer = buffers.ReplayBuffer(CAPACITY * PERIOD, NUM_ENVS, items=items, sampler=sampler, seed=seed)

    def columns(batch: dict[str, Any]) -> dict[str, Any]:
        obs = np.concatenate([batch["obs"], batch["next_obs"][:, -1:]], axis=1)
        is_last = batch["valid"][:, :-1] & ~batch["valid"][:, 1:]
        obs[:, 1:-1][is_last] = batch["next_obs"][:, :-1][is_last]
        return batch | {"obs": obs, "is_first": np.pad(batch["is_first"], ((0, 0), (0, 1)))}

    return Replay(BufferWriter(buffer, envs), buffer.sample, buffer.update_priorities, columns)


def train(seed: int, *, use_buffer: bool = False) -> float:
    """Trains until the mean return of 20 episodes reaches `TARGET_RETURN`, or for `STEPS` steps. Returns it."""
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    network = target = Network(jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))

    replay = (buffer_replay if use_buffer else store_replay)(envs, engram.selectors.Prioritized(0.6), seed)
    obs, info = envs.reset(seed=seed)
    replay.writer.reset(positions(obs), info)
    state = np.zeros((NUM_ENVS, UNITS), np.float32)
    # `returns` is of the running episodes, `finished` of those that ended, after a placeholder.
    returns, finished, updates = np.zeros(NUM_ENVS), [0.0], 0
    ended = np.zeros(NUM_ENVS, bool)
    for step in range(STEPS):
        next_state, greedy = map(np.asarray, act(network, state, positions(obs)))
        epsilon = max(0.05, 1 - step / 1_000)
        actions = np.where(rng.random(NUM_ENVS) < epsilon, rng.integers(2, size=NUM_ENVS), greedy)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        extras = {"state": state}
        replay.writer.step(actions, positions(obs), rewards, terminated, truncated, info, extras=extras)
        # `ended` is of the step before: where an episode ended then, this step only reset the environment.
        state = np.where(ended[:, None], np.float32(0), next_state)
        ended = terminated | truncated

        returns += rewards
        finished += returns[ended].tolist()
        returns[ended] = 0
        if np.mean(finished[-20:]) >= TARGET_RETURN:
            break

        if step >= WARM_UP and step % UPDATE_EVERY == 0:
            batch = replay.sample(BATCH_SIZE)
            weights = batch.importance_weights(0.6)
            columns = replay.columns(batch.data)
            network, opt_state, priority = update(network, target, opt_state, columns, weights)
            replay.update_priorities(batch.info.key, np.asarray(priority) + 1e-3)
            updates += 1
            if updates % TARGET_NETWORK_PERIOD == 0:
                target = network
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
