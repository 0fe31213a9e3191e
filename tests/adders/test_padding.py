"""Padding rows, final rows, and bad arguments."""

import numpy as np
import pytest
from helpers.episodes import items, play, queue, timesteps
from helpers.support import raises

from engram import Store
from engram.adders import EpisodeAdder, MultiSequenceAdder, NonOverlappingRNNSequenceAdder, SequenceAdder
from engram.errors import InvalidArgumentError


def test_a_sequence_of_padding_alone_is_not_created():
    """The next sequence would start 10**9 rows later; no padding is added up to there."""
    with Store([queue()]) as store, SequenceAdder(store, 2, 10**9) as adder:
        play(adder, timesteps([1, 2, 3]))
        assert [item.observation for item in items(store)] == [[1, 2]]


def test_without_a_final_row_items_contain_only_transitions():
    has_zero_reward = {"priority_table": lambda steps: steps[-1].reward == 0}
    lengths = {"priority_table": 2}
    with Store([queue()]) as store:
        arguments = {"should_insert_fns": has_zero_reward, "pad_end_of_episode": False, "final_row": False}
        with MultiSequenceAdder(store, lengths, {"priority_table": 1}, **arguments) as adder:
            play(adder, timesteps([1, 0, 0]))
        assert [item.observation for item in items(store)] == [[1, 2], [2, 3]]


def test_text_is_padded_with_empty_text():
    steps = [step._replace(observation=f"see {step.observation}") for step in timesteps([1])]
    with Store([queue()]) as store:
        with EpisodeAdder(store, 4, padding_fn=np.ones) as adder:
            adder.add_first(steps[0])
            adder.add("left", steps[1], {"word": np.array("x", object)})
        data = store.sample("priority_table", 1).data
    assert data.observation[0].tolist() == ["see 1", "see 2", "", ""]
    assert (data.action[0].tolist(), data.extras["word"][0].tolist()) == (
        ["left", "", "", ""],
        ["x", "", "", ""],
    )
    assert data.reward[0].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("padding", "text"),
    [
        (-1, "`padding_fn` returned -1, which bool cannot hold; it must return values of the dtype that it is given"),
        (
            0.5,
            "`padding_fn` returned 0.5, which int32 cannot hold; it must return values of the dtype that it is given",
        ),
        (1e39, "`padding_fn` returned 1e+39, which float32 cannot hold; its largest value is 3.4028235e+38"),
        (
            "a",
            "`padding_fn` returned a, which float32 cannot hold; it must return values of the dtype that it is given",
        ),
        (
            None,
            "`padding_fn` returned None, which int32 cannot hold; it must return values of the dtype that it is given",
        ),
    ],
)
def test_padding_that_a_column_cannot_hold_is_refused(padding, text):
    wrong_dtype = text.split("which ")[1].split()[0]

    def padding_fn(shape, dtype):
        return np.full(shape, padding) if dtype == wrong_dtype else np.zeros(shape)

    with Store([queue()]) as store, EpisodeAdder(store, 4, padding_fn=padding_fn) as adder:
        steps = [step._replace(observation=np.float32(step.observation)) for step in timesteps([1])]
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, text):
            adder.add(np.int32(3), steps[1])
        assert store.info()["priority_table"].size == 0


def test_integers_of_the_padding_must_be_in_range():
    with Store([queue()]) as store, EpisodeAdder(store, 4, padding_fn=lambda shape, _: np.full(shape, 300)) as adder:
        steps = [step._replace(observation=np.uint8(step.observation)) for step in timesteps([1])]
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, "`padding_fn` returned 300, which uint8 cannot hold"):
            adder.add(np.int32(3), steps[1])


def test_text_of_the_final_row_is_empty():
    with Store([queue()]) as store:
        with SequenceAdder(store, 2, 2) as adder:
            steps = timesteps([1])
            adder.add_first(steps[0])
            adder.add("left", steps[1], [np.array([b"x"], object)])
        data = store.sample("priority_table", 1).data
    assert (data.action[0].tolist(), data.extras[0][0].tolist()) == (["left", ""], [[b"x"], [b""]])


def test_should_insert_fns_receive_the_rows_of_one_item():
    lengths_received = {"a": [], "b": []}
    record = {
        table: lambda steps, table=table: lengths_received[table].append(len(steps)) or True
        for table in lengths_received
    }
    with Store([queue("a"), queue("b")]) as store:
        lengths = {"a": 1, "b": 3}
        with MultiSequenceAdder(store, lengths, dict.fromkeys(lengths, 1), should_insert_fns=record) as adder:
            for _ in range(2):
                play(adder, timesteps([1, 2]))
    assert lengths_received == {"a": [1, 1, 1] * 2, "b": [3] * 2}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda store: EpisodeAdder(store, 3, padding_fn=0),
            "`padding_fn` must be a function of a shape and a dtype; got 0",
        ),
        (
            lambda store: MultiSequenceAdder(store, {"t": 1}, {"t": 1}, should_insert_fns={"t": True}),
            "`should_insert_fns` must have a function for table `t`; got True",
        ),
        (
            lambda store: MultiSequenceAdder(store, 5, {"t": 1}),
            "`sequence_lengths` must be a mapping by table name; got 5",
        ),
        (lambda store: MultiSequenceAdder(store, {"t": 1}, 5), "`periods` must be a mapping by table name; got 5"),
        (
            lambda store: MultiSequenceAdder(store, {"t": 1}, {"t": 1}, priority_fns=["t"]),
            "`priority_fns` must be a mapping by table name; got ['t']",
        ),
        (lambda store: MultiSequenceAdder(store, {}, {}), "`sequence_lengths` must have at least one table; got {}"),
        (
            lambda store: NonOverlappingRNNSequenceAdder(store, 2, overlap="no"),
            "`overlap` must be True or False; got 'no' (str)",
        ),
        (
            lambda store: SequenceAdder(store, 2, 1, timeout="x"),
            "`timeout` must be a number of seconds, at least 0, or None to wait forever; got 'x' (str)",
        ),
        (
            lambda store: EpisodeAdder(store, 2, timeout=-1),
            "`timeout` must be a number of seconds, at least 0, or None to wait forever; got -1",
        ),
    ],
)
def test_bad_arguments_are_rejected(make, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        make(store)
