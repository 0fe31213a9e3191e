"""RPTH: when slow cores step, what they pass on, and which gradients reach them."""

import functools
import re

import numpy as np
import pytest
from helpers import ftw_network_fixtures, ftw_network_reference
from helpers.ftw_fixtures import TOLERANCE

from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

PERIOD = 3
STEPS, BATCH = 7, 3
IN_SIZE, HIDDEN, DIMENSIONS = 5, 4, 2


def make_rpth(helpers, *, memory=False, **options):
    """A small RPTH, with or without a memory."""

    def make(*, key):
        access = helpers.networks.MemoryAccess(HIDDEN, 6, 3, 2, 1, key=key) if memory else None
        return helpers.networks.RPTH(IN_SIZE, HIDDEN, DIMENSIONS, memory=access, **options, key=key)

    return helpers.with_normal_leaves(helpers.shapes_of(make))


def inputs_and_noise(steps=STEPS, batch=BATCH):
    rng = np.random.default_rng(1)
    shapes = [(steps, batch, IN_SIZE), (steps, batch, DIMENSIONS)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def slow_values(states):
    """What only a step of the slow core may change."""
    core_state, (prior,) = states.core_state, states.output.distribution_params
    if hasattr(core_state, "access_output"):
        slow = core_state.controller_state[0]
        return [slow.hidden, slow.cell, core_state.access_output[0], *prior]
    return [core_state.hidden[0], core_state.cell[0], *prior]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("period", [1, PERIOD])
def test_the_slow_core_changes_exactly_at_multiples_of_the_period(helpers, memory, period):
    core = make_rpth(helpers, memory=memory)
    state = core.initial_state(BATCH)
    inputs, noise = inputs_and_noise()
    _, states, last = helpers.unroll(core, state, inputs, noise, period=period)
    np.testing.assert_array_equal(last.step, STEPS)
    for first, after in zip(slow_values(state), slow_values(states), strict=True):
        values = np.concatenate([np.asarray(first)[None], after])
        for n in range(STEPS):
            same = values[n].tobytes() == values[n + 1].tobytes()
            assert same == (n % period != 0)


@pytest.mark.parametrize("memory", [False, True])
def test_between_boundaries_the_slow_core_has_no_effect_on_the_memory_or_the_output(helpers, jax, memory):
    core = make_rpth(helpers, memory=memory)
    inputs, noise = inputs_and_noise()
    _, _, state = helpers.unroll(core, core.initial_state(BATCH), inputs[:1], noise[:1])
    broken_unit = jax.tree.map(lambda leaf: leaf * np.nan, core.slow[0])
    broken = helpers.eqx.tree_at(lambda c: c.slow, core, (broken_unit,))
    results = [helpers.unroll(each, state, inputs[1:2], noise[1:2]) for each in (core, broken)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results[1]))


def test_each_element_of_a_batch_has_its_own_counter(helpers, jax):
    core = make_rpth(helpers, memory=True)
    inputs, noise = inputs_and_noise()
    counters = np.array([0, 1, 5], np.int32)
    state = core.initial_state(BATCH)._replace(step=counters)
    outputs, _, last = helpers.unroll(core, state, inputs, noise)
    np.testing.assert_array_equal(last.step, counters + STEPS)
    for element in range(BATCH):
        one = slice(element, element + 1)
        own = jax.tree.map(lambda leaf, one=one: leaf[one], state)
        expected, _, _ = helpers.unroll(core, own, inputs[:, one], noise[:, one])
        jax.tree.map(
            lambda a, b, one=one: np.testing.assert_allclose(a[:, one], b, rtol=1e-5, atol=1e-6), outputs, expected
        )


@pytest.mark.parametrize("memory", [False, True])
def test_an_unroll_equals_unrolls_of_its_parts(helpers, jax, memory):
    core = make_rpth(helpers, memory=memory)
    inputs, noise = inputs_and_noise()
    outputs, _, last = helpers.unroll(core, core.initial_state(BATCH), inputs, noise)
    parts, state = [], core.initial_state(BATCH)
    for n in range(STEPS):  # steps, not halves: unrolls of one step are compiled for other tests, too
        part, _, state = helpers.unroll(core, state, inputs[n : n + 1], noise[n : n + 1])
        parts.append(part)
    joined = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, (joined, state), (outputs, last))


def test_the_gradient_scale_multiplies_what_one_step_passes_from_the_fast_to_the_slow_core(helpers, jax):
    core = make_rpth(helpers)
    (x,), (noise,) = inputs_and_noise(steps=1)
    state = core.initial_state(BATCH)
    state = state._replace(core_state=jax.tree.map(lambda leaf: leaf + 0.5, state.core_state))

    @jax.jit
    def loss(core, scale):
        output, _ = core(x, state, noise, period=np.int32(PERIOD), gradient_scale=scale)
        return (output.z**2).sum(), output

    (_, output_0), gradient_0 = jax.value_and_grad(loss, has_aux=True)(core, 0.0)
    (_, output_1), gradient_1 = jax.value_and_grad(loss, has_aux=True)(core, 1.0)
    (_, _), gradient_half = jax.value_and_grad(loss, has_aux=True)(core, 0.5)
    jax.tree.map(np.testing.assert_array_equal, output_0, output_1)
    jax.tree.map(np.testing.assert_array_equal, gradient_0.fast, gradient_1.fast)
    slow_0, slow_half, slow_1 = (jax.tree.leaves(each.slow) for each in (gradient_0, gradient_half, gradient_1))
    assert all((leaf == 0).all() for leaf in slow_0)
    assert all(np.abs(leaf).max() > 1e-6 for leaf in slow_1)
    for half, one in zip(slow_half, slow_1, strict=True):
        np.testing.assert_allclose(2 * half, one, rtol=1e-5, atol=1e-8)


def test_the_gradient_scale_leaves_the_gradient_of_the_prior_alone(helpers, jax):
    core = make_rpth(helpers)
    (x,), (noise,) = inputs_and_noise(steps=1)

    def loss(core, scale):
        output, _ = core(x, core.initial_state(BATCH), noise, period=np.int32(PERIOD), gradient_scale=scale)
        return (output.distribution_params[0].loc ** 2).sum()

    gradients = [jax.jit(jax.grad(loss))(core, scale) for scale in (0.0, 1.0)]
    jax.tree.map(np.testing.assert_array_equal, *gradients)
    assert np.abs(gradients[0].slow[0].head.mean.weight).max() > 0


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.usefixtures("float64")
def test_several_slow_cores_match_the_reference(helpers, memory):
    rng = np.random.default_rng(0)
    dims = {"hidden": 3, "num_dimensions": 2, "input": 4}
    if memory:
        dims |= {"memory_size": 4, "word_size": 2, "num_reads": 2, "num_writes": 1}
    names, periods = ("slowest", "slower"), {"slowest": 4, "slower": 2}
    fixture = {"dims": dims, "params": ftw_network_fixtures.rpth_params(rng, dims, names)}
    inputs, noise = ftw_network_fixtures.rpth_inputs(rng, dims, 7, 1)
    history = ftw_network_reference.rpth(fixture["params"], dims, inputs[:, 0], noise[:, 0], periods=periods)
    # The periods are sorted in descending order, unless the caller wants another order.
    for strict, given in [(True, [2, 4])] if memory else [(True, [2, 4]), (False, [4, 2])]:
        core = helpers.rpth(fixture, names, strict_period_order=strict)
        outputs, _, last = helpers.unroll(
            core, core.initial_state(1, np.float64), inputs, noise, period=np.array(given)
        )
        expected_z = [step["z"] for step in history]
        np.testing.assert_allclose(outputs.z[:, 0], expected_z, **TOLERANCE)
        for name, params in zip([*names, "fast"], outputs.distribution_params, strict=True):
            np.testing.assert_allclose(params.loc[:, 0], [step[name]["loc"] for step in history], **TOLERANCE)
            np.testing.assert_allclose(params.scale[:, 0], [step[name]["scale"] for step in history], **TOLERANCE)
        assert len(last.output.distribution_params) == len(names)


def test_clipping_bounds_the_controllers_and_the_projection(helpers, jax):
    core = make_rpth(helpers, memory=True, dnc_clip_value=0.01)
    inputs, noise = inputs_and_noise()
    _, states, _ = helpers.unroll(core, core.initial_state(BATCH), inputs, noise)
    controllers = jax.tree.leaves(states.core_state.controller_state)
    assert all(np.abs(leaf).max() <= np.float32(0.01) for leaf in controllers)
    assert any(np.abs(leaf).max() == np.float32(0.01) for leaf in controllers)
    # Without the clipping of the projection, the mean would be farther from its bias.
    (prior,) = states.output.distribution_params
    mean = core.slow[0].head.mean
    assert np.abs(prior.loc - mean.bias).max() <= 0.01 * np.abs(mean.weight).sum(0).max() + 1e-6
    free = make_rpth(helpers, memory=True)
    _, states, _ = helpers.unroll(free, free.initial_state(BATCH), inputs, noise)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(states.core_state.controller_state)) > 0.1


def test_without_projection_the_heads_receive_the_words_read(helpers):
    core = make_rpth(helpers, memory=True, use_dnc_linear_projection=False)
    reads = core.memory.num_reads * core.memory.word_size
    assert [unit.projection for unit in (*core.slow, core.fast)] == [None, None]
    assert core.fast.head.mean.weight.shape == (HIDDEN + reads, DIMENSIONS)
    inputs, noise = inputs_and_noise(steps=2)
    outputs, states, _ = helpers.unroll(core, core.initial_state(BATCH), inputs, noise)
    features = np.concatenate(
        [states.core_state.controller_state[1].hidden, np.reshape(states.core_state.access_output[1], (2, BATCH, -1))],
        axis=-1,
    )
    expected = features @ core.fast.head.mean.weight + core.fast.head.mean.bias
    np.testing.assert_allclose(outputs.distribution_params[-1].loc, expected, rtol=1e-5, atol=1e-6)


def test_the_period_must_fit_the_number_of_slow_cores(helpers):
    core = make_rpth(helpers, num_slow_cores=2)
    (x,), (noise,) = inputs_and_noise(steps=1)
    for period, shape in [(np.int32(3), r"\(\)"), (np.ones(3, np.int32), r"\(3,\)")]:
        text = rf"^`period` must have one value per slow core; got shape {shape}, expected \(2,\)$"
        with pytest.raises(InvalidArgumentError, match=text):
            core(x, core.initial_state(BATCH), noise, period=period, gradient_scale=1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_slow_cores": 0}, "`num_slow_cores` must be at least 1; got 0"),
        ({"num_dimensions": 2.5}, "`num_dimensions` must be an integer; got 2.5 (float)"),
        ({"dnc_clip_value": 0.0}, "`dnc_clip_value` must be greater than 0; got 0"),
        ({"use_dnc_linear_projection": 1}, "`use_dnc_linear_projection` must be True or False; got 1 (int)"),
        ({"strict_period_order": None}, "`strict_period_order` must be True or False; got None"),
    ],
)
def test_wrong_options_are_rejected(helpers, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        helpers.networks.RPTH(IN_SIZE, HIDDEN, **({"num_dimensions": 2} | options), key=helpers.KEY)
