"""DQN with hindsight experience replay: flips bits until they equal a goal, with a reward only when they do.

    python examples/her.py
    python examples/her.py --relabel 0

Without new goals (`--relabel 0`), the agent hardly ever sees a reward, and does not learn.

Andrychowicz et al. 2017, "Hindsight Experience Replay", section 3.1.
"""

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from engram.buffers import HER, ReplayBuffer, Transitions

TARGET_RETURN = 0.9
"""Share of the last 200 episodes that reached their goal at which the task counts as solved; a random policy reaches
about 0.02."""

NUM_BITS = 10  # also the maximum number of steps of an episode
NUM_ENVS = 16
CAPACITY = 100_000  # steps
STEPS = 6_000  # of all environments
WARM_UP = 100  # steps before the first update
BATCH_SIZE = 128
TARGET_NETWORK_PERIOD = 100  # updates
DISCOUNT = 0.98
OPTIMIZER = optax.adam(1e-3)

Network = eqx.nn.MLP


def reached(achieved: Any, goal: Any) -> Any:
    """Returns whether bits equal those of the goal, bool[B]."""
    return (achieved == goal).all(axis=-1)


def reward(achieved: Any, goal: Any) -> Any:
    """Returns 0 where the goal is reached, otherwise -1, f32[B]."""
    return np.where(reached(achieved, goal), 0, -1).astype(np.float32)


@eqx.filter_jit
def q_values(network: Network, bits: Any, goal: Any) -> jax.Array:
    """Returns the value of flipping each bit, f32[B, NUM_BITS]."""
    return jax.vmap(network)(jnp.concatenate([bits, goal], axis=1).astype(jnp.float32))


@eqx.filter_jit
def update(network: Network, target: Network, opt_state: Any, batch: dict[str, Any]) -> tuple[Network, Any]:
    """Does one gradient step; returns the network and the optimizer's state."""

    def loss(network: Network) -> jax.Array:
        values = q_values(network, batch["obs"], batch["goal"])
        values = jnp.take_along_axis(values, batch["action"][:, None], 1)[:, 0]
        next_values = q_values(target, batch["next_obs"], batch["goal"]).max(axis=1)
        td_error = batch["reward"] + batch["discount"] * jax.lax.stop_gradient(next_values) - values
        return jnp.mean(optax.losses.huber_loss(td_error))

    gradients = eqx.filter_grad(loss)(network)
    changes, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(network, changes), opt_state


def train(seed: int, *, relabel: float = 0.8) -> float:
    """Trains until the share of reached goals is `TARGET_RETURN`, or for `STEPS` steps. Returns it."""
    rng = np.random.default_rng(seed)
    network = target = eqx.nn.MLP(2 * NUM_BITS, NUM_BITS, width_size=256, depth=1, key=jax.random.key(seed))
    opt_state = OPTIMIZER.init(eqx.filter(network, eqx.is_array))
    buffer = ReplayBuffer(
        CAPACITY,
        NUM_ENVS,
        items=Transitions(discount=DISCOUNT),
        transforms=[HER(reward, goal="goal", achieved="next_obs", terminated=reached, relabel=relabel)],
        seed=seed,
    )
    bits, goal = rng.integers(2, size=(2, NUM_ENVS, NUM_BITS), dtype=np.int8)
    time = np.zeros(NUM_ENVS, int)
    finished = [0.0]  # 1 for each episode that reached its goal, after a placeholder
    for step in range(STEPS):
        greedy = np.asarray(q_values(network, bits, goal)).argmax(axis=1)
        actions = np.where(rng.random(NUM_ENVS) < 0.1, rng.integers(NUM_BITS, size=NUM_ENVS), greedy)
        next_bits = bits.copy()
        next_bits[np.arange(NUM_ENVS), actions] ^= 1
        time += 1
        terminated = reached(next_bits, goal)
        truncated = ~terminated & (time == NUM_BITS)
        transition = {"obs": bits, "goal": goal, "action": actions, "next_obs": next_bits}
        rewards = {"reward": reward(next_bits, goal), "terminated": terminated, "truncated": truncated}
        buffer.add_batch(transition | rewards)

        ended = terminated | truncated
        finished += terminated[ended].astype(float).tolist()
        if np.mean(finished[-200:]) >= TARGET_RETURN:
            break
        new_bits, new_goals = rng.integers(2, size=(2, NUM_ENVS, NUM_BITS), dtype=np.int8)
        bits, goal = np.where(ended[:, None], new_bits, next_bits), np.where(ended[:, None], new_goals, goal)
        time[ended] = 0

        if step >= WARM_UP:
            network, opt_state = update(network, target, opt_state, buffer.sample(BATCH_SIZE).data)
            if step % TARGET_NETWORK_PERIOD == 0:
                target = network
    return float(np.mean(finished[-200:]))


def main() -> None:
    """Trains with the options of the command line, and prints the share of episodes that reached their goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--relabel", type=float, default=0.8, help="share of items with another goal (default: 0.8)")
    options = parser.parse_args()
    print(f"mean return: {train(options.seed, relabel=options.relabel):.2f}")


if __name__ == "__main__":
    main()
