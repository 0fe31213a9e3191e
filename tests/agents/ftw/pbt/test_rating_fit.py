"""Ratings fitted to games."""

import numpy as np
import pytest
from helpers.support import raises
from scipy.optimize import minimize

from engram.agents.ftw.pbt import fit_ratings, team_win_probability, update_ratings
from engram.errors import InvalidArgumentError

RATINGS = np.array([1000.0, 1100.0, 870.0, 1300.0, 950.0, 1040.0])


def simulated_games(number, team_size, rng):
    """Returns the players of both teams and the scores of blue."""
    teams = np.array([rng.permutation(len(RATINGS))[: 2 * team_size] for _ in range(number)])
    blue, red = teams[:, :team_size], teams[:, team_size:]
    scores = (rng.random(number) < team_win_probability(RATINGS[blue], RATINGS[red])).astype(float)
    return blue, red, scores


@pytest.mark.parametrize("team_size", [1, 2, 3])
def test_true_ratings_are_recovered(team_size):
    games = simulated_games(10_000, team_size, np.random.default_rng(team_size))
    fitted = fit_ratings(*games, len(RATINGS)).ratings
    assert fitted[0] == 1000
    assert np.abs(fitted - RATINGS).max() < 25


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2)])
@pytest.mark.parametrize("prior_deviation", [4000.0, 100.0])
def test_the_fit_maximises_the_posterior_density(sizes, prior_deviation):
    """Also for teams of different sizes, where the sum of the ratings matters."""
    rng = np.random.default_rng(0)
    truth = np.array([1000.0, 1060.0, 930.0, 980.0, 1010.0]) * (1 if sizes[0] == sizes[1] else [1, 0.5, 0.5, 0.5, 0.5])
    teams = np.array([0, *rng.permutation(np.arange(1, 5))])[None].repeat(300, 0)
    teams[:, 1:] = rng.permuted(teams[:, 1:], axis=1)
    blue, red = teams[:, : sizes[0]], teams[:, sizes[0] : sum(sizes)]
    scores = (rng.random(300) < team_win_probability(truth[blue], truth[red])).astype(float)
    scores[::5] = 0.5

    def loss(free):
        ratings = np.concatenate([[1000.0], 1000 + free])
        p = team_win_probability(ratings[blue], ratings[red])
        likelihood = np.sum(scores * np.log(p) + (1 - scores) * np.log(1 - p))
        return np.sum((free / prior_deviation) ** 2) / 2 - likelihood

    best = minimize(loss, np.full(4, truth[1:].mean() - 1000), method="BFGS", options={"gtol": 1e-7})
    fitted = fit_ratings(blue, red, scores, 5, prior_deviation=prior_deviation).ratings
    np.testing.assert_allclose(fitted[1:], 1000 + best.x, atol=0.1)


def test_the_anchor_may_be_any_player():
    games = simulated_games(2000, 1, np.random.default_rng(0))
    first, third = (fit_ratings(*games, len(RATINGS), anchor=anchor, prior_deviation=1e9) for anchor in (0, 2))
    assert third.ratings[2] == 1000
    np.testing.assert_allclose(np.diff(first.ratings), np.diff(third.ratings), atol=0.01)


def test_a_player_who_won_all_games_has_a_finite_rating():
    fitted = fit_ratings([[1]] * 10, [[0]] * 10, [1] * 10, 2).ratings
    assert 1500 < fitted[1] < 10_000


def test_a_player_without_games_has_the_initial_rating():
    assert fit_ratings([[1]], [[0]], [1], 3).ratings[2] == 1000


def test_intervals_contain_the_true_ratings():
    games = simulated_games(1000, 1, np.random.default_rng(1))
    fit = fit_ratings(*games, len(RATINGS), num_bootstraps=100, rng=np.random.default_rng(0))
    assert (fit.low <= fit.ratings).all()
    assert (fit.ratings <= fit.high).all()
    assert ((fit.low <= RATINGS) & (fit.high >= RATINGS)).mean() > 0.8
    assert fit.low[0] == fit.high[0] == 1000
    assert 20 < (fit.high - fit.low)[1:].mean() < 200


def test_updates_after_each_game_agree_with_the_fit():
    rng = np.random.default_rng(0)
    blue, red, scores = simulated_games(10_000, 1, rng)
    ratings = np.full(len(RATINGS), 1000.0)
    for one, other, score in zip(blue, red, scores, strict=True):
        ratings[one], ratings[other] = update_ratings(ratings[one], ratings[other], 1 - score, k=4)
    fitted = fit_ratings(blue, red, scores, len(RATINGS)).ratings
    assert np.abs((ratings - ratings[0]) - (fitted - fitted[0])).max() < 60


def test_games_are_checked():
    with raises(
        InvalidArgumentError,
        "`blue`, `red` and `scores` must have the shapes [G, members], [G, members] and [G], with at least one "
        "game; got (1, 1), (2, 1) and"
        " (1,)",
    ):
        fit_ratings([[0]], [[1], [1]], [1], 2)
    with raises(InvalidArgumentError, "`blue`, `red` and `anchor`: players must be from 0 to 1; got 0 to 2"):
        fit_ratings([[0]], [[2]], [1], 2)
    with raises(InvalidArgumentError, "`scores` must be 0, 0.5 or 1; got other numbers"):
        fit_ratings([[0]], [[1]], [0.7], 2)
