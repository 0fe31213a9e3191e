"""A store that is killed again and again at random moments, and a model of what it had acknowledged."""

import ast
import itertools
import re
import shutil
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import crash_workload
import numpy as np
from crash_workload import (
    FLUSHED,
    NAMES,
    QUEUE,
    STREAM,
    STREAMED,
    Calls,
    all_values,
    modelled,
    open_store,
    steps,
    words,
)

from engram import Store, Table, selectors
from engram.errors import EngramError
from engram.rate_limiters import MinSize

FAULTS = (
    "refused",
    "lost",
    "phantom",
    "duplicated",
    "content",
    "order",
    "priorities",
    "sample counts",
    "limiter",
    "generator",
)
OLDEST = selectors.Fifo()


@dataclass
class Contents:
    """What `Snapshot.words` says."""

    limiter: str
    counters: str
    """The generator's state and what else was counted."""

    items: list
    """Of each item: insertion number, bits of the priority, when it was touched, samples, leases, content."""

    orders: list

    WORDS = re.compile(r"(Counters \{.*\}) (\[(?:\(.*\))?\]) (\[\[[\d, ]*\], \[[\d, ]*\]\])", re.DOTALL)

    @classmethod
    def of(cls, words):
        counters, items, orders = (group for group in cls.WORDS.fullmatch(words).groups())
        limiter = re.search(r"limiter: RateLimiter \{.*?\{.*?\}.*?\}", counters).group()
        flat = [(seq, bits, *counts, content) for seq, bits, counts, content in ast.literal_eval(items)]
        return cls(limiter, counters.replace(limiter, ""), flat, ast.literal_eval(orders))

    def by_seq(self):
        return {item[0]: item[1:] for item in self.items}

    def limits(self):
        return re.search(r"limits: .*?\}", self.limiter).group()

    def counts(self):
        """Items inserted, samples taken, and items deleted."""
        return [int(number) for number in re.findall(r"(?:inserts|samples|deletes): (\d+)", self.limiter)]

    def faults(self, expected):
        """How this differs from what it should be."""
        mine, theirs = self.by_seq(), expected.by_seq()
        both = mine.keys() & theirs.keys()
        return +Counter(
            {
                "lost": len(theirs.keys() - mine.keys()),
                "phantom": len(mine.keys() - theirs.keys()),
                "duplicated": len(self.items) - len(mine),
                "priorities": sum(mine[seq][0] != theirs[seq][0] for seq in both),
                "sample counts": sum(mine[seq][2:4] != theirs[seq][2:4] for seq in both),
                "content": sum(mine[seq][4] != theirs[seq][4] for seq in both),
                "order": self.orders != expected.orders or any(mine[seq][1] != theirs[seq][1] for seq in both),
                "limiter": self.limiter != expected.limiter,
                "generator": self.counters != expected.counters,
            }
        )

    def is_between(self, before, after):
        """Whether this is what a call that makes several changes may be in the midst of."""
        first, last, now = before.by_seq(), after.by_seq(), self.by_seq()
        either = [list(pair) for pair in zip(before.counts(), after.counts(), strict=True)]
        counts = self.counts()
        return (
            len(now) == len(self.items) == counts[0] - counts[2]
            and self.limits() in (before.limits(), after.limits())
            and first.keys() & last.keys() <= now.keys() <= first.keys() | last.keys()
            and all(min(pair) <= count <= max(pair) for count, pair in zip(counts, either, strict=True))
            and all(item in ways(first.get(seq), last.get(seq)) for seq, item in now.items())
        )


def ways(first, last):
    """What may be found of an item in the midst of a call that makes it another."""
    return list(itertools.product(*zip(*(item for item in (first, last) if item), strict=True)))


@dataclass
class Told:
    """What was acknowledged of the tables beside, as far as was said."""

    streamed: int = 0
    queued: int = 0
    taken: int = 0
    """Readers have had these of the queue: they may be gone."""

    used: int = 0
    """These must be gone."""


@dataclass
class Report:
    """What came of all rounds."""

    rounds: int = 0
    calls: int = 0
    items: int = 0
    """That were acknowledged, in all tables."""

    unsaid: int = 0
    """Calls that were made, and killed before they could say so."""

    halves: int = 0
    """Calls of several changes of which some were made."""

    faults: Counter = field(default_factory=Counter)
    descriptions: list = field(default_factory=list)


class CrashChecker:
    """Stores' lives: one is killed and opened until something is wrong with it, then another begins."""

    def __init__(self, path, seed, durability="process"):
        path.mkdir()
        self.root, self.seed, self.durability = path, seed, durability
        self.rng = np.random.default_rng(seed)
        self.report, self.stores, self.next = Report(), 0, 0
        self.begin()

    def begin(self):
        """Begins another store, and its model."""
        self.stores += 1
        self.path = self.root / f"store-{self.stores}"
        self.model = Store(modelled(), seed=self.seed)
        self.told, self.keys = Told(), {}
        self.entered = {name: [] for name in NAMES}

    def round(self):
        """Lets it live a while, kills it, and compares."""
        self.report.rounds += 1
        under_way = iter(())
        for number, said in itertools.groupby(self.live(), key=lambda call: call[0]):
            under_way = iter(Calls(self.model, self.seed, number))
            made = -1
            for _, part, key in said:
                while made < part:
                    self.note(next(under_way), key)
                    made += 1
                self.report.calls += 1
            self.next = number + 1
        self.compare(under_way)

    def live(self):
        """A life; returns the calls that were acknowledged."""
        said = self.root / "said"
        arguments = [self.path, self.seed, self.next, self.durability]
        with said.open("w") as out:
            child = subprocess.Popen([sys.executable, crash_workload.__file__, *map(str, arguments)], stdout=out)
        # Now and then it is killed while it opens the store.
        begun, longest = ("ready\n", 0.3) if self.rng.random() < 0.8 else ("opening\n", 0.03)
        life = self.rng.uniform(0.0, longest)
        while begun not in said.read_text():
            assert child.poll() is None, f"the child ended with {child.returncode} before it was killed"
            time.sleep(0.001)
        time.sleep(life)
        assert child.poll() is None, f"the child ended with {child.returncode} before it was killed"
        child.kill()
        child.wait()
        lines = [line.split() for line in said.read_text().splitlines(keepends=True) if line.endswith("\n")]
        told, before = self.told, (self.told.streamed, self.told.queued)
        for what, number, *_ in (line for line in lines if len(line) > 1):
            match what:
                case "stream":
                    told.streamed = max(told.streamed, int(number))
                case "queue":
                    told.queued = max(told.queued, int(number))
                case "taken":
                    told.taken = max(told.taken, int(number))
                case "used":
                    told.used = max(told.used, int(number))
        self.report.items += told.streamed + told.queued - sum(before)
        return [tuple(map(int, line[1:])) for line in lines if line[0] == "call"]

    def note(self, made, key=None):
        """Notes what entered which table, in which order."""
        if made.table:
            self.entered[made.table] = []
        for name, items in made.inserted.items():
            self.entered[name] += [tuple(tags) for tags in items]
            if key is not None:
                self.report.items += len(items)
            if key:
                self.keys[items[0][-1]] = key

    def go_on(self, under_way, found):
        """What came after the last call that was said, as far as was found; what all tables were after each."""
        states = [words(self.model)]
        while found != states[-1]:
            made = next(under_way, None)
            while made is None:
                changed = [name for name in {**found, **states[-1]} if found.get(name) != states[-1].get(name)]
                under_way = iter(Calls(self.model, self.seed, self.next, changed))
                made = next(under_way, None)
                self.next += 1
            self.note(made)
            states.append(words(self.model))
            if made.is_safe:  # the next cannot have been made
                break
        return states

    def compare(self, under_way):
        try:
            with open_store(self.path, self.seed, self.durability) as store:
                found, info = words(store), store.info()
        except EngramError as error:
            self.report.faults["refused"] += 1
            self.describe(repr(error))
            self.begin()
            return
        states = self.go_on(under_way, found)
        self.report.unsaid += len(states) > 1
        faults, half = Counter(), False
        for name in sorted({*found, *states[0], *states[-1]}):
            if found.get(name) == states[-1].get(name):
                continue
            now, *then = (Contents.of(each[name]) if name in each else None for each in (found, *states))
            if now and then[0] and then[-1] and now.is_between(then[0], then[-1]):
                half = True
                continue
            differences = [now.faults(each) for each in then if each] if now else []
            differences = min(differences, key=Counter.total, default=Counter(lost=1))
            self.describe(f"table {name}: {dict(differences)}", now, *then)
            faults += differences
        self.report.halves += half
        # What is to be there is not known exactly then.
        faults += self.look_inside(found, info, is_known=not (half or faults))
        self.report.faults += faults
        if half and not faults:
            shutil.rmtree(self.path)
        if half or faults:
            self.begin()

    def describe(self, what, *details):
        text = f"seed {self.seed}, call {self.next}, {self.path}: {what}"
        self.report.descriptions.append("\n    ".join([text, *map(str, details)]))

    def look_inside(self, found, info, is_known):
        """Takes a copy apart, item by item."""
        copy = self.root / "copy"
        shutil.copytree(self.path, copy)
        tables = [Table(name, max_size=1_000, sampler=OLDEST) for name in found]
        tables += [Table.queue(name, max_size=STREAMED) for name in (STREAM, QUEUE)]
        faults = Counter()
        with Store.open(copy, tables, durability="none") as store:
            values = {name: all_values(store, name) for name in (STREAM, QUEUE)}
            for name, said in found.items():
                store.set_rate_limiter(name, MinSize(1))
                difference = self.compare_items(store, name, Contents.of(said)) if is_known else {}
                if difference:
                    self.describe(f"items of table {name}: {difference}")
                    faults += Counter(difference)
        told = str(self.told)
        for name, compare in ((STREAM, self.compare_stream), (QUEUE, self.compare_queue)):
            difference = compare(values[name], info[name])
            if difference:
                self.describe(f"table {name}: {dict(difference)}", told, info[name], values[name])
                faults += difference
        shutil.rmtree(copy)
        return faults

    def compare_items(self, store, name, contents):
        """Content, priority, samples and key of each item; the store is emptied."""
        faults, keys = Counter(), set()
        for seq, bits, _, times, _, _ in contents.items:
            batch = store.sample(name, 1, timeout=10)
            info, key = batch.info, int(batch.info.key[0])
            tags = self.entered[name][seq]
            expected = steps(tags)
            faults["content"] += any((batch.data[leaf][0] != expected[leaf]).any() for leaf in ("n", "x"))
            faults["priorities"] += struct.pack("<d", info.priority[0]) != struct.pack("<Q", bits)
            faults["sample counts"] += int(info.times_sampled[0]) != times + 1
            # An item keeps its key: the one that was told, or that was found first.
            faults["phantom"] += self.keys.setdefault(tags[-1], key) != key
            keys.add(key)
            store.delete(name, [key])
        faults["duplicated"] += len(contents.items) - len(keys)
        faults["phantom"] += store.info()[name].size
        return +faults

    def compare_stream(self, values, info):
        first = max(0, info.inserts - STREAMED)
        faults = compare_values(values, range(first, info.inserts))
        faults["lost"] += max(0, self.told.streamed - info.inserts)
        faults["phantom"] += max(0, info.inserts - self.told.streamed - FLUSHED)
        self.told.streamed = info.inserts
        return +faults

    def compare_queue(self, values, info):
        used = info.deletes
        faults = compare_values(values, range(used, info.inserts))
        faults["lost"] += max(0, self.told.queued - info.inserts) + max(0, used - self.told.taken)
        faults["phantom"] += max(0, info.inserts - self.told.queued - FLUSHED) + max(0, self.told.used - used)
        faults["limiter"] += (info.samples, info.size) != (used, info.inserts - used)
        self.told.queued, self.told.taken, self.told.used = info.inserts, used, used
        return +faults


def compare_values(values, expected):
    there = set(values) - {-1}
    return Counter(
        {
            "content": values.count(-1),
            "lost": len(set(expected) - there),
            "phantom": len(there - set(expected)),
            "duplicated": len(values) - values.count(-1) - len(there),
            "order": values != sorted(values) and -1 not in values,
        }
    )
