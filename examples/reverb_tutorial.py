# %%
# @title Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
# https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# %% [markdown]
# # Reverb's tutorial, on Engram
#
# The code is copied from an earlier version of Reverb's introductory notebook, the text is new. Two lines of code
# differ: `reverb` is imported from Engram's compatibility package, and a comment that gave a wrong shape is corrected.
# The tutorial needs Engram and TensorFlow: `pip install 'engram-replay[tensorflow]'`.

# %%
import engram.compat.reverb as reverb
import tensorflow as tf

# %% [markdown]
# ## An environment and an agent
#
# Observations are noise of 10 by 10 pixels; actions are random.

# %%
observations_shape = tf.TensorShape([10, 10])
actions_shape = tf.TensorShape([2])


def agent_step(unused_timestep) -> tf.Tensor:
    return tf.cast(tf.random.uniform(actions_shape) > 0.5, tf.float32)


def environment_step(unused_action) -> tf.Tensor:
    return tf.cast(tf.random.uniform(observations_shape, maxval=256), tf.uint8)


# %% [markdown]
# ## A server and a client
#
# A server has tables. A table defines how items are selected for sampling and for removal, how many items it stores,
# and when inserts and samples have to wait for each other.

# %%
# Initialize the reverb server.
simple_server = reverb.Server(
    tables=[
        reverb.Table(
            name="my_table",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            # Sets Rate Limiter to a low number for the examples.
            # Read the Rate Limiters section for usage info.
            rate_limiter=reverb.rate_limiters.MinSize(2),
        ),
    ],
    # Sets the port to None to make the server pick one automatically.
    port=None,
)

# Initializes the reverb client on the same port as the server.
client = reverb.Client(f"localhost:{simple_server.port}")

# %% [markdown]
# Selectors and rate limiters are explained below.
#
# ## Example 1: overlapping trajectories
#
# Steps are appended to a writer one after the other. An item consists of the newest steps, here of three. Consecutive
# items share two steps, which are stored only once.

# %%
# Dynamically adds trajectories of length 3 to 'my_table' using a client writer.
with client.writer(max_sequence_length=3) as writer:
    timestep = environment_step(None)
    for step in range(4):
        action = agent_step(timestep)
        writer.append((timestep, action))
        timestep = environment_step(action)

        if step >= 2:
            # In this example, the item consists of the 3 most recent timesteps that
            # were added to the writer and has a priority of 1.5.
            writer.create_item(table="my_table", num_timesteps=3, priority=1.5)

# %% [markdown]
# Both items have the same priority here; usually the priority is computed for each item, for example from TD errors.
#
# A dataset streams the steps of sampled items, one item after the other. Batching by the length of the items turns
# these steps into sequences again.

# %%
# Sets the sequence length to match the length of the prioritized items
# inserted into the table. To match the example above, we use 3.
sequence_length = 3

# Dataset samples sequences of length 3 and streams the timesteps one by one.
# This allows streaming large sequences that do not necessarily fit in memory.
dataset = reverb.ReplayDataset(
    server_address=f"localhost:{simple_server.port}",
    table="my_table",
    max_in_flight_samples_per_worker=10,
    dtypes=(tf.uint8, tf.float32),
    shapes=(observations_shape, actions_shape),
)

# Batches the data according to the correct sequence length.
# Shape of items is now [3, 10, 10].
dataset = dataset.batch(sequence_length)

# %%
# Batches 2 sequences together.
# Shapes of items is now [2, 3, 10, 10].
dataset = dataset.batch(2)

for sample in dataset.take(1):
    # Results in the following format.
    print(sample.info.key)  # ([2, 3], uint64)
    print(sample.info.probability)  # ([2, 3], float64)

    observation, action = sample.data
    print(observation)  # ([2, 3, 10, 10], uint8)
    print(action)  # ([2, 3, 2], float32)

# %% [markdown]
# ## Example 2: complete episodes
#
# This example uses a second server, with an empty table.

# %%
complete_episode_server = reverb.Server(
    tables=[
        reverb.Table(
            name="my_table",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            # Sets Rate Limiter to a low number for the examples.
            # Read the Rate Limiters section for usage info.
            rate_limiter=reverb.rate_limiters.MinSize(2),
        ),
    ],
    # Sets the port to None to make the server pick one automatically.
    port=None,
)

# Initializes the reverb client on the same port.
client = reverb.Client(f"localhost:{complete_episode_server.port}")

# %% [markdown]
# `client.insert` creates an item of a single step. The step can be a whole episode: the first axis of its arrays is
# then time.

# %%
# Adds episodes as a single entry to 'my_table' using the insert function.
episode_length = 100

num_episodes = 200


def unroll_full_episode():
    observations, actions = [environment_step(None)], []
    for _ in range(1, episode_length):
        actions.append(agent_step(observations[-1]))
        observations.append(environment_step(actions[-1]))
    return tf.stack(observations), tf.stack(actions)


for _ in range(num_episodes):
    # Uses client.insert since this is a full trajectories and not individual
    # timesteps.
    client.insert(unroll_full_episode(), {"my_table": 1.5})

# %%
# Each sample is an entire episode.
# Adjusts the expected shapes to account for the whole episode length.
dataset = reverb.ReplayDataset(
    server_address=f"localhost:{complete_episode_server.port}",
    table="my_table",
    max_in_flight_samples_per_worker=10,
    dtypes=(tf.uint8, tf.float32),
    shapes=([episode_length] + observations_shape, [episode_length - 1] + actions_shape),
)

# Batches 128 episodes together.
# Each item is an episode of the format (observations, actions) as above.
# Shape of items is now ([128, 100, 10, 10], [128, 99, 2]).
dataset = dataset.batch(128)

# Sample has type reverb.ReplaySample.
for sample in dataset.take(1):
    # Results in the following format.
    print(sample.info.key)  # ([128], uint64)
    print(sample.info.probability)  # ([128], float64)

    observation, action = sample.data
    print(observation)  # ([128, 100, 10, 10], uint8)
    print(action)  # ([128, 99, 2], float32)

# %% [markdown]
# ## Several tables
#
# A server can have many tables, and one stream of steps can be used for items in all of them.

# %%
multitable_server = reverb.Server(
    tables=[
        reverb.Table(
            name="my_table_a",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            # Sets Rate Limiter to a low number for the examples.
            # Read the Rate Limiters section for usage info.
            rate_limiter=reverb.rate_limiters.MinSize(1),
        ),
        reverb.Table(
            name="my_table_b",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            # Sets Rate Limiter to a low number for the examples.
            # Read the Rate Limiters section for usage info.
            rate_limiter=reverb.rate_limiters.MinSize(1),
        ),
    ],
    port=None,
)

client = reverb.Client("localhost:{}".format(multitable_server.port))

# %%
with client.writer(max_sequence_length=3) as writer:
    timestep = environment_step(None)

    for step in range(4):
        writer.append(timestep)

        action = agent_step(timestep)
        timestep = environment_step(action)

        if step >= 1:
            writer.create_item(table="my_table_b", num_timesteps=2, priority=4 - step)
        if step >= 2:
            writer.create_item(table="my_table_a", num_timesteps=3, priority=4 - step)

# %% [markdown]
# From the four steps, `my_table_b` has three items of two steps, and `my_table_a` two items of three; each step is
# stored only once.
#
# `insert` adds a whole episode to several tables in the same way, with a priority for each:
#
# ```python
# client.insert(episode, {'my_table_one': 1.5, 'my_table_two': 2.5})
# ```
#
# ## Selectors
#
# `Prioritized` samples items in proportion to their priorities, raised to an exponent; `Fifo` removes the oldest item
# when the table is full. `MinSize(100)` blocks samples until the table has 100 items.

# %%
reverb.Server(
    tables=[
        reverb.Table(
            name="my_table",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            rate_limiter=reverb.rate_limiters.MinSize(100),
        ),
    ],
    port=None,
)

# %% [markdown]
# A priority queue: the item of the highest priority is sampled first, the item of the lowest is removed first, and an
# item is deleted after it was sampled once.

# %%
max_size = 1000
reverb.Server(
    tables=[
        reverb.Table(
            name="my_priority_queue",
            sampler=reverb.selectors.MaxHeap(),
            remover=reverb.selectors.MinHeap(),
            max_size=max_size,
            rate_limiter=reverb.rate_limiters.MinSize(int(0.95 * max_size)),
            max_times_sampled=1,
        )
    ],
    port=None,
)

# %% [markdown]
# A queue blocks inserts while it is full; a circular buffer removes the oldest item instead.

# %%
reverb.Server(
    tables=[
        reverb.Table.queue(name="my_queue", max_size=10000),
        reverb.Table(
            name="my_circular_buffer",
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=10000,
            max_times_sampled=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        ),
    ],
    port=None,
)

# %% [markdown]
# ## Rate limiters
#
# `SampleToInsertRatio` controls the ratio of samples to inserts: here three samples per insert, with a tolerance of
# `error_buffer`. The side that is ahead waits, so insert and sample from different threads or processes: in a single
# thread, an insert that waits for samples would wait forever.

# %%
reverb.Server(
    tables=[
        reverb.Table(
            name="my_table",
            sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
            remover=reverb.selectors.Fifo(),
            max_size=int(1e6),
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
                samples_per_insert=3.0, min_size_to_sample=3, error_buffer=3.0
            ),
        ),
    ],
    port=None,
)
