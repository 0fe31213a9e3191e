"""Random programs of a trajectory writer's calls: every difference from dm-reverb's outcome is a documented one."""

import pytest
from helpers.random_writers import PROGRAMS, outcomes, program

from engram.compat import reverb

pytestmark = pytest.mark.interop

REFERENCES = "references to steps live on"
CONFIGURED = "`configure` of a column that does not exist yet does not extend its history"
INDICES = "indices of a history at its end, or of expired steps"
SLICES = "strided or repeated history slices are stored as a contiguous run, or cannot be read"
REJECTED_APPEND = "a rejected append keeps its new columns"
OPEN_STEP = "an episode that ends within a partial step"
"""Known differences, as `docs/differences.md` describes them."""

EXPIRED_MEANWHILE = ("expired", "ValueError")
"""Results at dm-reverb if references expire between two observations."""

CONSEQUENCE = "the column already differed when it was picked"
"""A difference that follows from an earlier one."""


@pytest.fixture(scope="module")
def reverb_outcomes(programs, reverb_address):
    """The outcomes of all programs with dm-reverb."""
    return programs.run("random_writers", reverb_address)


def test_all_differences_are_known(reverb_outcomes, engram_address):
    client = reverb.Client(engram_address)
    unknown, rows = [], set()
    for seed in range(PROGRAMS):
        for call, row, engram_outcome, reverb_outcome in Comparison(program(seed)).rows(
            outcomes(client, "random", seed), reverb_outcomes[seed]
        ):
            rows.add(row)
            if row is None:
                unknown.append((seed, call, engram_outcome, reverb_outcome))
    assert unknown == []
    assert rows >= {CONFIGURED, INDICES, SLICES, REJECTED_APPEND, OPEN_STEP}


def kind(outcome):
    """An outcome without the error's text."""
    return outcome[:2]


def selected_steps(usable, index):
    """The steps that an index selects from a list, or the type of the error if one is not usable."""
    count = len(usable)
    if isinstance(index, slice):
        if (index.step or 1) > 0 and index.start is not None and index.start < -count:
            return "ValueError"
        chosen = list(range(count))[index]
    else:
        several = index if isinstance(index, list) else [index]
        if any(each >= count for each in several):
            return "IndexError"
        if any(each < -count for each in several):
            return "ValueError"
        chosen = [each % count for each in several]
    return chosen if all(usable[each] for each in chosen) else "ValueError"


def is_out_of_bounds(usable, index):
    """True if an index has a bound at or beyond the end of a history, or at an unusable step."""
    count = len(usable)
    bounds = [index.start, index.stop] if isinstance(index, slice) else index if isinstance(index, list) else [index]
    return selected_steps(usable, index) == "ValueError" or any(
        each >= count or each < -count or not usable[each] for each in bounds if each is not None
    )


def length(result):
    """The number of selected steps, or the type of the error."""
    return result if isinstance(result, str) else len(result)


class Comparison:
    """Compares the outcomes of a program with Engram (`mine`) and with dm-reverb (`other`)."""

    def __init__(self, calls):
        self.calls = calls
        self.keep = calls[0][1]
        self.kept = {call[1]: call[2] for call in calls if call[0] == "configure"}
        self.picks = []  # (column, mine, other) of each pick
        self.items = {}  # picks of each item
        self.created = (set(), set())  # items created in Engram and in dm-reverb
        self.failed = set()  # columns of failed appends
        self.is_open = self.ended_open = False

    def rows(self, engram_outcomes, reverb_outcomes):
        """Yields each call whose outcomes differ, the known difference or None, and both outcomes."""
        for call, mine, other in zip(self.calls, engram_outcomes, reverb_outcomes, strict=True):
            same = kind(mine) == kind(other)
            row = CONSEQUENCE if same else getattr(self, call[0], lambda *_: None)(call, mine, other)
            if not same:
                yield call, row, mine, other
            if row is OPEN_STEP:
                return  # from here on, the steps differ
            self.record(call, mine, other)

    def record(self, call, mine, other):
        """Updates the state that later comparisons use."""
        match call:
            case ("append", given, partial):
                if mine[0] == "returned":
                    self.is_open = partial
                else:
                    self.failed |= set(given)
            case ("many", _):
                self.is_open = False
            case ("end_episode", *_):
                self.ended_open |= self.is_open and mine[1] != "open"
                self.is_open = self.is_open and mine[1] == "open"
            case ("pick", *_):
                self.picks.append((call[1], mine, other))
            case ("create", number, chosen):
                self.items[number] = [self.picks[index] for index in chosen]
                for created, outcome in zip(self.created, (mine, other), strict=True):
                    if outcome[1][1] == "created":
                        created.add(number)

    def append(self, _, mine, other):
        return OPEN_STEP if self.ended_open and mine[0] == "returned" and other[0] == "raised" else None

    many = append

    def pick(self, call, mine, other):
        _, name, index = call
        if mine[:2] == ("raised", "KeyError"):
            return REJECTED_APPEND if name in self.failed else None
        if mine[0] == "raised" or other[0] == "raised":
            return None
        (usable, result), (reverb_usable, reverb_result) = mine[1], other[1]
        if len(usable) != len(reverb_usable):
            return OPEN_STEP if self.ended_open else None
        row = self.usable_steps_row(name, usable, reverb_usable) if usable != reverb_usable else INDICES
        if row is None or length(selected_steps(usable, index)) != length(result):
            return None
        # In dm-reverb, references live until its thread has sent their items, which may be between two observations.
        expired_meanwhile = row is REFERENCES and reverb_result in EXPIRED_MEANWHILE
        if expired_meanwhile or length(selected_steps(reverb_usable, index)) == length(reverb_result):
            return row
        return INDICES if is_out_of_bounds(reverb_usable, index) else None

    def usable_steps_row(self, name, usable, reverb_usable):
        """The row for different usable steps: dm-reverb may keep more steps, or fewer of a configured column."""
        kept = self.kept.get(name, self.keep)
        pairs = list(enumerate(zip(usable, reverb_usable, strict=True)))
        only_reverb = [index for index, (mine, other) in pairs if other > mine]
        only_engram = [index for index, (mine, other) in pairs if other < mine]
        if any(index >= len(usable) - kept for index in only_reverb) or (only_engram and kept <= self.keep):
            return None
        return CONFIGURED if only_engram else REFERENCES

    def create(self, call, mine, other):
        picks = [self.picks[index] for index in call[2]]
        if any(kind(picked) != kind(reverb_picked) for _, picked, reverb_picked in picks):
            return CONSEQUENCE
        if isinstance(mine[1], str) or isinstance(other[1], str):
            return None
        (columns, _), (reverb_columns, _) = mine[1], other[1]
        lives_longer = any(
            expired and not reverb_expired
            for (_, expired), (_, reverb_expired) in zip(columns, reverb_columns, strict=True)
        )
        for result in (mine[1], other[1]):
            valid = all(length and not expired for length, expired in result[0])
            expired_meanwhile = result is other[1] and lives_longer and result[1] == "rejected"  # as in `pick`
            if valid != (result[1] == "created") and not expired_meanwhile:
                return None
        for (name, *_), (_, expired), (_, reverb_expired) in zip(picks, columns, reverb_columns, strict=True):
            if reverb_expired > expired and self.kept.get(name, self.keep) <= self.keep:
                return None
        return REFERENCES

    def end(self, _, mine, other):
        if mine[0] == "raised":
            return None
        strided = {
            number
            for number in self.created[1]
            if any(not is_contiguous(picked[1][1]) for _, _, picked in self.items[number])
        }
        if other[0] == "raised":
            return SLICES if "Cannot slice" in other[2] and strided else None
        if self.wrong(0, mine[1]) or self.wrong(1, other[1]) - strided:
            return None
        return SLICES if self.wrong(1, other[1]) else CONSEQUENCE

    def wrong(self, side, items):
        """Items that differ from the picked steps, or should not exist: in Engram (`side` 0) or in dm-reverb (1)."""
        picked = {number: [pick[1 + side][1][1] for pick in self.items[number]] for number in self.created[side]}
        return {number for number in {*items, *picked} if items.get(number) != picked.get(number)}


def is_contiguous(steps):
    """True if the steps are consecutive."""
    return steps == list(range(steps[0], steps[0] + len(steps)))
