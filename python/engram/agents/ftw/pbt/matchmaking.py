"""Matchmaking: players of similar strength meet more often (Jaderberg et al. 2019)."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram.agents.ftw.pbt.ratings import win_probability
from engram.errors import InvalidArgumentError

DEVIATION = 1 / 6
"""Standard deviation of the Gaussian weight of win probabilities around 1/2."""


def opponent_probabilities(
    ratings: npt.ArrayLike, anchor: int, exclude: Collection[int] = ()
) -> npt.NDArray[np.float64]:
    """Returns the probability of each player to be drawn for a match, f64 `[N]`.

    It is proportional to `exp(-(p - 1/2)^2 / (2 (1/6)^2))`, where p is the probability that the anchor beats the
    player. The anchor and the excluded players have probability 0.

    Args:
        ratings: `[N]`.
        anchor: Index of the match's first player.
        exclude: Indices of players who are in the match already.

    Raises:
        InvalidArgumentError: No player is left.
    """
    ratings = np.asarray(ratings, np.float64)
    difference = win_probability(ratings[anchor], ratings) - 0.5
    weights = np.exp(-(difference**2) / (2 * DEVIATION**2))
    weights[[anchor, *exclude]] = 0
    if not weights.any():
        raise InvalidArgumentError(f"`exclude`: no player is left; got all of the {len(ratings)} players")
    return weights / weights.sum()  # type: ignore[no-any-return]  # an array


def sample_match(
    ratings: npt.ArrayLike, team_size: int, rng: np.random.Generator, *, anchor_in_team_2: bool = False
) -> tuple[list[int], list[int]]:
    """Draws the players of a match; no player is drawn twice.

    The first player, the anchor, is uniform; the others are drawn one after the other by `opponent_probabilities`.

    Args:
        ratings: `[N]`.
        team_size: Number of players in each team.
        rng: Generator.
        anchor_in_team_2: Swap the teams; alternate it for players who should play both sides equally often.

    Returns:
        The indices of both teams.

    Raises:
        InvalidArgumentError: There are fewer than `2 * team_size` players.
    """
    ratings = np.asarray(ratings, np.float64)
    slots = 2 * _checks.integer("`team_size`", team_size)
    if len(ratings) < slots:
        raise InvalidArgumentError(
            f"`ratings`: too few players; got {len(ratings)}, expected at least {slots} for teams of {team_size}"
        )
    players = [int(rng.integers(len(ratings)))]
    while len(players) < slots:
        probabilities = opponent_probabilities(ratings, players[0], players[1:])
        players.append(int(rng.choice(len(ratings), p=probabilities)))
    first, second = players[:team_size], players[team_size:]
    return (second, first) if anchor_in_team_2 else (first, second)
