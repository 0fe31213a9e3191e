"""Offline reinforcement learning on CartPole: records data of a policy in a file, and trains an agent from that file.

    python examples/offline.py
    python examples/offline.py --format parquet
    python examples/offline.py --buffer

A noisy policy is recorded once. The agent, discrete CQL, never acts while it learns, and becomes better than the data.
Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 4.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import minari
import numpy as np
import optax

import engram
from engram import buffers
from engram.gymnasium import Episodes, Transitions, VectorWriter
from engram.minari import read_minari, write_minari
from engram.parquet import read_parquet, write_parquet

TARGET_RETURN = 195.0
"""Mean return of 20 episodes at which the task counts as solved."""

NUM_ENVS = 20
RECORDED_STEPS = 500  # calls of `envs.step`, which steps all environments
DATASET = "CartPole/noisy-v0"
UPDATES = 3_000
BATCH_SIZE = 256
TARGET_NETWORK_PERIOD = 100  # updates
CONSERVATISM = 0.5  # alpha of the paper
N_STEP = 3
DISCOUNT = 0.99
TRANSITIONS = Transitions("replay", n_step=N_STEP, discount=DISCOUNT)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))

Network = eqx.nn.MLP


def noisy_policy(obs: Any, rng: np.random.Generator) -> Any:
    """Pushes the cart to the side to which the pole falls; half of the time, to a random side."""
    return np.where(rng.random(len(obs)) < 0.5, rng.integers(2, size=len(obs)), obs[:, 2] + 0.3 * obs[:, 3] > 0)


def record(store: engram.Store, items: Episodes | Transitions, seed: int) -> float:
    """Writes the items of a noisy policy; returns the mean return of its episodes."""
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    returns, finished = np.zeros(NUM_ENVS), []
    with VectorWriter(store, envs, [items]) as writer:
        obs, info = envs.reset(seed=seed)
        writer.reset(obs, info)
        for _ in range(RECORDED_STEPS):
            actions = noisy_policy(obs, rng).astype(np.int64)
            obs, rewards, terminated, truncated, info = envs.step(actions)
            writer.step(actions, obs, rewards, terminated, truncated, info)
            returns += rewards
            ended = terminated | truncated
            finished += returns[ended].tolist()
            returns[ended] = 0
    envs.close()
    return float(np.mean(finished))


def export(folder: Path, file_format: str, seed: int) -> float:
    """Records episodes as a Minari dataset, or transitions as a Parquet file; returns the mean return."""
    items = Episodes("episodes", max_length=500) if file_format == "minari" else TRANSITIONS
    with engram.Store([engram.Table(items.table)], seed=seed) as store:
        mean_return = record(store, items, seed)
        if file_format == "minari":
            write_minari(store, "episodes", DATASET, env="CartPole-v1", metadata={"author": "Engram"})
        else:
            write_parquet(store, "replay", folder / "transitions.parquet")
    return mean_return


@eqx.filter_jit
def q_values(network: Network, obs: Any) -> jax.Array:
    """Returns the values of all actions, f32[B, A]."""
    return jax.vmap(network)(obs)


@eqx.filter_jit
def update(network: Network, target: Network, opt_state: Any, batch: dict[str, Any]) -> tuple[Network, Any]:
    """Does one gradient step; returns the network and the optimizer's state."""

    def loss(network: Network) -> jax.Array:
        values = q_values(network, batch["obs"])
        value = jnp.take_along_axis(values, batch["action"][:, None], 1)[:, 0]
        best = jnp.argmax(q_values(network, batch["next_obs"]), axis=1)
        next_value = jnp.take_along_axis(q_values(target, batch["next_obs"]), best[:, None], 1)[:, 0]
        td_error = batch["reward"] + batch["discount"] * jax.lax.stop_gradient(next_value) - value
        conservative = jax.nn.logsumexp(values, axis=1) - value  # actions that are not in the data are worth less
        return jnp.mean(optax.losses.huber_loss(td_error) + CONSERVATISM * conservative)

    gradients = eqx.filter_grad(loss)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state


def evaluate(network: Network, seed: int) -> float:
    """Returns the mean return of the greedy policy, of one episode per environment."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    obs, _ = envs.reset(seed=seed)
    returns, running = np.zeros(NUM_ENVS), np.ones(NUM_ENVS, bool)
    while running.any():
        actions = np.asarray(q_values(network, obs)).argmax(axis=1)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def store_replay(folder: Path, file_format: str, seed: int) -> Callable[[], Any]:
    """Fills a table from the file; returns a function that samples a batch from it."""
    store = engram.Store([engram.Table(TRANSITIONS.table)], seed=seed)
    if file_format == "minari":
        read_minari(store, DATASET, [TRANSITIONS], progress=True)
    else:
        read_parquet(store, TRANSITIONS.table, folder / "transitions.parquet", progress=True)
    return lambda: store.sample(TRANSITIONS.table, BATCH_SIZE).data


def buffer_replay(seed: int) -> Callable[[], Any]:
    """Fills a replay buffer with the episodes of the dataset; returns a function that samples a batch from it."""
    dataset = minari.load_dataset(DATASET)
    items = buffers.Transitions(n_step=N_STEP, discount=DISCOUNT)
    buffer = buffers.ReplayBuffer(dataset.total_steps, items=items, seed=seed)
    for episode in dataset.iterate_episodes():
        buffer.add_episode(
            {
                "obs": episode.observations[:-1],
                "action": episode.actions,
                "reward": episode.rewards,
                "next_obs": episode.observations[1:],
                "terminated": episode.terminations,
                "truncated": episode.truncations,
            }
        )
    return lambda: buffer.sample(BATCH_SIZE).data


def train(sample: Callable[[], Any], seed: int) -> float:
    """Trains on the batches that `sample` returns; returns the mean return of the agent."""
    network = target = eqx.nn.MLP(4, 2, width_size=128, depth=2, key=jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))
    for step in range(UPDATES):
        network, opt_state = update(network, target, opt_state, sample())
        if step % TARGET_NETWORK_PERIOD == 0:
            target = network
    return evaluate(network, seed + 1)


def main() -> None:
    """Records, trains, and prints the mean returns of the data and of the agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=["minari", "parquet"], default="minari", help="default: minari")
    parser.add_argument("--buffer", action="store_true", help="use a replay buffer instead of a table of a store")
    options = parser.parse_args()
    if options.buffer and options.format != "minari":
        parser.error("--buffer reads the episodes of `--format minari`; a Parquet file has transitions")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder  # default: ~/.minari/datasets
        recorded = export(Path(folder), options.format, options.seed)
        print(f"mean return of the data: {recorded:.0f}")
        if options.buffer:
            sample = buffer_replay(options.seed)
        else:
            sample = store_replay(Path(folder), options.format, options.seed)
        print(f"mean return: {train(sample, options.seed):.0f}")


if __name__ == "__main__":
    main()
