"""Elo ratings and matchmaking."""

import numpy as np
from helpers.ftw_fixtures import TOLERANCE, arrays, load
from helpers.support import raises
from scipy import stats

from engram.agents.ftw.pbt import (
    opponent_probabilities,
    rating_gap,
    sample_match,
    team_win_probability,
    update_ratings,
    win_probability,
)
from engram.errors import InvalidArgumentError


def test_values_of_the_fixture():
    fixture = load("pbt")
    elos, team = np.array(fixture["elos"]), fixture["team"]
    np.testing.assert_allclose(win_probability(elos[:, None], elos), np.array(fixture["pairwise"]), **TOLERANCE)
    np.testing.assert_allclose(team_win_probability(team["blue"], team["red"]), team["p"], **TOLERANCE)
    for update in fixture["updates"]:
        blue, red = update_ratings(team["blue"], team["red"], 1 - update["y"], k=update["K"])
        np.testing.assert_allclose(blue, update["blue"], **TOLERANCE)
        np.testing.assert_allclose(red, update["red"], **TOLERANCE)
    np.testing.assert_allclose(rating_gap(0.7), fixture["elo_gap_for_70pct"], **TOLERANCE)
    np.testing.assert_allclose(win_probability(200, 0), fixture["p_at_200"], **TOLERANCE)
    for case in map(arrays, fixture["matchmaking"]):
        probabilities = opponent_probabilities(elos, case["anchor"], list(case["exclude"]))
        np.testing.assert_allclose(probabilities, case["probs"], **TOLERANCE)


def test_win_probabilities():
    ratings = np.random.default_rng(0).normal(1000, 200, 20)
    table = win_probability(ratings[:, None], ratings)
    np.testing.assert_allclose(table + table.T, 1, rtol=1e-12)
    assert win_probability(1000, 1000) == 0.5
    np.testing.assert_allclose(win_probability(1400, 1000), 10 / 11, rtol=1e-12)
    np.testing.assert_allclose(win_probability(1200, 1000), 0.7597, atol=1e-4)
    np.testing.assert_allclose(rating_gap(0.7), 147.19, atol=0.005)
    assert win_probability(1e6, -1e6) == 1  # no overflow
    assert win_probability(-1e6, 1e6) == 0


def test_updates_sum_to_zero():
    for outcome in (0, 0.5, 1):
        blue, red = update_ratings([1010.0, 900.0], [1200.0, 950.0], outcome)
        assert abs((blue.sum() + red.sum()) - (1010 + 900 + 1200 + 950)) < 1e-9
    won, _ = update_ratings([1000.0], [1000.0], 0)
    assert won == 1008
    blue, red = update_ratings([1000.0, 900.0], [950.0, 950.0], 0.5)
    np.testing.assert_array_equal([blue, red], [[1000, 900], [950, 950]])


def test_outcomes_are_checked():
    with raises(InvalidArgumentError, "`outcome` must be 0 (team 1 won), 0.5 (draw) or 1 (team 2 won); got 0.3"):
        update_ratings([1000], [1000], 0.3)
    with raises(InvalidArgumentError, "`probability` must be above 0 and below 1; got 1"):
        rating_gap(1)


def test_opponents_of_equal_strength_are_uniform():
    np.testing.assert_allclose(opponent_probabilities([1000.0] * 5, 2), [0.25, 0.25, 0, 0.25, 0.25], rtol=1e-12)


def test_opponents_above_and_below_are_equally_likely():
    probabilities = opponent_probabilities([1000.0, 1100.0, 900.0, 1000.0], 0)
    np.testing.assert_allclose(probabilities[1], probabilities[2], rtol=1e-12)
    assert probabilities[3] > probabilities[1]


def test_a_deviation_of_one_sixth_halves_the_exponent():
    probabilities = opponent_probabilities([1000.0, 1000.0, 1000 - rating_gap(0.5 + 1 / 6)], 0)
    np.testing.assert_allclose(probabilities[1] / probabilities[2], np.exp(0.5), rtol=1e-9)


def test_distant_ratings_are_no_problem():
    np.testing.assert_allclose(opponent_probabilities([0.0, 1e6, 2e6], 0), [0, 0.5, 0.5], rtol=1e-12)


def test_players_of_a_match_are_distinct_and_the_anchor_is_uniform():
    rng = np.random.default_rng(0)
    ratings = [800.0, 900.0, 1000.0, 1100.0, 1200.0]
    anchors = np.zeros(5)
    for _ in range(1000):
        first, second = sample_match(ratings, 2, rng)
        assert len({*first, *second}) == 4
        anchors[first[0]] += 1
    assert stats.chisquare(anchors).pvalue > 0.01


def test_opponents_are_drawn_with_their_probabilities():
    rng = np.random.default_rng(0)
    ratings = [800.0, 1000.0, 1100.0, 1500.0]
    counts = np.zeros((4, 4))
    for _ in range(4000):
        (anchor,), (opponent,) = sample_match(ratings, 1, rng)
        counts[anchor, opponent] += 1
    for anchor in range(4):
        expected = opponent_probabilities(ratings, anchor) * counts[anchor].sum()
        others = np.arange(4) != anchor
        assert stats.chisquare(counts[anchor, others], expected[others]).pvalue > 0.01


def test_the_anchor_may_be_in_team_2():
    same = [sample_match([1000.0] * 6, 2, np.random.default_rng(3), anchor_in_team_2=swap) for swap in (False, True)]
    assert same[0] == same[1][::-1]


def test_small_populations_are_rejected():
    with raises(InvalidArgumentError, "`ratings`: too few players; got 3, expected at least 4 for teams of 2"):
        sample_match([1000.0] * 3, 2, np.random.default_rng(0))
    with raises(InvalidArgumentError, "`exclude`: no player is left; got all of the 2 players"):
        opponent_probabilities([1000.0] * 2, 0, [1])
