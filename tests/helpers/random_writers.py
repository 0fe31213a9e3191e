"""Random programs of a trajectory writer's calls, run with dm-reverb and with `engram.compat.reverb`.

A program is a list of calls, each a tuple of a name and arguments. Running it gives a list of outcomes, one per call.
"""

import random

import numpy as np

PATHS = {"a": ("a",), "b": ("nest", "b"), "c": ("nest", "c"), "d": ("d",)}
"""Columns and their paths in a step. Every value of a step encodes the step's number, see `CELLS`."""

CELLS = {
    "a": np.int32,
    "b": lambda number: np.full((2, 3), number, np.uint16),
    "c": lambda number: str(number).encode(),
    "d": lambda number: np.array([number, -number], np.float64),
}
PROGRAMS = 150
"""Number of programs that are compared."""

TIMEOUT_MS = 20_000
"""Timeout of calls that wait for the table, which never blocks."""


def program(seed):
    """Returns a random program. Its last call is `end`, which reads all items."""
    rng = random.Random(seed)  # noqa: S311, not a secret
    keep, chunk = rng.randint(1, 20), rng.choice([None, rng.randint(1, 16)])
    calls = [("open", keep)]
    for name in PATHS:
        own_keep = rng.choice([keep, keep, rng.randint(1, 24)])
        length = None if chunk is None or chunk > own_keep else chunk
        if own_keep != keep or length:
            calls.append(("configure", name, own_keep, length))
    picks = 0
    for number in range(40):
        kind = rng.choices(["append", "many", "pick", "create", "flush", "end_episode"], [5, 3, 5, 4, 1, 1])[0]
        if kind == "append":
            has_values = {name: rng.random() < 0.8 for name in PATHS if rng.random() < 0.8}
            calls.append((kind, has_values, rng.random() < 0.3))
        elif kind == "many":
            calls.append((kind, rng.randint(2, 8)))
        elif kind == "pick":
            calls.append((kind, rng.choice(list(PATHS)), _index(rng)))
            picks += 1
        elif kind == "create" and picks:
            chosen = [rng.randrange(max(0, picks - 4), picks) for _ in range(rng.randint(1, 3))]
            calls.append((kind, number, chosen))
        elif kind == "flush":
            calls.append((kind, rng.randint(0, 3)))
        elif kind == "end_episode":
            calls.append((kind, rng.random() < 0.6, rng.random() < 0.05))
    return [*calls, ("end",)]


def _index(rng):
    def bound():
        return rng.choice([None, rng.randint(-8, 8)])

    one, some = rng.randint(-9, 8), [rng.randint(-6, 5) for _ in range(rng.randint(0, 5))]
    step = rng.choice([None, None, rng.choice([-3, -2, -1, 1, 2, 3])])
    return rng.choice([one, some, slice(bound(), bound(), step)])


def outcomes(client, table, seed):
    """Runs the program of `seed` with a table whose items are sampled once each, in order; returns the outcomes."""
    return list(Run(client, table).outcomes(program(seed)))


class Run:
    """One run of a program, through a client."""

    def __init__(self, client, table):
        self.client, self.table = client, table
        self.steps, self.is_open = 0, False  # steps begun; whether the last one is partial
        self.picks = []  # (column name, slice of its history) of each `pick`, None if it failed
        self.items = {}  # column names by item number, which is the item's priority

    def outcomes(self, calls):
        for name, *arguments in calls:
            try:
                yield ("returned", getattr(self, name)(*arguments))
            except Exception as error:  # noqa: BLE001, errors are compared
                yield ("raised", type(error).__name__, str(error))

    def open(self, keep):
        self.writer = self.client.trajectory_writer(keep)

    def configure(self, name, keep, length):
        self.writer.configure(PATHS[name], num_keep_alive_refs=keep, max_chunk_length=length)

    def append(self, has_values, partial):
        """Appends a step of the columns in `has_values`: a value where True, else None."""
        number = self.steps - self.is_open
        step = {}
        for name, has_value in has_values.items():
            *outer, last = PATHS[name]
            nest = step.setdefault(*outer, {}) if outer else step
            nest[last] = CELLS[name](number) if has_value else None
        self.writer.append(step, partial_step=partial)
        self.steps, self.is_open = number + 1, partial
        return self.writer.episode_steps

    def many(self, count):
        """Appends whole steps, after completing a partial one."""
        if self.is_open:
            self.append(dict.fromkeys(PATHS, False), False)
        return [self.append(dict.fromkeys(PATHS, True), False) for _ in range(count)]

    def pick(self, name, index):
        """Indexes a history. Returns which steps are usable, and the selected step numbers or the type of the error."""
        self.picks.append(None)
        history = self.writer.history
        for key in PATHS[name]:
            history = history[key]
        usable = [reference is not None and not reference.expired for reference in history]
        try:
            column = history[index]
        except (IndexError, TypeError, ValueError) as error:
            return usable, type(error).__name__
        self.picks[-1] = (name, column)
        try:
            values = column.numpy() if len(column) else np.zeros(0)
        except RuntimeError:
            return usable, "expired"
        return usable, self.numbers(name, values)

    @staticmethod
    def numbers(name, values):
        """Decodes the step numbers from a column's values."""
        cells = np.asarray(values).reshape(-1, *np.shape(CELLS[name](0)))
        numbers = [int(np.ravel(cell)[0]) for cell in cells]
        for number, cell in zip(numbers, cells, strict=True):
            assert np.array_equal(cell, CELLS[name](number)), (name, cell)
        return numbers

    def create(self, number, chosen):
        """Creates an item, unless a pick failed or a column among others is empty.

        Returns the length of each column and whether some of its steps are expired, and the result.
        """
        columns = [self.picks[index] for index in chosen]
        if None in columns or (len(columns) > 1 and not all(len(column) for _, column in columns)):
            return "skipped"
        lengths = [(len(column), any(reference.expired for reference in column)) for _, column in columns]
        try:
            self.writer.create_item(self.table, number, [column for _, column in columns])
        except ValueError:
            return lengths, "rejected"
        self.items[float(number)] = [name for name, _ in columns]
        return lengths, "created"

    def flush(self, allowed):
        self.writer.flush(allowed, timeout_ms=TIMEOUT_MS)

    def end_episode(self, clear, within_a_step):
        """Ends the episode; while the last step is partial, only if `within_a_step`."""
        if self.is_open and not within_a_step:
            return "open"
        self.writer.end_episode(clear_buffers=clear, timeout_ms=TIMEOUT_MS)
        self.is_open = False
        return None

    def end(self):
        """Flushes, and returns the step numbers of all items, by column."""
        try:
            self.writer.flush(timeout_ms=TIMEOUT_MS)
            count = self.client.server_info()[self.table].current_size
            items = {}
            for sample in self.client.sample(self.table, count, emit_timesteps=False) if count else []:
                names = self.items[sample.info.priority]
                items[int(sample.info.priority)] = [
                    self.numbers(name, column) for name, column in zip(names, sample.data, strict=True)
                ]
            return items
        finally:
            self.writer.close()
            self.client.reset(self.table)
