"""The networks reproduce the fixtures, in float64, at the published sizes and at others."""

import numpy as np
import pytest
from helpers.ftw_fixtures import TOLERANCE, arrays

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("float64")]


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, **TOLERANCE, strict=True)


def test_the_torso_reproduces_its_fixture(load_fixture, helpers):
    fixture = load_fixture("torso")
    inputs = np.array(fixture["inputs"])
    for activate_last, key in [(False, "expected"), (True, "expected_activate_last")]:
        features = helpers.eqx.filter_jit(helpers.torso(fixture, activate_last=activate_last))(inputs)
        assert_close(features, np.array(fixture[key]))


def test_the_pixel_control_head_reproduces_its_fixture(load_fixture, helpers):
    fixture = load_fixture("pixel_control_head")
    shapes, seeds = fixture["shapes"], fixture["seeds"]
    params = {k: 0.1 * np.sin(0.7 * np.arange(np.prod(s)) + seeds[k]).reshape(s) for k, s in shapes.items()}
    inputs, expected = np.array(fixture["inputs"]), np.array(fixture["expected"])
    cells, actions = expected.shape[2:]
    options = {"num_cells": cells, "channels": len(params["deconv_b"])}
    head = helpers.shapes_of(helpers.networks.PixelControlHead, inputs.shape[-1], actions, **options)
    names = [f"{name}_{part}" for name in ("linear", "deconv", "value", "advantage") for part in "wb"]
    head = helpers.with_leaves(head, *(params[name] for name in names))
    q = helpers.eqx.filter_jit(head)(inputs)
    assert_close(q, expected)
    mean = np.array(fixture["mean_over_actions"])
    assert_close(np.asarray(q).mean(-1)[:, : mean.shape[1], : mean.shape[2]], mean)


@pytest.fixture
def addressing():
    from engram.agents.ftw.networks.dnc import addressing  # noqa: PLC0415 - an extra, not needed to collect the tests

    return addressing


def test_addressing_reproduces_its_fixture(load_fixture, addressing):
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    from engram.agents.ftw.networks.dnc import linkage as linkage_module  # noqa: PLC0415 - an extra, as well

    parts = {name: arrays(part) for name, part in load_fixture("dnc_addressing").items() if isinstance(part, dict)}
    content, allocation, write = parts["content"], parts["allocation"], parts["write_allocation"]
    strengths = jax.nn.softplus(content["strengths"])
    assert_close(
        jax.jit(addressing.content_weights)(content["memory"], content["keys"], strengths), content["expected"]
    )
    assert_close(addressing.allocation_weights(allocation["usage"]), allocation["expected"])
    assert_close(addressing.write_allocation_weights(write["usage"], write["gates"]), write["expected"])
    usage, linkage, directional = parts["usage"], parts["linkage"], parts["directional"]
    previous = [usage[key] for key in ("prev_usage", "write_weights", "free_gate", "read_weights")]
    assert_close(addressing.updated_usage(*previous), usage["expected"])
    state = linkage_module.TemporalLinkageState(linkage["link"], linkage["precedence"])
    state = linkage_module.updated_linkage(state, linkage["write_weights"])
    assert_close(state.link, linkage["expected_link"])
    assert_close(state.precedence_weights, linkage["expected_precedence"])
    forward, backward = linkage_module.directional_weights(directional["link"], directional["read_weights"])
    assert_close(forward, directional["forward"])
    assert_close(backward, directional["backward"])


def test_memory_access_reproduces_its_fixture(load_fixture, helpers):
    fixture = load_fixture("dnc_access")
    inputs = np.array(fixture["inputs"])
    access = helpers.access(fixture["params"], fixture["dims"], inputs.shape[-1])
    state = access.initial_state(inputs.shape[1], np.float64)
    state = state._replace(usage=np.array(fixture["initial_usage"]), memory=np.array(fixture["initial_memory"]))
    step = helpers.eqx.filter_jit(access)
    for x, expected in zip(inputs, map(arrays, fixture["steps"]), strict=True):
        reads, state = step(x, state)
        assert_close(reads, expected["reads"])
        for key in ("memory", "read_weights", "write_weights", "usage"):
            assert_close(getattr(state, key), expected[key])
        assert_close(state.linkage.link, expected["link"])
        assert_close(state.linkage.precedence_weights, expected["precedence"])


def unroll_fixture(helpers, fixture):
    """Returns the outputs, the states after each step and the last state, for the inputs of a fixture of RPTH."""
    core = helpers.rpth(fixture)
    inputs, noise = np.array(fixture["inputs"]), np.array(fixture["eps"])
    state = core.initial_state(inputs.shape[1], np.float64)
    if "initial_usage" in fixture:
        core_state = state.core_state
        access_state = core_state.access_state._replace(usage=np.array(fixture["initial_usage"]))
        state = state._replace(core_state=core_state._replace(access_state=access_state))
    outputs, states, last = helpers.unroll(core, state, inputs, noise, period=fixture["period"])
    expected = arrays(fixture["outputs"])
    prior, posterior = outputs.distribution_params
    assert_close(outputs.z, expected["z"])
    assert_close(prior.loc, expected["prior_loc"])
    assert_close(prior.scale, expected["prior_scale"])
    assert_close(posterior.loc, expected["post_loc"])
    assert_close(posterior.scale, expected["post_scale"])
    return states, last, expected


def test_rpth_with_lstm_cores_reproduces_its_fixture(load_fixture, helpers):
    fixture = load_fixture("rpth_lstm")
    states, last, outputs = unroll_fixture(helpers, fixture)
    h_slow, h_fast = states.core_state.hidden
    assert_close(h_slow, outputs["h_s"])
    assert_close(h_fast, outputs["h_f"])
    expected = arrays(fixture["final_state"])
    (prior,) = last.output.distribution_params
    names = {"h_s": last.core_state.hidden[0], "h_f": last.core_state.hidden[1], "c_s": last.core_state.cell[0]}
    names |= {"c_f": last.core_state.cell[1], "loc_s": prior.loc, "scale_s": prior.scale, "z": last.output.z}
    for name, value in names.items():
        assert_close(value, expected[name])
    np.testing.assert_array_equal(last.step, expected["step"])
    np.testing.assert_array_equal(last.step, len(fixture["inputs"]))


def test_rpth_with_a_shared_memory_reproduces_its_fixture(load_fixture, helpers):
    states, _, outputs = unroll_fixture(helpers, load_fixture("rpth_dnc"))
    reads_slow, reads_fast = states.core_state.access_output
    assert_close(reads_slow, outputs["r_s"])
    assert_close(reads_fast, outputs["r_f"])
    assert_close(states.core_state.access_state.usage, outputs["usage"])
