"""RMSProp, clipping, and the learning rate's decay."""

import numpy as np
import pytest
from helpers.ftw_fixtures import TOLERANCE, arrays, load

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("jax64")]

SETTINGS = {"learning_rate": 1e-3, "epsilon": 1e-5}


@pytest.fixture
def optimizer():
    from engram.agents.ftw import optimizer  # noqa: PLC0415, an extra, not needed to collect the tests

    return optimizer


@pytest.fixture
def update(optimizer, jax64):
    """The compiled update; its settings are traced."""
    return jax64.jit(optimizer.update)


def test_parameters_of_the_fixture(optimizer, update):
    fixture = arrays(load("optimizer"))
    for epsilon, expected in ((fixture["eps"], "expected"), (0.01, "expected_eps_001")):
        params = fixture["params"]
        state = optimizer.init(params)
        for grads, after in zip(fixture["grads"], fixture[expected], strict=True):
            updates, state, _ = update(
                grads, state, learning_rate=fixture["lr"], epsilon=epsilon, decay=fixture["decay"]
            )
            params = params + updates
            np.testing.assert_allclose(params, after, **TOLERANCE)


def test_schedule_of_the_fixture(optimizer):
    schedule = load("optimizer")["lr_schedule"]
    for decay_steps, expected in ((schedule["decay_steps"], "expected"), (0, "no_decay"), (-3, "no_decay")):
        rates = [float(optimizer.decayed(schedule["lr"], step, decay_steps)) for step in range(len(schedule[expected]))]
        np.testing.assert_allclose(rates, schedule[expected], **TOLERANCE)


def test_clipping_of_the_fixture(optimizer):
    clip = load("optimizer")["clip"]
    grads = [np.array(grad) for grad in clip["grads"]]
    for max_norm, expected in (("max_norm", "expected"), ("unchanged_max_norm", "unchanged")):
        clipped, norm = optimizer.clip_by_global_norm(grads, clip[max_norm])
        np.testing.assert_allclose(norm, clip["global_norm"], **TOLERANCE)
        for array, values in zip(clipped, clip[expected], strict=True):
            np.testing.assert_allclose(array, np.array(values), **TOLERANCE)


def test_the_norm_after_clipping_is_at_most_the_maximum(optimizer):
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e3):
        grads = {"a": scale * rng.normal(size=(3, 2)), "b": scale * rng.normal(size=4)}
        clipped, norm = optimizer.clip_by_global_norm(grads, 1.0)
        np.testing.assert_allclose(optimizer.clip_by_global_norm(clipped, 1.0)[1], min(norm, 1.0), rtol=1e-12)
        unclipped, _ = optimizer.clip_by_global_norm(grads, float("inf"))
        np.testing.assert_array_equal(unclipped["a"], grads["a"])
    zeros, _ = optimizer.clip_by_global_norm(np.zeros(3), 0.0)
    np.testing.assert_array_equal(zeros, 0)


def test_the_update_clips(optimizer, update):
    grads = np.array([3.0, 4.0])
    clipped, _, norm = update(grads, optimizer.init(grads), max_gradient_norm=1e-6, **SETTINGS)
    expected, _, _ = update(grads / 5e6, optimizer.init(grads), **SETTINGS)
    np.testing.assert_allclose(clipped, expected, rtol=1e-9)
    assert norm == 5


def test_the_first_update_of_large_gradients_is_ten_learning_rates(optimizer, update):
    grads = np.array([100.0, -100.0])
    updates, _, _ = update(grads, optimizer.init(grads), **SETTINGS)
    np.testing.assert_allclose(updates, [-10e-3, 10e-3], rtol=1e-6)


def test_parameters_stay_after_the_last_step_of_the_decay(optimizer, update):
    grads, decay_steps = np.ones(2), 3
    state = optimizer.init(grads)
    sizes = []
    for _ in range(6):
        updates, state, _ = update(grads, state, decay_steps=decay_steps, **SETTINGS)
        sizes.append(float(np.abs(updates).max()))
    assert all(size > 0 for size in sizes[:decay_steps])
    assert sizes[decay_steps:] == [0, 0, 0]
    assert state.step == 6


def test_new_settings_apply_to_the_next_update_without_compiling_again(optimizer, jax64):
    traces = []

    @jax64.jit
    def update(grads, state, settings):
        traces.append(settings)
        return optimizer.update(grads, state, **settings)

    grads = np.ones(2)
    state = optimizer.init(grads)
    settings = {**SETTINGS, "max_gradient_norm": 1e10, "decay_steps": 0, "decay": 0.99}
    before, _, _ = update(grads, state, settings)
    after, _, _ = update(grads, state, {**settings, "learning_rate": 3e-3})
    np.testing.assert_allclose(after, 3 * before, rtol=1e-12)
    changed = {"learning_rate": 1e-2, "epsilon": 0.1, "max_gradient_norm": 0.5, "decay_steps": 7, "decay": 0.9}
    update(grads, state, changed)
    assert len(traces) == 1


def test_the_dtype_of_the_parameters_is_kept(optimizer, jax64):
    with jax64.enable_x64(False):  # noqa: FBT003, JAX's signature
        params = np.ones(3, np.float32)
        updates, state, _ = optimizer.update(params, optimizer.init(params), **SETTINGS)
        assert updates.dtype == np.float32
        assert jax64.tree.leaves(state.mean_square)[0].dtype == np.float32
