"""Kills a store repeatedly at random times, and compares it with a model of what it acknowledged."""

import ast
import itertools
import re
import shutil
import struct
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from engram import Store, Table, selectors
from engram.errors import EngramError
from engram.rate_limiters import MinSize
from helpers import crash_workload
from helpers.crash_workload import (
    FLUSH_INTERVAL,
    NAMES,
    QUEUE,
    STREAM,
    STREAM_SIZE,
    Calls,
    all_values,
    modeled_tables,
    open_store,
    steps,
    table_states,
)
from helpers.python_process import PythonProcess, script

FAULTS = (
    "refused",  # the store cannot be opened
    "lost",  # an item that must be in its table is missing
    "phantom",  # an item that was not inserted, or must have been removed, is in its table; or an item changed its key
    "duplicated",
    "content",
    "order",  # in which a selector has the items, or in which they were changed
    "priorities",
    "sample counts",
    "limiter",  # settings or counters of the rate limiter
    "generator",  # state of the random generator, or another counter of the table
)
"""Kinds of differences between an opened store and the model; `Report.faults` counts them."""

OLDEST = selectors.Fifo()


@dataclass
class TableState:
    """The state of a table, parsed from the text that `table_states` returns."""

    limiter: str
    """Settings and counters of the rate limiter, as text."""

    counters: str
    """State of the random generator and all other counters, as text."""

    items: list
    """For each item: seq, bits of the priority, `update_number`, samples, leases, sum of the bytes of its first chunk.

    `update_number` is the number of its insert or of its last priority update; heaps order equal priorities by it.
    """

    orders: list
    """Seqs of the items in the order that random choices of the sampler depend on, and those of the remover.

    Empty for a selector without randomness.
    """

    TEXT = re.compile(r"(Counters \{.*\}) (\[(?:\(.*\))?\]) (\[\[[\d, ]*\], \[[\d, ]*\]\])", re.DOTALL)

    @classmethod
    def parse(cls, text):
        counters, items, orders = (group for group in cls.TEXT.fullmatch(text).groups())
        limiter = re.search(r"limiter: RateLimiter \{.*?\{.*?\}.*?\}", counters).group()
        flat = [(seq, bits, *counts, content) for seq, bits, counts, content in ast.literal_eval(items)]
        return cls(limiter, counters.replace(limiter, ""), flat, ast.literal_eval(orders))

    def by_seq(self):
        return {item[0]: item[1:] for item in self.items}

    def limits(self):
        return re.search(r"limits: .*?\}", self.limiter).group()

    def counts(self):
        """Returns the numbers of inserts, samples and deletes."""
        return [int(number) for number in re.findall(r"(?:inserts|samples|deletes): (\d+)", self.limiter)]

    def faults(self, expected):
        """Counts the differences from the expected state, by the kinds of `FAULTS`."""
        actual, expected_items = self.by_seq(), expected.by_seq()
        both = actual.keys() & expected_items.keys()
        return +Counter(
            {
                "lost": len(expected_items.keys() - actual.keys()),
                "phantom": len(actual.keys() - expected_items.keys()),
                "duplicated": len(self.items) - len(actual),
                "priorities": sum(actual[seq][0] != expected_items[seq][0] for seq in both),
                "sample counts": sum(actual[seq][2:4] != expected_items[seq][2:4] for seq in both),
                "content": sum(actual[seq][4] != expected_items[seq][4] for seq in both),
                "order": self.orders != expected.orders
                or any(actual[seq][1] != expected_items[seq][1] for seq in both),
                "limiter": self.limiter != expected.limiter,
                "generator": self.counters != expected.counters,
            }
        )

    def is_between(self, before, after):
        """True if this state is possible in the middle of a call that leads from `before` to `after`."""
        first, last, items = before.by_seq(), after.by_seq(), self.by_seq()
        count_pairs = [list(pair) for pair in zip(before.counts(), after.counts(), strict=True)]
        counts = self.counts()
        return (
            len(items) == len(self.items) == counts[0] - counts[2]
            and self.limits() in (before.limits(), after.limits())
            and first.keys() & last.keys() <= items.keys() <= first.keys() | last.keys()
            and all(min(pair) <= count <= max(pair) for count, pair in zip(counts, count_pairs, strict=True))
            and all(item in mixtures(first.get(seq), last.get(seq)) for seq, item in items.items())
        )


def mixtures(first, last):
    """Returns the possible states of an item in the middle of a call that changes it from `first` to `last`.

    Either is `None` if the item does not exist then.
    """
    return list(itertools.product(*zip(*(item for item in (first, last) if item), strict=True)))


@dataclass
class Acknowledged:
    """What the workload reported about the stream and the queue, in items since the store was created."""

    streamed: int = 0
    """Items that must have been inserted into the stream."""

    queued: int = 0
    """Items that must have been inserted into the queue."""

    sampled: int = 0
    """Items that may have been removed from the queue."""

    removed: int = 0
    """Items that must have been removed from the queue."""


@dataclass
class Report:
    """The results of all rounds."""

    rounds: int = 0
    calls: int = 0
    """Acknowledged calls; those whose changes need not be durable are not counted."""

    items: int = 0
    """Acknowledged items of all tables."""

    unreported: int = 0
    """Rounds with calls that were made but not reported before the kill."""

    partial: int = 0
    """Rounds in which a call was killed after some of its changes."""

    faults: Counter = field(default_factory=Counter)
    descriptions: list = field(default_factory=list)


class CrashChecker:
    """Kills and reopens the same store again and again; after a fault or a partial call, continues with a new one."""

    def __init__(self, path, seed, durability="process"):
        path.mkdir()
        self.root, self.seed, self.durability = path, seed, durability
        self.rng = np.random.default_rng(seed)
        self.report, self.stores = Report(), 0
        self.next = 0  # number of the next operation
        self.start_store()

    def start_store(self):
        """Starts a new store and its model."""
        self.stores += 1
        self.path = self.root / f"store-{self.stores}"
        self.model = Store(modeled_tables(), seed=self.seed)
        self.acknowledged = Acknowledged()
        self.keys = {}  # key of an item, by the number of its last step
        self.inserted = {name: [] for name in NAMES}  # by table and seq, the numbers of an item's steps

    def round(self):
        """Runs the workload for a while, kills it, makes the reported calls on the model, and compares the stores."""
        self.report.rounds += 1
        calls = iter(())  # those of the last reported operation that were not reported
        for number, reported in itertools.groupby(self.run_and_kill(), key=lambda call: call[0]):
            calls = iter(Calls(self.model, self.seed, number))
            last_part = -1
            for _, part, key in reported:
                while last_part < part:
                    self.record(next(calls), key)
                    last_part += 1
                self.report.calls += 1
            self.next = number + 1
        self.compare(calls)

    def run_and_kill(self):
        """Runs the workload in another process and kills it.

        Returns number of the operation, index of the call in it, and key or 0, for each acknowledged call.
        """
        output = self.root / "output"
        arguments = [self.path, self.seed, self.next, self.durability]
        with output.open("w") as out:
            child = PythonProcess(script(crash_workload.__file__), *arguments, stdout=out)
        # In some rounds the child is killed while it opens the store.
        start_line, max_seconds = ("ready\n", 0.3) if self.rng.random() < 0.8 else ("opening\n", 0.03)
        seconds = self.rng.uniform(0.0, max_seconds)
        while start_line not in output.read_text():
            assert child.poll() is None, f"the child ended with {child.returncode} before it was killed"
            time.sleep(0.001)
        time.sleep(seconds)
        assert child.poll() is None, f"the child ended with {child.returncode} before it was killed"
        child.kill()
        child.wait()
        lines = [line.split() for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]
        acknowledged = self.acknowledged
        before = (acknowledged.streamed, acknowledged.queued)
        for kind, number, *_ in (line for line in lines if len(line) > 1):
            match kind:
                case "stream":
                    acknowledged.streamed = max(acknowledged.streamed, int(number))
                case "queue":
                    acknowledged.queued = max(acknowledged.queued, int(number))
                case "sampled":
                    acknowledged.sampled = max(acknowledged.sampled, int(number))
                case "removed":
                    acknowledged.removed = max(acknowledged.removed, int(number))
        self.report.items += acknowledged.streamed + acknowledged.queued - sum(before)
        return [tuple(map(int, line[1:])) for line in lines if line[0] == "call"]

    def record(self, change, key=None):
        """Records which items a call inserted.

        `key` is the reported key, 0 if the call returns none, or `None` if the call was not reported.
        """
        if change.table:
            self.inserted[change.table] = []
        for name, items in change.inserted.items():
            self.inserted[name] += [tuple(numbers) for numbers in items]
            if key is not None:
                self.report.items += len(items)
            if key:
                self.keys[items[0][-1]] = key

    def remaining_states(self, calls, opened_states):
        """Makes the calls after the last reported one, until the model matches the opened store.

        Stops at the first call that waits until it is durable: it was not reported, so the workload made no later one.
        Returns the states of the model's tables before these calls and after each of them.
        """
        states = [table_states(self.model)]
        while opened_states != states[-1]:
            change = next(calls, None)
            while change is None:
                names = {*opened_states, *states[-1]}
                # A killed insert into several tables may have reached only some: make it in those.
                changed = [name for name in names if opened_states.get(name) != states[-1].get(name)]
                calls = iter(Calls(self.model, self.seed, self.next, changed))
                change = next(calls, None)
                self.next += 1
            self.record(change)
            states.append(table_states(self.model))
            if change.is_durable:
                break
        return states

    def compare(self, calls):
        """Opens the killed store and counts its faults; `calls` are the rest of the last reported operation."""
        try:
            with open_store(self.path, self.seed, self.durability) as store:
                opened_states, info = table_states(store), store.info()
        except EngramError as error:
            self.report.faults["refused"] += 1
            self.describe(repr(error))
            self.start_store()
            return
        states = self.remaining_states(calls, opened_states)
        self.report.unreported += len(states) > 1
        faults, is_partial = Counter(), False
        for name in sorted({*opened_states, *states[0], *states[-1]}):
            if opened_states.get(name) == states[-1].get(name):
                continue
            texts = [each.get(name) for each in (opened_states, *states)]
            actual, *expected = (None if text is None else TableState.parse(text) for text in texts)
            # A partial call leaves the table between two of the states.
            neighbors = itertools.pairwise(expected)
            if actual and any(before and after and actual.is_between(before, after) for before, after in neighbors):
                is_partial = True
                continue
            differences = [actual.faults(each) for each in expected if each] if actual else []
            differences = min(differences, key=Counter.total, default=Counter(lost=1))
            self.describe(f"table {name}: {dict(differences)}", actual, *expected)
            faults += differences
        self.report.partial += is_partial
        # After a fault or a partial call, the expected items are not known exactly.
        faults += self.check_items(opened_states, info, is_known=not (is_partial or faults))
        self.report.faults += faults
        if is_partial and not faults:
            shutil.rmtree(self.path)
        if is_partial or faults:
            self.start_store()

    def describe(self, what, *details):
        text = f"seed {self.seed}, operation {self.next}, {self.path}: {what}"
        self.report.descriptions.append("\n    ".join([text, *map(str, details)]))

    def check_items(self, opened_states, info, is_known):
        """Checks the items of a copy of the store.

        `is_known` is False if the items of the modeled tables are not known exactly: then only the stream and the queue
        are checked.
        """
        copy = self.root / "copy"
        shutil.copytree(self.path, copy)
        tables = [Table(name, max_size=1_000, sampler=OLDEST) for name in opened_states]
        tables += [Table.queue(name, max_size=STREAM_SIZE) for name in (STREAM, QUEUE)]
        faults = Counter()
        with Store.open(copy, tables, durability="none") as store:
            values = {name: all_values(store, name) for name in (STREAM, QUEUE)}
            for name, state in opened_states.items():
                store.set_rate_limiter(name, MinSize(1))
                difference = self.compare_items(store, name, TableState.parse(state)) if is_known else {}
                if difference:
                    self.describe(f"items of table {name}: {difference}")
                    faults += Counter(difference)
        acknowledged = str(self.acknowledged)
        for name, compare in ((STREAM, self.compare_stream), (QUEUE, self.compare_queue)):
            difference = compare(values[name], info[name])
            if difference:
                self.describe(f"table {name}: {dict(difference)}", acknowledged, info[name], values[name])
                faults += difference
        shutil.rmtree(copy)
        return faults

    def compare_items(self, store, name, state):
        """Checks content, priority, number of samples and key of each item, and deletes it."""
        faults, keys = Counter(), set()
        for seq, bits, _, times, _, _ in state.items:
            batch = store.sample(name, 1, timeout=10)
            info, key = batch.info, int(batch.info.key[0])
            numbers = self.inserted[name][seq]
            expected = steps(numbers)
            faults["content"] += any((batch.data[leaf][0] != expected[leaf]).any() for leaf in ("n", "x"))
            faults["priorities"] += struct.pack("<d", info.priority[0]) != struct.pack("<Q", bits)
            faults["sample counts"] += int(info.times_sampled[0]) != times + 1
            # An item keeps its key: the one that was returned, or that was found first.
            faults["phantom"] += self.keys.setdefault(numbers[-1], key) != key
            keys.add(key)
            store.delete(name, [key])
        faults["duplicated"] += len(state.items) - len(keys)
        faults["phantom"] += store.info()[name].size
        return +faults

    def compare_stream(self, values, info):
        first = max(0, info.inserts - STREAM_SIZE)
        faults = compare_values(values, range(first, info.inserts))
        faults["lost"] += max(0, self.acknowledged.streamed - info.inserts)
        faults["phantom"] += max(0, info.inserts - self.acknowledged.streamed - FLUSH_INTERVAL)
        self.acknowledged.streamed = info.inserts
        return +faults

    def compare_queue(self, values, info):
        removed = info.deletes
        faults = compare_values(values, range(removed, info.inserts))
        faults["lost"] += max(0, self.acknowledged.queued - info.inserts) + max(0, removed - self.acknowledged.sampled)
        faults["phantom"] += max(0, info.inserts - self.acknowledged.queued - FLUSH_INTERVAL) + max(
            0, self.acknowledged.removed - removed
        )
        faults["limiter"] += (info.samples, info.size) != (removed, info.inserts - removed)
        self.acknowledged.queued = info.inserts
        self.acknowledged.sampled = self.acknowledged.removed = removed
        return +faults


def compare_values(values, expected):
    """Counts the faults of a table's numbers.

    `values`: as `all_values` returns them, -1 for an item with wrong content. `expected`: the range of the numbers.
    """
    stored = set(values) - {-1}
    return Counter(
        {
            "content": values.count(-1),
            "lost": len(set(expected) - stored),
            "phantom": len(stored - set(expected)),
            "duplicated": len(values) - values.count(-1) - len(stored),
            "order": values != sorted(values) and -1 not in values,
        }
    )
