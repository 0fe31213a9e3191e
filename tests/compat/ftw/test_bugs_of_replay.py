"""Bugs of the published tables, adders and datasets that Engram does not have; see docs/coming-from-ftw.md."""

import numpy as np
import pytest
from dm_env import restart, termination, transition
from helpers.ftw_agent import where
from helpers.ftw_published import Environment, Networks, agent, environment_spec, play

import engram
from engram.compat import ftw, reverb
from engram.compat.ftw.agents.tf.ftw._batches import to_items
from engram.compat.ftw.agents.tf.ftw.utils import NONZERO_REWARD, ZERO_REWARD

pytestmark = pytest.mark.jax


def store(*names):
    return engram.Store([engram.Table(name, max_size=1000) for name in names])


def add_numbered(adder, n, rewards=None):
    """Adds an episode of n transitions, whose observations are 1 ... n + 1."""
    adder.add_first(restart(np.float32(1)))
    for i in range(n):
        reward = np.float32(0 if rewards is None else rewards[i])
        end = termination if i == n - 1 else transition
        adder.add(np.int32(1), end(reward, np.float32(i + 2))._replace(discount=np.float32(i < n - 1)))
    adder.flush()


def stored(store_, table):
    """Returns the data of all items, `[N, T, ...]`."""
    (batch,) = store_.scan(table)
    return batch.data


def observations(store_, table):
    return stored(store_, table).observation.tolist()


def test_bug_4_the_table_of_zero_rewards_counts_too():
    tables, _, can_sample_auxiliary = ftw.create_reverb_tables(4, 8, use_reward_prediction=True)
    server = reverb.Server(tables, host="localhost")
    client = server.localhost_client()
    assert not can_sample_auxiliary()
    for _ in range(2):
        client.insert([np.zeros(1)], {NONZERO_REWARD: 1.0})
    assert not can_sample_auxiliary()
    client.insert([np.zeros(1)], {ZERO_REWARD: 1.0})
    assert not can_sample_auxiliary()
    client.insert([np.zeros(1)], {ZERO_REWARD: 1.0})
    assert can_sample_auxiliary()
    server.stop()


@pytest.mark.parametrize("tasks", [(False, False), (True, False), (False, True), (True, True)])
def test_tables_have_the_published_order_and_sizes(tasks):
    tables, can_sample_queue, can_sample_auxiliary = ftw.create_reverb_tables(5, 9, *tasks)
    expected = [("queue", 9, 1)]
    expected += [("uniform_replay_buffer_pixel_control", 100, 0)] * tasks[0]
    expected += [(name, 800, 0) for name in (NONZERO_REWARD, ZERO_REWARD) if tasks[1]]
    server = reverb.Server(tables, host="localhost")
    info = [table.info for table in tables]
    assert [(each.name, each.max_size, each.max_times_sampled) for each in info] == expected
    assert [each.rate_limiter_info.min_size_to_sample for each in info[1:]] == [5] * tasks[0] + [2, 2] * tasks[1]
    client = server.localhost_client()
    for number in range(5):
        assert can_sample_queue() is False
        client.insert([np.full(1, number)], {"queue": 1.0})
        assert not can_sample_auxiliary()
    assert can_sample_queue() is True
    server.stop()


def test_bug_7_events_are_rewards_if_any_is_not_zero():
    with store("queue", NONZERO_REWARD, ZERO_REWARD) as store_:
        _, adder = ftw.create_adders(store_, 4, use_reward_prediction=True, reward_prediction_sequence_length=2)
        adder.add_first(restart(np.float32(0)))
        for events in ((0, 0), (0, 1), (0, 0), (-1, 1)):
            adder.add(np.int32(0), transition(np.float32(events), np.float32(0), np.float32(1)))
        adder.flush()
        assert stored(store_, NONZERO_REWARD).reward[:, -1].tolist() == [[0, 1], [-1, 1]]
        assert stored(store_, ZERO_REWARD).reward[:, -1].tolist() == [[0, 0]]


def test_bug_13_every_transition_is_in_exactly_one_item():
    """The agent's items; the last transition of every published item, and most ends of episodes, were lost."""
    with agent(max_queue_size=20) as agent_:
        environment = Environment(((7, 0.0), (5, 1.0), (1, 0.0), (8, 0.0)))
        play(agent_, environment, 21)
        size = agent_._store.info()["queue"].size
        items = agent_._store.sample("queue", size).data
    trained = [
        (*where(frame)[1:], float(reward), float(discount))
        for item in range(size)
        for frame, reward, discount, mask in zip(
            items.observation.observation[item, :-1],
            items.reward[item],
            items.discount[item],
            items.mask[item],
            strict=False,
        )
        if mask
    ]
    expected = [
        (episode, step, float(reward), float(discount))
        for episode, steps in enumerate(environment.episodes)
        for step, (_, _, reward, discount) in enumerate(steps[:-1])
    ]
    assert trained == expected
    assert size == 2 + 2 + 1 + 2


def test_bug_14_padding_is_masked_also_in_the_published_layout():
    with store("queue") as store_:
        networks = Networks()
        adder, _ = ftw.create_adders(store_, 5, pad_end_of_episode=True)
        play(ftw.FtwActor(networks.policy, adder, seed=0), Environment(), 13)
        adder.flush()
        masks = to_items(stored(store_, "queue"), scale_pixels=True).mask.tolist()
    # Episodes of 7, 5 and 1 transitions; the row after the last one has the final observation.
    assert masks == [[1] * 5, [1, 1, 0, 0, 0], [1] * 5, [0] * 5, [1, 0, 0, 0, 0]]


def test_bug_15_each_table_is_padded_to_its_own_boundary():
    with store("one", "two") as store_:
        adder = ftw.MultiSequenceAdder(store_, {"one": 2, "two": 5}, {"one": 2, "two": 5})
        add_numbered(adder, 6)
        assert observations(store_, "one") == [[1, 2], [3, 4], [5, 6], [7, 0]]
        assert observations(store_, "two") == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]


def test_bug_16_no_window_has_only_padding_that_is_new():
    with store("one", "two") as store_:
        adder = ftw.MultiSequenceAdder(store_, {"one": 3, "two": 6}, {"one": 1, "two": 6})
        add_numbered(adder, 3)
        assert observations(store_, "one") == [[1, 2, 3], [2, 3, 4]]
        assert observations(store_, "two") == [[1, 2, 3, 4, 0, 0]]


def test_bug_18_windows_end_with_an_observed_reward():
    with store("queue", NONZERO_REWARD, ZERO_REWARD) as store_:
        for pad in (False, True):
            _, adder = ftw.create_adders(store_, 4, use_reward_prediction=True, pad_end_of_episode=pad)
            add_numbered(adder, 6, [0, 0, 1, 0, -2, 0])
            assert observations(store_, NONZERO_REWARD) == [[1, 2, 3], [3, 4, 5]]
            assert observations(store_, ZERO_REWARD) == [[2, 3, 4], [4, 5, 6]]
            store_.reset(NONZERO_REWARD)
            store_.reset(ZERO_REWARD)


def test_bug_30_the_queue_holds_all_that_is_not_trained_yet():
    """Datasets fetched up to three batches ahead: the queue seemed to be short, and the policy lag grew."""
    with agent(max_queue_size=20, batch_size=2) as agent_:
        play(agent_, Environment(), 26)
        sizes = [agent_._store.info()["queue"].size]
        while agent_.can_sample_queue():
            agent_._learner.step()
            sizes.append(agent_._store.info()["queue"].size)
        assert sizes == [10, 8, 6, 4, 2, 0]


def test_the_policy_lag_is_bounded_by_a_batch():
    with agent(batch_size=2) as agent_:
        sizes = []

        def after_step():
            agent_.update()
            sizes.append(agent_._store.info()["queue"].size)

        play(agent_, Environment(), 26, after_step)
        assert agent_.get_step() == 5
        assert set(sizes) == {0, 1}


def test_bug_33_no_item_crosses_an_episode():
    with agent(max_queue_size=20) as agent_:
        play(agent_, Environment(((7, 0.0), (5, 1.0), (1, 0.0))), 26)
        items = agent_._store.sample("queue", 10).data
    for item in range(10):
        valid = items.mask[item].astype(bool)
        rows = valid | np.append(False, valid[:-1])
        assert len({where(frame)[:2] for frame in items.observation.observation[item][rows]}) == 1
        assert not items.start_of_episode[item, 1:].any()
        assert items.start_of_episode[item, 0] == (items.extras["core_state"].step[item, 0] == 0)


def test_an_odd_batch_has_two_equal_halves_of_windows():
    with store("queue", NONZERO_REWARD, ZERO_REWARD) as store_:
        datasets = ftw.create_datasets(store_, environment_spec(), 5, 4, use_reward_prediction=True)
        assert [dataset and dataset.batch_size for dataset in datasets] == [5, None, 2, 2]
