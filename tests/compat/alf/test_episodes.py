"""Where episodes begin and end, and recorded returns, compared with searches through all steps ever added."""

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import FIRST, LAST, MID, fill, ints, replay_buffer, steps
from helpers.support import raises
from hypothesis import example, given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

GAMMA, DEFAULT = 0.5, -1000.0


class EnvModel:
    """All steps of an environment since it was last cleared."""

    def __init__(self):
        self.steps = []

    def add(self, step_type, reward, discount):
        self.steps.append((step_type == FIRST or not self.steps, reward, discount))

    def begin(self, position):
        return max(p for p in range(position + 1) if self.steps[p][0])

    def end(self, position):
        after = (p for p in range(position + 1, len(self.steps)) if self.steps[p][0])
        return next(after, len(self.steps)) - 1

    def disc_0_begin(self, position):
        return max(p for p in range(position + 1) if self.steps[p][0] or self.steps[p][2] == 0)

    def discounted_return(self, position, length, clip):
        """The return since the next step with discount 0 was added, given that the ring has `length` slots."""
        for end in range(position + 1, len(self.steps)):
            if self.steps[end][0]:
                return DEFAULT  # another episode
            if self.steps[end][2] == 0:
                if position <= end - length:
                    return DEFAULT  # overwritten when that step was added
                total = 0.0
                for j in range(position, end):
                    reward = self.steps[j + 1][1]
                    reward = reward if clip is None else min(max(reward, clip[0]), clip[1])
                    total += GAMMA ** (j - position) * self.steps[j][2] * reward
                return total
        return DEFAULT


STEP = st.tuples(
    st.sampled_from([FIRST, MID, MID, MID, LAST]), st.integers(-3, 3), st.sampled_from([1.0, 1.0, 0.5, 0.0])
)
ADD = st.dictionaries(st.integers(0, 1), STEP, min_size=1)
CLEAR = st.sampled_from(["clear 0", "clear 1", "remove 0"])


@given(
    length=st.integers(1, 6),
    clip=st.sampled_from([None, (-1.0, 2.0)]),
    operations=st.lists(st.one_of(ADD, ADD, ADD, ADD, CLEAR), max_size=30),
)
@example(length=4, clip=None, operations=[{0: (t, 0, 1.0)} for t in (FIRST, MID, MID, MID, MID, MID, LAST, FIRST)])
def test_queries_agree_with_a_search(length, clip, operations):
    """Also of episodes without their FIRST step, in progress, without FIRST at the start, and after `clear`."""
    buffer = replay_buffer(
        2, length, keep_episodic_info=True, record_episodic_return=True, gamma=GAMMA, reward_clip=clip
    )
    models = [EnvModel(), EnvModel()]
    for operation in operations:
        if operation == "remove 0":
            buffer.remove_up_to(1, ints([0]))
        elif isinstance(operation, str):
            env = int(operation[-1])
            buffer.clear(ints([env]))
            models[env] = EnvModel()
        else:
            types, rewards, discounts = ([*column] for column in zip(*operation.values(), strict=True))
            buffer.add_batch(steps([0] * len(types), types, rewards, discounts), ints([*operation]))
            for env, step in operation.items():
                models[env].add(*step)
        for env, model in enumerate(models):
            oldest = int(buffer.get_earliest_position()[env])
            stored = [*range(oldest, len(model.steps))]
            envs = ints([env] * len(stored))
            begins = buffer.get_episode_begin_position(ints(stored), envs)
            assert begins.tolist() == [model.begin(position) for position in stored]
            distances = buffer.steps_to_episode_end(ints(stored), envs)
            assert distances.tolist() == [model.end(position) - position for position in stored]
            disc_0 = buffer.get_disc_0_begin_position(ints(stored), envs)
            assert disc_0.tolist() == [model.disc_0_begin(position) for position in stored]
            returns = buffer._returns.get(envs.numpy(), ints(stored).numpy())
            assert returns.tolist() == [model.discounted_return(position, length, clip) for position in stored]


def test_the_example_of_a_headless_episode():
    buffer = replay_buffer(1, 4, keep_episodic_info=True)
    for step_type in (FIRST, MID, MID, MID, MID, MID, LAST, FIRST):
        buffer.add_batch(steps([0], step_type))
    positions, envs = ints([4, 5, 6, 7]), ints([0] * 4)
    assert buffer.get_episode_begin_position(positions, envs).tolist() == [0, 0, 0, 7]
    assert buffer.steps_to_episode_end(positions, envs).tolist() == [2, 1, 0, 0]


def test_only_first_steps_separate_episodes():
    buffer = replay_buffer(1, 9, keep_episodic_info=True)
    for step_type in (FIRST, LAST, MID, LAST):
        buffer.add_batch(steps([0], step_type))
    assert buffer.steps_to_episode_end(ints([0, 1, 2, 3]), ints([0] * 4)).tolist() == [3, 2, 1, 0]


def test_arguments_are_broadcast():
    buffer = replay_buffer(2, 4, keep_episodic_info=True, record_episodic_return=True)
    for step_type in (FIRST, MID, FIRST, MID):
        buffer.add_batch(steps([0, 0], [step_type, MID]))
    envs, positions = ints([[1], [0]]), ints([[0, 1, 2], [1, 2, 3]])
    assert buffer.get_episode_begin_position(positions, envs).tolist() == [[0, 0, 0], [0, 2, 2]]
    assert buffer.steps_to_episode_end(positions, envs).tolist() == [[3, 2, 1], [0, 1, 0]]
    assert buffer.get_disc_0_begin_position(positions, envs).tolist() == [[0, 0, 0], [0, 2, 2]]
    assert buffer.steps_to_episode_end(positions, envs).dtype == alf_buffers.torch.int64


def test_the_returns_of_an_episode():
    buffer = replay_buffer(1, 4, keep_episodic_info=True, record_episodic_return=True, gamma=0.5)
    for step_type, reward, discount in [(FIRST, 1.0, 1.0), (MID, 2.0, 1.0), (MID, 4.0, 1.0), (LAST, 8.0, 0.0)]:
        assert buffer._returns.get(*ints([[0], [0]]).numpy()).tolist() == [DEFAULT]
        buffer.add_batch(steps([0], step_type, reward, discount))
    _, info = buffer.get_batch(8, 1)
    known = dict(zip(info.positions.tolist(), info.discounted_return.tolist(), strict=True))
    assert known == {0: 6.0, 1: 8.0, 2: 8.0, 3: DEFAULT}
    assert info.discounted_return.dtype == alf_buffers.torch.float32


def test_only_stored_steps_get_returns():
    """However long the episode is."""
    buffer, ranges = replay_buffer(1, 3, keep_episodic_info=True, record_episodic_return=True), []
    buffer._complete_returns = lambda _, new: ranges.extend(new)
    for position in range(9):
        buffer.add_batch(steps([0], MID, 1.0, 0.0 if position == 8 else 1.0))
    assert ranges == [(0, 6, 8)]


def test_a_time_limit_leaves_returns_unknown():
    buffer = replay_buffer(1, 8, keep_episodic_info=True, record_episodic_return=True, default_return=-7.0)
    for step_type in (FIRST, MID, LAST, FIRST):
        buffer.add_batch(steps([0], step_type, reward=1.0))
    assert buffer.get_batch(20, 1)[1].discounted_return.tolist() == [-7.0] * 20


def test_clear_forgets_returns():
    buffer = replay_buffer(2, 4, keep_episodic_info=True, record_episodic_return=True)
    for step_type in (FIRST, LAST):
        buffer.add_batch(steps([0, 0], step_type, 1.0, 1.0 if step_type == FIRST else 0.0))
    buffer.clear(ints([1]))
    assert buffer.state_dict()["_returns.values"].tolist() == [[1.0] + [DEFAULT] * 3, [DEFAULT] * 4]


def test_environments_end_in_different_batches():
    """A batch may end the episodes of some environments only."""
    buffer = replay_buffer(3, 4, keep_episodic_info=True, record_episodic_return=True, gamma=1.0)
    buffer.add_batch(steps([0, 0, 0], FIRST))
    buffer.add_batch(steps([0, 0, 0], [MID, LAST, LAST], [1.0, 2.0, 3.0], [1.0, 0.0, 0.0]))
    buffer.add_batch(steps([0], LAST, 5.0, 0.0), ints([0]))
    assert buffer.state_dict()["_returns.values"][:, 0].tolist() == [6.0, 2.0, 3.0]


# --- options and errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({}, False),
        ({"num_earliest_frames_ignored": 1}, True),
        ({"num_earliest_frames_ignored": 1, "keep_episodic_info": False}, False),
        ({"keep_episodic_info": True}, True),
    ],
)
def test_when_episodes_are_recorded(options, keeps):
    buffer = fill(replay_buffer(1, 4, **options), 2)
    if keeps:
        assert buffer.steps_to_episode_end(ints([0]), ints([0])).tolist() == [1]
        return
    for method in (buffer.steps_to_episode_end, buffer.get_episode_begin_position):
        with raises(AssertionError, "episodes need a buffer with `keep_episodic_info=True`"):
            method(ints([0]), ints([0]))


def test_what_returns_need():
    with raises(AssertionError, "`record_episodic_return=True` needs `keep_episodic_info=True`"):
        replay_buffer(record_episodic_return=True)
    buffer = fill(replay_buffer(keep_episodic_info=True), 2)
    text = "`get_disc_0_begin_position` needs a buffer with `record_episodic_return=True`"
    with raises(AssertionError, text):
        buffer.get_disc_0_begin_position(ints([0]), ints([0]))
    assert buffer.get_batch(1, 1)[1].discounted_return == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gamma": 1.5}, "`gamma` must be from 0 to 1; got 1.5"),
        ({"default_return": float("nan")}, "`default_return` must be a number; got nan"),
        ({"reward_clip": (1, -1)}, "`reward_clip` must be (minimum, maximum); got (1, -1)"),
    ],
)
def test_invalid_options_are_rejected(options, text):
    with raises(InvalidArgumentError, text):
        replay_buffer(**options)


@pytest.mark.parametrize(
    ("missing", "options"),
    [
        ("step_type", {"keep_episodic_info": True}),
        ("reward", {"keep_episodic_info": True, "record_episodic_return": True}),
        ("discount", {"keep_episodic_info": True, "record_episodic_return": True}),
    ],
)
def test_fields_must_exist_and_be_numbers(missing, options):
    alf = alf_buffers.alf
    spec = alf_buffers.data_spec()
    del spec["nested"]
    fields = f"needs the field or property `{missing}` in `data_spec`, with shape (); its fields are "
    for broken in (
        {name: each for name, each in spec.items() if name != missing},
        spec | {missing: alf.TensorSpec((1,))},
    ):
        with raises(InvalidArgumentError, f"`{[*options][-1]}=True` {fields}{', '.join(sorted(broken))}"):
            alf.ReplayBuffer(broken, 1, **options)


@pytest.mark.parametrize("method", ["get_episode_begin_position", "steps_to_episode_end", "get_disc_0_begin_position"])
def test_positions_must_be_stored(method):
    buffer = replay_buffer(2, 3, keep_episodic_info=True, record_episodic_return=True)
    fill(buffer, 5)
    query = getattr(buffer, method)
    for bad in (1, 5):
        with raises(AssertionError, f"each of `pos` must be stored; environment 0 has positions 2 to 4; got {bad}"):
            query(ints([2, bad]), ints([0, 0]))
    with raises(AssertionError, "each of `pos` must be stored; environment 1 has no steps; got 0"):
        query(ints([0]), ints([1]))
    with raises(TypeError, "`pos` must be integers; got dtype float32"):
        query(alf_buffers.torch.zeros(1), ints([0]))
