"""The published networks: they make their weights at the first call; networks that contain them share these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.ftw_agent import FRAME
from helpers.ftw_published import Networks, agent, torso
from helpers.support import raises

from engram.agents.ftw import networks as agents_networks
from engram.agents.ftw.networks.dnc import addressing, linkage
from engram.compat import ftw
from engram.envs import OAR
from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def same(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_the_parts_of_a_network_are_its_own():
    networks = Networks()
    module = networks.policy.module
    assert networks.embed.module is module.embedding
    assert networks.torso.module is module.embedding.torso
    assert networks.core.module is module.core
    assert len(networks.policy.trainable_variables) == len(jax.tree.leaves(module))
    networks.policy.module = jax.tree.map(lambda leaf: leaf + 1, module)
    assert networks.torso.module is networks.policy.module.embedding.torso is not module.embedding.torso


def test_a_seed_determines_the_weights():
    one, same_seed, other = (Networks(seed=seed).policy.trainable_variables for seed in (0, 0, 1))
    assert same(one, same_seed)
    assert not same(one, other)
    assert not same(*(ftw.LSTM(3).build(2).trainable_variables for _ in range(2)))
    assert same(*(ftw.LSTM(3, seed=7).build(2).trainable_variables for _ in range(2)))


def test_weights_are_made_once():
    core = ftw.LSTM(3, seed=0)
    core.build(2)
    module = core.module
    output, state = core(normal(4, 2), core.initial_state(4))
    assert core.module is module
    assert output is state.hidden
    assert output.shape == (4, 3)


def test_an_unroll_equals_single_steps_with_the_same_noise():
    policy = Networks().policy
    oar = OAR(RNG.integers(256, size=(3, 2, *FRAME), dtype=np.uint8), np.ones((3, 2), np.int32), normal(3, 2))
    noise = normal(3, 2, 4)
    (logits, value, output), last = policy.unroll(oar, policy.initial_state(2), noise)
    state = policy.initial_state(2)
    for step in range(3):
        single, state = policy(OAR(*(part[step] for part in oar)), state, noise[step])
        assert np.allclose(single[0], logits[step], atol=1e-5)
        assert np.allclose(single[1], value[step], atol=1e-5)
        assert np.allclose(single[2].z, output.z[step], atol=1e-5)
    assert np.allclose(state.output.z, last.output.z, atol=1e-5)
    assert state.step.tolist() == [3, 3]


def test_each_call_draws_new_noise_by_default():
    policy = Networks().policy
    oar = OAR(np.zeros((1, 2, *FRAME), np.uint8), np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32))
    first, second = (policy.unroll(oar, policy.initial_state(2))[0][0] for _ in range(2))
    assert not np.array_equal(first, second)
    x = normal(2, 12)
    first, second = (policy.core(x, policy.initial_state(2))[0].z for _ in range(2))
    assert not np.array_equal(first, second)


def test_pixel_control_reads_the_policys_core():
    networks = Networks()
    oar = OAR(np.zeros((2, *FRAME), np.uint8), np.zeros(2, np.int32), np.zeros(2, np.float32))
    state = networks.control.initial_state(2)
    assert same(state, networks.policy.initial_state(2))
    assert networks.control(oar, state).shape == (2, 4, 4, 3)
    sequence = OAR(*(np.stack([part] * 3) for part in oar))
    assert networks.control.unroll(sequence, state).shape == (3, 2, 4, 4, 3)
    head = ftw.PixelControl(3, num_cells=4, channels=2)
    assert head(normal(5, 2, 6)).shape == (5, 2, 4, 4, 3)
    z, _ = ftw.RPTHZWrapper(networks.core)(normal(2, 12), networks.core.initial_state(2), np.zeros((2, 4)))
    assert z.shape == (2, 4)


def test_reward_prediction_and_policy_heads():
    networks = Networks()
    frames = RNG.integers(256, size=(2, 3, *FRAME), dtype=np.uint8)  # 2 windows of 3 frames
    assert networks.prediction(frames).shape == (2, 3)
    features = np.stack([np.concatenate(networks.torso(window)) for window in frames])
    assert features.shape == (2, 24)
    assert np.allclose(networks.prediction.head(features), networks.prediction(frames), atol=1e-5)
    # The learner's head, of the same weights, takes [L, B, D].
    learned = networks.prediction.head.module(features.reshape(2, 3, 8).swapaxes(0, 1))
    assert np.allclose(learned, networks.prediction(frames), atol=1e-5)
    assert ftw.RewardPrediction(4)(normal(5, 7)).shape == (5, 3)
    logits, value = ftw.PolicyValueHead((3, 2), 4)(normal(5, 6))
    assert (logits.shape, value.shape) == ((5, 5), (5,))


def test_a_torso_may_be_any_callable_with_a_size():
    class Mean:
        hidden_size = 3

        def __call__(self, frames):
            return frames.mean((1, 2))

    embed = ftw.OAREmbedding(Mean(), 2, [0.5])
    oar = OAR(np.full((1, 4, 4, 3), 255, np.uint8), np.array([1]), np.array([2.0], np.float32))
    assert np.allclose(embed(oar), [[1, 1, 1, 0, 1, np.tanh(1)]])


def test_a_periodic_unit_changes_once_per_period():
    unit = ftw.PeriodicVariationalUnit(ftw.IntHyperparameter(1, 9, 2), 4, 3, seed=0)
    plain = ftw.VariationalUnit(4, 3, seed=0)
    state, expected = unit.initial_state(2), plain.initial_state(2)
    outputs = []
    for step in range(4):
        x = normal(2, 5)
        params, state = unit(x, state)
        if step % 2 == 0:
            held, expected = plain(x, expected)
        assert same(params, held)
        assert same(state.core_state, expected)
        outputs.append(params.loc)
    assert state.step.tolist() == [4, 4]
    assert not np.array_equal(outputs[1], outputs[2])


def test_a_unit_with_a_memory_writes_it():
    unit = ftw.VariationalUnit(4, 3, ftw.MemoryAccess(5, 2, 1, seed=0), seed=0)
    params, state = unit(normal(2, 6), unit.initial_state(2))
    assert params.scale.shape == (2, 3)
    assert isinstance(state, ftw.DNCState)
    assert np.any(state.access_state.memory)


def test_a_dnc_equals_its_parts():
    dnc = ftw.DNC({"memory_size": 5, "word_size": 2, "num_reads": 3}, {"hidden_size": 4}, 6, clip_value=0.05, seed=0)
    x = normal(2, 7)
    output, state = dnc(x, dnc.initial_state(2))
    lstm, memory = ftw.LSTM(4), ftw.MemoryAccess(5, 2, 3)
    lstm.module, memory.module = dnc.module.controller, dnc.module.access
    parts = ftw.DNCWrapper(lstm, memory, dnc.module.output, clip_value=0.05)
    expected, expected_state = parts(x, parts.initial_state(2))
    assert same(output, expected)
    assert same(state, expected_state)
    assert output.shape == (2, 6)
    plain, _ = ftw.DNCWrapper(lstm, memory)(x, parts.initial_state(2))
    assert plain.shape == (2, 4 + 3 * 2)
    reads, _ = memory(normal(2, 4), memory.initial_state(2))
    assert reads.shape == (2, 3, 2)


def test_addressing_is_that_of_the_agent():
    memory, keys, strengths = normal(2, 5, 3), normal(2, 4, 3), normal(2, 4)
    weights = ftw.CosineWeights(4, 3)(memory, keys, strengths)
    assert np.allclose(weights, addressing.content_weights(memory, keys, jax.nn.softplus(strengths)))
    linked = ftw.TemporalLinkage(5, 1)
    write = jax.nn.softmax(normal(2, 1, 5))
    state = linked(write, linked.initial_state(2))
    state = linked(write, state)
    read = jax.nn.softmax(normal(2, 2, 5))
    forward, backward = linkage.directional_weights(state.link, read)
    assert same(linked.directional_read_weights(state.link, read, forward=True), forward)
    assert same(linked.directional_read_weights(state.link, read, forward=False), backward)
    freeness = ftw.Freeness(5)
    usage = freeness(write, jnp.ones((2, 2)), read, freeness.initial_state(2))
    assert np.allclose(usage, addressing.updated_usage(jnp.zeros((2, 5)), write, jnp.ones((2, 2)), read))
    gates = jnp.full((2, 2), 0.5)
    expected = addressing.write_allocation_weights(usage, gates[:, :1])
    assert same(freeness.write_allocation_weights(usage, gates, 1), expected)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ftw.RPTHZWrapper(ftw.LSTM), "`rpth_core` must be an RPTH; got "),
        (lambda: ftw.FtwTorso(hidden_size="a"), "`hidden_size` must be an integer; got 'a'"),
        (lambda: ftw.FtwTorso(activate_last=1), "`activate_last` must be True or False; got 1"),
        (lambda: ftw.FtwTorso(((1, 2),)), "`conv_filters` must be "),
        (
            lambda: ftw.OAREmbedding(3, 2),
            "`torso` must be a callable with the attribute `hidden_size`, such as FtwTorso;",
        ),
        (lambda: ftw.OAREmbedding(torso(), 2.5), "`num_actions` must be an integer; got 2.5"),
        (
            lambda: ftw.OAREmbedding(torso(), 2, "a"),
            "`internal_rewards` must be InternalRewards, or numbers [E]; got 'a'",
        ),
        (lambda: ftw.RPTH(2.5), "`period` must be an integer; got 2.5"),
        (lambda: ftw.RPTH(2, shared_memory=3), "`shared_memory` must be a MemoryAccess or None; got 3"),
        (lambda: ftw.FtwNetwork(torso(), ftw.LSTM(3), 2), "`embed` must be an OAREmbedding; got "),
        (lambda: ftw.FtwNetwork(ftw.OAREmbedding(torso(), 2), 3, 2), "`core` must be an LSTM or an RPTH; got 3"),
        (
            lambda: ftw.FtwNetwork(ftw.OAREmbedding(torso(), 2), ftw.LSTM(3), 4),
            "`num_actions` must be that of `embed`; got 4, expected 2",
        ),
        (lambda: ftw.RNNPixelControlNetwork(3, ftw.LSTM(3), 2), "`embed` must be an OAREmbedding; got 3"),
        (
            lambda: ftw.RNNPixelControlNetwork(ftw.OAREmbedding(torso(), 2), 3, 2),
            "`core` must be an LSTM, an RPTH or its wrapper; got 3",
        ),
        (lambda: ftw.RewardPredictionNetwork(3), "`embed` must be a torso; got 3"),
        (lambda: ftw.FtwActor(3), "`network` must be an FtwNetwork; got 3"),
    ],
)
def test_wrong_arguments_are_rejected(make, text):
    with pytest.raises(InvalidArgumentError) as error:
        make()
    assert str(error.value).startswith(text)


def test_a_part_belongs_to_one_network():
    text = "this {} is a part of another {}, with which it cannot share weights; make one for each"
    networks = Networks()
    other = ftw.FtwNetwork(networks.embed, ftw.LSTM(4), 3)
    with raises(InvalidArgumentError, text.format("OAREmbedding", "FtwNetwork")):
        other.build(FRAME)
    assert not other.is_built
    other = ftw.FtwNetwork(ftw.OAREmbedding(networks.torso, 3), ftw.LSTM(4), 3)
    with raises(InvalidArgumentError, text.format("FtwTorso", "OAREmbedding")):
        other.build(FRAME)
    other = ftw.FtwNetwork(ftw.OAREmbedding(torso(), 3), networks.core, 3)
    with raises(InvalidArgumentError, text.format("RPTH", "FtwNetwork")):
        other.build(FRAME)
    memory = ftw.MemoryAccess(5, 3, 2)
    ftw.RPTH(2, 4, 3, shared_memory=memory).build(5)
    core = ftw.RPTH(2, 4, 3, shared_memory=memory)
    with raises(InvalidArgumentError, text.format("MemoryAccess", "RPTH")):
        core.build(5)
    assert not core.is_built
    networks.policy.build(FRAME)
    networks.embed.build(FRAME)


def test_agents_cannot_share_a_torso():
    shared = torso()
    with agent(embed=shared) as agent_:
        with pytest.raises(InvalidArgumentError, match="this FtwTorso is a part of another OAREmbedding"):
            agent(embed=shared)
        assert shared.module is agent_._network.module.embedding.torso


def test_weights_of_a_part_are_replaced_in_its_network():
    networks = Networks()
    text = "this {} is a part of a network; replace the `module` of that {}"
    for part, name, owner in (
        (networks.torso, "FtwTorso", "OAREmbedding"),
        (networks.core, "RPTH", "FtwNetwork"),
        (networks.embed, "OAREmbedding", "FtwNetwork"),
    ):
        with raises(InvalidArgumentError, text.format(name, owner)):
            part.module = part.module


@pytest.mark.parametrize("memory", [None, (5, 3, 2)])
@pytest.mark.parametrize("period", [2, (4, 2)])
def test_the_initial_state_needs_no_weights(memory, period):
    core = ftw.RPTH(period, 4, 3, shared_memory=None if memory is None else ftw.MemoryAccess(*memory))
    embed = ftw.OAREmbedding(torso(), 3)
    policy = ftw.FtwNetwork(embed, core, 3, 5)
    control = ftw.RNNPixelControlNetwork(embed, core, 3)
    states = [each.initial_state(2) for each in (policy, core, ftw.RPTHZWrapper(core), control)]
    assert not policy.is_built
    assert not core.is_built
    policy.build(FRAME)
    expected = core.module.initial_state(2)
    for state in states:
        assert same(state, expected)
        assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda leaf: leaf.dtype, expected)
    lstm = ftw.FtwNetwork(ftw.OAREmbedding(torso(), 3), ftw.LSTM(4), 3)
    assert same(lstm.initial_state(2), ftw.LSTM(4).initial_state(2))


def test_without_weights_there_is_no_module():
    text = "this RPTH has no weights yet; call it, or `build` the network that contains it"
    with raises(InvalidArgumentError, text):
        _ = ftw.RPTH(2).module
    assert not ftw.RPTH(2).is_built
    assert isinstance(ftw.LSTM(2).initial_state(1), agents_networks.LSTMState)
