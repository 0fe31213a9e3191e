"""`client.sample`: its results, and returned items."""

import numpy as np
import pytest
from helpers.compat_tables import FITTING_STEP, four_tables, serving, steps
from helpers.support import BackgroundCall, raises, wait_until

from engram.compat import reverb


@pytest.fixture
def client():
    with four_tables() as client:
        yield client


def test_nothing_happens_before_the_first_item_is_requested(client):
    """Invalid arguments are not rejected yet."""
    for arguments in (("x",), ("t", 0), ("t", "a"), (3,)):
        client.sample(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("t", 0), ValueError, "num_samples (0) must be -1 or >= 1"),
        (("t", -2), ValueError, "num_samples (-2) must be -1 or >= 1"),
        (("t", 1.5), TypeError, "`num_samples` must be an integer; got 1.5 (float)"),
        ((3,), TypeError, "`table` must be text; got 3 (int)"),
        (
            ("x",),
            RuntimeError,
            "Priority table x was not found; known tables: `prioritized`, `queue`, `signed`, `t`",
        ),
        (
            ("x", 3),
            RuntimeError,
            "Priority table x was not found; known tables: `prioritized`, `queue`, `signed`, `t`",
        ),
    ],
)
def test_invalid_samples_are_rejected(client, arguments, error, text):
    with raises(error, text):
        next(client.sample(*arguments))


def test_num_samples_of_minus_one_yields_nothing(client):
    client.insert([1], {"t": 1.0})
    assert list(client.sample("t", -1)) == []


def test_validation_timeout_ms_is_ignored(client):
    client.insert([1], {"t": 1.0})
    assert len(list(client.sample("t", 2, 3_000))) == 2
    assert len(list(client.sample("t", 2, validation_timeout_ms=3_000))) == 2


def test_items_are_lists_of_steps_or_whole_columns(client):
    client._store.insert((np.arange(6).reshape(3, 2), np.arange(3.0)), {"t": 1.0}, time_axis=True)
    (item,) = client.sample("t")
    assert [[column.tolist() for column in step.data] for step in item] == [[[0, 1], 0.0], [[2, 3], 1.0], [[4, 5], 2.0]]
    assert len({step.info for step in item}) == 1
    assert all(isinstance(column, np.ndarray) for step in item for column in step.data)  # including scalars
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.shape for column in whole.data] == [(3, 2), (3,)]
    assert isinstance(whole, reverb.ReplaySample)


def test_inserted_items_have_a_time_axis(client):
    client.insert(FITTING_STEP, {"t": 1.0})
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.shape for column in whole.data] == [(1, 2), (1,)]


def test_unpack_as_table_signature_nests_the_data(client):
    client.insert(FITTING_STEP, {"signed": 1.0, "t": 1.0})
    ((step,),) = client.sample("signed", unpack_as_table_signature=True)
    assert {key: value.tolist() for key, value in step.data.items()} == {"a": [0.0, 0.0], "b": 1}
    (whole,) = client.sample("signed", emit_timesteps=False, unpack_as_table_signature=True)
    assert whole.data["a"].shape == (1, 2)
    ((step,),) = client.sample("t", unpack_as_table_signature=True)  # the table has no signature
    assert isinstance(step.data, list)
    text = 'Could not find table "x". The following tables exist: prioritized, queue, signed, t.'
    with raises(ValueError, text):
        next(client.sample("x", unpack_as_table_signature=True))


def test_an_item_with_more_or_fewer_columns_than_the_signature_is_not_unpacked(client):
    text = (
        "an item of table 'signed' has {}, but the table's signature has 2; sample with "
        "unpack_as_table_signature=False, or write items that fit the signature"
    )
    for data, columns in (((np.arange(2),), "1 column"), ((np.arange(2),) * 3, "3 columns")):
        client.reset("signed")
        client._store.insert(data, {"signed": 1.0}, time_axis=True)  # unlike `client.insert`, without a check
        for emit_timesteps in (True, False):
            with raises(ValueError, text.format(columns)):
                next(client.sample("signed", emit_timesteps=emit_timesteps, unpack_as_table_signature=True))
        (whole,) = client.sample("signed", emit_timesteps=False)
        assert [column.tolist() for column in whole.data] == [[0, 1]] * len(data)


def test_items_that_cannot_be_split_into_steps_are_rejected(client):
    with client._store.writer() as writer:
        for n in range(3):
            writer.append((np.asarray(n), np.asarray(n)))
        of_two_lengths, without_time_axis = (
            (writer.history[0][-3:], writer.history[1][-2:]),
            (writer.history[0][-3:], writer.history[1][-1]),
        )
        writer.create_item("queue", 1.0, trajectory=of_two_lengths)
        writer.create_item("queue", 1.0, trajectory=without_time_axis)
    for lengths in ("3, 2", "3, no time axis"):
        text = (
            f"Can't split non timestep trajectory: its columns have these lengths: {lengths}; use emit_timesteps=False"
        )
        with raises(ValueError, text):
            next(client.sample("queue"))


def test_columns_without_a_time_axis_are_sampled_whole(client):
    client._store.insert((np.arange(3), 1), {"t": 1.0})
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.tolist() for column in whole.data] == [[0, 1, 2], 1]


def test_nests_of_engram_items_are_flattened(client):
    client._store.insert({"b": (np.ones(2),), "a": np.arange(2)}, {"t": 1.0}, time_axis=True)
    (item,) = client.sample("t")
    assert [[column.tolist() for column in step.data] for step in item] == [[0, 1.0], [1, 1.0]]


def test_info_fields_are_python_numbers(client):
    client.insert([1], {"prioritized": 3.0})
    client.insert([1], {"prioritized": 1.0})
    infos = [item[0].info for item in client.sample("prioritized", 20)]
    assert [type(field) for field in infos[0]] == [int, float, int, float, int]
    assert {(info.priority, info.probability, info.table_size) for info in infos} == {(3.0, 0.75, 2), (1.0, 0.25, 2)}
    assert min(info.times_sampled for info in infos if info.priority == 3.0) == 1


def test_arrays_belong_to_the_caller(client):
    client.insert([np.zeros(2)], {"t": 1.0})
    for ((step,),) in ([item] for item in client.sample("t", 2)):
        assert step.data[0].tolist() == [0.0, 0.0]
        step.data[0][:] = 1.0


def test_unused_items_are_returned(client):
    for n in range(6):
        client.insert([n], {"queue": 1.0})
    samples = client.sample("queue", 5)
    assert next(samples)[0].data == [0]
    samples.close()
    assert client.server_info()["queue"].rate_limiter_info.sample_stats.completed == 1
    assert steps(client, "queue", 5) == [[n] for n in range(1, 6)]
    assert client.server_info()["queue"].current_size == 0


def test_items_on_their_last_lease_are_not_counted():
    mine = reverb.Table.queue("q", 5)
    with serving(mine) as (_, client):
        for n in range(2):
            client.insert([n], {"q": 1.0})
        samples = client.sample("q", 2)
        assert next(samples)[0].data == [0]
        wait_until(lambda: mine.info.current_size == 0)  # the other item was fetched
        samples.close()
        assert client.server_info()["q"].current_size == 1


def test_no_more_items_are_fetched_than_requested(client):
    for n in range(3):
        client.insert([n], {"queue": 1.0})
    assert steps(client, "queue", 2) == [[0], [1]]
    assert client.server_info()["queue"].rate_limiter_info.sample_stats.completed == 2


def test_sampling_waits_for_the_rate_limiter():
    with serving(reverb.Table.queue("q", 5)) as (server, client):
        samples = BackgroundCall(lambda: steps(client, "q", 2))
        other = server.localhost_client()
        other.insert([0], {"q": 1.0})
        other.insert([1], {"q": 1.0})
        assert samples.result() == [[0], [1]]
