"""Bugs of the published learner that Engram does not have; see docs/coming-from-ftw.md."""

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.ftw_agent import FRAME
from helpers.ftw_published import BOTH_TASKS, Environment, Networks, agent, environment_spec, equal, extra_spec, play
from helpers.support import raises

import engram
from engram.adders import Step
from engram.compat import ftw
from engram.compat.ftw.agents.tf.ftw import learning
from engram.compat.ftw.agents.tf.ftw.utils import NONZERO_REWARD, ZERO_REWARD
from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def batches():
    """Returns a batch of each dataset: sequences, for pixel control, and windows with and without a reward."""
    networks = Networks()
    names = ("queue", "uniform_replay_buffer_pixel_control", NONZERO_REWARD, ZERO_REWARD)
    tables = [engram.Table(name, max_size=100) for name in names[1:]]
    with engram.Store([engram.Table.queue("queue", max_size=100), *tables], seed=0) as store:
        adders = ftw.create_adders(store, 4, **BOTH_TASKS, pad_end_of_episode=True, overlap=True)
        environment = Environment(rewards=lambda _env, _episode, step: step % 3 == 1)
        play(ftw.FtwActor(networks.policy, *adders, seed=0), environment, 13)
        for adder in adders:
            adder.flush()
        spec = extra_spec(networks.policy)
        return [
            next(iter(each))
            for each in ftw.create_datasets(store, environment_spec(), 2, 4, spec, **BOTH_TASKS, overlap=True)
        ]


class Metrics:
    def __init__(self):
        self.rows = []

    def write(self, data):
        self.rows.append(data)


def learner_of(batches, times=10, seed=0, **options):
    networks = Networks(seed=seed)
    return networks.learner(*([batch] * times for batch in batches), **options)


@pytest.mark.parametrize("layout", ["masked", "published"])
def test_batches_may_be_tensors_of_another_framework(batches, layout):
    class Tensor:
        """A tensor that NumPy can convert, and JAX does not know."""

        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return np.array(self.array, dtype, copy=copy)

    if layout == "published":
        steps = [Step(**{name: getattr(each.data, name) for name in Step._fields}) for each in batches[:2]]
        batches = [*(each._replace(data=step) for each, step in zip(batches, steps, strict=False)), *batches[2:]]
    tensors = [each._replace(data=jax.tree.map(Tensor, each.data)) for each in batches]
    one, other = learner_of(batches), learner_of(tensors)
    assert one.step() is other.step() is True
    assert equal(one.get_weights(), other.get_weights())


def test_bug_8_the_learning_rate_of_the_next_step_is_the_current_value(batches):
    rate = ftw.FloatHyperparameter(0.01)
    learner = learner_of(batches, learning_rate=rate)
    learner.step()
    compiled = learning._JOINT_UPDATE._cache_size()
    rate.set(0.0)
    before = learner.get_weights()["policy_network"]
    learner.step()
    between = learner.get_weights()["policy_network"]
    rate.set(0.02)
    learner.step()
    after = learner.get_weights()["policy_network"]
    assert all(map(np.array_equal, before, between))
    assert not any(map(np.array_equal, between, after))
    assert learning._JOINT_UPDATE._cache_size() == compiled


def test_an_invalid_hyperparameter_costs_no_batch(batches):
    rate = ftw.FloatHyperparameter(0.01)
    networks = Networks()
    taken = []
    learner = networks.learner((taken.append(1) or batches[0] for _ in range(2)), learning_rate=rate)
    rate._value = float("nan")
    with raises(InvalidArgumentError, "`learning_rate` must be a number; got nan"):
        learner.step()
    assert taken == []
    rate.set(0.01)
    assert learner.step()
    assert taken == [1]


def test_bug_8_the_learning_rate_decays_to_zero(batches):
    learner = learner_of(batches, learning_rate_decay_steps=2)
    weights = [learner.get_weights()["policy_network"] for _ in range(4) if learner.step()]
    assert not any(map(np.array_equal, weights[0], weights[1]))
    assert all(map(np.array_equal, weights[1], weights[2]))
    learner.set_step(0)
    learner.step()
    assert not any(map(np.array_equal, weights[2], learner.get_weights()["policy_network"]))


def test_bug_19_all_losses_are_sums_over_the_same_transitions(batches):
    """The KL losses counted the last row, too, of which nothing else was trained."""
    queue = batches[0]
    frames = np.array(queue.data.observation.observation)
    frames[:, -1] = 255 - frames[:, -1]
    observation = queue.data.observation._replace(observation=frames)
    changed = queue._replace(data=queue.data._replace(observation=observation))
    rows = []
    for batch in (queue, changed):
        metrics = Metrics()
        learner_of([batch, *batches[1:]], logger=metrics).step()
        rows += metrics.rows
    for loss in ("kld_prior_fixed_loss", "kld_prior_posterior_loss", "entropy_loss"):
        assert rows[0][loss] == pytest.approx(rows[1][loss], rel=1e-6)
    assert rows[0]["critic_loss"] != pytest.approx(rows[1]["critic_loss"], rel=1e-3)


def test_bug_14_padding_of_any_content_has_no_effect(batches):
    queue = batches[0]
    valid = queue.data.mask.astype(bool)
    row = valid | np.append(np.zeros((len(valid), 1), bool), valid[:, :-1], 1)
    assert not row.all()

    def garbage(leaf, keep):
        return np.where(keep.reshape(*keep.shape, *[1] * (leaf.ndim - 2)), leaf, np.ones_like(leaf))

    data = queue.data
    garbled = data._replace(
        observation=type(data.observation)(*(garbage(leaf, row) for leaf in data.observation)),
        action=garbage(data.action, valid),
        reward=garbage(data.reward, valid),
        discount=garbage(data.discount, valid),
        extras={**data.extras, "logits": garbage(data.extras["logits"], valid)},
    )
    one, other = (learner_of([each, *batches[1:]]) for each in (queue, queue._replace(data=garbled)))
    one.step()
    other.step()
    assert equal(one.get_weights(), other.get_weights())


def test_bug_21_there_is_one_loss_and_one_optimizer(batches):
    metrics = Metrics()
    learner = learner_of(batches, logger=metrics)
    learner.step()
    row = dict(metrics.rows[0])
    total = row.pop("loss")
    assert total == pytest.approx(sum(value for name, value in row.items() if name.endswith("_loss")), rel=1e-5)
    weights = learner.get_weights()
    assert [len(weights[name]) for name in ("pixel_control_network", "pixel_control_optimizer")] == [8, 8]


@pytest.mark.slow
def test_bug_21_separate_optimizers_are_an_option(batches):
    joint, separate = learner_of(batches), learner_of(batches, separate_optimizers=True)
    initial = separate.get_weights()
    for learner in (joint, separate):
        learner.step()
    one, other = joint.get_weights(), separate.get_weights()
    assert (
        len(other["pixel_control_optimizer"]) == len(other["optimizer"]) == len(jax.tree.leaves(separate._state.params))
    )
    # Reward prediction has the last word on the torso, with a full step of its own.
    assert not any(map(np.array_equal, one["policy_network"][:2], other["policy_network"][:2]))
    separate.set_weights(initial)
    assert equal(separate.get_weights(), initial)
    separate.set_step(0)
    without = learner_of(batches, separate_optimizers=True, can_sample_auxiliary=False)
    reference = learner_of(batches, can_sample_auxiliary=False)
    without.step()
    reference.step()
    for name in ("policy_network", "pixel_control_network"):
        for a, b in zip(without.get_weights()[name], reference.get_weights()[name], strict=True):
            assert np.allclose(a, b, atol=1e-6)


def test_bug_22_can_sample_is_respected_and_may_be_any_callable(batches):
    class Never:
        def __call__(self):
            return 0

    learner = learner_of(batches, can_sample=Never())
    assert learner.step() is False
    assert learner.get_step() == 0
    assert len(list(learner._batches)) == 10
    assert learner_of(batches, can_sample=False).step() is False
    assert learner_of(batches, can_sample=lambda: True).step() is True
    with raises(InvalidArgumentError, "`can_sample` must be True or False; got 'no' (str)"):
        learner_of(batches, can_sample="no")


def test_without_a_predicate_there_are_no_auxiliary_tasks(batches):
    metrics = Metrics()
    learner_of(batches, can_sample_auxiliary=None, logger=metrics).step()
    assert metrics.rows[0]["pixel_control_loss"] == metrics.rows[0]["reward_prediction_loss"] == 0


def test_bug_23_variables_are_returned_for_each_name(batches):
    learner = learner_of(batches)
    learner.step()
    with agent(kind=ftw.FTWLearnerStandalone) as standalone:
        for each in (learner, standalone):
            weights = each.get_weights()["policy_network"]
            policy, again = each.get_variables(["policy", "policy"])
            assert all(map(np.array_equal, policy, weights))
            assert all(map(np.array_equal, again, weights))


def test_bug_24_weights_are_restored_before_the_first_update_too(batches):
    learner = learner_of(batches)
    learner.step()
    weights = learner.get_weights()
    other = learner_of(batches, seed=9)
    other.build(FRAME)
    other.set_weights(weights)
    assert equal(other.get_weights(), weights)
    assert any(np.any(array) for array in weights["optimizer"])
    assert all(map(np.array_equal, other.get_variables(["policy"])[0], weights["policy_network"]))
    trees = other.state
    assert set(trees) == set(weights)
    assert len(jax.tree.leaves(trees["policy_network"])) == len(weights["policy_network"])


def test_bug_24_weights_of_other_networks_are_rejected(batches):
    learner = learner_of(batches)
    learner.build(FRAME)
    weights = learner.get_weights()
    names = sorted(weights)
    with raises(InvalidArgumentError, f"`weights`: wrong names; got {names[1:]}, expected {names}"):
        learner.set_weights({name: weights[name] for name in names[1:]})
    text = r"`weights\['optimizer'\]`: wrong arrays; got the shapes .*, expected .*"
    with pytest.raises(InvalidArgumentError, match=text):
        learner.set_weights({**weights, "optimizer": weights["optimizer"][1:]})
    shapes = [array.T for array in weights["policy_network"]]
    with pytest.raises(InvalidArgumentError, match=r"`weights\['policy_network'\]`: wrong arrays"):
        learner.set_weights({**weights, "policy_network": shapes})
    assert equal(learner.get_weights(), weights)


def test_weights_continue_a_run_bit_for_bit(batches):
    """The random key is not among the weights: both learners have done as many steps with the same seed."""
    learner, again = learner_of(batches), learner_of(batches, seed=9)
    learner.step()
    again.step()
    weights = learner.get_weights()
    assert not equal(again.get_weights(), weights)
    again.set_weights(weights)
    again.set_step(1)
    for each in (learner, again):
        each.step()
        each.step()
    assert equal(again.get_weights(), learner.get_weights())
    assert again.get_step() == learner.get_step() == 3


@pytest.mark.slow
def test_bug_32_the_given_logger_and_counter_are_used(batches):
    metrics, counter = Metrics(), ftw.Counter()
    learner = learner_of(batches, logger=metrics, counter=counter)
    learner.step()
    learner.step()
    assert [row["steps"] for row in metrics.rows] == [1, 2]
    assert metrics.rows[0]["walltime"] == 0
    assert counter.get_counts()["steps"] == 2


def test_networks_and_datasets_are_checked(batches):
    networks = Networks()
    with raises(InvalidArgumentError, "`policy_network` must have an `unroll`; got 1"):
        ftw.FtwLearner(1, [], 0.1, 3, networks.rewards)
    with raises(InvalidArgumentError, "`pixel_control_network` must have an `unroll`; got 'a'"):
        ftw.FtwLearner(networks.policy, [], 0.1, 3, networks.rewards, "a")
    text = "`nonzero_reward_prediction_dataset` and `zero_reward_prediction_dataset` belong together; got only one"
    with raises(InvalidArgumentError, text):
        networks.learner([], None, batches)
    other = Networks()
    text = "`pixel_control_network` must have the embedding and the core of `policy_network`"
    with raises(InvalidArgumentError, text):
        ftw.FtwLearner(networks.policy, [], 0.1, 3, networks.rewards, other.control)
    text = "`reward_prediction_network` must have the torso of `policy_network`"
    with raises(InvalidArgumentError, text):
        ftw.FtwLearner(networks.policy, [], 0.1, 3, networks.rewards, None, other.prediction)
    with raises(InvalidArgumentError, "`slow_core_period` must be that of the policy network; got 4, expected 3"):
        ftw.FtwLearner(networks.policy, [], 0.1, 4, networks.rewards)
    with raises(
        InvalidArgumentError, "`internal_rewards` must be that of the policy network; got [0.3], expected [0.7]"
    ):
        ftw.FtwLearner(networks.policy, [], 0.1, 3, ftw.InternalRewards(1, 0.3))


def test_an_embedding_without_internal_rewards_uses_those_of_the_learner():
    networks = Networks()
    networks.embed.internal_rewards = None
    assert networks.embed.weights().tolist() == [1]
    ftw.FtwLearner(networks.policy, [], 0.1, 3.0, networks.rewards)
    assert networks.embed.weights().tolist() == [0.7]


def test_a_learner_that_cannot_be_created_changes_no_network():
    networks = Networks()
    networks.embed.internal_rewards = None
    with raises(InvalidArgumentError, "`learner_id` must be at least 0; got -1"):
        networks.learner([], learner_id=-1)
    assert networks.embed.internal_rewards is None
    assert networks.prediction.embedding is None


def test_reward_prediction_has_the_trained_weights_of_any_torso(batches):
    class Torso(eqx.Module):
        """Features of the mean color, with weights."""

        weights: jax.Array
        hidden_size: int = eqx.field(static=True, default=8)

        def __call__(self, frames):
            return frames.mean((1, 2)) @ self.weights

    torso = Torso(jax.random.normal(jax.random.key(0), (3, 8)))
    networks = Networks()
    embed = ftw.OAREmbedding(torso, 3, networks.rewards)
    networks.policy = ftw.FtwNetwork(embed, ftw.LSTM(6), 3, 5, seed=0).build(FRAME)
    networks.prediction = ftw.RewardPredictionNetwork(torso, 4, seed=2)
    networks.control = None
    frames = np.random.default_rng(0).integers(256, size=(2, 3, *FRAME), dtype=np.uint8)
    before = networks.prediction(frames)
    learner = networks.learner(
        with_lstm_state(batches[0]), None, *([each] for each in batches[2:]), can_sample_auxiliary=True
    )
    assert np.array_equal(networks.prediction(frames), before)
    assert learner.step()
    trained = networks.policy.module.embedding.torso
    assert not np.any(trained.weights == torso.weights)
    features = np.stack([np.concatenate(trained(window / np.float32(255))) for window in frames])
    assert np.allclose(networks.prediction(frames), networks.prediction.head(features), atol=1e-5)


def with_lstm_state(sample):
    """Returns a dataset of one batch, with the recurrent state of an LSTM of 6 units."""
    zeros = np.zeros((len(sample.data.reward), 1, 6), np.float32)
    extras = {**sample.data.extras, "core_state": ftw.LSTMState(zeros, zeros)}
    return [sample._replace(data=sample.data._replace(extras=extras))]


def test_weights_exist_once_the_networks_are_built():
    torso = ftw.FtwTorso(((4, 3, 2),), ((4, 3, 1),), 8)
    embed = ftw.OAREmbedding(torso, 3, ftw.InternalRewards(1, 0.7))
    policy = ftw.FtwNetwork(embed, ftw.LSTM(4), 3, 5)
    learner = ftw.FtwLearner(policy, [], 0.1, 3, embed.internal_rewards)
    with raises(InvalidArgumentError, "this learner has no weights yet; call `build`"):
        learner.get_weights()
    with raises(InvalidArgumentError, "this learner has no weights yet; call `build`"):
        learner.set_step(5)
    assert learner.get_step() == 0
    with raises(
        InvalidArgumentError,
        "this FtwNetwork has no weights yet; call it, or `build` the network that contains it",
    ):
        _ = policy.module
    learner.build(FRAME)
    assert set(learner.get_weights()) == {"policy_network", "optimizer"}
    assert torso.module is policy.module.embedding.torso
    learner.set_weights(learner.get_weights())
    assert torso.module is policy.module.embedding.torso
