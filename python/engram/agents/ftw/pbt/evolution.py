"""Evolution: an agent that usually loses against another inherits the other's weights and settings, mutated."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from engram import _checks
from engram.agents.ftw.hyperparameters import MAX_PCT_CHANGE, resample, scale
from engram.agents.ftw.pbt.ratings import INITIAL_RATING, win_probability
from engram.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """When agents evolve, and how their hyperparameters mutate."""

    min_steps: int
    """Learner steps that an agent does between two evolutions: its burn-in."""
    threshold: float = 0.7
    """A candidate becomes the parent if it beats the agent with a probability above this one."""
    mutation_probability: float = 0.05
    """With which each hyperparameter and each internal reward mutates, independently."""
    max_pct_change: float = MAX_PCT_CHANGE
    """Largest relative change of a float."""
    period_range: tuple[int, int] = (5, 20)
    """Smallest and largest period of the slow core; a mutated period is drawn again."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=lambda: {"scale_grads_fast_to_slow": (0.0, 1.0)})
    """Mutated floats of these names are clipped to these bounds; all others are not clipped."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            InvalidArgumentError: A value is out of its range.
        """
        _checks.integer("`min_steps`", self.min_steps, low=0)
        for name in ("threshold", "mutation_probability", "max_pct_change"):
            _checks.fraction(f"`{name}`", getattr(self, name))
        low = _checks.integer("`period_range[0]`", self.period_range[0])
        _checks.integer("`period_range[1]`", self.period_range[1], low=low)


class Member(NamedTuple):
    """An agent's row in the table of the population.

    Attributes:
        rating: Elo rating.
        steps: Learner steps done; an evolution does not rewind it.
        last_evolved: `steps` at the last evolution.
        frames: Environment steps done.
        games: Games played.
        generation: Number of evolutions.
        parent: Index of the parent of the last evolution; None: it has not evolved.
        frozen: True for agents that never evolve, such as those in an evaluation. They are no parents either.
    """

    rating: float = INITIAL_RATING
    steps: int = 0
    last_evolved: int = 0
    frames: int = 0
    games: int = 0
    generation: int = 0
    parent: int | None = None
    frozen: bool = False


class AgentState(NamedTuple):
    """What an agent inherits.

    Attributes:
        params: Network parameters, a pytree.
        optimizer_state: The optimizer's state, a pytree.
        hypers: Those hyperparameters that evolve, by name: floats, and ints for `slow_core_period`.
        internal_rewards: f64 `[E]`.
    """

    params: Any
    optimizer_state: Any
    hypers: dict[str, Any]
    internal_rewards: Any


class EvolutionEvent(NamedTuple):
    """A record of one evolution, for the log.

    Attributes:
        child: Index of the agent that evolved.
        parent: Index of its parent.
        child_rating: The child's rating before.
        parent_rating: The parent's rating, which the child has now.
        inherited: The parent's hyperparameters and internal rewards.
        mutated: The child's, after mutation.
    """

    child: int
    parent: int
    child_rating: float
    parent_rating: float
    inherited: dict[str, Any]
    mutated: dict[str, Any]


def is_eligible(member: Member, evolution: Evolution) -> bool:
    """True if an agent may evolve: it is not frozen, and its burn-in is over."""
    return not member.frozen and member.steps - member.last_evolved >= evolution.min_steps


def choose_parent(members: Sequence[Member], child: int, evolution: Evolution, rng: np.random.Generator) -> int | None:
    """Returns the agent that `child` inherits from now, or None.

    A candidate is drawn uniformly among the other agents that are not frozen. It becomes the parent if it beats the
    child with a probability above the threshold.

    Args:
        members: The population.
        child: Index of the agent that may evolve.
        evolution: Burn-in and threshold.
        rng: Generator.
    """
    candidates = [index for index, member in enumerate(members) if index != child and not member.frozen]
    if not candidates or not is_eligible(members[child], evolution):
        return None
    candidate = int(rng.choice(candidates))
    beats = win_probability(members[candidate].rating, members[child].rating)
    return candidate if beats > evolution.threshold else None


def mutate(values: Mapping[str, Any], evolution: Evolution, rng: np.random.Generator) -> dict[str, Any]:
    """Returns mutated values, each with the mutation's probability.

    Floats and each element of arrays are multiplied by a random factor; ints, such as `slow_core_period`, are drawn
    again from `period_range`.

    Args:
        values: Floats, ints and arrays by name; they are not changed.
        evolution: Probability and size of the changes.
        rng: Generator.
    """
    return {name: _mutated(name, value, evolution, rng) for name, value in values.items()}


def inherit(
    members: Sequence[Member],
    parent_state: AgentState,
    *,
    child: int,
    parent: int,
    evolution: Evolution,
    rng: np.random.Generator,
) -> tuple[Member, AgentState, EvolutionEvent]:
    """Returns the child's new row and state, and a record for the log.

    The state is a copy of the parent's, with mutated hyperparameters and internal rewards; the parent stays as it is.
    The child takes the parent's rating, and its burn-in starts again. The caller also empties the child's replay.

    Args:
        members: The population.
        parent_state: The parent's state.
        child: Index of the child.
        parent: Index of the parent, of `choose_parent`.
        evolution: Probability and size of the mutations.
        rng: Generator.

    Raises:
        InvalidArgumentError: The child is its own parent, or is frozen.
    """
    if child == parent:
        raise InvalidArgumentError(f"`parent`: an agent cannot inherit from itself; got {parent} as child and parent")
    if members[child].frozen:
        raise InvalidArgumentError(f"`child`: a frozen agent does not evolve; got {child}")
    state = copy.deepcopy(parent_state)
    hypers = mutate(state.hypers, evolution, rng)
    internal_rewards = mutate({"internal_rewards": state.internal_rewards}, evolution, rng)
    event = EvolutionEvent(
        child=child,
        parent=parent,
        child_rating=members[child].rating,
        parent_rating=members[parent].rating,
        inherited={**copy.deepcopy(parent_state.hypers), "internal_rewards": np.array(parent_state.internal_rewards)},
        mutated={**hypers, **internal_rewards},
    )
    member = members[child]._replace(
        rating=members[parent].rating,
        last_evolved=members[child].steps,
        generation=members[child].generation + 1,
        parent=parent,
    )
    return member, state._replace(hypers=hypers, **internal_rewards), event


def _mutated(name: str, value: Any, evolution: Evolution, rng: np.random.Generator) -> Any:  # noqa: ANN401, any value
    probability = evolution.mutation_probability
    if isinstance(value, int | np.integer):
        return resample(int(value), *evolution.period_range, rng, probability=probability)
    changed = scale(value, rng, probability=probability, max_pct_change=evolution.max_pct_change)
    if name in evolution.bounds:
        changed = np.clip(changed, *evolution.bounds[name])
    return changed if np.ndim(value) else float(changed)
