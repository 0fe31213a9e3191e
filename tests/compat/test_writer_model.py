"""Random sequences of writer calls, compared with a model of lists of arrays."""

import numpy as np
from helpers.compat_tables import serving, table
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

CELLS = {
    "a": np.int32,
    "b": lambda v: np.full((2, 3), v, np.uint8) + np.arange(3, dtype=np.uint8),
    "c": lambda v: "text " * (v % 3) + str(v),
    "d": lambda v: np.array([v / 7, -v]),
}
PATHS = {"a": ("a",), "b": ("nest", "b"), "c": ("nest", "c"), "d": ("d",)}

MIN_EPISODE_STEPS = 5
"""Most episodes have more steps than this: the history of a short episode has few steps to select from."""

values = st.integers(0, 200)
given_cells = st.fixed_dictionaries({}, optional={name: st.none() | values for name in CELLS})
indices = st.one_of(
    st.integers(-9, 8),
    st.lists(st.integers(-6, 5), max_size=5),
    st.builds(
        slice,
        st.none() | st.integers(-8, 8),
        st.none() | st.integers(-8, 8),
        st.none() | st.integers(-3, 3).filter(bool),
    ),
)


def nest(cells):
    """A step. The leaves of `nest` may be missing; without any, `nest` is missing, too."""
    step = {name: value for name, value in cells.items() if name in "ad"}
    inner = {name: value for name, value in cells.items() if name in "bc"}
    return {**step, "nest": inner} if inner else step


def leaf(tree, name):
    for key in PATHS[name]:
        tree = tree[key]
    return tree


def stored(value):
    """A value as it is sampled."""
    return np.array(value.encode(), dtype=object) if isinstance(value, str) else np.asarray(value)


def picked(cells, index):
    """The values that an index selects from a history, or the error type. None in `cells` is an unusable step."""
    count = len(cells)
    if isinstance(index, slice):
        if (index.step or 1) > 0 and index.start is not None and index.start < -count:
            return ValueError
        chosen = cells[index]
    else:
        indices_used = index if isinstance(index, list) else [index]
        if any(each >= count for each in indices_used):
            return IndexError
        chosen = [None if each < -count else cells[each] for each in indices_used]
    return ValueError if any(cell is None for cell in chosen) else chosen


def stacked(cells, squeeze):
    return stored(cells[0]) if squeeze else np.stack([stored(cell) for cell in cells])


class Programs(RuleBasedStateMachine):
    """Base of the models: at the end, all created items are sampled in order."""

    def start(self):
        self.serving = serving(table(max_times_sampled=1, max_size=10_000))
        _, self.client = self.serving.__enter__()
        self.items = []

    def compare(self):
        samples = list(self.client.sample("t", len(self.items), emit_timesteps=False)) if self.items else []
        assert self.client.server_info()["t"].current_size == 0
        for sample, (priority, columns) in zip(samples, self.items, strict=True):
            assert sample.info.priority == priority
            assert len(sample.data) == len(columns)
            for actual, expected in zip(sample.data, columns, strict=True):
                assert actual.dtype == expected.dtype
                np.testing.assert_array_equal(actual, expected, strict=True)

    def teardown(self):
        if not hasattr(self, "client"):
            return
        try:
            self.end()
            self.compare()
        finally:
            self.serving.__exit__(None, None, None)


class TrajectoryPrograms(Programs):
    """`TrajectoryWriter`: partial steps, missing leaves, all kinds of slices."""

    @initialize(
        keep=st.integers(1, 20),
        chunk_length=st.none() | st.integers(1, 16),
        own=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 24)),
    )
    def open(self, keep, chunk_length, own):
        self.start()
        self.writer = self.client.trajectory_writer(keep)
        self.keep = dict.fromkeys(CELLS, keep) | own
        for name, kept in self.keep.items():
            if name in own or (chunk_length is not None and chunk_length <= kept):
                length = None if chunk_length is None or chunk_length > kept else chunk_length
                self.writer.configure(PATHS[name], num_keep_alive_refs=kept, max_chunk_length=length)
        self.steps = []  # the values of each step of the history, by column
        self.step_is_open, self.num_episode_steps = False, 0
        self.known_columns, self.num_appended = {}, 0
        self.columns = []  # selected columns: name, column, step numbers, expected values, whether it is one step

    def cells(self, name):
        """The history of a column, with None for unusable steps."""
        cells = [step.get(name) for step in self.steps]
        num_expired = max(0, len(cells) - self.keep[name])
        return [None] * num_expired + cells[num_expired:]

    @rule(cells=given_cells, partial=st.booleans())
    def append_some(self, cells, partial):
        self.append(cells, partial)

    def append(self, cells, partial):
        step = {name: None if value is None else CELLS[name](value) for name, value in cells.items()}
        set_before = self.steps[-1] if self.step_is_open else {}
        given = {name: value for name, value in step.items() if value is not None}
        if set_before.keys() & given.keys():
            try:
                self.writer.append(nest(step), partial_step=partial)
            except ValueError as error:
                assert "has already been set in the active step" in str(error)  # noqa: PT017, the program continues
                return
            raise AssertionError("a value was set twice")
        self.writer.append(nest(step), partial_step=partial)
        self.known_columns |= dict.fromkeys(step)
        if not self.step_is_open:
            self.steps.append({})
            self.num_appended += 1
        self.steps[-1].update(given)
        self.step_is_open = partial
        self.num_episode_steps += not partial
        assert self.writer.episode_steps == self.num_episode_steps

    @rule(value=values, count=st.integers(2, 8))
    def append_many(self, value, count):
        if self.step_is_open:
            return
        for more in range(count):
            self.append(dict.fromkeys(CELLS, (value + more) % 200), False)

    @precondition(lambda self: self.known_columns)
    @rule(name=st.sampled_from("abcd"), index=indices)
    def pick(self, name, index):
        if name not in self.known_columns:
            return
        history = leaf(self.writer.history, name)
        cells = self.cells(name)
        assert len(history) == len(cells)
        assert [reference is None for reference in history] == [cell is None for cell in cells]
        expected = picked(cells, index)
        try:
            column = history[index]
        except (IndexError, ValueError) as error:
            assert type(error) is expected  # noqa: PT017, the program continues
            return
        assert isinstance(expected, list), (expected, index)
        assert len(column) == len(expected)
        first = self.num_appended - len(cells)
        numbers = range(first, self.num_appended)
        chosen = numbers[index] if isinstance(index, slice) else [numbers[i] for i in np.atleast_1d(index).astype(int)]
        squeeze = isinstance(index, int)
        if expected:
            np.testing.assert_array_equal(column.numpy(), stacked(expected, squeeze), strict=True)
            assert column.shape == stacked(expected, squeeze).shape
        self.columns.append((name, column, list(chosen), expected, squeeze))

    @precondition(lambda self: self.columns)
    @rule(data=st.data(), priority=st.floats(0, 9))
    def create(self, data, priority):
        newest = self.columns[-4:]
        chosen = data.draw(st.lists(st.sampled_from(newest), min_size=1, max_size=3))
        expired = [
            any(
                number < max(self.num_appended - self.keep[name], self.num_appended - len(self.steps))
                for number in numbers
            )
            for name, _, numbers, _, _ in chosen
        ]
        trajectory = [column for _, column, *_ in chosen]
        error_text = None
        if not all(len(column) for column in trajectory):
            error_text = "trajectory must not be empty"
        elif any(expired):
            error_text = f"Error in column {expired.index(True)}"
        try:
            self.writer.create_item("t", priority, trajectory)
        except ValueError as error:
            assert error_text is not None
            assert error_text in str(error)  # noqa: PT017, the program continues
            return
        assert error_text is None
        self.items.append((priority, [stacked(expected, squeeze) for *_, expected, squeeze in chosen]))

    @precondition(lambda self: len(self.steps) > MIN_EPISODE_STEPS)
    @rule(clear=st.booleans())
    def end_episode(self, clear):
        self.writer.end_episode(clear_buffers=clear)
        self.step_is_open, self.num_episode_steps = False, 0
        if clear:
            self.steps = []

    @rule(allowed=st.integers(0, 3))
    def flush(self, allowed):
        self.writer.flush(allowed)

    @precondition(lambda self: len(self.steps) <= MIN_EPISODE_STEPS)
    @rule()
    def cut_short(self):
        """Ends a short episode now and then."""
        if self.num_appended % 4 == 0:
            self.end_episode(clear=True)

    def end(self):
        self.writer.flush()


class LegacyPrograms(Programs):
    """`Writer`: single steps and sequences, all chunk lengths, with and without delta encoding."""

    @initialize(longest=st.integers(1, 16), chunk=st.floats(0, 1), delta=st.booleans(), in_flight=st.integers(1, 30))
    def open(self, longest, chunk, delta, in_flight):
        self.start()
        self.longest = longest
        length = 1 + int(chunk * (longest - 1))
        self.writer = self.client.writer(longest, delta, length, in_flight)
        self.steps = []

    def step(self, value):
        return [CELLS["a"](value), {"b": CELLS["b"](value), "c": CELLS["c"](value)}, np.int64(-value)]

    @rule(value=values)
    def append(self, value):
        self.writer.append(self.step(value))
        self.steps.append(value)

    @rule(some=st.lists(values, min_size=1, max_size=5))
    def append_sequence(self, some):
        columns = zip(*[self.flat(value) for value in some], strict=True)
        a, b, c, d = (np.stack(column) for column in columns)
        self.writer.append_sequence([a, {"b": b, "c": c}, d])
        self.steps += some

    def flat(self, value):
        first, inner, last = self.step(value)
        return [stored(each) for each in (first, inner["b"], inner["c"], last)]

    @rule(length=st.integers(1, 18), priority=st.floats(0, 9))
    def create(self, length, priority):
        try:
            self.writer.create_item("t", length, priority)
        except ValueError as error:
            assert length > min(len(self.steps), self.longest)
            assert "larger than number of buffered timesteps" in str(error)  # noqa: PT017, the program continues
            return
        rows = [self.flat(value) for value in self.steps[-length:]]
        self.items.append((priority, [np.stack(column) for column in zip(*rows, strict=True)]))

    @rule()
    def flush(self):
        self.writer.flush()

    def end(self):
        self.writer.close()


TestTrajectoryPrograms = TrajectoryPrograms.TestCase
TestLegacyPrograms = LegacyPrograms.TestCase
TestTrajectoryPrograms.settings = settings(stateful_step_count=40)
TestLegacyPrograms.settings = settings(stateful_step_count=30)
