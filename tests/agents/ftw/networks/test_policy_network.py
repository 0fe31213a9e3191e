"""The agent's network: unrolls, actions, hyperparameters as arguments, and sizes."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.jax

STEPS, BATCH = 4, 2


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("core_type", "num_actions"), [("lstm", 3), ("rpth", 3), ("rpth", (2, 3)), ("rpth_dnc", 3)])
def test_an_unroll_equals_single_steps_with_the_same_noise(helpers, jax, core_type, num_actions):
    network = helpers.small_network(core_type, num_actions)
    oar, noise = helpers.small_inputs(network, STEPS, BATCH)
    state = network.initial_state(BATCH)
    outputs, last = helpers.eqx.filter_jit(network.unroll)(oar, state, noise, helpers.Hypers())
    assert outputs.logits.shape == (STEPS, BATCH, sum(np.atleast_1d(num_actions)))
    assert outputs.value.shape == (STEPS, BATCH)
    assert len(outputs.core.distribution_params) == (0 if core_type == "lstm" else 2)
    step = helpers.eqx.filter_jit(network)
    for n in range(STEPS):
        output, state = step(jax.tree.map(lambda x, n=n: x[n], oar), state, noise[n], helpers.Hypers())
        jax.tree.map(assert_close, output, jax.tree.map(lambda x, n=n: x[n], outputs))
    jax.tree.map(assert_close, state, last)


def test_the_output_of_an_lstm_core_is_its_hidden_state(helpers):
    network = helpers.small_network("lstm")
    oar, noise = helpers.small_inputs(network, STEPS, BATCH)
    assert noise.shape == (STEPS, BATCH, 0)
    outputs, last = helpers.eqx.filter_jit(network.unroll)(oar, network.initial_state(BATCH), noise, helpers.Hypers())
    assert outputs.core.distribution_params == ()
    np.testing.assert_array_equal(outputs.core.z[-1], last.hidden)


def test_other_hyperparameters_do_not_compile_again_and_change_the_outputs(helpers, jax):
    network = helpers.small_network()
    oar, noise = helpers.small_inputs(network, STEPS, BATCH)
    traces = []

    @jax.jit
    def gradient(network, oar, noise, hypers):
        traces.append(hypers)

        def loss(network):
            outputs, _ = network.unroll(oar, network.initial_state(BATCH), noise, hypers)
            return (outputs.logits**2).sum()

        return jax.grad(loss)(network)

    changes = [
        helpers.Hypers(),
        helpers.Hypers(slow_core_period=np.int32(2)),
        helpers.Hypers(scale_grads_fast_to_slow=np.float32(0.2)),
        helpers.Hypers(internal_rewards=np.full(1, 3, np.float32)),
    ]
    gradients = [jax.tree.leaves(gradient(network, oar, noise, hypers)) for hypers in changes]
    assert len(traces) == 1
    for other in gradients[1:]:
        assert any((a != b).any() for a, b in zip(gradients[0], other, strict=True))


def gradient(helpers, jax, network):
    """The gradient of an unroll, and its program."""
    oar, noise = helpers.small_inputs(network, STEPS, BATCH)

    def loss(network):
        outputs, _ = network.unroll(oar, network.initial_state(BATCH), noise, helpers.Hypers())
        return (outputs.logits**2).sum() + outputs.value.sum()

    traced = jax.jit(jax.grad(loss)).trace(network)
    return traced.lower().compile()(network), str(traced.jaxpr)


def test_rematerialized_gradients_are_the_same(helpers, jax):
    stored, program = gradient(helpers, jax, helpers.small_network())
    assert "remat" not in program
    computed_again, program = gradient(helpers, jax, helpers.small_network(rematerialize=True))
    assert "remat" in program
    for a, b in zip(jax.tree.leaves(stored), jax.tree.leaves(computed_again), strict=True):
        assert_close(a, b)


def test_gradients_reach_all_parameters(helpers, jax):
    leaves, _ = gradient(helpers, jax, helpers.small_network("rpth_dnc"))
    for path, leaf in jax.tree_util.tree_leaves_with_path(leaves):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path


def test_actions_are_sampled_from_the_logits(helpers, jax):
    network = helpers.small_network()
    batch = 5000
    oar, _ = helpers.small_inputs(network, 1, 1)
    oar = jax.tree.map(lambda x: np.repeat(x[0], batch, axis=0), oar)
    state = network.initial_state(batch)
    select = helpers.eqx.filter_jit(network.select_action)
    actions, logits, after = select(oar, state, jax.random.key(1), helpers.Hypers())
    assert (actions.shape, actions.dtype, logits.shape) == ((batch,), np.int32, (batch, 3))
    np.testing.assert_array_equal(after.step, 1)
    expected = jax.nn.softmax(logits).mean(0)
    frequencies = np.bincount(actions, minlength=3) / batch
    np.testing.assert_allclose(frequencies, expected, atol=5 * np.sqrt(0.25 / batch))
    # The same key gives the same latent variable and actions; another key gives others.
    again, same_logits, _ = select(oar, state, jax.random.key(1), helpers.Hypers())
    np.testing.assert_array_equal(again, actions)
    np.testing.assert_array_equal(same_logits, logits)
    _, other_logits, other = select(oar, state, jax.random.key(2), helpers.Hypers())
    assert (np.asarray(other_logits) != logits).any(-1).mean() > 0.9
    # z is a sample of the posterior: its spread over the batch, whose inputs are equal, is the scale.
    z = np.asarray(other.output.z)
    output, _ = network(oar, state, np.zeros_like(z), helpers.Hypers())
    posterior = output.core.distribution_params[-1]
    np.testing.assert_allclose(z.mean(0), posterior.loc[0], atol=5 * posterior.scale.max() / np.sqrt(batch))
    np.testing.assert_allclose(z.std(0), posterior.scale[0], rtol=0.06)


def test_decomposed_actions_have_one_part_per_group(helpers, jax):
    network = helpers.small_network(num_actions=(2, 3))
    oar, _ = helpers.small_inputs(network, 1, BATCH)
    oar = jax.tree.map(lambda x: x[0], oar)
    select = helpers.eqx.filter_jit(network.select_action)
    actions, logits, _ = select(oar, network.initial_state(BATCH), jax.random.key(0), helpers.Hypers())
    assert (actions.shape, logits.shape) == ((BATCH, 2), (BATCH, 5))


def test_a_reset_element_starts_over_with_a_step_of_the_slow_core(helpers, jax):
    network = helpers.small_network("rpth_dnc")
    oar, noise = helpers.small_inputs(network, STEPS, BATCH)
    unroll = helpers.eqx.filter_jit(network.unroll)
    _, state = unroll(oar, network.initial_state(BATCH), noise, helpers.Hypers(slow_core_period=np.int32(100)))
    reset = network.reset(state, np.array([True, False]))
    np.testing.assert_array_equal(reset.step, [0, STEPS])
    pairs = zip(*map(jax.tree.leaves, (reset, network.initial_state(BATCH), state)), strict=True)
    for after, initial, before in pairs:
        np.testing.assert_array_equal(after[0], initial[0])
        np.testing.assert_array_equal(after[1], before[1])
    _, states = unroll(oar, reset, noise, helpers.Hypers(slow_core_period=np.int32(100)))
    (first,), (before,) = states.output.distribution_params, state.output.distribution_params
    assert (first.loc[0] != 0).any()
    np.testing.assert_array_equal(first.loc[1], before.loc[1])


def count(jax, tree):
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("core_type", "parameters", "state_size"), [("rpth", 4_595_941, 1_793), ("rpth_dnc", 5_380_828, 222_099)]
)
def test_the_default_sizes_are_those_of_the_published_agent(helpers, jax, core_type, parameters, state_size):
    networks = helpers.networks

    def make(*, key):
        torso = networks.FtwTorso((84, 84, 3), key=key)
        embedding = networks.OAREmbedding(torso, 4)
        core = networks.make_core(embedding.size, networks.CoreConfig(core_type=core_type), key=key)
        return networks.FtwNetwork(embedding, core, key=key)

    network = helpers.shapes_of(make)
    assert count(jax, network) == parameters
    assert count(jax, network.embedding.torso) == 2_095_584
    assert count(jax, jax.eval_shape(lambda: network.initial_state(1))) == state_size


def test_unknown_cores_are_rejected(helpers):
    networks = helpers.networks
    text = '`core_type` must be "lstm", "rpth" or "rpth_dnc"; got \'gru\' (str)'
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        networks.make_core(3, networks.CoreConfig(core_type="gru"), key=helpers.KEY)
    embedding = helpers.small_network().embedding
    with pytest.raises(ValueError, match=r"^`core` must be an LSTM or an RPTH; got 'rpth'$"):
        networks.FtwNetwork(embedding, "rpth", key=helpers.KEY)
