import jax
import numpy as np
import pytest
from helpers import ftw_agent
from helpers.ftw_agent import TERMINATION, TRUNCATION, Scripted, where

from engram.adders.step import map_leaves
from engram.agents.ftw.actor import Actors, example_row
from engram.agents.ftw.agent_networks import make_networks, split_networks
from engram.agents.ftw.replay import PIXEL_CONTROL, QUEUE, Replay, item_signature, make_tables
from engram.agents.ftw.windows import NONZERO_REWARD, ZERO_REWARD, Window, window_signature
from engram.errors import DeadlineExceededError, InvalidArgumentError

pytestmark = pytest.mark.jax

T = 4


@pytest.fixture(scope="module")
def networks():
    return make_networks(
        ftw_agent.network_config(),
        ftw_agent.replay_config(),
        observation_shape=ftw_agent.FRAME,
        num_actions=3,
        key=jax.random.key(0),
    )


@pytest.fixture(scope="module")
def row(networks):
    return example_row(ftw_agent.spec(), networks.policy)


def insert(replay, row, table, number, **fields):
    """Inserts items, or windows, whose rows are `row` with these fields."""
    row = row._replace(**fields)
    windows = table in {NONZERO_REWARD, ZERO_REWARD}
    length = replay.config.reward_prediction_sequence_length if windows else T + 1
    with replay.store.writer(history=length) as writer:
        for _ in range(number):
            for _ in range(length):
                writer.append(row)
            item = map_leaves(lambda leaf: leaf[-length:], writer.history)
            state = map_leaves(lambda leaf: leaf[-length : 1 - length], writer.history.extras["core_state"])
            item = item._replace(extras={**item.extras, "core_state": state})
            if windows:
                item = Window(item.observation.observation, writer.history.reward[-1])
            writer.create_item(table, 1.0, item)


def play(networks, row, environment, num_steps, **options):
    """Returns the replay after this many steps of all environments."""
    replay = Replay(ftw_agent.replay_config(**options), row, seed=0)
    params, static = split_networks(networks)
    with Actors(environment, static, replay, jax.random.key(1)) as actors:
        for _ in range(num_steps):
            actors.step(params, ftw_agent.HYPERS)
    return replay


def queued(replay):
    """Returns all items of the queue, in order."""
    number = replay.store.info()[QUEUE].size
    data = replay.store.sample(QUEUE, number).data
    return [map_leaves(lambda leaf, i=i: leaf[i], data) for i in range(number)]


LENGTHS = (1, T - 1, T, T + 1, 2 * T - 1, 2 * T, 2 * T + 1)
SCRIPTS = [
    [(length, discount) for length in LENGTHS for discount in (TERMINATION, TRUNCATION)],
    [(length, discount) for length in reversed(LENGTHS) for discount in (TRUNCATION, TERMINATION)],
]
SCRIPT_STEPS = sum(length + 1 for length, _ in SCRIPTS[0])


@pytest.fixture(scope="module")
def played(networks, row):
    environment = Scripted(SCRIPTS)
    with play(networks, row, environment, SCRIPT_STEPS) as replay:
        yield environment, queued(replay), replay


def test_items_have_every_transition_once_and_the_final_observation(played):
    environment, items, _ = played
    trained = {}
    for item in items:
        env, episode, first = where(item.observation.observation[0])
        transitions = environment.episodes[env, episode]
        assert first == trained.get((env, episode), 0)
        number = min(T, len(transitions) - 1 - first)
        assert item.mask[:T].tolist() == [1.0] * number + [0.0] * (T - number)
        for t in range(number):
            oar, action, reward, discount = transitions[first + t]
            assert (item.observation.observation[t] == oar.observation).all()
            assert (item.observation.action[t], item.observation.reward[t]) == (oar.action, oar.reward)
            assert (item.action[t], item.reward[t], item.discount[t]) == (action, reward, discount)
        final = transitions[first + number][0]
        assert (item.observation.observation[number] == final.observation).all()
        assert (item.observation.action[number], item.observation.reward[number]) == (final.action, final.reward)
        trained[env, episode] = first + number
    lengths = [length for length, _ in SCRIPTS[0]], [length for length, _ in SCRIPTS[1]]
    assert trained == {(env, episode): n for env in range(2) for episode, n in enumerate(lengths[env])}


def test_number_of_items_of_an_episode_is_its_length_divided_by_t_rounded_up(played):
    _, items, _ = played
    numbers = {}
    for item in items:
        env, episode, _ = where(item.observation.observation[0])
        numbers[env, episode] = numbers.get((env, episode), 0) + 1
    assert [numbers[0, episode] for episode in range(len(SCRIPTS[0]))] == [-(-n // T) for n, _ in SCRIPTS[0]]


def test_items_have_only_the_first_core_state(played):
    _, items, _ = played
    for item in items:
        _, _, first = where(item.observation.observation[0])
        floats, step = item.extras["core_state"]
        assert (floats.shape[0], step.tolist()) == (1, [[first]])  # the counter of the episode's steps
        assert (floats == 0).all() == (first == 0)


def test_pixel_control_has_the_queues_items(played):
    _, items, replay = played
    shared = next(iter(replay.store.scan(PIXEL_CONTROL))).data
    assert len(items) == len(shared.mask) > T
    for i, item in enumerate(items):
        jax.tree.map(np.testing.assert_array_equal, item, map_leaves(lambda leaf, i=i: leaf[i], shared))


def test_queue_is_in_order_and_each_item_is_sampled_once(row):
    with Replay(ftw_agent.replay_config(batch_size=2, use_pixel_control=False), row) as replay:
        for number in range(4):
            insert(replay, row, QUEUE, 1, reward=np.float32(number))
        assert [replay.sample().items.reward[:, 0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(DeadlineExceededError):
            replay.sample(timeout=0)


def test_queue_can_be_sampled_from_batch_size_items_on(row):
    with Replay(ftw_agent.replay_config(batch_size=3), row) as replay:
        ready = []
        for _ in range(4):
            insert(replay, row, QUEUE, 1)
            ready.append(replay.can_sample_queue())
        assert ready == [False, False, True, True]
        replay.sample()
        assert not replay.can_sample_queue()  # one item is left


def test_full_queue_makes_actors_wait(row):
    config = ftw_agent.replay_config(batch_size=2, max_queue_size=2, use_pixel_control=False)
    with Replay(config, row) as replay, replay.adder(timeout=0) as adder:
        environment = Scripted([[(1, TERMINATION)]])

        def play_episode():
            adder.add_first(ftw_agent.first_of(environment.step(np.zeros(1))))
            adder.add(np.int32(0), ftw_agent.first_of(environment.step(np.zeros(1))), row.extras)

        play_episode()
        play_episode()
        with pytest.raises(DeadlineExceededError):
            play_episode()
        assert replay.sample().items.mask.sum() == 2  # the first two; the third one follows


@pytest.mark.parametrize(
    ("tasks", "needed"),
    [
        ((True, True), {PIXEL_CONTROL: 4, NONZERO_REWARD: 2, ZERO_REWARD: 2}),
        ((True, False), {PIXEL_CONTROL: 4}),
        ((False, True), {NONZERO_REWARD: 2, ZERO_REWARD: 2}),
    ],
)
def test_auxiliary_tables_can_be_sampled_once_each_has_a_batch(row, tasks, needed):
    for last in needed:
        config = ftw_agent.replay_config(use_pixel_control=tasks[0], use_reward_prediction=tasks[1])
        with Replay(config, row) as replay:
            for table in needed:
                insert(replay, row, table, needed[table] - (table == last))
            assert not replay.can_sample_auxiliary()
            insert(replay, row, last, 1)
            assert replay.can_sample_auxiliary()


def test_without_auxiliary_tasks_there_is_only_the_queue(row):
    config = ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False)
    with Replay(config, row) as replay:
        insert(replay, row, QUEUE, 4)
        assert replay.store.tables == [QUEUE]
        assert not replay.can_sample_auxiliary()
        batch = replay.sample()
        assert (batch.pixel_control, batch.windows, batch.auxiliary_weight) == (None, None, 0)


def test_batches_have_zeros_of_weight_0_until_the_auxiliary_tables_have_a_batch(row):
    with Replay(ftw_agent.replay_config(), row, seed=0) as replay:
        insert(replay, row, QUEUE, 8)
        before = replay.sample()
        for table in (PIXEL_CONTROL, NONZERO_REWARD, ZERO_REWARD):
            insert(replay, row, table, 4)
        after = replay.sample()
    assert (before.auxiliary_weight, after.auxiliary_weight) == (0, 1)
    before, after = (jax.tree.map(lambda x: (x.shape, x.dtype), batch) for batch in (before, after))
    assert before == after


def test_tables_are_in_the_published_order_with_the_published_sizes(row):
    config = ftw_agent.replay_config(max_queue_size=32, batch_size=16)
    tables = make_tables(config, item_signature(row, T), window_signature(row.observation.observation, row.reward, 3))
    assert [(table.name, table.max_size, table.rate_limiter.min_size) for table in tables] == [
        ("queue", 32, 1),
        ("uniform_replay_buffer_pixel_control", 100, 16),
        ("replay_buffer_nonzero_reward_prediction", 800, 8),
        ("replay_buffer_zero_reward_prediction", 800, 8),
    ]


REWARDS = (0, 1, 0, 0, -2, 0, 3)


@pytest.mark.parametrize("events", [(), (2,)])
def test_windows_end_with_an_observed_reward(networks, events):
    def rewards(_env, _episode, step):
        return np.resize([0, REWARDS[step]], events)  # the sum of events may be zero, but not each

    spec = ftw_agent.spec(num_events=2 if events else 1)
    row = example_row(spec, networks.policy)
    environment = Scripted(
        [[(len(REWARDS), TERMINATION)]], rewards=rewards if events else lambda *x: REWARDS[x[2]], events=events
    )
    hypers = ftw_agent.HYPERS._replace(internal_rewards=np.ones(2) if events else np.ones(1))
    replay = Replay(ftw_agent.replay_config(), row, seed=0)
    params, static = split_networks(networks)
    with replay:
        with Actors(environment, static, replay, jax.random.key(1)) as actors:
            for _ in range(len(REWARDS) + 2):  # two steps of the next episode, too few for a window
                actors.step(params, hypers)
        ends = {}
        for table in (NONZERO_REWARD, ZERO_REWARD):
            windows = next(iter(replay.store.scan(table))).data
            steps = [[where(frame) for frame in window] for window in windows.observation]
            assert all(window == [(0, 0, window[0][2] + i) for i in range(3)] for window in steps)
            ends[table] = [window[-1][2] for window in steps]
            rewards_of = windows.reward.reshape(len(steps), -1)[:, -1]
            assert rewards_of.tolist() == [REWARDS[step] for step in ends[table]]
    assert ends == {NONZERO_REWARD: [4, 6], ZERO_REWARD: [2, 3, 5]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 0}, "`sequence_length` must be at least 1; got 0"),
        ({"max_queue_size": 3}, "`max_queue_size` must be at least 4, the items of a batch; got 3"),
        ({"max_pixel_control_buffer_size": 3}, "`max_pixel_control_buffer_size` must be at least 4, the items of a"),
        ({"max_reward_prediction_buffer_size": 1}, "`max_reward_prediction_buffer_size` must be at least 2, the items"),
        ({"batch_size": 1}, "`batch_size` must be at least 2 for reward prediction, whose batches have two halves"),
    ],
)
def test_sizes_that_cannot_work_are_rejected(options, message):
    with pytest.raises(InvalidArgumentError) as raised:
        ftw_agent.replay_config(**options)
    assert str(raised.value).startswith(message)
