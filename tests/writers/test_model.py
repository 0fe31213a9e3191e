"""Random programs of trajectory-writer calls, compared with a list as the model."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import engram
from engram import Table, selectors
from engram.errors import ExpiredStepError, InvalidArgumentError

indices = st.one_of(
    st.integers(-9, 8),
    st.lists(st.integers(-6, 5), min_size=1, max_size=5),
    st.builds(
        slice,
        st.none() | st.integers(-8, 8),
        st.none() | st.integers(-8, 8),
        st.none() | st.integers(-3, 3).filter(bool),
    ),
)
values = st.fixed_dictionaries(
    {}, optional={"a": st.integers(-(2**31), 2**31), "b": st.integers(0, 200), "c": st.text(max_size=4)}
)


def cell(name, value):
    return {"a": int, "b": lambda v: np.full(3, v, np.uint8), "c": str}[name](value)


class Writing(RuleBasedStateMachine):
    """A writer and its model: the steps of the episode, and the expected items."""

    @initialize(history=st.integers(1, 6), chunk_length=st.sampled_from([None, 1, 2, 3, 7]))
    def open(self, history, chunk_length):
        table = Table("t", sampler=selectors.Fifo(), max_times_sampled=1)
        self.store = engram.Store([table])
        self.writer = self.store.writer(history=history, chunk_length=chunk_length)
        self.keep = history
        self.steps, self.open_step = [], False
        self.base = 0  # index of the first visible step
        self.known, self.items = set(), []  # names of columns, expected items
        self.episode = 0  # number of complete steps of the episode

    @rule(step=values, partial=st.booleans())
    def append(self, step, partial):
        current = self.steps[-1] if self.open_step else {}
        given = {name: cell(name, value) for name, value in step.items()}
        if current.keys() & given.keys():
            try:
                self.writer.append(given, partial_step=partial)
            except InvalidArgumentError:
                # Columns of the rejected part may exist now, without a value.
                self.known |= set(self.writer.history)
                return
            raise AssertionError("a value was set twice")
        self.writer.append(given, partial_step=partial)
        self.known |= given.keys()
        if not self.open_step:
            self.steps.append({})
        self.steps[-1].update(step)
        self.open_step = partial
        self.episode += not partial

    @precondition(lambda self: self.known)
    @rule(picks=st.dictionaries(st.sampled_from("abc"), indices, min_size=1))
    def create(self, picks):
        picks = {name: index for name, index in picks.items() if name in self.known}
        visible_steps = self.steps[self.base :]
        numbers = range(self.base, len(self.steps))
        trajectory, expected, fits = {}, {}, bool(picks)
        for name, index in picks.items():
            try:
                chosen = [numbers[i] for i in index] if isinstance(index, list) else numbers[index]
            except IndexError:
                chosen = None
            try:
                trajectory[name] = self.writer.history[name][index]
            except IndexError:
                assert chosen is None
                return
            assert chosen is not None
            chosen = [chosen] if isinstance(index, int) else list(chosen)
            oldest = len(self.steps) - self.keep
            fits &= bool(chosen) and min(chosen, default=-1) >= max(oldest, self.base)
            fits &= all(name in visible_steps[n - self.base] for n in chosen)
            if fits:
                cells = [cell(name, visible_steps[n - self.base][name]) for n in chosen]
                expected[name] = cells[0] if isinstance(index, int) else cells
        try:
            self.writer.create_item("t", trajectory=trajectory)
        except (ExpiredStepError, InvalidArgumentError, engram.errors.SignatureError):
            assert not fits
        else:
            assert fits
            self.items.append(expected)

    @rule()
    def flush(self):
        self.writer.flush(5)
        self.check_items()

    @rule(clear=st.booleans())
    def end_episode(self, clear):
        self.writer.end_episode(5, clear=clear)
        self.open_step = False
        self.episode = 0
        if clear:
            self.base = len(self.steps)
        self.check_items()

    def check_items(self):
        assert self.store.info()["t"].size == len(self.items)
        for expected in self.items:
            data = self.store.sample("t", 1, timeout=0).data
            assert data.keys() == expected.keys()
            for name, value in expected.items():
                if name == "c":
                    one = isinstance(value, str)
                    assert data[name].tolist() == [value if one else list(value)]
                else:
                    np.testing.assert_array_equal(data[name][0], np.array(value))
        self.items.clear()

    @invariant()
    def counts_steps(self):
        if hasattr(self, "writer"):
            assert self.writer.episode_steps == self.episode

    def teardown(self):
        if hasattr(self, "writer"):
            self.writer.close(5)
            self.check_items()
            self.store.close()


TestWriting = Writing.TestCase
TestWriting.settings = settings(settings(), stateful_step_count=30)
