"""Random programs of a trajectory writer's calls: where they see something else of dm-reverb, a known fault is why."""

import pytest
from random_writers import PROGRAMS, outcomes, program

from engram.compat import reverb

pytestmark = pytest.mark.interop

REFERENCES = "references to steps live on"
CONFIGURED = "a column that is configured before it is seen does not keep more steps"
INDICES = "indices of a history at its end, or of steps that are gone"
SLICES = "strided or repeated history slices are stored as another run, or cannot be read"
HALF_A_STEP = "a failed append leaves its columns"
OPEN_STEP = "an episode that ends within a partial step"
"""Rows of docs/differences.md."""

LATE = ("expired", "ValueError")
"""What comes of references that were dropped since they were looked at."""

FOLLOWS = "what was picked was another thing already"


@pytest.fixture(scope="module")
def theirs_seen(programs, theirs):
    """What the programs see of dm-reverb."""
    return programs.run("random_writers", theirs)


def test_all_differences_are_known(theirs_seen, ours):
    client = reverb.Client(ours)
    unknown, found = [], set()
    for seed in range(PROGRAMS):
        for call, row, mine, other in Comparison(program(seed)).rows(
            outcomes(client, "random", seed), theirs_seen[seed]
        ):
            found.add(row)
            if row is None:
                unknown.append((seed, call, mine, other))
    assert unknown == []
    assert found >= {CONFIGURED, INDICES, SLICES, HALF_A_STEP, OPEN_STEP}


def kind(outcome):
    """An outcome without an error's text."""
    return outcome[:2]


def asked(usable, index):
    """The steps that an index asks for, as of a list; or the kind of error where one cannot be used."""
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


def reaches_out(usable, index):
    """True if an index has a bound at the end of a history or beyond, or at a step that cannot be used."""
    count = len(usable)
    bounds = [index.start, index.stop] if isinstance(index, slice) else index if isinstance(index, list) else [index]
    return asked(usable, index) == "ValueError" or any(
        each >= count or each < -count or not usable[each] for each in bounds if each is not None
    )


def length(found):
    """How many steps were found, or the kind of error."""
    return found if isinstance(found, str) else len(found)


class Comparison:
    """Of what a program saw here and there."""

    def __init__(self, calls):
        self.calls = calls
        self.keep = calls[0][1]
        self.kept = {call[1]: call[2] for call in calls if call[0] == "configure"}
        self.picks = []  # columns, with what was seen of each here and there
        self.items = {}  # picks that they were made of
        self.made = (set(), set())  # items here and there
        self.failed = set()  # columns of appends that failed
        self.is_open = self.ended_open = False

    def rows(self, ours, theirs):
        """Yields each call with another outcome, with the row that tells of it, or None."""
        for call, mine, other in zip(self.calls, ours, theirs, strict=True):
            same = kind(mine) == kind(other)
            row = FOLLOWS if same else getattr(self, call[0], lambda *_: None)(call, mine, other)
            if not same:
                yield call, row, mine, other
            if row is OPEN_STEP:
                return  # from here on, other steps are compared
            self.note(call, mine, other)

    def note(self, call, mine, other):
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
                self.items[number] = [self.picks[at] for at in chosen]
                for made, outcome in zip(self.made, (mine, other), strict=True):
                    if outcome[1][1] == "created":
                        made.add(number)

    def append(self, _, mine, other):
        return OPEN_STEP if self.ended_open and mine[0] == "returned" and other[0] == "raised" else None

    many = append

    def pick(self, call, mine, other):
        _, name, index = call
        if mine[:2] == ("raised", "KeyError"):
            return HALF_A_STEP if name in self.failed else None
        if mine[0] == "raised" or other[0] == "raised":
            return None
        (usable, found), (their_usable, their_found) = mine[1], other[1]
        if len(usable) != len(their_usable):
            return OPEN_STEP if self.ended_open else None
        row = self.of_references(name, usable, their_usable) if usable != their_usable else INDICES
        if row is None or length(asked(usable, index)) != length(found):
            return None
        # What lives on there does so until dm-reverb's thread has sent its items: between two looks, too.
        is_late = row is REFERENCES and their_found in LATE
        if is_late or length(asked(their_usable, index)) == length(their_found):
            return row
        return INDICES if reaches_out(their_usable, index) else None

    def of_references(self, name, usable, their_usable):
        """Why other steps can be used: here the newest so many, there more, or, of some columns, fewer."""
        kept = self.kept.get(name, self.keep)
        there = [at for at, (mine, other) in enumerate(zip(usable, their_usable, strict=True)) if other > mine]
        here = [at for at, (mine, other) in enumerate(zip(usable, their_usable, strict=True)) if other < mine]
        if any(at >= len(usable) - kept for at in there) or (here and kept <= self.keep):
            return None
        return CONFIGURED if here else REFERENCES

    def create(self, call, mine, other):
        picks = [self.picks[at] for at in call[2]]
        if any(kind(picked) != kind(their) for _, picked, their in picks):
            return FOLLOWS
        if isinstance(mine[1], str) or isinstance(other[1], str):
            return None
        (about, _), (their_about, _) = mine[1], other[1]
        lives_on = any(
            expired and not their_expired for (_, expired), (_, their_expired) in zip(about, their_about, strict=True)
        )
        for made in (mine[1], other[1]):
            is_good = all(length and not expired for length, expired in made[0])
            is_late = made is other[1] and lives_on and made[1] == "rejected"  # as in `pick`
            if is_good != (made[1] == "created") and not is_late:
                return None
        for (name, *_), (_, expired), (_, their_expired) in zip(picks, about, their_about, strict=True):
            if their_expired > expired and self.kept.get(name, self.keep) <= self.keep:
                return None
        return REFERENCES

    def end(self, _, mine, other):
        if mine[0] == "raised":
            return None
        strided = {
            number for number in self.made[1] if any(not is_run(their[1][1]) for _, _, their in self.items[number])
        }
        if other[0] == "raised":
            return SLICES if "Cannot slice" in other[2] and strided else None
        if self.wrong(0, mine[1]) or self.wrong(1, other[1]) - strided:
            return None
        return SLICES if self.wrong(1, other[1]) else FOLLOWS

    def wrong(self, side, items):
        """Items that are not what was picked, there if `side` is 1, or are there and should not be."""
        picked = {number: [pick[1 + side][1][1] for pick in self.items[number]] for number in self.made[side]}
        return {number for number in {*items, *picked} if items.get(number) != picked.get(number)}


def is_run(steps):
    """Steps that follow each other."""
    return steps == list(range(steps[0], steps[0] + len(steps)))
