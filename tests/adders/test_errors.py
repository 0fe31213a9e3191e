"""Errors between an environment and a table, and what an adder keeps after them."""

from contextlib import suppress
from itertools import pairwise

import numpy as np
import optree
import pytest
from helpers.episodes import MAKERS, blocked, episode_rows, items, play, queue, rows, timesteps, unblock
from helpers.support import raises

from engram import Pattern, Store, Table, selectors
from engram.adders import (
    EpisodeAdder,
    MultiSequenceAdder,
    NStepTransitionAdder,
    SequenceAdder,
    StructuredAdder,
)
from engram.errors import (
    BackpressureError,
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    ItemError,
    PriorityError,
    SignatureError,
    UnknownTableError,
    UnsatisfiableError,
)
from engram.patterns import end_of_episode


@pytest.fixture(params=sorted(MAKERS))
def make(request):
    return MAKERS[request.param]


@pytest.fixture(params=sorted(set(MAKERS) - {"structured"}))
def make_strict(request):
    """Makes an adder that does not allow None."""
    return MAKERS[request.param]


class FailsAtCall:
    """A function that raises an error at its `n`th call."""

    def __init__(self, n, result):
        self.calls_left, self.result = n, result

    def __call__(self, _):
        self.calls_left -= 1
        if self.calls_left == 0:
            raise ZeroDivisionError
        return self.result


def play_despite_errors(adder, steps):
    """Adds an episode, continuing after errors of a `FailsAtCall`; returns the observations whose `add` raised one."""
    failed = {}
    adder.add_first(steps[0])
    for step, next_step in pairwise(steps):
        try:
            adder.add(np.float32(step.observation / 10), next_step)
        except ItemError as error:
            failed[int(step.observation)] = error
    text = "the transition was added, but an item that ends with it was not created: ZeroDivisionError"
    assert {str(error) for error in failed.values()} == {text}
    assert {type(error.__cause__) for error in failed.values()} == {ZeroDivisionError}
    return list(failed)


# --- Functions and tables that fail ---


def test_a_failing_priority_function_skips_only_its_item():
    with Store([queue("a"), queue("b")]) as store:
        with SequenceAdder(store, 2, 1, priority_fns={"a": FailsAtCall(2, 1.0), "b": lambda _: 1.0}) as adder:
            assert play_despite_errors(adder, timesteps([1, 2, 3])) == [3]
        whole = episode_rows([1, 2, 3], 1)
        expected = [whole[0:2], whole[1:3], whole[2:4]]
        assert [rows(item) for item in items(store, "a")] == [expected[0], expected[2]]
        assert [rows(item) for item in items(store, "b")] == expected


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_failing_priority_function_skips_only_its_transition(nth):
    priorities = {"priority_table": FailsAtCall(nth, 1.0)}
    with Store([queue()]) as store:
        with NStepTransitionAdder(store, 2, 1.0, priority_fns=priorities) as adder:
            assert len(play_despite_errors(adder, timesteps([1, 2, 4, 8]))) == 1
            play(adder, timesteps([5], first=50))
        stored = [(item.observation, item.reward) for item in items(store)]
    expected = [(1, 3.0), (2, 6.0), (3, 12.0), (4, 8.0), (50, 5.0)]
    assert stored == expected[: nth - 1] + expected[nth:]


def test_a_failing_should_insert_function_skips_only_its_item():
    filters = {"a": FailsAtCall(1, result=True), "b": lambda _: True}
    lengths = dict.fromkeys(filters, 1)
    with Store([queue("a"), queue("b")]) as store:
        with MultiSequenceAdder(store, lengths, lengths, should_insert_fns=filters) as adder:
            assert play_despite_errors(adder, timesteps([1, 2])) == [1]
        assert [item.observation for item in items(store, "a")] == [[2], [3]]
        assert [item.observation for item in items(store, "b")] == [[1], [2], [3]]


def test_an_item_that_is_too_large_is_an_error():
    with Store([Table("priority_table", max_bytes=2_000)]) as store:
        with EpisodeAdder(store, 1_000) as adder, pytest.raises(UnsatisfiableError, match="max_bytes"):
            play(adder, timesteps(range(500)))
        assert store.info()["priority_table"].size == 0


@pytest.mark.parametrize("priority", [1.0, lambda _: 1.0])
def test_a_table_that_rejects_items_does_not_affect_others(priority):
    """All items are too large for one table; the other table gets its items."""
    tables = [Table("small", max_bytes=200), queue("b")]
    with Store(tables) as store:
        with NStepTransitionAdder(store, 2, 1.0, priority_fns=dict.fromkeys(["small", "b"], priority)) as adder:
            steps = timesteps([1, 2, 4, 8])
            adder.add_first(steps[0])
            rejections = []
            for step, next_step in pairwise(steps):
                try:
                    adder.add(np.float32(step.observation / 10), next_step)
                except (ItemError, UnsatisfiableError) as error:
                    rejections.append(str(error))
            with suppress(UnsatisfiableError):
                play(adder, timesteps([2], first=20))
        assert rejections
        assert all("whose max_bytes is 200" in text for text in rejections)
        assert [(item.observation, item.reward) for item in items(store, "b")] == [
            (1, 3),
            (2, 6),
            (3, 12),
            (4, 8),
            (20, 2),
        ]


def test_a_dropped_table_does_not_corrupt_another():
    with Store([queue("a"), queue("b")]) as store:
        adder = NStepTransitionAdder(store, 2, 1.0, priority_fns={"a": 1, "b": 1}, chunk_length=1)
        steps = timesteps([1, 2, 4, 8, 16])
        adder.add_first(steps[0])
        for index, (step, next_step) in enumerate(pairwise(steps)):
            if index == 3:
                store.drop_table("a")
            with suppress(ItemError, ClosedError):
                adder.add(np.float32(step.observation / 10), next_step)
        with suppress(ClosedError):
            adder.close()
        stored = [(item.observation, item.reward) for item in items(store, "b")]
        assert stored == [(1, 3), (2, 6), (3, 12), (4, 24), (5, 16)][: len(stored)]
        assert len(stored) >= 2


# --- Environments that reuse their arrays ---


def test_reused_arrays_do_not_change_items(make):
    store = Store([queue()])

    def items_of_episode(reuse):
        steps = [
            step._replace(observation=np.array([step.observation]), reward=np.array([step.reward or 0.0]))
            for step in timesteps([1, 20, 300])
        ]
        observation, reward = np.zeros(1, np.int64), np.zeros(1)
        with make(store) as adder:
            for index, step in enumerate(steps):
                observation[:], reward[:] = step.observation, step.reward
                timestep = step._replace(observation=observation, reward=reward) if reuse else step
                if index == 0:
                    adder.add_first(timestep)
                else:
                    adder.add(np.float32(index), timestep)
        return items(store)

    assert items_of_episode(reuse=True) == items_of_episode(reuse=False) != []


def test_should_insert_fns_receive_copies():
    received = []
    record = {"priority_table": lambda steps: received.append([float(step.action) for step in steps]) or True}
    action = np.zeros((), np.float32)
    with Store([queue()]) as store:
        lengths = {"priority_table": 2}
        with MultiSequenceAdder(store, lengths, {"priority_table": 1}, should_insert_fns=record) as adder:
            steps = timesteps([1, 2, 3])
            adder.add_first(steps[0])
            for index, step in enumerate(steps[1:], 1):
                action[...] = index
                adder.add(action, step)
    assert received == [[1, 2], [2, 3], [3, 0]]


# --- Data that does not fit ---


def test_bytes_keep_trailing_zeros():
    steps = [step._replace(observation=b"ab\0\0") for step in timesteps([1])]
    with Store([queue()]) as store:
        with SequenceAdder(store, 2, 2) as adder:
            adder.add_first(steps[0])
            adder.add(b"c\0", steps[1], {"e": b"\0"})
        data = store.sample("priority_table", 1).data
    assert data.observation[0].tolist() == [b"ab\0\0"] * 2
    assert (data.action[0].tolist(), data.extras["e"][0].tolist()) == ([b"c\0", b""], [b"\0", b""])


@pytest.mark.parametrize("priority", [1.0, lambda _: 1.0])
@pytest.mark.parametrize("extras", [{"x": 1, "y": 1}, {}, 1, None])
def test_extras_must_keep_their_structure(priority, extras):
    with Store([queue()]) as store, SequenceAdder(store, 2, 1, priority_fns={"priority_table": priority}) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        adder.add(np.float32(0.1), steps[1], {"x": 1})
        stored = () if extras is None else extras
        with raises(
            SignatureError, f"`extras` must have the same structure as in earlier steps: {{'x': *}}; got {stored!r}"
        ):
            adder.add(np.float32(0.2), steps[2], extras)
        adder.add(np.float32(0.2), steps[2], {"x": 2})
        assert [item.extras["x"] for item in items(store)] == [[1, 2], [2, 0]]


def test_extras_must_stay_empty():
    text = "`extras` must have the same structure as in earlier steps: an empty tuple; got {'x': 1}"
    with Store([queue()]) as store, SequenceAdder(store, 2, 1) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        adder.add(np.float32(0.1), steps[1])
        with raises(SignatureError, text):
            adder.add(np.float32(0.2), steps[2], {"x": 1})


def test_observation_shapes_may_change_only_between_episodes():
    steps = timesteps([1, 2])
    with Store([queue()]) as store, EpisodeAdder(store, 9) as adder:
        for size in (2, 3):
            resized = [step._replace(observation=np.zeros(size)) for step in steps]
            adder.add_first(resized[0])
            text = f"an observation must have the layout of the earlier ones, float64[{size}]; got float64[7]"
            with raises(SignatureError, text):
                adder.add(np.float32(0), resized[1]._replace(observation=np.zeros(7)))
            adder.add(np.float32(0), resized[1])
            adder.add(np.float32(0), resized[2])
        assert [len(item.observation[0]) for item in items(store)] == [2, 3]


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        ({"core_state": None}, "`extras` must not contain None; got {'core_state': None}"),
        ((1, [None]), "`extras` must not contain None; got (1, [None])"),
        (
            {"x": list(range(500)), "y": None},
            f"`extras` must not contain None; got {repr({'x': list(range(500)), 'y': None})[:100]}...",
        ),
    ],
)
def test_extras_must_not_contain_none(make_strict, extras, text):
    with Store([queue()]) as store, make_strict(store) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with raises(SignatureError, text):
            adder.add(np.float32(0), steps[1], extras)
        adder.add(np.float32(0), steps[1], None)
        adder.add(np.float32(0), steps[2])
        assert store.info()["priority_table"].size


@pytest.mark.parametrize("observation", [None, {"a": 1, "b": None}])
def test_a_first_observation_must_not_contain_none(make_strict, observation):
    with Store([queue()]) as store, make_strict(store) as adder:
        steps = timesteps([1, 2])
        with raises(SignatureError, f"an observation must not contain None; got {observation!r}"):
            adder.add_first(steps[0]._replace(observation=observation))
        play(adder, steps)
        assert store.info()["priority_table"].size


@pytest.mark.parametrize(
    ("table", "kind", "text"),
    [
        ("nowhere", UnknownTableError, "no table `nowhere`; known tables: `picky`"),
        (
            "picky",
            PriorityError,
            "priority for table `picky` is -1; a Prioritized selector needs a finite value that is not negative",
        ),
    ],
)
def test_unknown_tables_and_bad_priorities_are_reported(table, kind, text):
    steps = timesteps([1, 2])
    with Store([Table("picky", sampler=selectors.Prioritized(1.0))]) as store:
        adder = SequenceAdder(store, 1, 1, priority_fns={table: -1.0})
        adder.add_first(steps[0])
        for _ in range(2):
            with raises(kind, text):
                adder.add(np.float32(0), steps[1])
        with_priority_function = SequenceAdder(store, 1, 1, priority_fns={table: lambda _: -1.0})
        with_priority_function.add_first(steps[0])
        with pytest.raises(ItemError) as caught:
            with_priority_function.add(np.float32(0), steps[1])
        assert (type(caught.value.__cause__), str(caught.value.__cause__)) == (kind, text)


def test_a_failing_padding_fn_skips_the_item_of_its_episode():
    with Store([queue()]) as store, EpisodeAdder(store, 5, padding_fn=lambda *_: 1 / 0) as adder:
        with pytest.raises(ZeroDivisionError):
            play(adder, timesteps([1]))
        assert not store.info()["priority_table"].size
        play(adder, timesteps([1, 2, 3, 4]))
        assert [len(item.reward) for item in items(store)] == [5], "this episode needs no padding"


def test_an_observation_with_another_dtype_is_rejected_at_once(make_strict):
    text = "an observation must have the layout of the earlier ones, int64; got float32"
    with Store([queue()]) as store:

        def items_of_episodes(bad):
            with make_strict(store) as adder:
                steps = timesteps([1, 2, 3])
                adder.add_first(steps[0])
                for step, next_step in pairwise(steps):
                    if bad:
                        with raises(SignatureError, text):
                            adder.add(np.float32(0), next_step._replace(observation=np.float32(7)))
                    adder.add(np.float32(step.observation), next_step)
                if bad:
                    with raises(SignatureError, text):
                        adder.add_first(steps[0]._replace(observation=np.float32(7)))
                play(adder, steps)
            return items(store)

        assert items_of_episodes(bad=True) == items_of_episodes(bad=False)


def test_error_texts_show_the_layouts_of_nests():
    text = "an observation must have the layout of the earlier ones, {a: uint8, b: [text]}; got {a: uint8, b: [int64]}"
    with Store([queue()]) as store, SequenceAdder(store, 1, 1) as adder:
        steps = [step._replace(observation={"a": np.uint8(1), "b": ["x"]}) for step in timesteps([1, 2])]
        adder.add_first(steps[0])
        with raises(SignatureError, text):
            adder.add(np.float32(0), steps[1]._replace(observation={"a": np.uint8(1), "b": [1]}))


def test_observations_for_patterns_may_contain_none():
    pattern = Pattern("priority_table", lambda step: step.observation["a"][-2:])
    steps = [step._replace(observation={"a": step.observation, "b": None}) for step in timesteps([1, 2, 3])]
    with Store([queue()]) as store, StructuredAdder(store, [pattern]) as adder:
        adder.add_first(steps[0])
        adder.add(np.float32(0), steps[1]._replace(observation={"a": None, "b": np.int8(1)}))
        text = "an observation must have the layout of the earlier ones, {a: int64, b: int8}; got {a: float32, b: int8}"
        with raises(SignatureError, text):
            adder.add(np.float32(0), steps[2]._replace(observation={"a": np.float32(1), "b": np.int8(1)}))
        adder.add(np.float32(0), steps[2])
        adder.add(np.float32(0), steps[3])
        assert items(store) == [[3, 4]]


# --- Tables that block ---


def test_leaving_a_with_block_by_an_exception_does_not_wait(make):
    with Store([blocked()]) as store, pytest.raises(KeyError):  # noqa: SIM117
        with make(store) as adder:
            steps = timesteps([1, 2, 3])
            adder.add_first(steps[0])
            for _ in range(2):
                adder.add(np.float32(0), steps[1])
            raise KeyError


def test_flush_and_close_time_out_while_a_table_blocks(make):
    with Store([blocked()]) as store:
        adder = make(store)
        steps = timesteps([1, 2, 3])
        for _ in range(3):
            adder.add_first(steps[0])
            adder._timeout = 0
            try:
                for step in steps[1:]:
                    adder.add(np.float32(0), step)
            except DeadlineExceededError:
                pass
        with pytest.raises(DeadlineExceededError):
            adder.flush(timeout=0.01)
        with pytest.raises(DeadlineExceededError):
            adder.close(timeout=0.01)
        unblock(store)
        adder.close()
        with raises(ClosedError, "the adder is closed"):
            adder.add_first(steps[0])


def test_a_reset_that_times_out_does_not_join_episodes():
    ends = Pattern("priority_table", lambda step: step.observation[-2:], when=[end_of_episode()])
    pairs = Pattern("priority_table", lambda step: step.observation[-2:])
    with Store([blocked()]) as store, StructuredAdder(store, [pairs, ends], timeout=0.01) as adder:
        steps = timesteps([1, 2, 3, 4])
        adder.add_first(steps[0])
        for step in steps[1:4]:
            adder.add(np.float32(0), step)
        with pytest.raises(DeadlineExceededError):
            adder.reset()
        with pytest.raises(DeadlineExceededError):
            adder.flush(timeout=0.01)
        unblock(store)
        play(adder, timesteps([5, 6], first=50))
        adder.flush()
        stored = items(store)
    assert stored == [[1, 2], [2, 3], [50, 51], [51, 52], [51, 52]]


def test_a_blocked_table_does_not_delay_others():
    pairs = [Pattern(table, lambda step: step.observation[-2:]) for table in ("priority_table", "free")]
    with Store([blocked(), queue("free")]) as store:
        adder = StructuredAdder(store, (pattern for pattern in pairs), timeout=0.01)
        steps = timesteps([1, 2, 3])
        for _ in range(3):
            adder.add_first(steps[0])
            for step in steps[1:3]:
                adder.add(np.float32(0), step)
            with suppress(DeadlineExceededError):
                adder.reset()
        assert items(store, "free") == [[1, 2]] * 3
        unblock(store)
        adder.close()
        assert items(store) == [[1, 2]] * 3


def test_closing_creates_the_complete_items():
    with Store([queue()]) as store:
        with NStepTransitionAdder(store, 1, 1.0) as adder:
            steps = timesteps([1, 2, 3])
            adder.add_first(steps[0])
            adder.add(np.float32(0.1), steps[1])
        assert [item[:5] for item in items(store)] == [(1, 0.1, 1, 1, 2)]


def test_backpressure_keeps_nothing_of_the_step():
    with Store([blocked()]) as store:
        adder = NStepTransitionAdder(store, 1, 1.0, timeout=0, chunk_length=1)
        steps = timesteps(range(2_000))
        adder.add_first(steps[0])
        accepted = 0
        with pytest.raises(BackpressureError):
            for step, next_step in pairwise(steps):
                adder.add(np.float32(step.observation / 10), next_step)
                accepted += 1
        unblock(store)
        adder.flush()
        for step, next_step in pairwise(steps[accepted:]):
            adder.add(np.float32(step.observation / 10), next_step)
        adder.close()
        data = store.sample("priority_table", 2_000).data
    assert data.observation.tolist() == list(range(1, 2_001))
    assert data.reward.tolist() == list(range(2_000))


@pytest.mark.parametrize("steps_of_first", [1, 2, 3, 4])
def test_an_episode_whose_end_is_rejected_has_ended(make, steps_of_first):
    """A writer has a limited number of pending items, which is reached at different points of an episode."""
    with Store([blocked()]) as store:
        adder = make(store, timeout=0, chunk_length=1)
        try_to_play(adder, 1, steps_of_first)
        assert any(try_to_play(adder, number, 2) for number in range(2, 1_200))
        unblock(store)
        adder.flush()
        play(adder, timesteps([7_000], first=70_000))
        stored = items(store)
        adder.close()
    for item in stored:
        leaves = [leaf for leaf in optree.tree_leaves(item) if 10 <= leaf < 1e6]
        observations = item.observation if hasattr(item, "observation") else leaves
        numbers = {int(value) // 10 for value in np.ravel(observations) if value}
        assert len(numbers) == 1, "two episodes in one item"
        if hasattr(item, "next_observation"):
            assert round(item.reward / (item.observation // 10), 6) in {1.0, 1.9}


def test_returns_contain_no_rewards_of_an_episode_that_was_rejected_and_abandoned():
    with Store([blocked()]) as store:
        adder = NStepTransitionAdder(store, 3, 1.0, timeout=0, chunk_length=1)
        assert any(try_to_play(adder, 100.0, steps) for steps in [2] + [3] * 1_200)
        with pytest.raises(InvalidArgumentError, match="none is in progress"):
            adder.add(np.float32(0), timesteps([1.0])[1])
        unblock(store)
        adder.flush()
        items(store)
        play(adder, timesteps([1.0, 2.0], first=50))
        adder.close()
        assert [(item.observation, item.reward) for item in items(store)] == [(50, 3.0), (51, 2.0)]


def try_to_play(adder, number, steps):
    """Adds an episode; returns True if some of it was rejected."""
    try:
        play(adder, timesteps([number] * steps, first=10 * number))
    except DeadlineExceededError:  # the episode was added; its items are still pending
        return False
    except (BackpressureError, ItemError):
        with suppress(DeadlineExceededError):
            adder.reset()
        return True
    return False


@pytest.mark.parametrize("steps_of_first", [1, 2])
def test_sequences_do_not_continue_across_a_missing_row(steps_of_first):
    with Store([blocked()]) as store:
        adder = SequenceAdder(store, 2, 1, end_of_episode_behavior="continue", timeout=0, chunk_length=1)
        first = 1
        for steps in [steps_of_first] + [2] * 1_200:
            try:
                play(adder, timesteps([1] * steps, first=first))
            except DeadlineExceededError:
                pass
            except BackpressureError:
                break
            first += steps + 1
        else:
            pytest.fail("no row was rejected")
        with suppress(DeadlineExceededError):
            adder.reset()
        unblock(store)
        adder.flush()
        play(adder, timesteps([1, 1], first=first + 10))
        adder.close()
        stored = [item.observation for item in items(store)]
    assert all(second == before + 1 for before, second in stored)
    assert stored[-2:] == [[first + 10, first + 11], [first + 11, first + 12]]


def test_a_rejected_final_row_does_not_make_another_row_the_last():
    ends = Pattern("free", lambda step: step.observation[-1:], when=[end_of_episode()])
    rows_of_all = Pattern("priority_table", num_steps=1)
    with Store([blocked(), queue("free")]) as store:
        adder = StructuredAdder(store, [rows_of_all, ends], timeout=0, chunk_length=1)

        for number in range(1, 1_200):
            with suppress(DeadlineExceededError, BackpressureError):
                play(adder, timesteps([1] * (1 + number % 3), first=10_000 * number))
            with suppress(DeadlineExceededError):
                adder.reset()

        unblock(store)
        adder.close()
        for item in items(store, "free"):
            number, row = divmod(int(item[0]), 10_000)
            assert row == 1 + number % 3, "not the last row of its episode"


def test_ctrl_c_takes_precedence_over_other_errors():
    def interrupt(_):
        raise KeyboardInterrupt

    priorities = {"a": FailsAtCall(1, 1.0), "b": interrupt}
    with Store([queue("a"), queue("b")]) as store:
        adder = SequenceAdder(store, 1, 1, priority_fns=priorities)
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with pytest.raises(KeyboardInterrupt):
            adder.add(np.float32(0), steps[1])


def test_a_timeout_at_the_end_of_an_episode_has_item_errors_as_notes():
    priorities = {"priority_table": lambda _: 1.0, "b": FailsAtCall(2, 1.0)}
    with Store([blocked(), queue("b")]) as store:
        adder = SequenceAdder(store, 1, 1, priority_fns=priorities, timeout=0)
        with pytest.raises(DeadlineExceededError) as caught:
            play(adder, timesteps([1]))
        assert caught.value.__notes__ == [
            "the transition was added, but an item that ends with it was not created: ZeroDivisionError"
        ]
        unblock(store)
        adder.close()


# --- Sequences that continue across episodes ---


def test_a_reset_starts_a_new_sequence():
    with Store([queue()]) as store, SequenceAdder(store, 3, 3, end_of_episode_behavior="continue") as adder:
        play(adder, timesteps([1]))
        adder.add_first(timesteps([1])[0])
        adder.reset()
        play(adder, timesteps([1, 2], first=50))
        play(adder, timesteps([1], first=60))
        adder.reset()
        play(adder, timesteps([1, 2], first=70))
        assert [item.observation for item in items(store)] == [[50, 51, 52], [70, 71, 72]]
