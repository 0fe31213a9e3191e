"""FTW's losses equal those of rlax, a second reference. `make frameworks` has an environment with it."""

import numpy as np
import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.jax]

rlax = pytest.importorskip("rlax")

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(autouse=True)
def float64():
    from jax.experimental import enable_x64  # noqa: PLC0415, an extra, not needed to collect the tests

    with enable_x64():
        yield


def test_vtrace_is_that_of_rlax():
    from engram.agents.ftw.losses.vtrace import vtrace  # noqa: PLC0415, as above

    rng = np.random.default_rng(0)
    log_rhos, rewards = rng.normal(size=(2, 6, 3))
    discounts, values = 0.9 * rng.integers(2, size=(6, 3)), rng.normal(size=(7, 3))
    result = vtrace(log_rhos, rewards, discounts, values)
    for b in range(3):
        expected = rlax.vtrace_td_error_and_advantage(
            values[:-1, b], values[1:, b], rewards[:, b], discounts[:, b], np.exp(log_rhos[:, b])
        )
        np.testing.assert_allclose(result.vs[:, b] - values[:-1, b], expected.errors, **TOLERANCE)
        np.testing.assert_allclose(result.pg_advantages[:, b], expected.pg_advantage, **TOLERANCE)


def test_pseudo_rewards_are_those_of_rlax():
    from engram.agents.ftw.losses.pixel_control import pseudo_rewards  # noqa: PLC0415, as above

    frames = np.random.default_rng(0).uniform(size=(2, 1, 84, 84, 3))
    expected = rlax.pixel_control_rewards(frames[:, 0, 2:82, 2:82], 4)
    np.testing.assert_allclose(pseudo_rewards(frames)[:, 0], expected, **TOLERANCE)
