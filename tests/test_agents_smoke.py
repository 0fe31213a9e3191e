"""The agents run: the smoke test of `make test`. Their own tests are run by `make test-agents`."""

import numpy as np
import pytest

pytestmark = pytest.mark.jax


def test_the_dqn_trains():
    from engram.agents import dqn  # noqa: PLC0415, an extra, not needed to collect the tests

    config = dqn.DQNConfig(max_steps=200, min_replay_size=64, batch_size=32, hidden_sizes=(16,), n_step=3)
    result = dqn.train(config, lambda _: None)
    assert (result.stopped, result.steps) == ("budget", 200)
    assert result.table.samples == result.learner_steps * 32 > 0
    assert all(np.isfinite(layer.weight).all() for layer in result.params)


def test_the_network_of_ftw_acts():
    import jax  # noqa: PLC0415, as above
    from helpers import ftw_agent  # noqa: PLC0415, as above

    from engram.agents.ftw.agent_networks import make_networks  # noqa: PLC0415, as above
    from engram.agents.ftw.networks import OAR  # noqa: PLC0415, as above

    networks = make_networks(
        ftw_agent.network_config("lstm"),
        ftw_agent.replay_config(use_pixel_control=False, use_reward_prediction=False),
        observation_shape=ftw_agent.FRAME,
        num_actions=3,
        key=jax.random.key(0),
    )
    oar = OAR(np.zeros((1, 2, *ftw_agent.FRAME), np.uint8), np.zeros((1, 2), np.int32), np.zeros((1, 2, 1), np.float32))
    noise = networks.policy.sample_noise(jax.random.key(1), (1, 2))
    state = networks.policy.initial_state(2)
    unroll = jax.jit(lambda oar: networks.unroll(oar, state, noise, ftw_agent.HYPERS).logits)
    assert unroll(oar).shape == (1, 2, 3)
    assert np.isfinite(unroll(oar)).all()
