"""Actors and a learner in separate processes: IMPALA on CartPole, with a queue of sequences and a table of weights.

    python examples/impala.py

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures". The
learner serves two tables: `rollouts`, a queue of sequences that blocks the actors while it is full, and `weights`,
whose only item is the newest network. V-trace corrects for the older policies of the actors. To use more machines,
start the server with a `host` that they can reach and a `token`, pass the token to the clients, and call `act` on the
machines with the server's address.
"""

import argparse
import contextlib
import multiprocessing
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import engram
from engram.gymnasium import Sequences, VectorWriter

TARGET_RETURN = 200.0
"""Mean return of 20 episodes at which the task counts as solved; a random policy has about 20."""

NUM_ACTORS, ENVS_PER_ACTOR = 2, 4
UPDATES = 3_000
LENGTH = 20  # steps of a sequence
BATCH_SIZE = 16  # sequences
WEIGHTS_EVERY = 5  # updates
DISCOUNT = 0.99
ENTROPY = 0.01
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3))


class ActorCritic(eqx.Module):
    """A policy and a value function."""

    policy: eqx.nn.MLP
    value: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        """Starts with random weights."""
        policy_key, value_key = jax.random.split(key)
        self.policy = eqx.nn.MLP(4, 2, width_size=64, depth=2, activation=jnp.tanh, key=policy_key)
        self.value = eqx.nn.MLP(4, "scalar", width_size=64, depth=2, activation=jnp.tanh, key=value_key)


# --- the actors


def act(address: str, seed: int) -> None:
    """Runs environments until the learner's server stops."""
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVS_PER_ACTOR)
    network, static = eqx.partition(ActorCritic(jax.random.key(0)), eqx.is_array)
    log_policy = eqx.filter_jit(lambda network, obs: jax.nn.log_softmax(jax.vmap(network.policy)(obs)))
    items = Sequences("rollouts", length=LENGTH, at_end="pad")
    returns = np.zeros(ENVS_PER_ACTOR)
    with (
        contextlib.suppress(engram.errors.UnavailableError, engram.errors.ClosedError),
        contextlib.ExitStack() as stack,
    ):
        client = stack.enter_context(engram.Client(address))
        writer = stack.enter_context(VectorWriter(client, envs, [items], max_in_flight_items=2 * BATCH_SIZE))
        obs, info = envs.reset(seed=seed)
        writer.reset(obs, info)
        step = 0
        while True:
            if step % LENGTH == 0:
                weights = client.sample("weights", 1).data
                network = jax.tree.unflatten(jax.tree.structure(network), [weight[0] for weight in weights])
            step += 1
            log_probabilities = np.asarray(log_policy(eqx.combine(network, static), obs))
            actions = np.argmax(log_probabilities + rng.gumbel(size=log_probabilities.shape), axis=1)
            log_probability = log_probabilities[np.arange(ENVS_PER_ACTOR), actions]
            obs, rewards, terminated, truncated, info = envs.step(actions)
            returns += rewards
            extras = {"log_probability": log_probability, "return": returns.astype(np.float32)}
            writer.step(actions, obs, rewards, terminated, truncated, info, extras=extras)
            returns[terminated | truncated] = 0


# --- the learner


def v_trace(
    log_ratios: jax.Array, rewards: jax.Array, discounts: jax.Array, values: jax.Array, valid: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the targets of the values and the advantages of a sequence (equation 1 and section 4.2), f32[T].

    Args:
        log_ratios: f32[T], log-probabilities of the actions, minus those with which the actors chose them.
        rewards: f32[T].
        discounts: f32[T], 0 where the episode terminated.
        values: f32[T + 1].
        valid: bool[T], False in padding.
    """
    ratios = jnp.minimum(1.0, jnp.exp(log_ratios)) * valid
    errors = ratios * (rewards + discounts * values[1:] - values[:-1])

    def back(difference: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        error, discount, ratio = step
        difference = error + discount * ratio * difference
        return difference, difference

    _, differences = jax.lax.scan(back, jnp.zeros(()), (errors, discounts, ratios), reverse=True)
    targets = values[:-1] + differences
    next_targets = jnp.append(targets[1:], values[-1])
    next_targets = jnp.where(jnp.append(valid[1:], False), next_targets, values[1:])
    return targets, ratios * (rewards + discounts * next_targets - values[:-1])


@eqx.filter_jit
def update(network: ActorCritic, opt_state: Any, batch: dict[str, Any]) -> tuple[ActorCritic, Any]:
    """Does one gradient step; returns the network and the optimizer's state."""

    def loss(network: ActorCritic) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(jax.vmap(jax.vmap(network.policy))(batch["obs"][:, :-1]))
        log_probability = jnp.take_along_axis(log_probabilities, batch["action"][:, :, None], 2)[:, :, 0]
        values = jax.vmap(jax.vmap(network.value))(batch["obs"])
        log_ratios = log_probability - batch["extras"]["log_probability"]
        discounts = DISCOUNT * ~batch["terminated"]
        targets, advantages = jax.lax.stop_gradient(
            jax.vmap(v_trace)(log_ratios, batch["reward"], discounts, values, batch["valid"])
        )
        policy_loss = -log_probability * advantages
        value_loss = 0.5 * (targets - values[:, :-1]) ** 2
        entropy = -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=2)
        losses = policy_loss + 0.5 * value_loss - ENTROPY * entropy
        return jnp.sum(losses * batch["valid"]) / jnp.sum(batch["valid"])

    gradients = eqx.filter_grad(loss)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state


def train(seed: int) -> float:
    """Trains until the mean return of 20 episodes reaches `TARGET_RETURN`, or for `UPDATES` updates. Returns it."""
    network = ActorCritic(jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))
    tables = [engram.Table.queue("rollouts", max_size=2 * BATCH_SIZE), engram.Table("weights", max_size=1)]
    context = multiprocessing.get_context("spawn")
    finished = [0.0]  # the returns of finished episodes, after a placeholder
    with engram.Store(tables, seed=seed) as store:
        with engram.Server(store) as server:
            actors = [
                context.Process(target=act, args=(server.address, 100 * seed + number), daemon=True)
                for number in range(NUM_ACTORS)
            ]
            for actor in actors:
                actor.start()
            for number in range(UPDATES):
                if number % WEIGHTS_EVERY == 0:
                    weights = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array))]
                    store.insert(weights, {"weights": 1.0})
                batch = store.sample("rollouts", BATCH_SIZE, timeout=60).data
                ended = batch["terminated"] | batch["truncated"]
                finished += batch["extras"]["return"][ended].tolist()
                if np.mean(finished[-20:]) >= TARGET_RETURN:
                    break
                network, opt_state = update(network, opt_state, batch)
        for actor in actors:
            actor.join(30)
    return float(np.mean(finished[-20:]))


def main() -> None:
    """Trains with the options of the command line, and prints the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    print(f"mean return: {train(parser.parse_args().seed):.0f}")


if __name__ == "__main__":
    main()
