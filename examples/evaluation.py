"""Reads all items of a table without sampling them: for an evaluation, a histogram or a check of the data.

    python examples/evaluation.py

A scan reads a snapshot. It removes no items, does not count as sampling, and does not wait for rate limiters, so a
learner can use the table meanwhile.
"""

import gymnasium
import numpy as np

import engram
from engram.gymnasium import Transitions, VectorWriter

NUM_ENVS = 8


def main() -> None:
    """Fills a queue, whose items are used once, and reads it with `scan`."""
    rng = np.random.default_rng(0)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    items = Transitions("queue", discount=0.99)
    with engram.Store([engram.Table.queue("queue", max_size=10_000)], seed=0) as store:
        with VectorWriter(store, envs, [items]) as writer:
            obs, info = envs.reset(seed=0)
            writer.reset(obs, info)
            for _ in range(200):
                actions = rng.integers(2, size=NUM_ENVS)
                writer.step(actions, *envs.step(actions))

        rewards, times_sampled = [], 0
        for batch in store.scan("queue", batch_size=256):
            rewards += batch.data["reward"].tolist()
            times_sampled += int(batch.info.times_sampled.sum())
        size = store.info()["queue"].size
    print(f"{len(rewards)} transitions; mean reward {np.mean(rewards):.2f}; sampled {times_sampled} times; {size} left")


if __name__ == "__main__":
    main()
