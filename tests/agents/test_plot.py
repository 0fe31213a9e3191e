"""The plot of returns."""

import io

import numpy as np
import pytest

pytestmark = pytest.mark.jax


@pytest.mark.parametrize("num_seeds", [1, 5, 8])
def test_the_legend_covers_no_data(num_seeds):
    from engram.agents import dqn  # noqa: PLC0415 - an extra, not needed to collect the tests
    from engram.agents.dqn.plot import draw_returns  # noqa: PLC0415

    results = [
        dqn.Result(
            config=dqn.DQNConfig(seed=seed, solved_return=475.0),
            stopped="solved",
            steps=123_456,
            learner_steps=1,
            returns=np.linspace(9, 500, 60 + seed).tolist(),
            episode_ends=list(range(60 + seed)),
            seconds=1.0,
            table=None,
            params=None,
        )
        for seed in range(num_seeds)
    ]
    figure = draw_returns(results)
    figure.savefig(io.BytesIO())
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_legend() is None
    assert len(legend.get_texts()) == num_seeds
    area = legend.get_window_extent()
    assert not area.overlaps(axes.get_window_extent())
    assert not area.overlaps(axes.xaxis.get_label().get_window_extent())
    (left, bottom), (right, top) = area.min, area.max
    assert 0 <= left < right <= 1600
    assert 0 <= bottom < top <= 800
