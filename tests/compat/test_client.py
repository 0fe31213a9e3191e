"""Every call of a client: what it does, and what it refuses."""

import multiprocessing
import pickle

import numpy as np
import pytest
from reverb_tables import serving, steps, table
from support import Caller, raises, until

import engram
from engram.compat import reverb
from engram.compat.reverb import DeadlineExceededError
from engram.compat.reverb.tensor_spec import TensorSpec

SIGNATURE = {"a": TensorSpec([2], np.float32, "n"), "b": TensorSpec([], np.int64)}
GOOD = {"b": 1, "a": np.zeros(2, np.float32)}


@pytest.fixture
def client():
    tables = (
        table(),
        table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
        table("signed", signature=SIGNATURE),
        table("queue", max_times_sampled=1),
    )
    with serving(*tables) as (_, client):
        yield client


def keys(client, name, n=1):
    return [item[0].info.key for item in client.sample(name, n)]


# Making


def test_making_one_does_not_connect():
    client = reverb.Client("localhost:1")
    assert repr(client) == "Client, server_address=localhost:1"
    assert client.server_address == "localhost:1"
    with pytest.raises(AttributeError):
        client.server_address = "localhost:2"


def test_addresses_refused():
    with raises(TypeError, "`server_address` must be text; got 3 (int)"):
        reverb.Client(3)
    with raises(ValueError, "address is `nonsense`: no port; give `host:port`"):
        reverb.Client("nonsense")


def test_pickled(client):
    client.insert([1], {"t": 1.0})
    other = pickle.loads(pickle.dumps(client))  # noqa: S301, our own
    assert other.server_address == client.server_address
    assert steps(other) == [[1]]


def _insert(client):
    client.insert([7], {"t": 1.0})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_other_processes(client, method):
    client.insert([1], {"queue": 1.0})
    child = multiprocessing.get_context(method).Process(target=_insert, args=(client,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert steps(client) == [[7]]


# Inserting


def test_one_step_into_several_tables(client):
    client.insert({"b": 1, "a": [2.0, "text"]}, {"t": 1.5, "prioritized": 2.5})
    for name, priority in (("t", 1.5), ("prioritized", 2.5)):
        ((step,),) = client.sample(name)
        assert step.info[1:] == (1.0, 1, priority, 1)
        assert [column.tolist() for column in step.data] == [2.0, b"text", 1]
    assert keys(client, "t") == keys(client, "prioritized")


@pytest.mark.parametrize("priorities", [{}, None, []])
def test_priorities_are_needed(client, priorities):
    with raises(ValueError, "priorities must contain at least one item"):
        client.insert([1], priorities)


@pytest.mark.parametrize(
    ("data", "priorities", "error", "text"),
    [
        (1, {"x": 1.0}, ValueError, "Unable to find signatures for table 'x'. Available tables: {tables}."),
        (1, {"t": 1.0, "x": 1.0}, ValueError, "Unable to find signatures for table 'x'. Available tables: {tables}."),
        (1, [("t", 1.0)], TypeError, "`priorities` must map tables to priorities; got [('t', 1.0)] (list)"),
        (1, {3: 1.0}, TypeError, "`each key of priorities` must be text; got 3 (int)"),
        (1, {"t": "a"}, TypeError, "`priorities['t']` must be a number; got 'a' (str)"),
        (1, {"t": float("nan")}, ValueError, "priority for table `t` is NaN; it must be a number"),
        (
            1,
            {"t": 1.0, "prioritized": -1.0},
            ValueError,
            "priority for table `prioritized` is -1; a Prioritized selector takes finite values from 0",
        ),
        ([], {"t": 1.0}, ValueError, "the item has no columns; it needs at least one leaf"),
        (
            [None],
            {"t": 1.0},
            TypeError,
            "cannot convert None to a tensor; a value must be an array, a number or text",
        ),
        (
            {"x": {1}},
            {"t": 1.0},
            TypeError,
            "cannot convert {{1}} (set) to a tensor: it holds an object of type set",
        ),
    ],
)
def test_inserts_refused(client, data, priorities, error, text):
    with raises(error, text.format(tables=["prioritized", "queue", "signed", "t"])):
        client.insert(data, priorities)
    assert all(info.current_size == 0 for info in client.server_info().values())


WRONG_SHAPE = (
    "flattened index 0 is of dtype float and shape [3], but 'a/n' is of dtype float and shape compatible with [2]"
)
LISTED = "0: Tensor<name: 'a/n', dtype: float, shape: [2]>, 1: Tensor<name: 'b', dtype: int64, shape: []>"


@pytest.mark.parametrize(
    ("data", "wrong", "found"),
    [
        (
            [np.zeros(2, np.float32)],
            "it has 1 columns, the signature 2",
            "0: Tensor<name: '', dtype: float, shape: [2]>",
        ),
        (
            [np.zeros(3, np.float32), 1],
            WRONG_SHAPE,
            "0: Tensor<name: '', dtype: float, shape: [3]>, 1: Tensor<name: '', dtype: int64, shape: []>",
        ),
        (
            [np.zeros(2, np.float32), 1.0],
            "flattened index 1 is of dtype double and shape [], but 'b' is of dtype int64 and shape compatible with []",
            "0: Tensor<name: '', dtype: float, shape: [2]>, 1: Tensor<name: '', dtype: double, shape: []>",
        ),
    ],
)
def test_data_that_does_not_fit_the_signature(client, data, wrong, found):
    text = (
        f"Unable to insert into table 'signed' since the data is inconsistent with the table signature: {wrong}. "
        f"Table signature: {LISTED}. Data signature: {found}."
    )
    with raises(ValueError, text):
        client.insert(data, {"t": 1.0, "signed": 1.0})
    assert client.server_info()["t"].current_size == 0


def test_data_that_fits_the_signature(client):
    client.insert(GOOD, {"signed": 1.0})
    client.insert([np.zeros(2, np.float32), 1], {"signed": 1.0})  # columns count, not how they are nested
    assert client.server_info()["signed"].current_size == 2


def test_a_signature_may_describe_the_item_with_its_time_axis():
    with serving(table(signature=TensorSpec([None, 2], np.int64))) as (_, client):
        client.insert(np.zeros(2, np.int64), {"t": 1.0})
        client.insert(np.zeros((5, 2), np.int64), {"t": 1.0})
        assert client.server_info()["t"].current_size == 2


def test_insert_waits_for_the_rate_limiter():
    with serving(reverb.Table.queue("q", 1)) as (server, client):
        client.insert([0], {"q": 1.0})
        waiting = Caller(lambda: server.localhost_client().insert([1], {"q": 1.0}))
        until(lambda: server._storage.store.info()["q"].waiting_inserts == 1)
        assert steps(client, "q", 2) == [[0], [1]]
        waiting.result()


# Sampling


def test_nothing_happens_before_the_first_is_asked_for(client):
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
def test_samples_refused(client, arguments, error, text):
    with raises(error, text):
        next(client.sample(*arguments))


def test_minus_one_yields_nothing(client):
    client.insert([1], {"t": 1.0})
    assert list(client.sample("t", -1)) == []


def test_the_older_third_argument(client):
    client.insert([1], {"t": 1.0})
    assert len(list(client.sample("t", 2, 3_000))) == 2
    assert len(list(client.sample("t", 2, validation_timeout_ms=3_000))) == 2


def test_steps_and_columns(client):
    client._store.insert((np.arange(6).reshape(3, 2), np.arange(3.0)), {"t": 1.0}, time_axis=True)
    (item,) = client.sample("t")
    assert [[column.tolist() for column in step.data] for step in item] == [[[0, 1], 0.0], [[2, 3], 1.0], [[4, 5], 2.0]]
    assert len({step.info for step in item}) == 1
    assert all(isinstance(column, np.ndarray) for step in item for column in step.data)  # scalars too
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.shape for column in whole.data] == [(3, 2), (3,)]
    assert isinstance(whole, reverb.ReplaySample)


def test_what_was_inserted_has_a_time_axis(client):
    client.insert(GOOD, {"t": 1.0})
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.shape for column in whole.data] == [(1, 2), (1,)]


def test_nested_as_the_signature(client):
    client.insert(GOOD, {"signed": 1.0, "t": 1.0})
    ((step,),) = client.sample("signed", unpack_as_table_signature=True)
    assert {key: value.tolist() for key, value in step.data.items()} == {"a": [0.0, 0.0], "b": 1}
    (whole,) = client.sample("signed", emit_timesteps=False, unpack_as_table_signature=True)
    assert whole.data["a"].shape == (1, 2)
    ((step,),) = client.sample("t", unpack_as_table_signature=True)  # it has none
    assert isinstance(step.data, list)
    text = 'Could not find table "x". The following tables exist: prioritized, queue, signed, t.'
    with raises(ValueError, text):
        next(client.sample("x", unpack_as_table_signature=True))


def test_items_that_are_no_steps(client):
    with client._store.writer() as writer:
        for n in range(3):
            writer.append((n, n))
        uneven, flat = (
            (writer.history[0][-3:], writer.history[1][-2:]),
            (writer.history[0][-3:], writer.history[1][-1]),
        )
        writer.create_item("queue", 1.0, trajectory=uneven)
        writer.create_item("queue", 1.0, trajectory=flat)
    for lengths in ("3, 2", "3, no time axis"):
        text = (
            f"Can't split non timestep trajectory: its columns have these lengths: {lengths}; use emit_timesteps=False"
        )
        with raises(ValueError, text):
            next(client.sample("queue"))


def test_columns_without_a_time_axis(client):
    client._store.insert((np.arange(3), 1), {"t": 1.0})
    (whole,) = client.sample("t", emit_timesteps=False)
    assert [column.tolist() for column in whole.data] == [[0, 1, 2], 1]


def test_info_is_of_plain_numbers(client):
    client.insert([1], {"prioritized": 3.0})
    client.insert([1], {"prioritized": 1.0})
    infos = [item[0].info for item in client.sample("prioritized", 20)]
    assert [type(field) for field in infos[0]] == [int, float, int, float, int]
    assert {(info.priority, info.probability, info.table_size) for info in infos} == {(3.0, 0.75, 2), (1.0, 0.25, 2)}
    assert min(info.times_sampled for info in infos if info.priority == 3.0) == 1


def test_arrays_are_the_callers(client):
    client.insert([np.zeros(2)], {"t": 1.0})
    for ((step,),) in ([item] for item in client.sample("t", 2)):
        assert step.data[0].tolist() == [0.0, 0.0]
        step.data[0][:] = 1.0


def test_what_is_not_taken_is_not_lost(client):
    for n in range(6):
        client.insert([n], {"queue": 1.0})
    samples = client.sample("queue", 5)
    assert next(samples)[0].data == [0]
    samples.close()
    assert client.server_info()["queue"].rate_limiter_info.sample_stats.completed == 1
    assert steps(client, "queue", 5) == [[n] for n in range(1, 6)]
    assert client.server_info()["queue"].current_size == 0


def test_no_more_is_fetched_than_was_asked_for(client):
    for n in range(3):
        client.insert([n], {"queue": 1.0})
    assert steps(client, "queue", 2) == [[0], [1]]
    assert client.server_info()["queue"].rate_limiter_info.sample_stats.completed == 2


def test_sampling_waits_for_the_rate_limiter():
    with serving(reverb.Table.queue("q", 5)) as (server, client):
        samples = Caller(lambda: steps(client, "q", 2))
        other = server.localhost_client()
        other.insert([0], {"q": 1.0})
        other.insert([1], {"q": 1.0})
        assert samples.result() == [[0], [1]]


# Changing


def test_priorities_are_set(client):
    client.insert([1], {"prioritized": 1.0})
    (key,) = keys(client, "prioritized")
    client.mutate_priorities("prioritized", updates={key: 4, np.uint64(3): np.float32(2.0)})
    assert next(client.sample("prioritized"))[0].info.priority == 4.0


def test_a_key_in_both_is_deleted(client):
    client.insert([1], {"t": 1.0})
    (key,) = keys(client, "t")
    client.mutate_priorities("t", updates={key: 4.0}, deletes=[key, 5])
    assert client.server_info()["t"].current_size == 0


def test_keys_may_be_an_array(client):
    client.insert([1], {"t": 1.0})
    client.mutate_priorities("t", deletes=np.array(keys(client, "t"), np.uint64))
    assert client.server_info()["t"].current_size == 0


def test_nothing_to_change(client):
    client.mutate_priorities("t")
    client.mutate_priorities("t", {}, [])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"updates": {1: "a"}}, "`updates[1]` must be a number; got 'a' (str)"),
        ({"updates": {1.5: 1.0}}, "`each key of updates` must be an integer; got 1.5 (float)"),
        ({"updates": {-1: 1.0}}, "`each key of updates` must be from 0 to 2**64 - 1; got -1"),
        ({"updates": {2**64: 1.0}}, "`each key of updates` must be from 0 to 2**64 - 1; got 18446744073709551616"),
        ({"updates": [(1, 1.0)]}, "`updates` must map keys to priorities; got [(1, 1.0)] (list)"),
        ({"deletes": [1.5]}, "`each key of deletes` must be an integer; got 1.5 (float)"),
        ({"deletes": 3}, "`deletes` must be a list of keys; got 3 (int)"),
    ],
)
def test_changes_of_other_types(client, changes, text):
    with raises(TypeError, text):
        client.mutate_priorities("t", **changes)


@pytest.mark.parametrize(
    ("priority", "text"),
    [
        (-1.0, "priority for table `prioritized` is -1; a Prioritized selector takes finite values from 0"),
        (float("nan"), "priority for table `prioritized` is NaN; it must be a number"),
    ],
)
def test_a_refused_change_changes_nothing(client, priority, text):
    for _ in range(2):
        client.insert([1], {"prioritized": 1.0})
    first, second = sorted({*keys(client, "prioritized", 100)})
    with raises(ValueError, text):
        client.mutate_priorities("prioritized", {first: priority}, [second])
    assert client.server_info()["prioritized"].current_size == 2
    assert {item[0].info.priority for item in client.sample("prioritized", 50)} == {1.0}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.mutate_priorities("x", {1: 1.0}),
        lambda client: client.mutate_priorities("x"),
        lambda client: client.mutate_priorities("x", deletes=[1]),
        lambda client: client.reset("x"),
    ],
)
def test_changes_of_unknown_tables(client, call):
    with raises(RuntimeError, "Priority table x was not found; known tables: `prioritized`, `queue`, `signed`, `t`"):
        call(client)


def test_reset(client):
    client.insert([1], {"t": 1.0, "queue": 1.0})
    client.reset("t")
    info = client.server_info()
    assert (info["t"].current_size, info["t"].rate_limiter_info.insert_stats.completed) == (0, 0)
    assert info["queue"].current_size == 1
    with raises(TypeError, "`table` must be text; got 3 (int)"):
        client.reset(3)


# Looking


def test_server_info(client):
    for timeout in (None, 0, 5):
        assert sorted(client.server_info(timeout)) == ["prioritized", "queue", "signed", "t"]
    with raises(TypeError, "`timeout` must be an integer; got 1.5 (float)"):
        client.server_info(1.5)


def test_server_info_in_time():
    with pytest.raises(DeadlineExceededError, match="ServerInfo call did not complete within provided timeout of 1s: "):
        reverb.Client("localhost:1").server_info(1)


def test_a_table_that_the_engine_made_is_described_too():
    made = engram.Table("t", max_times_sampled=3, signature={"x": engram.ArraySpec((None, 2), "float32")})
    with engram.Server([made]) as server:
        client = reverb.Client(server.address)
        info = client.server_info()["t"]
        assert (info.max_times_sampled, info.sampler_options.WhichOneof("distribution")) == (3, "uniform")
        assert client._signature("t") == {"x": TensorSpec((None, 2), np.float32)}
        assert info.rate_limiter_info.max_diff == np.finfo(np.float64).max


# Writers' arguments


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_sequence_length": 0}, ValueError, "max_sequence_length (0) must be a positive integer"),
        ({"max_sequence_length": 1.5}, TypeError, "`max_sequence_length` must be an integer; got 1.5 (float)"),
        (
            {"max_sequence_length": 5, "chunk_length": 6},
            ValueError,
            "chunk_length (6) must be a positive integer le to max_sequence_length (5)",
        ),
        (
            {"max_sequence_length": 5, "chunk_length": 0},
            ValueError,
            "chunk_length (0) must be a positive integer le to max_sequence_length (5)",
        ),
        (
            {"max_sequence_length": 5, "max_in_flight_items": 0},
            ValueError,
            "max_in_flight_items (0) must be a positive integer",
        ),
    ],
)
def test_writers_refused(client, arguments, error, text):
    with raises(error, text):
        client.writer(**arguments)


def test_other_writers_refused(client):
    with raises(ValueError, "num_keep_alive_refs (0) must be a positive integer"):
        client.trajectory_writer(0)
    with raises(TypeError, "`num_keep_alive_refs` must be an integer; got 1.5 (float)"):
        client.trajectory_writer(1.5)
    with raises(ValueError, "At least one config must be provided."):
        client.structured_writer([])
