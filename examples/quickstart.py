"""The first ten minutes with Engram, in cells; `quickstart.ipynb` is the same program with what it printed."""

# %% [markdown]
# # The first ten minutes with Engram
#
# Actors write the steps that they observe, learners sample batches of them. This notebook writes steps to a table,
# samples batches, sets priorities, limits the ratio of samples to inserts, serves the tables to a client, and keeps a
# table on disk. It needs nothing but Engram and NumPy.

# %%
import numpy as np

import engram

# %% [markdown]
# ## A table
#
# A **store** has tables. A table decides which items it samples (`sampler`), which it deletes when it is full
# (`remover`, by default the oldest), and when inserts or samples wait (`rate_limiter`).

# %%
store = engram.Store(
    [engram.Table("replay", max_size=10_000, sampler=engram.selectors.Prioritized(0.6))],
    seed=0,
)
store.info()["replay"]

# %% [markdown]
# ## Write steps
#
# A step is any nest of arrays, numbers and text. A **pattern** declares which items to create from the steps: here, one
# item of every two consecutive steps of an episode. Each step is stored once, although two items share it.
#
# The steps come from a random walk: position and velocity, an action that pushes left or right, and a reward of 1 for a
# position near 0. An episode ends after 50 steps.

# %%
rng = np.random.default_rng(0)


def episode(length=50):
    """Yields the steps of one episode of a random walk."""
    position, velocity = 0.0, 0.0
    for _ in range(length):
        action = int(rng.integers(2))
        observation = np.array([position, velocity], np.float32)
        velocity += 0.1 * (2 * action - 1)
        position += velocity
        yield {"observation": observation, "action": action, "reward": float(abs(position) < 1)}


with store.pattern_writer([engram.Pattern("replay", num_steps=2)]) as writer:
    for _ in range(20):
        for step in episode():
            writer.append(step)
        writer.end_episode()  # no item crosses the end of an episode

store.info()["replay"].size  # 20 episodes with 49 pairs of steps each

# %% [markdown]
# ## Sample batches
#
# A batch has the structure of a step. Its leaves are NumPy arrays `[B, T, ...]`: items, then steps of an item.

# %%
batch = store.sample("replay", 32)
batch

# %% [markdown]
# `batch.info` has an array `[B]` for each of the items' keys, probabilities, priorities and numbers of times sampled. A
# learner computes TD errors and writes them back as priorities. `importance_weights` corrects for prioritized sampling.

# %%
for _ in range(100):
    batch = store.sample("replay", 32)
    observation, reward = batch.data["observation"], batch.data["reward"]
    td_error = reward[:, 0] + 0.99 * observation[:, 1, 0] - observation[:, 0, 0]
    store.update_priorities("replay", batch.info.key, np.abs(td_error))

weights = store.sample("replay", 32).importance_weights(0.4)
print(f"weights from {weights.min():.2f} to {weights.max():.2f}")

# %% [markdown]
# `engram.Dataset` samples in a native thread, while the loop uses the current batch. `engram.data.torch`,
# `engram.data.jax` and `engram.data.tensorflow` give batches as tensors of these frameworks.

# %%
with engram.Dataset(store, "replay", batch_size=256, max_batches=100) as dataset:
    rewards = [batch.data["reward"].mean() for batch in dataset]
print(f"{len(rewards)} batches; mean reward {np.mean(rewards):.2f}")

# %% [markdown]
# ## Make the faster side wait
#
# A **rate limiter** bounds how far samples and inserts may run apart. This one needs 100 items for the first sample,
# and allows 4 samples for each insert. A call waits for at most its `timeout`. The error states what it waited for.

# %%
limiter = engram.rate_limiters.SampleToInsertRatio(4.0, min_size=100, error_buffer=400)
store.create_table(engram.Table("limited", rate_limiter=limiter))
for number in range(10):
    store.insert({"value": np.float32(number)}, {"limited": 1.0})

try:
    store.sample("limited", 8, timeout=0.1)
except TimeoutError as error:
    print(error)

# %% [markdown]
# ## Share tables with other processes
#
# A server serves a store. A client, in any process or on any machine, uses its tables with the methods of a store.

# %%
with engram.Server(store) as server, engram.Client(server.address) as client:
    client.insert({"value": np.float32(10)}, {"limited": 1.0})
    print(client.sample("replay", 32).data["observation"].shape, client.info()["limited"].size)

# %% [markdown]
# ## Keep tables on disk
#
# A store with a directory continues where the last process stopped, even after `kill -9`.

# %%
with engram.Store.open("replay-store", [engram.Table("replay", max_size=10_000)]) as durable:
    durable.insert({"value": np.float32(1)}, {"replay": 1.0})

with engram.Store.open("replay-store", [engram.Table("replay", max_size=10_000)]) as durable:
    print(durable.info()["replay"].size, durable.sample("replay", 1).data["value"])

# %% [markdown]
# ## Next
#
# * [Concepts](../docs/concepts.md): items from any columns, conditions of patterns, selectors and limiters.
# * [Adders](../docs/adders.md): transitions, n-step returns, sequences and episodes from an environment's time steps.
# * [Datasets](../docs/data.md), [server](../docs/server.md), [durability](../docs/durability.md).
