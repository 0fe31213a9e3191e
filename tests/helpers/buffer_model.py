"""A naive model of a replay buffer: lists of all steps ever added, and searches through them."""

import numpy as np

from engram.buffers import Episodes, Sequences, Steps, Transitions


class Env:
    """The steps of one environment."""

    def __init__(self, length):
        self.length = length
        self.rows = []  # all steps ever added
        self.oldest = 0  # position of the oldest step that is stored
        self.first = set()  # positions of steps that begin an episode
        self.cut = set()  # positions of steps with which `end_episodes` has ended an episode

    def add(self, row):
        position = len(self.rows)
        if position == self.oldest or self.ended(position - 1):
            self.first.add(position)
        self.rows.append(row)
        self.oldest = max(self.oldest, position + 1 - self.length)

    def clear(self):
        self.oldest = len(self.rows)

    def ended(self, position):
        return position in self.cut or bool(self.rows[position]["terminated"] or self.rows[position]["truncated"])

    def end_episode(self):
        if self.stored():
            self.cut.add(len(self.rows) - 1)

    def stored(self):
        return range(self.oldest, len(self.rows))

    def episode(self, position):
        """Positions of the stored steps of the episode that has the step at `position`."""
        first = last = position
        while first not in self.first and first > self.oldest:
            first -= 1
        while not self.ended(last) and last + 1 < len(self.rows):
            last += 1
        return range(first, last + 1)

    def achieved_by(self, position, strategy):
        """Positions of the steps whose achieved goals can replace the goal of the step at `position`."""
        episode = self.episode(position)
        return {"final": episode[-1:], "future": range(position, episode.stop), "episode": episode}[strategy]

    def following(self, start, length, *, until_end):
        """Positions of up to `length` steps from `start` on; None if one of them was not added yet."""
        positions = []
        for position in range(start, start + length):
            if position >= len(self.rows):
                return None
            positions.append(position)
            if until_end and self.ended(position):
                break
        return positions


class BufferModel:
    """What a replay buffer should contain."""

    def __init__(self, length, num_envs, items, *, prioritized=False, frames=0):
        self.envs = [Env(length) for _ in range(num_envs)]
        self.items = items
        self.frames = frames  # number of stacked frames of `pixels` and `obs`; 0 without stacks
        self.priorities = {} if prioritized else None

    def add_steps(self, env_ids, steps):
        """Adds steps: a list of rows for each environment."""
        for env, rows in zip(env_ids, steps, strict=True):
            for row in rows:
                self.envs[env].add(row)
        self._update_priorities()

    def add_episode(self, env_id, rows):
        """Adds a whole episode, apart from the steps before and after it."""
        env = self.envs[env_id]
        env.end_episode()
        for row in rows:
            env.add(row)
        env.end_episode()
        self._update_priorities()

    def end_episodes(self, env_ids):
        for env in env_ids:
            self.envs[env].end_episode()
        self._update_priorities()

    def clear(self):
        for env in self.envs:
            env.clear()
        self._update_priorities()

    def _update_priorities(self):
        if self.priorities is None:
            return
        items = self.all_items()
        initial = max((self.priorities[key] for key in items if key in self.priorities), default=0) or 1.0
        self.priorities = {key: self.priorities.get(key, initial) for key in items}

    def __len__(self):
        return sum(len(env.stored()) for env in self.envs)

    def all_items(self):
        """The items that can be sampled, by key."""
        found = {}
        for number, env in enumerate(self.envs):
            for position in env.stored():
                item = self._item(env, position)
                if item is not None:
                    found[position * len(self.envs) + number] = item
        return found

    def _item(self, env, start):
        if self.frames:
            return self._stacked_item(env, start)
        return self._plain_item(env, start)

    def _stacked_item(self, env, start):
        """The item made of steps that contain whole stacks; None if one of its frames is not stored any more."""
        stacks = Env(env.length)
        stacks.oldest, stacks.first, stacks.cut = env.oldest, env.first, env.cut
        stacks.rows = [self._with_stacks(env, position) for position in range(len(env.rows))]
        item = self._plain_item(stacks, start)
        before = [start]
        for _ in range(getattr(self.items, "burn_in", 0) + self.frames - 1):
            if before[-1] not in env.first:
                before.append(before[-1] - 1)
        return None if before[-1] < env.oldest else item

    def _with_stacks(self, env, position):
        positions = [position]
        while len(positions) < self.frames:
            positions.append(positions[-1] if positions[-1] in env.first else max(positions[-1] - 1, 0))
        frames = [env.rows[each]["obs"] for each in positions]
        row = env.rows[position]
        return row | {
            "obs": np.stack(frames[::-1]),
            "next_obs": np.stack([*frames[: self.frames - 1][::-1], row["next_obs"]]),
            "pixels": np.stack([env.rows[each]["pixels"] for each in positions][::-1]),
        }

    def _plain_item(self, env, start):
        if isinstance(self.items, Steps):
            return env.rows[start]
        if isinstance(self.items, Transitions):
            return self._transition(env, start)
        if isinstance(self.items, Episodes):
            return self._episode(env, start)
        assert isinstance(self.items, Sequences)
        return self._sequence(env, start)

    def _transition(self, env, start):
        positions = env.following(start, self.items.n_step, until_end=True)
        if positions is None:
            return None
        rows = [env.rows[position] for position in positions]
        item = {name: value for name, value in rows[0].items() if name not in {"terminated", "truncated"}}
        discounts = [self.items.discount**k for k in range(len(rows) + 1)]
        rewards = [float(row["reward"]) for row in rows]
        return item | {
            "reward": np.float32(sum(discount * reward for discount, reward in zip(discounts, rewards, strict=False))),
            "discount": np.float32(0 if rows[-1]["terminated"] else discounts[-1]),
            "num_steps": np.int32(len(rows)),
            "next_obs": rows[-1]["next_obs"],
        }

    def _episode(self, env, start):
        length = self.items.max_length
        positions = env.following(start, length, until_end=True)
        first = max(position for position in env.first if position <= start)
        if positions is None or (start - first) % length:
            return None
        padding = length - len(positions)
        rows = [env.rows[position] for position in positions]
        columns = {
            name: np.stack([row[name] for row in rows] + [np.zeros_like(rows[0][name])] * padding) for name in rows[0]
        }
        first = [position in env.first for position in positions] + [False] * padding
        return columns | {"valid": np.arange(length) < len(rows), "is_first": np.array(first)}

    def _sequence(self, env, start):
        items = self.items
        after = env.following(start, items.length, until_end=items.at_end == "pad")
        if after is None:
            return None
        before = []
        while len(before) < items.burn_in and [start, *before][-1] not in env.first:
            position = start - len(before) - 1
            if position < env.oldest:
                return None
            before.append(position)
        positions = [*reversed(before), *after]
        copies, padding = items.burn_in - len(before), items.length - len(after)
        rows = [env.rows[position] for position in [positions[0]] * copies + positions]
        valid = [False] * copies + [True] * len(positions) + [False] * padding
        first = [True] * copies + [position in env.first for position in positions] + [False] * padding
        columns = {
            name: np.stack([row[name] for row in rows] + [np.zeros_like(rows[0][name])] * padding) for name in rows[0]
        }
        return columns | {
            "valid": np.array(valid),
            "learning": np.array(valid) & (np.arange(len(valid)) >= items.burn_in),
            "is_first": np.array(first),
        }


def row(number, *, terminated=False, truncated=False):
    """A step whose values are computed from its number, which no two steps of a test share."""
    return {
        "obs": np.array([number, -number], np.float32),
        "next_obs": np.array([number + 0.5, -number], np.float32),
        "action": np.int64(number),
        "pixels": np.full((3, 1), number % 256, np.uint8),
        "reward": np.float64(number % 7 - 3),
        "terminated": np.bool_(terminated),
        "truncated": np.bool_(truncated),
    }


def stacked(rows):
    """Rows with a leading axis."""
    return {name: np.stack([each[name] for each in rows]) for name in rows[0]}


def assert_same_items(batch, expected):
    """Checks each item of a batch against that of the model."""
    for index, key in enumerate(batch.info.key.tolist()):
        item = expected[key]
        assert set(batch.data) == set(item)
        for name, value in item.items():
            column = batch.data[name]
            assert column.dtype == np.asarray(value).dtype, name
            np.testing.assert_array_equal(column[index], value, err_msg=f"{name} of {key}")


def items_by_key(buffer):
    """All items by key."""
    found = {}
    for batch in buffer.epoch(100):
        for index, key in enumerate(batch.info.key.tolist()):
            found[key] = {name: column[index].tolist() for name, column in batch.data.items()}
    return found


def priorities_by_key(buffer):
    return {
        key: priority
        for batch in buffer.epoch(100)
        for key, priority in zip(batch.info.key.tolist(), batch.info.priority.tolist(), strict=True)
    }


def all_steps(buffer):
    """All steps of a buffer by environment and position."""
    found = {}
    for batch in buffer.scan(1000, steps=True):
        places = zip(batch.info.env_id.tolist(), batch.info.position.tolist(), strict=True)
        found |= {place: {name: column[i] for name, column in batch.data.items()} for i, place in enumerate(places)}
    return found
