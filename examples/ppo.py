"""Proximal policy optimization on CartPole, with a queue: each sequence is used for one round of updates.

    python examples/ppo.py

Schulman et al. 2017, "Proximal Policy Optimization Algorithms". Sequences end with their episode and are padded; the
learner reads as many as one round needs. The log-probabilities of the actions are stored with them, so that a sequence
whose first actions the previous policy chose is weighted correctly.
"""

import argparse
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import engram
from engram.gymnasium import Sequences, VectorWriter

TARGET_RETURN = 400.0
"""Mean return of 20 episodes at which the task counts as solved; a random policy has about 20."""

NUM_ENVS = 8
ROUNDS = 150
LENGTH = 32  # steps of a sequence
SEQUENCES = 32  # in a round
EPOCHS, MINIBATCHES = 4, 4
DISCOUNT, GAE_LAMBDA = 0.99, 0.95
CLIP = 0.2
ENTROPY = 0.01
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3))


class ActorCritic(eqx.Module):
    """A policy and a value function."""

    policy: eqx.nn.MLP
    value: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        """Starts with random weights."""
        policy_key, value_key = jax.random.split(key)
        self.policy = eqx.nn.MLP(4, 2, width_size=64, depth=2, activation=jnp.tanh, key=policy_key)
        self.value = eqx.nn.MLP(4, "scalar", width_size=64, depth=2, activation=jnp.tanh, key=value_key)


@eqx.filter_jit
def act(network: ActorCritic, obs: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns actions i32[N] and their log-probabilities f32[N]."""
    log_probabilities = jax.nn.log_softmax(jax.vmap(network.policy)(obs))
    actions = jax.random.categorical(key, log_probabilities)
    return actions, jnp.take_along_axis(log_probabilities, actions[:, None], 1)[:, 0]


@eqx.filter_jit
def advantages(network: ActorCritic, batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Returns the advantages (equation 11) and the targets of the values, f32[B, T]; those in padding mean nothing."""
    values = jax.vmap(jax.vmap(network.value))(batch["obs"])  # [B, T + 1]
    next_values = jnp.where(batch["terminated"], 0, values[:, 1:])
    errors = batch["reward"] + DISCOUNT * next_values - values[:, :-1]
    # The last step of a sequence, or of its episode, has no next step.
    has_next = jnp.pad(batch["valid"][:, 1:], ((0, 0), (0, 1)))

    def back(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        error, has_next = step
        advantage = error + DISCOUNT * GAE_LAMBDA * jnp.where(has_next, advantage, 0)
        return advantage, advantage

    _, advantage = jax.lax.scan(back, jnp.zeros(len(values)), (errors.T, has_next.T), reverse=True)
    return advantage.T, advantage.T + values[:, :-1]


@eqx.filter_jit
def update(network: ActorCritic, opt_state: Any, steps: dict[str, Any]) -> tuple[ActorCritic, Any]:
    """Does one gradient step on a minibatch of steps; returns the network and the optimizer's state."""

    def loss(network: ActorCritic) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(jax.vmap(network.policy)(steps["obs"]))
        log_probability = jnp.take_along_axis(log_probabilities, steps["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(log_probability - steps["log_probability"])
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        policy_loss = -jnp.minimum(ratio * steps["advantage"], clipped * steps["advantage"])
        value_loss = (jax.vmap(network.value)(steps["obs"]) - steps["target"]) ** 2
        entropy = -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=1)
        losses = policy_loss + 0.5 * value_loss - ENTROPY * entropy
        return jnp.sum(losses * steps["valid"]) / jnp.sum(steps["valid"])

    gradients = eqx.filter_grad(loss)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state


def learn(
    network: ActorCritic, opt_state: Any, batch: dict[str, Any], rng: np.random.Generator
) -> tuple[ActorCritic, Any]:
    """Does one round of updates on a batch of sequences."""
    advantage, target = map(np.asarray, advantages(network, batch))
    valid = batch["valid"]
    advantage = (advantage - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)
    columns = {
        "obs": batch["obs"][:, :-1],
        "action": batch["action"],
        "log_probability": batch["extras"]["log_probability"],
        "advantage": advantage,
        "target": target,
        "valid": valid,
    }
    steps = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
    for _ in range(EPOCHS):
        for indices in np.split(rng.permutation(valid.size), MINIBATCHES):
            network, opt_state = update(network, opt_state, {name: column[indices] for name, column in steps.items()})
    return network, opt_state


def train(seed: int) -> float:
    """Trains until the mean return of 20 episodes reaches `TARGET_RETURN`, or for `ROUNDS` rounds. Returns it."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    network = ActorCritic(key)
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))

    items = Sequences("rollouts", length=LENGTH, at_end="pad")
    extras = {"log_probability": engram.ArraySpec((), np.float32)}
    # Each item is sampled once. The queue is larger than a round: its inserts never wait in this loop.
    queue = engram.Table.queue("rollouts", max_size=4 * SEQUENCES, signature=items.signature(envs, extras))
    with engram.Store([queue], seed=seed) as store, VectorWriter(store, envs, [items]) as writer:
        obs, info = envs.reset(seed=seed)
        writer.reset(obs, info)
        # `returns` is of the running episodes, `finished` of those that ended, after a placeholder.
        returns, finished = np.zeros(NUM_ENVS), [0.0]
        for _ in range(ROUNDS):
            while store.info()["rollouts"].size < SEQUENCES:
                key, act_key = jax.random.split(key)
                actions, log_probability = map(np.asarray, act(network, obs, act_key))
                actions = actions.astype(np.int64)  # as in the action space
                obs, rewards, terminated, truncated, info = envs.step(actions)
                extras = {"log_probability": log_probability}
                writer.step(actions, obs, rewards, terminated, truncated, info, extras=extras)
                writer.flush()  # makes complete sequences visible at once
                returns += rewards
                ended = terminated | truncated
                finished += returns[ended].tolist()
                returns[ended] = 0
            if np.mean(finished[-20:]) >= TARGET_RETURN:
                break
            batch = store.sample("rollouts", SEQUENCES, timeout=10)
            network, opt_state = learn(network, opt_state, batch.data, rng)
    envs.close()
    return float(np.mean(finished[-20:]))


def main() -> None:
    """Trains with the options of the command line, and prints the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    print(f"mean return: {train(parser.parse_args().seed):.0f}")


if __name__ == "__main__":
    main()
