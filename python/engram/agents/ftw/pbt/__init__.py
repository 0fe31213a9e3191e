"""Population-based training: pure functions of ratings, matches and evolution (Jaderberg et al. 2019, supplement).

They decide; the running population, which plays the matches and moves the weights, is not part of this package.
"""

from engram.agents.ftw.pbt.evolution import (
    AgentState,
    Evolution,
    EvolutionEvent,
    Member,
    choose_parent,
    inherit,
    is_eligible,
    mutate,
)
from engram.agents.ftw.pbt.matchmaking import opponent_probabilities, sample_match
from engram.agents.ftw.pbt.rating_fit import RatingFit, fit_ratings
from engram.agents.ftw.pbt.ratings import (
    INITIAL_RATING,
    rating_gap,
    team_win_probability,
    update_ratings,
    win_probability,
)

__all__ = [
    "INITIAL_RATING",
    "AgentState",
    "Evolution",
    "EvolutionEvent",
    "Member",
    "RatingFit",
    "choose_parent",
    "fit_ratings",
    "inherit",
    "is_eligible",
    "mutate",
    "opponent_probabilities",
    "rating_gap",
    "sample_match",
    "team_win_probability",
    "update_ratings",
    "win_probability",
]
