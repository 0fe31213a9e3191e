"""Replay buffers agree with a naive model: rings that wrap, several environments, endings, stale keys."""

import tempfile
from pathlib import Path

import numpy as np
from helpers import examples
from helpers.buffer_model import BufferModel, assert_same_items, row, stacked
from hypothesis import given
from hypothesis import strategies as st

from engram import selectors
from engram.buffers import Episodes, FrameStack, MappedFile, ReplayBuffer, Sequences, Steps, Transitions

KINDS = st.one_of(
    st.just(Steps()),
    st.builds(Transitions, n_step=st.integers(1, 4), discount=st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(
        Sequences, length=st.integers(1, 4), burn_in=st.integers(0, 3), at_end=st.sampled_from(["pad", "continue"])
    ),
)
KINDS |= st.builds(Episodes, max_length=st.integers(1, 6))
ENDINGS = st.sampled_from([(False, False)] * 5 + [(True, False), (False, True), (True, True)])


class Pair:
    """A buffer and its model, to which the same is done."""

    def __init__(self, length, num_envs, items, sampler, *, frames=0, storage=None):
        prioritized = isinstance(sampler, selectors.Prioritized)
        transforms = [FrameStack("obs", frames), FrameStack("pixels", frames)] if frames else ()
        self.options = {
            "capacity": length * num_envs,
            "num_envs": num_envs,
            "items": items,
            "transforms": transforms,
            "sampler": sampler,
        }
        self.storage = storage
        self.buffer = ReplayBuffer(**self.options, seed=1, storage=storage)
        self.model = BufferModel(length, num_envs, items, prioritized=prioritized, frames=frames)
        self.num_envs = num_envs
        self.number = 0

    def rows(self, data, count):
        """Draws steps with numbers that were not used before."""
        rows = []
        for _ in range(count):
            terminated, truncated = data.draw(ENDINGS)
            self.number += 1
            rows.append(row(self.number, terminated=terminated, truncated=truncated))
        return rows

    def add(self, data):
        method = data.draw(st.sampled_from(["add", "add_batch", "add_steps", "add_episode"]))
        if method == "add_episode":
            env = data.draw(st.integers(0, self.num_envs - 1))
            rows = self.rows(data, data.draw(st.integers(1, 20)))
            for each in rows[:-1]:
                each["terminated"] = each["truncated"] = np.zeros((), bool)[()]
            self.buffer.add_episode(stacked(rows), env_id=env)
            self.model.add_episode(env, rows)
            return
        if method == "add":
            env = data.draw(st.integers(0, self.num_envs - 1))
            [step] = self.rows(data, 1)
            self.buffer.add(step, env_id=env)
            self.model.add_steps([env], [[step]])
            return
        env_ids = data.draw(st.permutations(range(self.num_envs)))
        env_ids = env_ids[: data.draw(st.integers(1, self.num_envs))]
        given_ids = None if env_ids == list(range(self.num_envs)) else env_ids
        if method == "add_batch":
            rows = self.rows(data, len(env_ids))
            self.buffer.add_batch(stacked(rows), env_ids=given_ids)
            self.model.add_steps(env_ids, [[each] for each in rows])
        else:
            count = data.draw(st.integers(1, 20))
            steps = [self.rows(data, count) for _ in env_ids]
            self.buffer.add_steps(stacked([stacked(rows) for rows in steps]), env_ids=given_ids)
            self.model.add_steps(env_ids, steps)

    def reopen(self, data):
        """Replaces the buffer by one that has its file, or is restored from its save."""
        if self.storage is not None:
            if data.draw(st.booleans()):
                self.buffer.close()
            self.buffer = None  # before another buffer opens the file
            self.buffer = ReplayBuffer(**self.options, seed=1, storage=self.storage)
            return
        if self.number == 0:
            return  # nothing can be saved before the first step
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "save"
            self.buffer.save(path)
            self.buffer = ReplayBuffer(**self.options)
            self.buffer.restore(path)

    def check(self):
        expected = self.model.all_items()
        assert len(self.buffer) == len(self.model)
        assert self.buffer.num_items == len(expected)
        keys = []
        for batch in self.buffer.epoch(3):
            assert_same_items(batch, expected)
            keys += batch.info.key.tolist()
            assert (batch.info.position * self.num_envs + batch.info.env_id == batch.info.key).all()
            if self.model.priorities is not None:
                assert batch.info.priority.tolist() == [self.model.priorities[key] for key in batch.info.key.tolist()]
        assert sorted(keys) == sorted(expected)
        self.check_scans(expected)
        if expected:
            batch = self.buffer.sample(5)
            assert_same_items(batch, expected)
            if self.model.priorities is not None:
                self.check_probabilities(batch)
            else:
                np.testing.assert_allclose(batch.info.probability, 1 / len(expected))
                different = self.buffer.sample(len(expected), replacement=False)
                assert sorted(different.info.key.tolist()) == sorted(expected)

    def check_scans(self, expected):
        """Scans return all items and all steps, environment after environment, oldest first."""
        keys = []
        for batch in self.buffer.scan(3):
            assert_same_items(batch, expected)
            assert (batch.info.probability == 1).all()
            if self.model.priorities is not None:
                assert batch.info.priority.tolist() == [self.model.priorities[key] for key in batch.info.key.tolist()]
            keys += batch.info.key.tolist()
        assert keys == sorted(expected, key=lambda key: (key % self.num_envs, key // self.num_envs))
        steps = [(env, position) for env, ring in enumerate(self.model.envs) for position in ring.stored()]
        scanned = list(self.buffer.scan(4, steps=True))
        assert [len(batch) for batch in scanned[:-1]] == [4] * (len(scanned) - 1)
        found = [
            (env, position, {name: column[index] for name, column in batch.data.items()})
            for batch in scanned
            for index, (env, position) in enumerate(zip(batch.info.env_id, batch.info.position, strict=True))
        ]
        assert [(env, position) for env, position, _ in found] == steps
        for env, position, step in found:
            for name, value in self.model.envs[env].rows[position].items():
                np.testing.assert_array_equal(step[name], value, err_msg=name)

    def check_probabilities(self, batch):
        masses = {key: 0 if p == 0 else p**0.5 for key, p in self.model.priorities.items()}
        total = sum(masses.values())
        if total:
            probabilities = {key: mass / total for key, mass in masses.items()}
        else:
            probabilities = dict.fromkeys(masses, 1 / len(masses))
        drawn = [probabilities[key] for key in batch.info.key.tolist()]
        np.testing.assert_allclose(batch.info.probability, drawn)
        positive = [p for p in probabilities.values() if p > 0]
        weights = np.array([(1 / (len(positive) * p)) ** 0.4 for p in drawn])
        np.testing.assert_allclose(batch.importance_weights(0.4), weights / weights.max(), rtol=1e-6)
        largest = (1 / (len(positive) * min(positive))) ** 0.4
        in_buffer = batch.importance_weights(0.4, normalize="buffer")
        np.testing.assert_allclose(in_buffer, weights / largest, rtol=1e-6)
        np.testing.assert_allclose(batch.importance_weights(0.4, normalize=None), weights, rtol=1e-6)

    def update_priorities(self, data, ever):
        """Updates keys of the present and the past, some of them twice."""
        keys = data.draw(st.lists(st.sampled_from(sorted(ever)), min_size=0, max_size=6))
        priorities = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 4.0]), min_size=len(keys), max_size=len(keys)))
        found = self.buffer.update_priorities(np.array(keys, np.uint64), priorities)
        assert found == sum(key in self.model.priorities for key in keys)
        for key, priority in zip(keys, priorities, strict=True):
            if key in self.model.priorities:
                self.model.priorities[key] = priority


SAMPLERS = [selectors.Uniform(), selectors.Prioritized(0.5)]


@examples.of_each(SAMPLERS)
@given(st.sampled_from(SAMPLERS), st.data())
def test_a_buffer_agrees_with_the_model(sampler, data):
    run(sampler, data, None)


@examples.of_each(SAMPLERS, usual=25)
@given(st.sampled_from(SAMPLERS), st.data())
def test_a_buffer_in_a_file_agrees_with_the_model(sampler, data):
    with tempfile.TemporaryDirectory() as directory:
        run(sampler, data, MappedFile(Path(directory) / "file"))


def run(sampler, data, storage):
    """Does random things to a buffer and to its model."""
    items = data.draw(KINDS)
    frames = data.draw(st.sampled_from([0, 0, 2, 3, 4]))
    least = 2 * items.max_length - 1 if isinstance(items, Episodes) else items._max_steps
    length = least + max(frames - 1, 0) + data.draw(st.integers(0, 8))
    num_envs = data.draw(st.integers(1, 3))
    pair, ever = Pair(length, num_envs, items, sampler, frames=frames, storage=storage), {*range(8), 2**40}
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.integers(0, 9))
        if action == 0:
            pair.buffer.clear()
            pair.model.clear()
        elif action == 1:
            env_ids = data.draw(st.lists(st.integers(0, num_envs - 1), unique=True))
            pair.buffer.end_episodes(env_ids=env_ids)
            pair.model.end_episodes(env_ids)
        elif action == 2:
            pair.reopen(data)
        else:
            pair.add(data)
        if pair.model.priorities is not None:
            ever |= pair.model.priorities.keys()
            pair.update_priorities(data, ever)
        pair.check()
