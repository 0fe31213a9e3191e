"""Names, modules, arguments and defaults are the published ones."""

import importlib
import inspect

import numpy as np
import pytest
from dm_env import specs
from helpers.ftw_published import agent, environment_spec, torso
from helpers.support import raises

from engram.compat import ftw
from engram.compat.ftw.tf.hyperparameters import ftw_hp
from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

SHARED = """sequence_length num_environment_events=1 embed=None max_queue_size={queue} batch_size={batch}
hidden_size=256 use_pixel_cotrol=True use_reward_prediction=True reward_prediction_sequence_length=3
reward_prediction_sequence_period=1 num_dimensions=256 dnc_clip_value=None use_dnc_linear_projection=True init_scale=0.1
min_scale=1e-06 tanh_mean=False fixed_scale=False use_tfd_independent=False variational_unit_w_init=None
variational_unit_b_init=None strict_period_order=True dnc_memory_size=450 dnc_word_size=32 dnc_num_reads=4
core_type='rpth' slow_core_period_min_max=(5, 20) slow_core_period_init_value=None learning_rate=(1e-05, 0.005)
entropy_cost=(0.0005, 0.01) reward_prediction_cost=(0.1, 1.0) pixel_control_cost=(0.01, 0.1)
kld_prior_fixed_cost=(0.0001, 0.1) kld_prior_posterior_cost=(0.001, 1.0) scale_grads_fast_to_slow=(0.1, 1.0)
internal_rewards=(0.1, 1.0) baseline_cost=0.5 discount=0.99 max_abs_reward=None max_gradient_norm=None
rms_prop_epsilon=1e-05 learning_rate_decay_steps=0 uint_pixels_to_float=True agent_id=0 counter=None logger=None"""
RPTH_OPTIONS = """dnc_clip_value=None use_dnc_linear_projection=True init_scale=0.1 min_scale=1e-06 tanh_mean=False
fixed_scale=False"""
HEAD = "num_dimensions init_scale=0.3 min_scale=1e-06 tanh_mean=False fixed_scale=False"
DATASET = """client environment_spec=None batch_size=None prefetch_size=None sequence_length=None extra_spec=None
transition_adder=False table='priority_table' convert_zero_size_to_none=False num_parallel_calls=1
using_deprecated_adder=False deterministic=True"""
HYPERS = """slow_core_period_min_max=(5, 20) slow_core_period_init_value=None learning_rate=(1e-05, 0.005)
entropy_cost=(0.0005, 0.01) reward_prediction_cost=(0.1, 1.0) pixel_control_cost=(0.01, 0.1)
kld_prior_fixed_cost=(0.0001, 0.1) kld_prior_posterior_cost=(0.001, 1.0) scale_grads_fast_to_slow=(0.1, 1.0)"""

AGENT = "agents.tf.ftw"
NETWORKS = "tf.networks"
PUBLISHED = {
    f"{AGENT}.agent.FTW": f"environment_spec {SHARED.format(queue=32, batch=16)}",
    f"{AGENT}.agent.FTWWithoutActor": f"environment_spec {SHARED.format(queue=64, batch=32)}",
    f"{AGENT}.learning_standalone.FTWLearnerStandalone": f"environment_spec {SHARED.format(queue=64, batch=32)}",
    f"{AGENT}.learning.FtwLearner": """policy_network dataset learning_rate slow_core_period internal_rewards
        pixel_control_network=None reward_prediction_network=None pixel_control_dataset=None
        nonzero_reward_prediction_dataset=None zero_reward_prediction_dataset=None entropy_cost=0.0
        kld_prior_fixed_cost=0.0001 kld_prior_posterior_cost=0.001 pixel_control_cost=0.01 reward_prediction_cost=0.1
        baseline_cost=0.5 discount=0.99 max_abs_reward=None max_gradient_norm=None rms_prop_epsilon=0.01
        learning_rate_decay_steps=0 can_sample=None can_sample_auxiliary=None uint_pixels_to_float=True learner_id=0
        counter=None logger=None""",
    f"{AGENT}.acting.FtwActor": """network adder=None reward_prediction_adder=None variable_client=None
        uint_pixels_to_float=True""",
    f"{AGENT}.utils.create_adders": """server_address sequence_length use_pixel_control=False
        use_reward_prediction=False reward_prediction_sequence_length=3 reward_prediction_sequence_period=1
        pad_end_of_episode=False delta_encoded=True""",
    f"{AGENT}.utils.create_datasets": """learner_client environment_spec batch_size sequence_length extra_spec=None
        use_pixel_control=False use_reward_prediction=False reward_prediction_sequence_length=3""",
    f"{AGENT}.utils.create_reverb_tables": """batch_size max_queue_size use_pixel_control=False
        use_reward_prediction=False max_pixel_control_buffer_size=100 max_reward_pred_buffer_size=800""",
    f"{AGENT}.utils.initialize_hypers": HYPERS,
    f"{AGENT}.utils.initialize_internal_rewards": "num_events=1 init_value_or_range=(0.1, 1.0)",
    "datasets.reverb.make_reverb_fifo_sampler_dataset": DATASET,
    "datasets.reverb.make_reverb_rnn_sequence_fifo_sampler_dataset": DATASET,
    "adders.reverb.rnn_sequence.NonOverlappingRNNSequenceAdder": """client sequence_length delta_encoded=False
        chunk_length=None priority_fns=None pad_end_of_episode=True""",
    "adders.reverb.sequence.SequenceAdder": """client sequence_length period delta_encoded=False chunk_length=None
        priority_fns=None pad_end_of_episode=True""",
    "adders.reverb.multi_sequence.MultiSequenceAdder": """client sequence_lengths periods delta_encoded=False
        chunk_length=None priority_fns=None should_insert_fns=None pad_end_of_episode=True""",
    f"{NETWORKS}.vision.FtwTorso": """conv_filters=((32, 8, 4), (64, 4, 2)) residual_filters=((64, 3, 1), (64, 3, 1))
        hidden_size=256 activation=relu activate_last=False""",
    f"{NETWORKS}.embedding.OAREmbedding": "torso num_actions internal_rewards=None",
    f"{NETWORKS}.ftw_network.FtwNetwork": "embed core num_actions head_hidden_size=256",
    f"{NETWORKS}.policy_value.PolicyValueHead": "num_actions hidden_size=256 activation=relu",
    f"{NETWORKS}.recurrence.RPTH": f"""period hidden_size=256 num_dimensions=256 {RPTH_OPTIONS}
        use_tfd_independent=False w_init=None b_init=None shared_memory=None strict_period_order=True
        scale_gradients_fast_to_slow=1.0""",
    f"{NETWORKS}.recurrence.RPTHZWrapper": "rpth_core",
    f"{NETWORKS}.recurrence.VariationalUnit": f"""hidden_size num_dimensions shared_memory=None {RPTH_OPTIONS}
        w_init=None b_init=None""",
    f"{NETWORKS}.recurrence.PeriodicVariationalUnit": f"""period hidden_size num_dimensions shared_memory=None
        {RPTH_OPTIONS} w_init=None b_init=None""",
    f"{NETWORKS}.distributional.MultivariateNormalDiagLocScaleHead": f"{HEAD} w_init=None b_init=None",
    f"{NETWORKS}.dnc.access.MemoryAccess": "memory_size=128 word_size=20 num_reads=1 num_writes=1",
    f"{NETWORKS}.dnc.dnc.DNC": "access_config controller_config output_size clip_value=None",
    f"{NETWORKS}.dnc.dnc.DNCWrapper": "lstm memory output_layer=None clip_value=None",
    f"{NETWORKS}.dnc.addressing.CosineWeights": "num_heads word_size strength_op=softplus",
    f"{NETWORKS}.dnc.addressing.TemporalLinkage": "memory_size num_writes",
    f"{NETWORKS}.dnc.addressing.Freeness": "memory_size",
    f"{NETWORKS}.auxiliary.PixelControl": "num_actions activation=relu",
    f"{NETWORKS}.auxiliary.RNNPixelControlNetwork": "embed core num_actions activation=relu",
    f"{NETWORKS}.auxiliary.RewardPrediction": "hidden_size=128 activation=relu",
    f"{NETWORKS}.auxiliary.RewardPredictionNetwork": "embed hidden_size=128 activation=relu",
    "tf.hyperparameters.base.FloatHyperparameter": """init_value_or_range perturb_probability=1.0
        perturb_max_pct_change=0.2""",
    "tf.hyperparameters.base.IntHyperparameter": "min_value max_value initial_value=None perturb_probability=1.0",
    "tf.internal_reward.ftw_internal_reward.InternalRewards": """num_events init_value_or_range perturb_probability=1.0
        perturb_max_pct_change=0.2""",
}
"""Arguments that may be positional, in their order, with their defaults."""


def positional_arguments(callable_):
    """Returns the text of the arguments that may be positional."""
    parameters = inspect.signature(callable_).parameters.values()
    texts = []
    for each in parameters:
        default = getattr(each.default, "__name__", repr(each.default))
        if each.kind is each.POSITIONAL_OR_KEYWORD:
            texts.append(each.name if each.default is each.empty else f"{each.name}={default}")
    return " ".join(texts)


PACKAGES = {
    AGENT: "FTW FTWWithoutActor FTWLearnerStandalone FtwActor FtwLearner create_adders create_datasets agent utils",
    "adders.reverb": "NonOverlappingRNNSequenceAdder SequenceAdder MultiSequenceAdder rnn_sequence",
    "datasets": "make_reverb_fifo_sampler_dataset make_reverb_rnn_sequence_fifo_sampler_dataset reverb",
    NETWORKS: """FtwTorso OAREmbedding FtwNetwork PolicyValueHead RPTH RPTHZWrapper VariationalUnit PixelControl
        RNNPixelControlNetwork RewardPrediction RewardPredictionNetwork DNC recurrence dnc""",
    f"{NETWORKS}.dnc": "DNC DNCWrapper MemoryAccess access",
    "tf.hyperparameters": "Hyperparameter FloatHyperparameter IntHyperparameter HyperparametersContainer ftw_hp",
    "tf.internal_reward": "InternalRewards",
    "tf": "networks hyperparameters",
}
"""Packages with the names of their modules, and these modules."""


@pytest.mark.parametrize("path", PACKAGES)
def test_packages_have_the_names_of_their_modules(path):
    package = importlib.import_module(f"engram.compat.ftw.{path}")
    for name in PACKAGES[path].split():
        found = getattr(package, name)
        assert inspect.ismodule(found) or found is getattr(ftw, name)
        assert name in dir(package)
    with raises(AttributeError, f"module 'engram.compat.ftw.{path}' has no attribute 'Chief'"):
        _ = package.Chief


@pytest.mark.parametrize("path", PUBLISHED)
def test_arguments_and_defaults_are_the_published_ones(path):
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(f"engram.compat.ftw.{module}"), name)
    assert positional_arguments(found) == " ".join(PUBLISHED[path].split())
    assert getattr(ftw, name) is found


def test_the_head_with_small_weights_has_its_published_arguments():
    names = list(inspect.signature(ftw.MultivariateNormalDiagHead).parameters)
    assert names[:8] == [*(each.partition("=")[0] for each in HEAD.split()), "use_tfd_independent", "w_init", "b_init"]


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        (ftw.FTW, "observe_first observe select_action update run get_step set_step get_weights set_weights"),
        (ftw.FTW, "get_hypers set_hypers get_rewards set_rewards"),
        (ftw.FtwLearner, "step run get_step set_step get_weights set_weights get_variables state"),
        (ftw.FtwActor, "select_action observe_first observe update"),
        (ftw.FTWLearnerStandalone, "make_actor replay_server_address step get_variables run"),
        (ftw.FtwNetwork, "unroll initial_state select_action __call__"),
        (ftw.Hyperparameter, "get set perturb"),
        (ftw.HyperparametersContainer, "get set perturb"),
    ],
)
def test_methods_are_the_published_ones(kind, methods):
    assert [name for name in methods.split() if not hasattr(kind, name)] == []


def test_state_records_have_the_published_fields():
    fields = {
        "AccessState": "memory read_weights write_weights linkage usage",
        "TemporalLinkageState": "link precedence_weights",
        "DNCState": "access_output access_state controller_state",
        "PeriodicRNNState": "core_state output step",
        "RPTHOutput": "z distribution_params",
        "LocScaleDistributionParameters": "loc scale",
    }
    assert {name: " ".join(getattr(ftw, name)._fields) for name in fields} == fields


def test_hyperparameters_are_the_agents_own():
    from engram.agents.ftw import hyperparameters, internal_rewards  # noqa: PLC0415, what they are compared with

    assert ftw.FloatHyperparameter is hyperparameters.FloatHyperparameter is ftw_hp.FloatHyperparameter
    assert ftw.InternalRewards is internal_rewards.InternalRewards
    assert issubclass(ftw.IntHyperparameter, ftw.Hyperparameter)


def test_unknown_names_are_attribute_errors_and_known_ones_are_listed():
    with raises(AttributeError, "module 'engram.compat.ftw' has no attribute 'Chief'"):
        _ = ftw.Chief
    assert {"FTW", "FtwLearner", "EnvironmentSpec"} <= set(dir(ftw))


def test_the_right_spelling_of_pixel_control_replaces_the_default():
    names = {"pixel_control_network", "pixel_control_optimizer"}
    options = {"environment_spec": environment_spec(frame=(20, 20, 3))}
    with agent(use_pixel_control=True, **options) as on, agent(use_pixel_control=False, **options) as off:
        assert names <= set(on.get_weights())
        assert not names & set(off.get_weights())
    with agent(use_pixel_cotrol=False, use_pixel_control=None) as off:
        assert not names & set(off.get_weights())
    with raises(
        InvalidArgumentError, "`use_pixel_cotrol` and `use_pixel_control` are one argument; got False and True"
    ):
        agent(use_pixel_cotrol=False, use_pixel_control=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"embed": ftw.OAREmbedding(torso(), 3)},
            "`embed` must be a torso, not an OAREmbedding: the agent makes its own around it",
        ),
        ({"core_type": "gru"}, '`core_type` must be "lstm", "rpth" or "rpth_dnc"; got \'gru\' (str)'),
        ({"batch_size": 9}, "`max_queue_size` must be at least 9, the items of a batch; got 8"),
        ({"agent_id": -1}, "`agent_id` must be at least 0; got -1"),
        (
            {"learning_rate": 1},
            "`init_value_or_range` must be a float, or a tuple of two floats, 0 < low <= high; got 1 (int)",
        ),
        (
            {"use_reward_prediction": True, "batch_size": 1},
            "`batch_size` must be at least 2 for reward prediction, whose batches have two halves; got 1",
        ),
        ({"num_environment_events": 0}, "`num_environment_events` must be at least 1; got 0"),
        ({"use_pixel_control": "yes"}, "`use_pixel_control` must be True or False; got 'yes' (str)"),
    ],
)
def test_arguments_of_the_agent_are_checked(options, text):
    with raises(InvalidArgumentError, text):
        agent(**options)


@pytest.mark.parametrize(
    "actions",
    [
        specs.Array((2,), np.int32),
        specs.BoundedArray((), np.int32, 0, 2),
        specs.BoundedArray((2,), np.int32, 1, 2),
        specs.BoundedArray((2,), np.float32, 0, 2),
    ],
)
def test_other_actions_are_rejected(actions):
    text = f"`environment_spec.actions` must have `num_values`, or be bounded integers [G] from 0 on; got {actions}"
    with raises(InvalidArgumentError, text):
        agent(environment_spec=environment_spec()._replace(actions=actions))


def test_other_observations_are_rejected():
    spec = environment_spec()
    text = (
        "`environment_spec.observations` must be a triple of observation, action and reward, as those of"
        " engram.envs.ObservationActionReward; got Array(shape=(), dtype=dtype('float32'), name=None)"
    )
    with raises(InvalidArgumentError, text):
        agent(environment_spec=spec._replace(observations=spec.rewards))
    with raises(InvalidArgumentError, "`num_environment_events` is 1, but rewards have the shape (2,); expected ()"):
        agent(environment_spec=environment_spec(events=(2,)))
    with raises(InvalidArgumentError, "`num_environment_events` is 2, but rewards have the shape (); expected (2,)"):
        agent(num_environment_events=2)


def test_a_terminal_logger_prints_at_most_once_per_time_delta(capsys):
    logger = ftw.TerminalLogger("learner", time_delta=1e9)
    logger.write({"loss": 0.123456, "steps": 3})
    logger.write({"loss": 1.0})
    assert capsys.readouterr().out == "[learner] loss = 0.123 | steps = 3\n"


def test_a_counter_adds_up():
    counter = ftw.Counter()
    counter.increment(steps=1, walltime=0.5)
    assert counter.increment(steps=2) == {"steps": 3, "walltime": 0.5} == counter.get_counts()


def test_heads_draw_with_given_noise():
    head = ftw.MultivariateNormalDiagLocScaleHead(2, seed=0)
    params = head(np.ones((3, 4), np.float32))
    assert np.allclose(params.sample(np.zeros((3, 2))), params.loc)
    assert (
        ftw.MultivariateNormalDiagHead(2, fixed_scale=True)(np.ones((3, 4))).scale.tolist()
        == [[pytest.approx(0.3)] * 2] * 3
    )
