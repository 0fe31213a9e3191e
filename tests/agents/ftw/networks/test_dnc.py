"""The memory of a DNC, and the DNC itself."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.jax

BATCH, IN_SIZE, HIDDEN, OUT_SIZE = 3, 3, 5, 2


@pytest.fixture
def access(helpers):
    return helpers.with_normal_leaves(helpers.shapes_of(helpers.networks.MemoryAccess, HIDDEN, 6, 4, 2, 2))


def with_interface_bias(helpers, access, name, value):
    """Returns the access with a constant raw value of one field of its interface."""
    start = 0
    for field, shape in access.interface_shapes().items():
        size = int(np.prod(shape))
        if field == name:
            columns = slice(start, start + size)
        start += size
    weight = access.interface.weight.at[:, columns].set(0)
    bias = access.interface.bias.at[columns].set(value)
    return helpers.eqx.tree_at(lambda a: (a.interface.weight, a.interface.bias), access, (weight, bias))


def run(jax, access, steps=5):
    """Steps an access from its initial state on random inputs; returns the states after each step."""
    inputs = np.random.default_rng(0).normal(size=(steps, BATCH, HIDDEN)).astype(np.float32)

    def step(state, x):
        reads, state = access(x, state)
        return state, (reads, state)

    return jax.jit(lambda state: jax.lax.scan(step, state, inputs)[1])(access.initial_state(BATCH))


def test_weights_sum_to_at_most_one(jax, access):
    _, states = run(jax, access)
    for w in (states.write_weights, states.read_weights):
        assert (w >= 0).all()
        assert w.sum(-1).max() <= 1 + 1e-5
    assert ((states.usage >= 0) & (states.usage <= 1)).all()


def test_a_closed_write_gate_changes_neither_the_memory_nor_the_links(helpers, jax, access):
    closed = with_interface_bias(helpers, access, "write_gates", -1e4)
    _, before = run(jax, access)
    state = jax.tree.map(lambda leaf: leaf[-1], before)
    _, after = helpers.eqx.filter_jit(closed)(np.ones((BATCH, HIDDEN), np.float32), state)
    np.testing.assert_array_equal(after.write_weights, 0)
    np.testing.assert_array_equal(after.memory, state.memory)
    np.testing.assert_array_equal(after.linkage.link, state.linkage.link)
    np.testing.assert_array_equal(after.linkage.precedence_weights, state.linkage.precedence_weights)


def test_a_full_write_replaces_the_word(helpers):
    written_memory = helpers.networks.dnc.memory_access.written_memory
    rng = np.random.default_rng(0)
    memory, word = rng.normal(size=(1, 6, 4)).astype(np.float32), rng.normal(size=(1, 1, 4)).astype(np.float32)
    weights = np.eye(6, dtype=np.float32)[None, 2:3]
    expected = memory.copy()
    expected[:, 2] = word[:, 0]
    np.testing.assert_array_equal(written_memory(memory, weights, np.ones_like(word), word), expected)


def test_elements_of_a_batch_do_not_depend_on_their_order(helpers, jax, access):
    order = np.array([2, 0, 1])
    rng = np.random.default_rng(1)
    _, states = run(jax, access)
    state = jax.tree.map(lambda leaf: leaf[-1], states)
    x = rng.normal(size=(BATCH, HIDDEN)).astype(np.float32)
    step = helpers.eqx.filter_jit(access)
    expected = jax.tree.map(lambda leaf: leaf[order], step(x, state))
    actual = step(x[order], jax.tree.map(lambda leaf: leaf[order], state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


def test_the_state_has_the_dtype_that_the_caller_asks_for(jax, access):
    assert {leaf.dtype for leaf in jax.tree.leaves(access.initial_state(BATCH))} == {np.dtype(np.float32)}
    assert {leaf.dtype for leaf in jax.tree.leaves(run(jax, access))} == {np.dtype(np.float32)}


def test_a_dnc_is_a_controller_and_a_memory(helpers):
    sizes = {"memory_size": 6, "word_size": 4, "num_reads": 2}
    dnc = helpers.with_normal_leaves(helpers.shapes_of(helpers.networks.DNC, IN_SIZE, HIDDEN, OUT_SIZE, **sizes))
    x = np.random.default_rng(0).normal(size=(BATCH, IN_SIZE)).astype(np.float32)
    state = dnc.initial_state(BATCH)._replace(access_output=np.full((BATCH, 2, 4), 0.5, np.float32))
    output, after = helpers.eqx.filter_jit(dnc)(x, state)
    lstm = dnc.controller(np.concatenate([x, np.full((BATCH, 8), 0.5, np.float32)], axis=-1), state.controller_state)
    np.testing.assert_allclose(after.controller_state.hidden, lstm.hidden, rtol=1e-5, atol=1e-6)
    features = np.concatenate([lstm.hidden, np.reshape(after.access_output, (BATCH, -1))], axis=-1)
    expected = features @ dnc.output.weight + dnc.output.bias
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_clipping_bounds_the_controller_and_the_output(helpers):
    sizes = {"memory_size": 6, "word_size": 4, "clip_value": 0.02}
    dnc = helpers.with_normal_leaves(helpers.shapes_of(helpers.networks.DNC, IN_SIZE, HIDDEN, OUT_SIZE, **sizes))
    output, state = helpers.eqx.filter_jit(dnc)(np.full((BATCH, IN_SIZE), 3, np.float32), dnc.initial_state(BATCH))
    for values in (output, *state.controller_state):
        np.testing.assert_array_equal(np.abs(values).max(), np.float32(0.02))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory_size": 0}, "`memory_size` must be at least 1; got 0"),
        ({"word_size": 2.0}, "`word_size` must be an integer; got 2.0 (float)"),
        ({"num_reads": True}, "`num_reads` must be an integer; got True (bool)"),
        ({"num_writes": -1}, "`num_writes` must be at least 1; got -1"),
        ({"clip_value": -1}, "`clip_value` must be greater than 0; got -1"),
    ],
)
def test_wrong_options_are_rejected(helpers, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        helpers.networks.DNC(IN_SIZE, HIDDEN, OUT_SIZE, **options, key=helpers.KEY)
