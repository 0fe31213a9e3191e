"""Elo ratings of agents; the rating of a team is the sum of its members' ratings."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.errors import InvalidArgumentError

INITIAL_RATING: Final = 1000.0
"""Rating of a new agent."""
SCALE: Final = 400 / np.log(10)
"""Rating points per unit of the logistic function: a team 400 points above another wins 10 of 11 games."""
K_FACTOR: Final = 16.0
"""Default of the largest change of a rating by one game."""


def win_probability(rating: npt.ArrayLike, opponent: npt.ArrayLike) -> Any:  # noqa: ANN401, a float or array
    """Returns the probability that a player beats an opponent, `1 / (1 + 10^((opponent - rating) / 400))`.

    Args:
        rating: Ratings `[...]`.
        opponent: Ratings that broadcast with `rating`.
    """
    difference = np.asarray(rating, np.float64) - np.asarray(opponent, np.float64)
    return np.exp(-np.logaddexp(0, -difference / SCALE))  # the logistic function, without overflow


def team_win_probability(blue: npt.ArrayLike, red: npt.ArrayLike) -> Any:  # noqa: ANN401, a float or array
    """Returns the probability that team blue wins, `[...]`, given the members' ratings, `[..., members]`."""
    return win_probability(np.sum(blue, -1), np.sum(red, -1))


def rating_gap(probability: float) -> float:
    """Returns by how many points a player who wins with this probability is above the opponent."""
    if not 0 < probability < 1:
        raise InvalidArgumentError(f"`probability` must be above 0 and below 1; got {probability}")
    return float(SCALE * np.log(probability / (1 - probability)))


def update_ratings(
    blue: npt.ArrayLike, red: npt.ArrayLike, outcome: float, *, k: float = K_FACTOR
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the ratings of both teams' members after a game.

    With `d = k (score of blue - win probability of blue)`, each member of blue gains `d`, and each of red loses it.

    Args:
        blue: f64 `[members]`, ratings of team 1.
        red: f64 `[members]`, ratings of team 2.
        outcome: 0 if blue won, 1 if red won, 0.5 for a draw, as `get_outcome` of an environment returns it.
        k: Largest change of a rating.

    Raises:
        InvalidArgumentError: The outcome is another number.
    """
    if outcome not in {0, 0.5, 1}:
        raise InvalidArgumentError(f"`outcome` must be 0 (team 1 won), 0.5 (draw) or 1 (team 2 won); got {outcome}")
    change = k * (1 - outcome - team_win_probability(blue, red))
    return np.asarray(blue, np.float64) + change, np.asarray(red, np.float64) - change
