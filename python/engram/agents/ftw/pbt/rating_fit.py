"""Ratings that maximise the likelihood of the outcomes of games, for evaluation."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.agents.ftw.pbt.ratings import INITIAL_RATING, SCALE
from engram.errors import InvalidArgumentError

_MAX_ITERATIONS: Final = 100
_TOLERANCE: Final = 1e-6  # rating points


class RatingFit(NamedTuple):
    """Fitted ratings.

    Attributes:
        ratings: f64 `[N]`.
        low: f64 `[N]`, lower end of the bootstrap's 95 % interval; equal to `ratings` without a bootstrap.
        high: f64 `[N]`, its upper end.
    """

    ratings: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def fit_ratings(
    blue: npt.ArrayLike,
    red: npt.ArrayLike,
    scores: npt.ArrayLike,
    num_players: int,
    *,
    anchor: int = 0,
    prior_deviation: float = 4000.0,
    num_bootstraps: int = 0,
    rng: np.random.Generator | None = None,
) -> RatingFit:
    """Fits ratings to games, in the model where a team's rating is the sum of its members' ratings.

    Maximises `sum log P(score) - sum ((rating - 1000) / prior_deviation)^2 / 2` with Newton's method. The second term
    is a weak prior, without which the rating of a player who has won all games would be infinite.

    Args:
        blue: int `[G, members]`, the players of team 1 in each game.
        red: int `[G, members]`, those of team 2.
        scores: `[G]`, the score of blue: 1 for a win, 0.5 for a draw, 0 for a loss.
        num_players: N; players are 0 ... N - 1.
        anchor: Player whose rating is fixed at 1000.
        prior_deviation: Standard deviation of the prior, in rating points.
        num_bootstraps: Number of times that the games are drawn again with replacement, for the intervals.
        rng: Generator of the bootstrap.

    Raises:
        InvalidArgumentError: The arrays do not match, or a score or player is out of range.
    """
    blue, red, scores = np.asarray(blue), np.asarray(red), np.asarray(scores, np.float64)
    _check_games(blue, red, scores, num_players, anchor)
    games = _membership(blue, num_players) - _membership(red, num_players)
    free = np.delete(np.arange(num_players), anchor)
    # The unknowns are the ratings of all but the anchor, as (rating - INITIAL_RATING) / SCALE. The offset is what the
    # initial rating of each player contributes: 0 for teams of equal size.
    design, offset = games[:, free], INITIAL_RATING / SCALE * games.sum(1)
    precision = (SCALE / prior_deviation) ** 2

    def fit(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        ratings = np.full(num_players, INITIAL_RATING)
        ratings[free] += SCALE * _newton(design, offset, scores, counts, precision)
        return ratings

    ratings = fit(np.ones(len(scores)))
    if not num_bootstraps:
        return RatingFit(ratings, ratings, ratings)
    rng = np.random.default_rng() if rng is None else rng
    uniform = np.full(len(scores), 1 / len(scores))
    refits = [fit(rng.multinomial(len(scores), uniform).astype(np.float64)) for _ in range(num_bootstraps)]
    low, high = np.quantile(refits, [0.025, 0.975], axis=0)
    return RatingFit(ratings, low, high)


def _newton(
    design: npt.NDArray[np.float64],
    offset: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
    precision: float,
) -> npt.NDArray[np.float64]:
    """Returns where the concave objective is largest. A step that decreases it is halved."""

    def objective(x: npt.NDArray[np.float64]) -> float:
        logits = offset + design @ x
        return float(counts @ (scores * logits - np.logaddexp(0, logits)) - precision * x @ x / 2)

    x = np.zeros(design.shape[1])
    value = objective(x)
    for _ in range(_MAX_ITERATIONS):
        p = np.exp(-np.logaddexp(0, -(offset + design @ x)))
        gradient = design.T @ (counts * (scores - p)) - precision * x
        hessian = (design.T * (counts * p * (1 - p))) @ design + precision * np.eye(len(x))
        step = np.linalg.solve(hessian, gradient)
        while (after := objective(x + step)) < value and np.abs(step).max(initial=0) * SCALE > _TOLERANCE:
            step /= 2
        x, value = x + step, after
        if np.abs(step).max(initial=0) * SCALE <= _TOLERANCE:
            break
    return x


def _membership(teams: npt.NDArray[np.int64], num_players: int) -> npt.NDArray[np.float64]:
    """Returns how often each player is in each team, f64 `[G, N]`."""
    counts = np.zeros((len(teams), num_players))
    np.add.at(counts, (np.arange(len(teams))[:, None], teams), 1)
    return counts


def _check_games(
    blue: npt.NDArray[np.int64],
    red: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
    num_players: int,
    anchor: int,
) -> None:
    if blue.ndim != 2 or red.ndim != 2 or not len(blue) == len(red) == len(scores) > 0:  # noqa: PLR2004, the axes
        raise InvalidArgumentError(
            "`blue`, `red` and `scores` must have the shapes [G, members], [G, members] and [G], with at least one"
            f" game; got {blue.shape}, {red.shape} and {scores.shape}"
        )
    players = np.concatenate([blue.ravel(), red.ravel(), [anchor]])
    if players.min() < 0 or players.max() >= num_players:
        raise InvalidArgumentError(
            f"`blue`, `red` and `anchor`: players must be from 0 to {num_players - 1}; got {players.min()} to"
            f" {players.max()}"
        )
    if not np.isin(scores, [0, 0.5, 1]).all():
        raise InvalidArgumentError("`scores` must be 0, 0.5 or 1; got other numbers")
