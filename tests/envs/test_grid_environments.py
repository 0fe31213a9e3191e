"""Fetch and Cue: batched and scalar versions against a naive model, step by step."""

import functools
import pickle

import numpy as np
import pytest
from helpers.support import raises, runs_all_tests
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

dm_env = pytest.importorskip("dm_env")

from engram.envs import BatchedCue, BatchedFetch, Cue, Fetch, GridEnvironment  # noqa: E402, they need dm_env

CLASSES = {"fetch": (BatchedFetch, Fetch), "cue": (BatchedCue, Cue)}
AHEAD = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
HEADINGS = list(AHEAD)


def draw(cells, heading, row, column, tile_of):
    """Draws the 7 x 7 cells ahead of an agent, cell by cell; `cells` maps (row, column) to a kind."""
    frame = np.zeros((42, 42, 3), np.uint8)
    (ahead_row, ahead_column), (right_row, right_column) = AHEAD[heading], AHEAD[HEADINGS[HEADINGS.index(heading) - 3]]
    for i in range(7):
        for j in range(7):
            ahead, right = 6 - i, j - 3
            cell = row + ahead * ahead_row + right * right_row, column + ahead * ahead_column + right * right_column
            frame[6 * i : 6 * i + 6, 6 * j : 6 * j + 6] = tile_of(cells.get(cell, "outside"))
    return frame


@functools.cache
def bordered(color):
    tile = np.empty((6, 6, 3), np.uint8)
    for y, x in np.ndindex(6, 6):
        tile[y, x] = [int(c * 0.75) if 5 in {y, x} else c for c in color]
    return tile


@functools.cache
def fetch_tile(kind):
    colors = {
        "outside": (0, 0, 0),
        "floor": (64, 64, 64),
        "flag": (64, 64, 64),
        "north": (168, 72, 72),
        "east": (72, 144, 72),
        "south": (80, 96, 176),
        "west": (160, 136, 56),
    }
    tile = bordered(colors[kind])
    if kind == "flag":
        tile = tile.copy()
        tile[:4] = (255, 0, 255)
        tile[:, 0] = 255
    return tile


class FetchModel:
    """Fetch by its rules; it takes its first state from an environment, because that is random."""

    def __init__(self, env):
        state = env.get_state()
        self.row, self.column = (int(x) for x in state["position"][0])
        self.flag = tuple(int(x) for x in state["flag"][0])
        self.heading = HEADINGS[int(state["heading"][0])]
        self.steps = 0

    def step(self, action):
        self.steps += 1
        index = HEADINGS.index(self.heading)
        if action == 0:
            self.heading = HEADINGS[index - 1]
        elif action == 1:
            self.heading = HEADINGS[index - 3]
        else:
            row, column = self.row + AHEAD[self.heading][0], self.column + AHEAD[self.heading][1]
            if 1 <= row <= 7 and 1 <= column <= 7:
                self.row, self.column = row, column
        found = (self.row, self.column) == self.flag
        return float(found), found, found or self.steps == 25

    def frame(self):
        cells = {(row, column): "floor" for row in range(1, 8) for column in range(1, 8)}
        for line in range(9):
            cells[line, 0], cells[line, 8] = "west", "east"
        for line in range(9):
            cells[0, line], cells[8, line] = "north", "south"
        cells[self.flag] = "flag"
        return draw(cells, self.heading, self.row, self.column, fetch_tile)


def cue_tile(kind):
    red, blue = (208, 48, 48), (48, 96, 224)
    colors = {"outside": (0, 0, 0), "wall": (136, 136, 136), "floor": (64, 64, 64), "red": red, "blue": blue}
    return bordered(colors[kind])


class CueModel:
    """Cue by its rules."""

    def __init__(self, env):
        self.cue = int(env.get_state()["cue"][0])
        self.steps, self.door = 0, 0

    def step(self, action):
        self.steps += 1
        if self.steps < 12:
            return 0.0, False, False
        self.door = 2 * action - 1
        return 1.0 if action == self.cue else -1.0, True, True

    def frame(self):
        cells = {(row, column): "wall" for row in range(14) for column in range(5)}
        for row in range(1, 13):
            cells[row, 2] = "floor" if self.steps else ("red", "blue")[self.cue]
        cells[1, 1], cells[1, 3] = "red", "blue"
        return draw(cells, "north", max(12 - self.steps, 1), 2 + self.door, cue_tile)


MODELS = {"fetch": FetchModel, "cue": CueModel}


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=15 if runs_all_tests() else 5)
@given(seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=3), choices=st.randoms(use_true_random=False))
def test_batched_scalar_and_model_agree_step_for_step(name, seeds, choices):
    batched_class, scalar_class = CLASSES[name]
    batch, singles = batched_class(seeds), [scalar_class(seed) for seed in seeds]
    models, actions = [None] * len(seeds), None
    steps = batch.reset()
    scalar_steps = [single.reset() for single in singles]
    for _ in range(40):
        for i, (single, scalar) in enumerate(zip(singles, scalar_steps, strict=True)):
            np.testing.assert_array_equal(steps.observation[i], scalar.observation)
            assert steps.step_type[i] == scalar.step_type
            if scalar.first():
                models[i] = MODELS[name](single._batch)
                assert (steps.reward[i], steps.discount[i]) == (0, 1)
                assert (scalar.reward, scalar.discount) == (None, None)
                reward, terminated, over = 0.0, False, False
            else:
                reward, terminated, over = models[i].step(actions[i])
                assert steps.reward[i] == scalar.reward == reward
                assert steps.discount[i] == scalar.discount == (0.0 if terminated else 1.0)
            assert scalar.last() == over
            np.testing.assert_array_equal(scalar.observation, models[i].frame())
        actions = [choices.randrange(batch.num_actions) for _ in seeds]
        steps = batch.step(actions)
        scalar_steps = [single.step(action) for single, action in zip(singles, actions, strict=True)]


@pytest.mark.parametrize("name", CLASSES)
def test_frames_are_of_the_spec(name):
    batch, single = CLASSES[name][0]([0, 1]), CLASSES[name][1](0)
    steps, step = batch.reset(), single.reset()
    single.observation_spec().validate(step.observation)
    assert steps.observation.shape == (2, 42, 42, 3)
    assert steps.observation.dtype == np.uint8
    assert (steps.step_type.dtype, steps.reward.dtype, steps.discount.dtype) == (np.int32, np.float32, np.float32)
    assert single.action_spec().num_values == batch.num_actions
    step = single.step(1)
    single.reward_spec().validate(step.reward)
    single.discount_spec().validate(step.discount)


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_continues_bit_for_bit(name):
    batched_class, _ = CLASSES[name]
    rng = np.random.default_rng(0)
    actions = rng.integers(batched_class.num_actions, size=(60, 3))
    batch, resumed = batched_class([5, 6, 7]), batched_class([5, 6, 7])
    batch.reset()
    for action in actions[:17]:
        batch.step(action)
    resumed.set_state(pickle.loads(pickle.dumps(batch.get_state())))  # noqa: S301, its own data
    for action in actions[17:]:
        for mine, other in zip(batch.step(action), resumed.step(action), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_a_state_is_a_copy():
    batch = BatchedFetch([0])
    batch.reset()
    state = batch.get_state()
    before = batch.get_state()
    batch.set_state(state)
    batch.step([2])
    batch.step([0])
    for name, value in before.items():
        np.testing.assert_array_equal(state[name], value)


def test_episodes_of_an_environment_differ():
    single = Fetch(0)
    frames = {single.reset().observation.tobytes() for _ in range(20)}
    assert len(frames) > 10


def uniform_success(batched_class, seed, num_envs=64, steps=2000):
    """Returns the share of successful episodes with uniform actions, and their number."""
    batch, rng = batched_class(range(seed, seed + num_envs)), np.random.default_rng(seed)
    batch.reset()
    episodes = successes = 0
    for _ in range(steps):
        result = batch.step(rng.integers(batch.num_actions, size=num_envs))
        episodes += int(result.last().sum())
        successes += int((result.reward > 0).sum())
    return successes / episodes, episodes


@pytest.mark.slow
def test_uniform_actions_seldom_find_the_flag():
    share, episodes = uniform_success(BatchedFetch, 0)
    assert episodes > 4000
    assert 0.05 < share < 0.2


@pytest.mark.slow
def test_uniform_actions_pick_the_right_door_half_of_the_time():
    share, episodes = uniform_success(BatchedCue, 0)
    assert episodes > 9000
    assert abs(share - 0.5) < 0.02


def test_starts_headings_and_flags_are_uniform():
    from scipy import stats  # noqa: PLC0415, of this test only

    batch = BatchedFetch(range(200))
    states = []
    for _ in range(25):
        batch.reset()
        states.append(batch.get_state())
    for name in ("position", "flag"):
        cells = np.concatenate([state[name] for state in states])
        assert cells.min() == 1
        assert cells.max() == 7
        assert stats.chisquare(np.bincount((cells[:, 0] - 1) * 7 + cells[:, 1] - 1, minlength=49)).pvalue > 0.001
    headings = np.concatenate([state["heading"] for state in states])
    assert stats.chisquare(np.bincount(headings, minlength=4)).pvalue > 0.001
    assert not any((state["position"] == state["flag"]).all(1).any() for state in states)


def test_the_cue_is_in_the_first_frame_only():
    red, blue = (next(s for s in range(50) if first_cue(s) == cue) for cue in (0, 1))
    frames = [[] for _ in range(2)]
    for single, seen in zip((Cue(red), Cue(blue)), frames, strict=True):
        seen.append(single.reset().observation)
        seen.extend(single.step(0).observation for _ in range(12))
    different = [not np.array_equal(*pair) for pair in zip(*frames, strict=True)]
    assert different == [True] + [False] * 12


def first_cue(seed):
    batch = BatchedCue([seed])
    batch.reset()
    return batch.get_state()["cue"][0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BatchedFetch([]), "`seeds`: no environments; got an empty sequence, expected at least one seed"),
        (lambda: BatchedFetch([-1]), "each of `seeds` must be at least 0; got -1"),
        (lambda: GridEnvironment(BatchedFetch([0, 1])), "`batch` must have one environment; got 2"),
    ],
)
def test_arguments_are_checked(make, text):
    with raises(InvalidArgumentError, text):
        make()


def test_actions_are_checked_before_anything_changes():
    batch = BatchedFetch([0, 1])
    batch.reset()
    before = batch.get_state()
    for actions, text in (
        ([0], "`actions` must be integers of the shape (2,); got int64[1]"),
        ([0.0, 1.0], "`actions` must be integers of the shape (2,); got float64[2]"),
        ([0, 3], "`actions` must be from 0 to 2; got 3"),
        ([-1, 0], "`actions` must be from 0 to 2; got -1"),
    ):
        with raises(InvalidArgumentError, text):
            batch.step(actions)
    for name, value in batch.get_state().items():
        np.testing.assert_array_equal(value, before[name])


def test_the_action_after_the_last_time_step_is_ignored():
    batch = BatchedCue([0, 1])
    batch.reset()
    batch.set_state(batch.get_state() | {"over": np.array([True, False])})
    assert batch.step([99, 0]).step_type.tolist() == [dm_env.StepType.FIRST, dm_env.StepType.MID]


def test_states_are_checked():
    state = BatchedFetch([0]).get_state()
    with raises(
        InvalidArgumentError,
        "`state`: from another environment or number of environments; got ['episode', 'flag', 'heading', 'over',"
        " 'position', 'step'], expected ['cue', 'episode', 'heading', 'over', 'position', 'step'], 1 rows each",
    ):
        BatchedCue([0]).set_state(state)
