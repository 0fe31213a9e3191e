"""An actor and a learner in separate processes, written with Reverb's API.

    python examples/reverb_actor_learner.py

The learner serves two tables: `replay`, from which it samples transitions, and `variables`, whose only item has the
newest action values. The actor walks a corridor whose last cell gives a reward of 1. Only the learner needs TensorFlow.
The rate limiter of `replay` makes the faster process wait for the other.
"""

import multiprocessing

import numpy as np

from engram.compat import reverb

CELLS = 8
LEFT, RIGHT = 0, 1
DISCOUNT = np.float32(0.9)
BATCH = 32  # transitions per update of the values
UPDATES = 400


def walk(cell: int, action: int) -> tuple[int, float]:
    """Returns the next cell and the reward of a step."""
    cell = max(0, cell - 1) if action == LEFT else cell + 1
    return cell, float(cell == CELLS - 1)


def act(address: str) -> None:
    """Runs episodes until the process is terminated; half of the actions are random, the others greedy."""
    client = reverb.Client(address)
    rng = np.random.default_rng(0)
    with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        while True:
            (variables,) = next(client.sample("variables"))
            values = variables.data[0]
            cell, reward = 0, 0.0
            while reward == 0:
                greedy = int(values[cell].argmax())
                action = greedy if rng.random() > 0.5 else int(rng.integers(2))
                next_cell, reward = walk(cell, action)
                writer.append({"cell": np.int64(cell), "action": np.int64(action), "reward": np.float32(reward)})
                if writer.episode_steps > 1:
                    create_item(writer)
                cell = next_cell
            # The last cell; its action and reward are not used.
            writer.append({"cell": np.int64(cell), "action": np.int64(0), "reward": np.float32(0)})
            create_item(writer)
            writer.end_episode()


def create_item(writer: reverb.TrajectoryWriter) -> None:
    """Creates an item from the newest transition: the cells before and after, the action and the reward."""
    history = writer.history
    trajectory = {"cells": history["cell"][-2:], "action": history["action"][-2], "reward": history["reward"][-2]}
    writer.create_item("replay", priority=1.0, trajectory=trajectory)


def main() -> None:
    """Learns the values of the actions in each cell by Q-learning."""
    import tensorflow as tf  # noqa: PLC0415, the actor does not need it

    signature = {
        "cells": tf.TensorSpec([2], tf.int64),
        "action": tf.TensorSpec([], tf.int64),
        "reward": tf.TensorSpec([], tf.float32),
    }
    server = reverb.Server(
        tables=[
            reverb.Table(
                name="replay",
                sampler=reverb.selectors.Prioritized(priority_exponent=0.6),
                remover=reverb.selectors.Fifo(),
                max_size=10_000,
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
                    samples_per_insert=8.0, min_size_to_sample=2 * BATCH, error_buffer=16.0 * BATCH
                ),
                signature=signature,
            ),
            reverb.Table(
                name="variables",
                sampler=reverb.selectors.Lifo(),
                remover=reverb.selectors.Fifo(),
                max_size=1,
                rate_limiter=reverb.rate_limiters.MinSize(1),
            ),
        ]
    )
    address = f"localhost:{server.port}"
    client = reverb.Client(address)
    values = np.zeros((CELLS, 2), np.float32)
    client.insert([values], {"variables": 1.0})
    actor = multiprocessing.get_context("spawn").Process(target=act, args=(address,), daemon=True)
    actor.start()

    dataset = reverb.TrajectoryDataset.from_table_signature(address, "replay", 2 * BATCH).batch(BATCH)
    for info, data in dataset.take(UPDATES).as_numpy_iterator():
        before, after = data["cells"].T
        not_done = after != CELLS - 1
        target = data["reward"] + DISCOUNT * not_done * values[after].max(axis=1)
        error = target - values[before, data["action"]]
        np.add.at(values, (before, data["action"]), 0.03 * error)
        client.mutate_priorities("replay", dict(zip(info.key.tolist(), (np.abs(error) + 0.01).tolist(), strict=True)))
        client.insert([values], {"variables": 1.0})

    counts = client.server_info()["replay"].rate_limiter_info
    actor.terminate()
    actor.join()
    server.stop()
    print(f"{counts.insert_stats.completed} transitions, {counts.sample_stats.completed} samples of them")
    print("from left to right:", " ".join("<" if left > right else ">" for left, right in values[:-1]))


if __name__ == "__main__":
    main()
