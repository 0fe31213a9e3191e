"""The calls of the published documents work: tables on a server, adders, datasets, learner, actor, whole agent."""

import itertools

import jax
import numpy as np
import pytest
from helpers.ftw_agent import where
from helpers.ftw_published import BOTH_TASKS, Environment, Networks, agent, environment_spec, equal, extra_spec, play
from helpers.support import BackgroundCall, raises, wait_until

import engram
from engram import envs
from engram.compat import ftw, reverb
from engram.compat.ftw.agents.tf.ftw import acting, learning, utils
from engram.compat.ftw.agents.tf.ftw.utils import ZERO_REWARD
from engram.compat.ftw.datasets.reverb import make_reverb_rnn_sequence_fifo_sampler_dataset
from engram.errors import InvalidArgumentError, SignatureError

pytestmark = pytest.mark.jax

ROWS, BATCH = 5, 2  # published layout: rows of a sequence


@pytest.fixture
def served():
    """Returns tables on a server, its address, and what the functions of `create_reverb_tables` are."""
    tables, can_sample_queue, can_sample_auxiliary = utils.create_reverb_tables(
        batch_size=BATCH, max_queue_size=50, use_pixel_control=True, use_reward_prediction=True
    )
    server = reverb.Server(tables, host="localhost")
    yield tables, f"localhost:{server.port}", can_sample_queue, can_sample_auxiliary
    server.stop()


def test_actor_and_learner_with_a_server(served):
    tables, address, can_sample_queue, can_sample_auxiliary = served
    networks = Networks()
    adder, reward_prediction_adder = utils.create_adders(address, ROWS, **BOTH_TASKS)
    actor = acting.FtwActor(networks.policy, adder, reward_prediction_adder, seed=0)
    assert not can_sample_queue()
    assert not can_sample_auxiliary()
    environment = Environment(((9, 0.0), (14, 1.0)), rewards=lambda _env, _episode, step: float(step % 3 == 2))
    play(actor, environment, 46)
    adder.flush()
    reward_prediction_adder.flush()
    assert can_sample_queue()
    assert can_sample_auxiliary()
    client = reverb.Client(address)
    queue, control, nonzero, zero = utils.create_datasets(
        client, environment_spec(), BATCH, ROWS, extra_spec(networks.policy), **BOTH_TASKS
    )
    learner = networks.learner(
        queue, control, nonzero, zero, can_sample=can_sample_queue, can_sample_auxiliary=can_sample_auxiliary
    )
    before = learner.get_weights()
    size = tables[0].info.current_size
    assert size == 2 * (10 // ROWS + 15 // ROWS)
    assert [learner.step() for _ in range(6)] == [True] * 5 + [False]
    assert learner.get_step() == 5
    assert not equal(before, learner.get_weights())
    assert tables[0].info.current_size == 0
    adder.close()
    reward_prediction_adder.close()


def test_sequences_have_only_the_first_core_state(served):
    _, address, *_ = served
    networks = Networks()
    adder, _ = utils.create_adders(address, ROWS)
    play(acting.FtwActor(networks.policy, adder, seed=0), Environment(((9, 0.0),)), 9)
    adder.close()
    spec = extra_spec(networks.policy)
    (sample,) = itertools.islice(utils.create_datasets(address, environment_spec(), BATCH, ROWS, spec)[0], 1)
    state = sample.data.extras["core_state"]
    assert isinstance(state, ftw.PeriodicRNNState)
    assert state.step.tolist() == [[0], [ROWS]]
    assert state.core_state.hidden[0].shape == (BATCH, 1, 6)
    assert sample.data.extras["logits"].shape == (BATCH, ROWS, 3)
    assert sample.info.key.shape == (BATCH,)
    steps = [[where(frame)[2] for frame in item] for item in sample.data.observation.observation]
    assert steps == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_the_published_dataset_is_the_same(served):
    _, address, *_ = served
    networks = Networks()
    adder, _ = utils.create_adders(address, ROWS)
    play(acting.FtwActor(networks.policy, adder, seed=0), Environment(((19, 0.0),)), 19)
    adder.close()
    spec = extra_spec(networks.policy)
    created = utils.create_datasets(address, environment_spec(), BATCH, ROWS, spec)[0]
    made = make_reverb_rnn_sequence_fifo_sampler_dataset(
        reverb.Client(address), environment_spec(), BATCH, None, ROWS, spec, table="queue", framework="numpy"
    )
    (first,), (second,) = itertools.islice(created, 1), itertools.islice(made, 1)
    assert type(first.data) is type(second.data)
    assert [where(item[0])[2] for item in first.data.observation.observation] == [0, 5]
    assert [where(item[0])[2] for item in second.data.observation.observation] == [10, 15]
    for one, other in zip(first.data[1:5], second.data[1:5], strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_items_that_do_not_fit_the_specs_are_rejected(served):
    _, address, *_ = served
    adder, _ = utils.create_adders(address, ROWS)
    play(acting.FtwActor(Networks().policy, adder, seed=0), Environment(((9, 0.0),)), 9)
    adder.close()
    dataset, *_ = utils.create_datasets(address, environment_spec(frame=(9, 9, 3)), BATCH, ROWS)
    with pytest.raises(InvalidArgumentError, match="items of table `queue` do not fit the specs; got columns of"):
        next(iter(dataset))


def test_a_learner_continues_after_an_error_of_its_dataset(served):
    _, address, *_ = served
    networks = Networks()
    adder, _ = utils.create_adders(address, ROWS)
    actor = acting.FtwActor(networks.policy, adder, seed=0)
    wrong, _ = utils.create_adders(address, ROWS + 1)
    play(acting.FtwActor(networks.policy, wrong, seed=0), Environment(((11, 0.0),)), 11)
    wrong.close()
    play(actor, Environment(((9, 0.0),)), 9)
    adder.close()
    dataset, *_ = utils.create_datasets(address, environment_spec(), BATCH, ROWS, extra_spec(networks.policy))
    learner = networks.learner(dataset)
    with pytest.raises(InvalidArgumentError, match="items of table `queue` do not fit the specs"):
        learner.step()
    assert learner.step()
    assert learner.get_step() == 1


def test_writers_of_other_items_get_the_error_instead_of_the_learner():
    with agent(kind=ftw.FTWLearnerStandalone, use_reward_prediction=True) as learner:
        adder, _ = utils.create_adders(learner.replay_server_address, 9, overlap=True)
        play_on = acting.FtwActor(learner._network, adder, seed=0)
        with pytest.raises(SignatureError, match="does not match the signature of table `queue`: column"):
            play(play_on, Environment(((9, 0.0),)), 9)
            adder.flush()
        adder.close()
        with pytest.raises(SignatureError, match="does not match the signature of table `replay_buffer_zero"):
            learner._store.insert({"x": 0}, {ZERO_REWARD: 1.0})
        play(learner.make_actor(), Environment(), 13)
        assert learner.step()


def test_the_agent_learns_from_an_environment():
    """Trains on fetch, with all tasks; hyperparameters change meanwhile without another compilation."""
    environment = envs.ObservationActionReward(envs.Fetch(0))
    logged = []

    class Logger:
        def write(self, data):
            logged.append(data)

    agent_ = ftw.FTW(
        ftw.make_environment_spec(environment),
        sequence_length=4,
        embed=ftw.FtwTorso(((4, 6, 6),), ((4, 3, 1),), 8),
        max_queue_size=8,
        batch_size=2,
        hidden_size=6,
        num_dimensions=4,
        logger=Logger(),
        seed=0,
    )

    def update():
        agent_.update()
        return bool(logged) and logged[-1]["reward_prediction_loss"] != 0

    with agent_:
        before = agent_.get_weights()
        timestep = play(agent_, environment, 3000, update)
        assert agent_.get_step() == len(logged) == logged[-1]["steps"] > 3
        assert all(np.isfinite(list(data.values())).all() for data in logged)
        assert min(abs(logged[-1][f"{task}_loss"]) for task in ("pixel_control", "reward_prediction", "critic")) > 0
        after = agent_.get_weights()
        pairs = [(a, b) for name in before for a, b in zip(before[name], after[name], strict=True)]
        assert [index for index, (a, b) in enumerate(pairs) if np.array_equal(a, b)] == []
        compiled = learning._JOINT_UPDATE._cache_size(), acting._select._cache_size()
        agent_.set_hypers({"learning_rate": 1e-3, "slow_core_period": 7, "scale_grads_fast_to_slow": 0.2, "other": 1})
        agent_.set_rewards([0.4])
        assert agent_.get_hypers().get()["slow_core_period"] == 7
        assert agent_.get_rewards().get().tolist() == [0.4]
        play(agent_, environment, 30, lambda: bool(agent_.update()), timestep)
        assert compiled == (learning._JOINT_UPDATE._cache_size(), acting._select._cache_size())


def test_a_standalone_learner_and_its_actors():
    with agent(kind=ftw.FTWLearnerStandalone) as learner:
        actor = learner.make_actor()
        timestep = play(actor, Environment(), 13)

        def logits(actor_):
            actor_.select_action(timestep.observation)
            return actor_._extras["logits"]

        # Actors read the learner's parameters, whenever they were made. With one seed, they draw the same noise.
        one, other = (acting.FtwActor(actor._network, seed=5) for _ in range(2))
        before = logits(one)
        assert learner.step()
        after = logits(other)
        assert not np.any(before == after)
        assert np.array_equal(after, logits(acting.FtwActor(learner._network, seed=5)))
        client = engram.Client(learner.replay_server_address)
        assert client.info()["queue"].size == 3
        assert learner.replay_server_address == learner.replay_server_address
        client.close()


def test_seed_and_agent_id_determine_a_run():
    def weights(**options):
        with agent(**options) as agent_:
            play(agent_, Environment(), 13, lambda: bool(agent_.update()))
            assert agent_.get_step() > 0
            return agent_.get_weights()

    assert equal(weights(), weights())
    assert not equal(weights(), weights(agent_id=1))


def test_observing_with_a_full_queue_is_an_error_and_updates_make_room():
    with agent(max_queue_size=2, batch_size=2) as agent_:
        environment = Environment()
        text = "`observe`: the queue is full, with 2 sequences, and no other thread trains on them; call `update`"
        with raises(InvalidArgumentError, text):
            play(agent_, environment, 100)
        agent_.update()
        assert agent_.get_step() == 1
        assert not agent_.can_sample_queue()


def test_observing_waits_while_another_thread_runs_the_learner():
    with agent(max_queue_size=2, batch_size=2) as agent_:
        steps = 0
        step = agent_._learner.step

        def limited():
            nonlocal steps
            steps += agent_._store.info()["queue"].size == 2
            if steps > 3:
                raise KeyboardInterrupt
            return step()

        agent_._learner.step = limited
        learning_thread = BackgroundCall(agent_.run)
        wait_until(lambda: agent_._learner_thread is learning_thread)
        text = "`observe`: the queue is full, with 2 sequences, and no other thread trains on them; call `update`"
        with raises(InvalidArgumentError, text):
            play(agent_, Environment(), 1000)
        with pytest.raises(KeyboardInterrupt):
            learning_thread.result()
        assert agent_.get_step() >= 3


def test_observing_does_not_wait_for_a_thread_that_has_ended():
    with agent(max_queue_size=2, batch_size=2) as agent_:
        BackgroundCall(agent_.update).result()
        with pytest.raises(InvalidArgumentError, match="no other thread trains on them"):
            play(agent_, Environment(), 100)


def test_an_agent_can_abandon_an_episode():
    with agent() as agent_:
        environment = Environment(((9, 0.0),))
        play(agent_, environment, 3)
        agent_.reset()
        play(agent_, Environment(), 13)
        assert agent_._store.info()["queue"].size == 5  # 2 + 2 + 1, none of the abandoned episode


def test_the_end_of_an_episode_may_complete_two_sequences_of_which_one_waits():
    with agent(max_queue_size=3) as agent_:
        # 4 transitions fill one sequence; of 5 more, the last one completes two, with padding.
        environment = Environment(((4, 0.0), (5, 0.0)))
        play(agent_, environment, 4)
        (item,) = agent_._store.scan("queue")
        agent_._store.insert(jax.tree.map(lambda leaf: leaf[0], item.data), {"queue": 1.0})
        play(agent_, environment, 5)
        assert agent_._store.info()["queue"].waiting_inserts == 1
        agent_._store.sample("queue", 1)
        agent_._store.sample("queue", 1)
        wait_until(lambda: agent_._store.info()["queue"].waiting_inserts == 0)
        agent_.update()
        assert agent_.get_step() == 1


def test_an_actor_without_adders_records_nothing_and_updates_its_variables():
    class Client:
        updates = 0

        def update(self):
            self.updates += 1

    client = Client()
    actor = ftw.FtwActor(Networks().policy, variable_client=client)
    play(actor, Environment(), 3)
    actor.update()
    assert client.updates == 1


def test_an_action_must_be_selected_before_it_is_observed():
    with engram.Store([engram.Table.queue("queue", max_size=10)]) as store:
        adder, _ = utils.create_adders(store, 4)
        actor = ftw.FtwActor(Networks().policy, adder)
        environment = Environment()
        actor.observe_first(environment.reset())
        with raises(
            InvalidArgumentError, "`observe` records the last selected action, but none was; call `select_action`"
        ):
            actor.observe(0, environment.step(0))
        adder.close()


def test_run_waits_for_batches(served):
    _, address, can_sample_queue, _ = served
    networks = Networks()
    dataset, *_ = utils.create_datasets(address, environment_spec(), BATCH, ROWS, extra_spec(networks.policy))
    steps = iter([False, True, KeyboardInterrupt])

    def can_sample():
        wanted = next(steps)
        if wanted is KeyboardInterrupt:
            raise wanted
        return wanted

    learner = networks.learner(dataset, can_sample=can_sample)
    adder, _ = utils.create_adders(address, ROWS)
    play(acting.FtwActor(networks.policy, adder, seed=0), Environment(((9, 0.0),)), 9)
    adder.close()
    wait_until(can_sample_queue)
    with pytest.raises(KeyboardInterrupt):
        learner.run()
    assert learner.get_step() == 1
