"""Q-learning from vector environments of Gymnasium, with 3-step transitions.

    python examples/gymnasium_q_learning.py

Eight copies of FrozenLake, a grid of 16 cells with holes, step together. The writer receives what `envs.step` returns,
and reads from `envs` how environments are reset. The learner needs no special case for the end of an episode:
`discount` is 0 where the episode terminated, and `next_obs` is its last observation where a time limit ended it.
"""

import gymnasium
import numpy as np

import engram
from engram.gymnasium import Transitions, VectorWriter

ENVS = 8
STEPS = 2000  # of each environment
BATCH = 64  # transitions per update of the values
STEP_SIZE = 0.2


def main() -> float:
    """Learns the values of the actions in each cell; returns the return of the greedy policy, 1 at the goal."""
    envs = gymnasium.make_vec("FrozenLake-v1", num_envs=ENVS, is_slippery=False)
    items = Transitions("replay", n_step=3, discount=0.95)
    store = engram.Store([engram.Table("replay", max_size=10_000, signature=items.signature(envs))], seed=0)
    values = np.zeros((envs.single_observation_space.n, envs.single_action_space.n))
    rng = np.random.default_rng(0)
    with VectorWriter(store, envs, [items]) as writer:
        obs, info = envs.reset(seed=0)
        writer.reset(obs, info)
        for step in range(STEPS):
            random = rng.random(ENVS) < max(0.1, 1 - step / 1000)
            actions = np.where(random, rng.integers(0, values.shape[1], ENVS), values[obs].argmax(axis=1))
            obs, rewards, terminated, truncated, info = envs.step(actions)
            writer.step(actions, obs, rewards, terminated, truncated, info)
            if step >= 100:
                batch = store.sample("replay", BATCH).data
                target = batch["reward"] + batch["discount"] * values[batch["next_obs"]].max(axis=1)
                error = target - values[batch["obs"], batch["action"]]
                np.add.at(values, (batch["obs"], batch["action"]), STEP_SIZE * error)
    return greedy_return(values)


def greedy_return(values: np.ndarray) -> float:
    """Returns the return of an episode of the greedy policy."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    obs, _ = env.reset(seed=0)
    while True:
        obs, reward, terminated, truncated, _ = env.step(int(values[obs].argmax()))
        if terminated or truncated:
            return float(reward)  # all rewards before the last step are 0


if __name__ == "__main__":
    print(f"return of the greedy policy: {main()}")
