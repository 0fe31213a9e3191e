"""Prioritized sampling, compared with a model that keeps the priority of each possible start in a dict."""

import warnings
from collections import Counter

import numpy as np
import pytest
from helpers import alf_buffers
from helpers.alf_buffers import assert_frequencies, fill, ints, replay_buffer, steps, x_of
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import InvalidArgumentError

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

NOTHING = "no stored step can begin a sequence of {} steps: too few steps are stored, or their priorities are 0"


@pytest.fixture(autouse=True)
def seed():
    alf_buffers.torch.manual_seed(0)


def prioritized(num_environments=1, max_length=4, **options):
    return replay_buffer(num_environments, max_length, prioritized_sampling=True, **options)


def update(buffer, priorities):
    """Sets priorities, given by environment and position."""
    envs, positions = zip(*priorities, strict=True)
    buffer.update_priority(ints([*envs]), ints([*positions]), alf_buffers.torch.tensor([*priorities.values()]))


def priorities_of(buffer):
    """The priorities above 0, by environment and position."""
    values = buffer._priorities.values.reshape(buffer.num_environments, buffer.max_length)
    newest = buffer.get_current_position().numpy() - 1
    found = {}
    for env, slot in np.argwhere(values > 0).tolist():
        position = newest[env] - (newest[env] - slot) % buffer.max_length
        found[env, int(position)] = float(values[env, slot])
    return found


# --- the invariant --------------------------------------------------------------------------------


class Model:
    """The priority of each step that a sequence can begin with."""

    def __init__(self, num_envs, length, ignored, minimum):
        self.length, self.ignored, self.minimum = length, ignored, minimum
        self.positions, self.sizes = [0] * num_envs, [0] * num_envs
        self.sequence_length = 1
        self.priorities = {}

    def starts(self, sequence_length=None):
        for env, (end, size) in enumerate(zip(self.positions, self.sizes, strict=True)):
            for position in range(end - size + self.ignored, end - (sequence_length or self.sequence_length) + 1):
                yield env, position

    def follow(self):
        """Adapts the priorities to the stored steps."""
        starts = {*self.starts()}
        self.priorities = {start: value for start, value in self.priorities.items() if start in starts}
        initial = self.initial()
        self.priorities |= dict.fromkeys(starts - {*self.priorities}, initial)

    def initial(self):
        return max([self.minimum, *self.priorities.values()])

    def add(self, env):
        self.positions[env] += 1
        self.sizes[env] = min(self.sizes[env] + 1, self.length)

    def remove(self, env, n):
        self.sizes[env] -= min(n, self.sizes[env])

    def clear(self, env):
        self.priorities = {start: value for start, value in self.priorities.items() if start[0] != env}
        self.positions[env] = self.sizes[env] = 0

    def change_length(self, sequence_length):
        """Returns False, and changes nothing, if nothing can be sampled then."""
        before = self.sequence_length, self.priorities
        self.sequence_length = sequence_length
        self.follow()
        if any(self.priorities.values()):
            return True
        self.sequence_length, self.priorities = before
        return False

    def positive(self):
        return {start: value for start, value in self.priorities.items() if value}


SUBSETS = st.sets(st.integers(0, 2), min_size=1)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), SUBSETS, st.integers(1, 5)),
    st.tuples(st.just("clear"), SUBSETS, st.just(0)),
    st.tuples(st.just("remove"), SUBSETS, st.integers(0, 4)),
    st.tuples(st.just("sample"), st.booleans(), st.integers(1, 5)),
    st.tuples(
        st.just("update"),
        st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 3), st.integers(0, 4)), max_size=6),
        st.just(0),
    ),
)


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    ignored=st.integers(0, 2),
    minimum=st.sampled_from([0.0, 0.5, 1.0]),
    with_replacement=st.booleans(),
    operations=st.lists(OPERATIONS, max_size=25),
)
def test_only_steps_that_can_begin_a_sequence_have_a_priority(sizes, ignored, minimum, with_replacement, operations):
    num_envs, length = sizes
    options = {"keep_episodic_info": False, "with_replacement": with_replacement}
    buffer = prioritized(num_envs, length, num_earliest_frames_ignored=ignored, initial_priority=minimum, **options)
    model = Model(num_envs, length, ignored, minimum)
    for operation, argument, number in operations:
        if operation == "sample":
            check_sample(buffer, model, number)
        elif operation == "update":
            # Positions from before the oldest step to after the newest one.
            listed = [(env % num_envs, model.positions[env % num_envs] - 1 - age, p) for env, age, p in argument]
            buffer.update_priority(*(ints([each[i] for each in listed]) for i in range(3)))
            for env, position, priority in listed:
                if (env, position) in {*model.starts()}:
                    model.priorities[env, position] = priority
        else:
            envs = sorted({env % num_envs for env in argument})
            for _ in range(number if operation == "add" else 1):
                if operation == "add":
                    buffer.add_batch(steps([0] * len(envs)), ints(envs))
                elif operation == "remove":
                    buffer.remove_up_to(number, ints(envs))
                else:
                    buffer.clear(ints(envs))
                for env in envs:
                    getattr(model, operation)(*((env, number) if operation == "remove" else (env,)))
                model.follow()
        assert priorities_of(buffer) == model.positive()
        assert buffer.initial_priority == model.initial()


def check_sample(buffer, model, sequence_length):
    """Samples sequences of this length, if there are any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of changes of the length
        if not model.change_length(sequence_length):
            with raises(AssertionError, NOTHING.format(sequence_length)):
                buffer.get_batch(3, sequence_length)
            return
        _, info = buffer.get_batch(3, sequence_length)
    positive = model.positive()
    mean = sum(positive.values()) / len(positive)
    starts = [*zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)]
    assert info.importance_weights.tolist() == pytest.approx([positive[start] / mean for start in starts])
    assert info.importance_weights.dtype == alf_buffers.torch.float32


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_replacement", [False, True])
def test_draws_are_in_proportion_to_priorities(with_replacement):
    buffer = fill(prioritized(2, 4, with_replacement=with_replacement), 6, 3)
    priorities = {(0, 2): 1.0, (0, 3): 0.0, (0, 4): 2.0, (0, 5): 0.5, (1, 0): 3.0, (1, 1): 1.0, (1, 2): 0.5}
    update(buffer, priorities)
    counts = Counter()
    for _ in range(1000):
        _, info = buffer.get_batch(4, 1)
        counts.update(zip(info.env_ids.tolist(), info.positions.tolist(), strict=True))
    possible = [start for start, priority in priorities.items() if priority]
    assert {*counts} == {*possible}
    assert_frequencies([counts[start] for start in possible], [4000 * priorities[start] / 8 for start in possible])


def test_without_replacement_there_is_one_draw_per_share_of_the_sum():
    """A start with a quarter of the sum is drawn in a quarter of the batch; the batch is in the order of the ring."""
    buffer = fill(prioritized(2, 4), 4, 2)
    update(buffer, {(0, 0): 2.0, (0, 1): 0.0, (0, 2): 1.0, (0, 3): 0.0, (1, 0): 0.5, (1, 1): 0.5})
    batch, info = buffer.get_batch(1000, 1)
    assert info.positions.tolist() == [0] * 500 + [2] * 250 + [0] * 125 + [1] * 125
    assert info.env_ids.tolist() == [0] * 750 + [1] * 250
    assert x_of(batch) == [[0]] * 500 + [[2]] * 250 + [[100]] * 125 + [[101]] * 125


def test_the_seed_of_torch_decides():
    torch = alf_buffers.torch
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        buffer = fill(prioritized(1, 50), 50)
        draws.append([buffer.get_batch(3, 1)[1].positions.tolist() for _ in range(3)])
    assert draws[0] == draws[1]


@pytest.mark.parametrize("with_replacement", [False, True])
def test_a_seed_draws_what_it_draws_with_alf(with_replacement):
    """The same random numbers, and sums in float32 of the same pairs: a tree in which 21 leaves are on two levels."""
    torch = alf_buffers.torch
    buffer = fill(prioritized(3, 7, with_replacement=with_replacement), 7, 12, 5)
    for _ in range(20):
        update(buffer, {start: 10 * float(torch.rand(1)) ** 3 for start in priorities_of(buffer)})
        values = torch.from_numpy(buffer._priorities.values.copy())
        assert values.dtype == torch.float32
        nodes = [0.0] * 21 + [*values[11 - 1 :], *values[: 11 - 1]]
        for node in reversed(range(1, 21)):
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
        random = torch.random.get_rng_state()
        _, info = buffer.get_batch(200, 1)
        torch.random.set_rng_state(random)
        fractions = torch.rand(200)
        if not with_replacement:
            fractions = (fractions + torch.arange(200)) / 200
        rows = []
        for threshold in fractions * nodes[1]:
            node, rest = 1, threshold
            while node < 21:
                node *= 2
                if rest >= nodes[node] and nodes[node + 1] > 0:
                    rest, node = rest - nodes[node], node + 1
            rows.append(node - 32 if node >= 32 else node - 11)
        assert (7 * info.env_ids + info.positions % 7).tolist() == rows
        weights = values[rows] * ((values > 0).sum().item() / nodes[1])
        assert info.importance_weights.tolist() == weights.tolist()


def test_with_more_rows_than_float32_distinguishes_everything_is_in_float64():
    alf, torch = alf_buffers.alf, alf_buffers.torch
    buffer = alf.ReplayBuffer(alf.TensorSpec((), "bool"), 1, 2**20 + 1, prioritized_sampling=True)
    for _ in range(3):
        buffer.add_batch(torch.ones(1, dtype=torch.bool))
    buffer.update_priority(ints([0] * 3), ints([0, 1, 2]), torch.tensor([1e200, 1.0, 1e190], dtype=torch.float64))
    assert priorities_of(buffer) == {(0, 0): 1e200, (0, 1): 1.0, (0, 2): 1e190}
    assert buffer._priorities._sums().total() == 1e200 + 1e190
    assert buffer.get_batch(9, 1)[1].importance_weights.tolist() == pytest.approx([3.0] * 9)


def test_short_environments_do_not_prevent_sampling():
    """Nor does a step that was never added get a priority, as in ALF."""
    buffer = fill(prioritized(3, 8), 5, 1, 0)
    _, info = buffer.get_batch(20, 3)
    assert {*zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)} == {(0, 0), (0, 1), (0, 2)}
    fill(buffer, 0, 1, 2)  # two steps of environment 1, two of environment 2
    assert {env for env, _ in priorities_of(buffer)} == {0}


def test_the_first_steps_after_clear_get_no_priority_of_others():
    buffer = fill(prioritized(1, 4), 6)
    buffer.get_batch(2, 2)
    buffer.clear()
    assert priorities_of(buffer) == {}
    with raises(AssertionError, NOTHING.format(2)):
        buffer.get_batch(2, 2)
    buffer.add_batch(steps([7]))
    assert priorities_of(buffer) == {}
    buffer.add_batch(steps([8]))
    batch, info = buffer.get_batch(2, 2)
    assert (info.positions.tolist(), x_of(batch)) == ([0, 0], [[7, 8]] * 2)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_an_empty_buffer_cannot_be_sampled(length):
    buffer = prioritized(1, 4)
    with raises(AssertionError, NOTHING.format(length)):
        buffer.get_batch(1, length)
    fill(buffer, 3)
    assert buffer.get_batch(1, 2)[1].positions.shape == (1,)


def test_positions_are_those_of_the_stored_steps():
    buffer = fill(prioritized(2, 3), 10, 7)
    batch, info = buffer.get_batch(100, 2)
    starts = [100 * env + position for env, position in zip(info.env_ids, info.positions, strict=True)]
    assert {*map(int, starts)} == {7, 8, 104, 105}
    assert x_of(batch) == [[start, start + 1] for start in starts]


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0.1, 1.0, 1e-30, 3e7])
def test_equal_priorities_have_weight_1(priority):
    buffer = fill(prioritized(3, 7), 7, 7, 3)
    update(buffer, dict.fromkeys(priorities_of(buffer), priority))
    assert buffer.get_batch(50, 1)[1].importance_weights.tolist() == pytest.approx([1.0] * 50, rel=1e-6)


def test_the_weights_of_all_starts_sum_to_their_number():
    torch = alf_buffers.torch
    buffer = fill(prioritized(2, 50), 50, 30)
    update(buffer, {start: float(value) for start, value in zip(priorities_of(buffer), torch.rand(80), strict=True)})
    update(buffer, {(0, 3): 0.0, (1, 4): 0.0})
    _, info = buffer.get_batch(20_000, 1)
    starts = zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)
    weights = dict(zip(starts, info.importance_weights.tolist(), strict=True))
    assert len(weights) > 70
    exact = buffer._priorities.weights(np.arange(100))
    assert exact.sum() == pytest.approx(78)
    for (env, position), weight in weights.items():
        assert weight == pytest.approx(exact[50 * env + position])


# --- the initial priority -------------------------------------------------------------------------


def test_new_steps_get_the_largest_priority_in_the_buffer():
    buffer = fill(prioritized(1, 3, initial_priority=0.5), 2)
    assert priorities_of(buffer) == {(0, 0): 0.5, (0, 1): 0.5}
    update(buffer, {(0, 0): 7.0})
    assert buffer.initial_priority == 7.0
    buffer.add_batch(steps([2]))
    assert priorities_of(buffer) == {(0, 0): 7.0, (0, 1): 0.5, (0, 2): 7.0}
    # The largest priority falls when it is overwritten or lowered.
    update(buffer, {(0, 2): 2.0})
    buffer.add_batch(steps([3]))
    assert priorities_of(buffer) == {(0, 1): 0.5, (0, 2): 2.0, (0, 3): 2.0}
    update(buffer, {(0, 2): 0.1, (0, 3): 0.1})
    assert buffer.initial_priority == 0.5


def test_the_initial_priority_is_a_tensor():
    torch = alf_buffers.torch
    initial = prioritized(initial_priority=2).initial_priority
    assert (initial.shape, initial.dtype, initial.tolist()) == ((), torch.float32, 2.0)


@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_an_invalid_initial_priority_is_rejected(value):
    with raises(InvalidArgumentError, f"`initial_priority` must be from 0 to 1e+30; got {value}"):
        prioritized(initial_priority=value)


# --- the length of sequences ----------------------------------------------------------------------


def test_another_length_warns_and_loses_priorities():
    buffer = fill(prioritized(1, 8), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.get_batch(1, 3)
        buffer.get_batch(1, 3)
    update(buffer, {(0, 0): 4.0, (0, 3): 2.0})
    text = "`batch_length` changes from 3 to {}: the priorities of some steps are lost; use one buffer for each "
    with pytest.warns(UserWarning, match=text.format(4)) as caught:
        buffer.get_batch(1, 4)
    assert caught[0].filename == __file__
    assert priorities_of(buffer) == {(0, 0): 4.0, (0, 1): 1.0, (0, 2): 1.0}
    with pytest.warns(
        UserWarning, match="changes from 4 to 2: the priorities of some steps are reset to the initial priority;"
    ):
        buffer.get_batch(1, 2)
    assert priorities_of(buffer) == {(0, 0): 4.0, (0, 1): 1.0, (0, 2): 1.0, (0, 3): 4.0, (0, 4): 4.0}


def test_a_length_that_cannot_be_sampled_changes_nothing():
    buffer = fill(prioritized(1, 8), 4)
    update(buffer, {(0, 0): 0.0, (0, 3): 5.0})
    before = priorities_of(buffer)
    for length in (4, 5, 9):
        with raises(AssertionError, NOTHING.format(length)):
            buffer.get_batch(1, length)
    assert priorities_of(buffer) == before
    assert buffer._priorities.sequence_length == 1


def test_new_starts_without_priority_cannot_be_sampled():
    buffer = fill(prioritized(1, 8, initial_priority=0.0), 4)
    update(buffer, {(0, 0): 5.0})
    buffer.get_batch(1, 2)
    update(buffer, {(0, 0): 0.0})
    with raises(AssertionError, NOTHING.format(1)):
        buffer.get_batch(1, 1)
    assert buffer._priorities.sequence_length == 2


def test_ignored_steps_stay_ignored_with_long_sequences():
    """In ALF, the first steps of an environment could be sampled."""
    buffer = prioritized(1, 8, num_earliest_frames_ignored=2)
    fill(buffer, 4)
    buffer.get_batch(1, 2)
    assert priorities_of(buffer) == {(0, 2): 1.0}
    fill(buffer, 1)
    assert priorities_of(buffer) == {(0, 2): 1.0, (0, 3): 1.0}


# --- updates --------------------------------------------------------------------------------------


def test_updates_of_other_steps_are_skipped():
    """Overwritten, ignored and future steps, and steps too close to the newest one."""
    buffer = fill(prioritized(1, 6, num_earliest_frames_ignored=1), 10)
    buffer.get_batch(1, 3)
    before = priorities_of(buffer)
    assert before == {(0, 5): 1.0, (0, 6): 1.0, (0, 7): 1.0}
    update(buffer, dict.fromkeys([(0, -1), (0, 0), (0, 3), (0, 4), (0, 8), (0, 9), (0, 10), (0, 13)], 9.0))
    assert priorities_of(buffer) == before
    update(buffer, {(0, 3): 9.0, (0, 5): 3.0})
    assert priorities_of(buffer) == before | {(0, 5): 3.0}


def test_which_priority_of_a_repeated_step_remains():
    """As with ALF: the last one after PyTorch's sort, which is not stable. All that depends on it agrees."""
    torch = alf_buffers.torch
    torch.manual_seed(0)
    buffer = fill(prioritized(1, 4), 4)
    positions, priorities = torch.randint(0, 4, (500,)), torch.randint(0, 3, (500,)) + torch.rand(500)
    priorities[positions == 2] = 0
    buffer.update_priority(torch.zeros_like(positions), positions, priorities)
    expected = dict(
        zip(*(each.tolist() for each in (positions.sort()[0], priorities[positions.sort()[1]])), strict=True)
    )
    assert priorities_of(buffer) == {(0, position): value for position, value in expected.items() if value}
    assert buffer._priorities.non_zero() == 3
    assert buffer.initial_priority == max(1.0, *expected.values())
    assert buffer._priorities._sums().total() == pytest.approx(sum(expected.values()))


def test_priorities_are_used_as_they_are():
    torch = alf_buffers.torch
    buffer = fill(prioritized(1, 2), 2)
    buffer.update_priority(ints([0, 0]), ints([0, 1]), torch.tensor([0.3, 2.5], requires_grad=True))
    assert priorities_of(buffer) == {(0, 0): pytest.approx(0.3), (0, 1): 2.5}
    buffer.update_priority(ints([]), ints([]), torch.zeros(0))
    assert len(priorities_of(buffer)) == 2


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
def test_priorities_that_are_no_weights_are_rejected(value):
    buffer = fill(prioritized(1, 2), 2)
    with raises(AssertionError, f"each of `priorities` must be from 0 to 1e+30; got {value}"):
        update(buffer, {(0, 0): 5.0, (0, 1): value})
    assert priorities_of(buffer) == {(0, 0): 1.0, (0, 1): 1.0}


def test_updates_need_one_axis():
    torch = alf_buffers.torch
    buffer = fill(prioritized(1, 2), 2)
    text = "`env_ids`, `positions` and `priorities` must have one axis of the same size; got shapes "
    with raises(AssertionError, f"{text}[1], [2] and [1]"):
        buffer.update_priority(ints([0]), ints([0, 1]), torch.ones(1))
    with raises(AssertionError, f"{text}[1, 1], [1, 1] and [1, 1]"):
        buffer.update_priority(ints([[0]]), ints([[0]]), torch.ones(1, 1))
    with raises(IndexError, "each of `env_ids` must be from 0 to 0; got 1"):
        buffer.update_priority(ints([1]), ints([0]), torch.ones(1))
    with raises(TypeError, "`positions` must be integers; got dtype float32"):
        buffer.update_priority(ints([0]), torch.zeros(1), torch.ones(1))


def test_priorities_need_prioritized_sampling():
    buffer = fill(replay_buffer(), 2)
    text = "priorities need a buffer with `prioritized_sampling=True`"
    with raises(AssertionError, text):
        buffer.update_priority(ints([0]), ints([0]), alf_buffers.torch.ones(1))
    with raises(AssertionError, text):
        _ = buffer.initial_priority


# --- recent data ----------------------------------------------------------------------------------


def test_recent_starts_can_be_combined_with_priorities():
    """They are drawn uniformly, if their priority is not 0."""
    buffer = fill(prioritized(2, 20, recent_data_steps=3, recent_data_ratio=0.5), 20, 20)
    buffer.get_batch(1, 2)
    update(buffer, {(0, 16): 0.0, (0, 18): 9.0, (1, 0): 1000.0})
    counts, weights = Counter(), {}
    for _ in range(250):
        _, info = buffer.get_batch(8, 2)
        starts = [*zip(info.env_ids.tolist(), info.positions.tolist(), strict=True)]
        counts.update(starts[:4])
        weights |= dict(zip(starts, info.importance_weights.tolist(), strict=True))
        assert starts[4:].count((1, 0)) >= 2
    recent = [(0, 17), (0, 18), (1, 16), (1, 17), (1, 18)]
    assert {*counts} == {*recent}
    assert_frequencies([counts[start] for start in recent], [200.0] * 5)
    mean = sum(priorities_of(buffer).values()) / len(priorities_of(buffer))
    assert weights[0, 18] == pytest.approx(9 / mean)


def test_without_recent_starts_all_are_drawn_by_priority():
    buffer = fill(prioritized(1, 20, recent_data_ratio=1.0), 20)
    update(buffer, {(0, 19): 0.0})
    assert 19 not in buffer.get_batch(50, 1)[1].positions.tolist()
