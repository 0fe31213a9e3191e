"""`TrajectoryWriter`: episodes, when items are sent, how many steps are kept, and closing."""

import numpy as np
import pytest
from helpers.compat_tables import items, sample_item, step, tables_sampled_once, writer_with_three_steps
from helpers.support import BackgroundCall, raises, wait_until

from engram.compat import reverb
from engram.compat.reverb import _sending


@pytest.fixture
def client():
    with tables_sampled_once() as client:
        yield client


@pytest.fixture
def writer(client):
    return writer_with_three_steps(client)


def test_end_episode_clears_the_history_if_requested(client, writer):
    history, column = writer.history, writer.history["b"][-1]
    writer.append({"b": 3}, partial_step=True)
    writer.end_episode()
    assert (writer.episode_steps, len(history["a"])) == (0, 0)
    with pytest.raises(ValueError, match="expired"):
        writer.create_item("t", 1.0, column)
    writer.append(step(5))
    writer.end_episode(clear_buffers=False)
    writer.append(step(6))
    assert (writer.episode_steps, len(history["a"])) == (1, 2)
    writer.create_item("t", 1.0, history["b"][:])
    writer.end_episode(clear_buffers=False)
    assert items(client) == [[[5, 6]]]


def test_end_episode_that_times_out_has_ended_the_episode(client):
    """Its items are inserted later."""
    writer = client.trajectory_writer(1)
    for value in range(2):
        writer.append([value])
        writer.create_item("queue", 1.0, writer.history[0][-1])
    with pytest.raises(reverb.DeadlineExceededError) as raised:
        writer.flush(timeout_ms=50)
    assert str(raised.value).startswith(
        "Flush call did not complete within provided timeout of 0:00:00.050000: 1 item is not in its table"
    )
    with pytest.raises(reverb.DeadlineExceededError, match=r"^End episode call did not complete .* of 0:00:00.050000"):
        writer.end_episode(timeout_ms=50)
    assert (writer.episode_steps, len(writer.history[0])) == (0, 0)
    assert [sample_item(client, "queue") for _ in range(2)] == [[0], [1]]
    writer.flush(timeout_ms=0)


def test_flush_allows_pending_items(client):
    writer = client.trajectory_writer(1)
    for value in range(3):
        writer.append([value])
        writer.create_item("queue", 1.0, writer.history[0][-1])
    writer.flush(2)
    waiting = BackgroundCall(lambda: writer.flush(1))
    assert sample_item(client, "queue") == [0]
    waiting.result()
    with raises(ValueError, "block_until_num_items must be >= 0, got -1"):
        writer.flush(-1)
    with raises(TypeError, "`block_until_num_items` must be an integer; got 1.5 (float)"):
        writer.flush(1.5)


@pytest.mark.parametrize("refs", [1, 2, 30])
def test_the_first_items_are_sent_immediately(client, refs):
    writer = client.trajectory_writer(refs)
    for value in range(10):
        writer.append([value])
        writer.create_item("t", 1.0, writer.history[0][-1])
        assert sample_item(client, "t") == [value]


def test_chunks_have_no_more_steps_than_are_kept(client):
    writer = client.trajectory_writer(3)
    for value in range(30):
        writer.append([value])
        writer.create_item("t", 1.0, writer.history[0][-1])
    wait_until(lambda: client.server_info()["t"].current_size >= 28)  # at most two wait in an unfinished chunk


@pytest.mark.parametrize(("size", "steps"), [(1, 16), (600, 6)])
def test_later_chunks_have_sixteen_steps_or_sixteen_kib(client, size, steps):
    writer = client.trajectory_writer(64)

    def write(value):
        writer.append([np.full(size, value, np.float32)])
        writer.create_item("t", 1.0, writer.history[0][-1])

    for value in range(10):
        write(value)
        assert sample_item(client, "t")[0][0] == value
    for value in range(10, 9 + steps):
        write(value)
    assert f"writers hold {steps - 1} items for this or other tables" in client._store.info()["t"].blocked
    write(9 + steps)
    writer.append([np.zeros(size, np.float32)])
    assert [sample_item(client, "t")[0][0] for _ in range(steps)] == list(range(10, 10 + steps))


@pytest.mark.parametrize("length", [1, 2])
def test_chunks_have_the_configured_length(client, length):
    writer = client.trajectory_writer(5)
    writer.configure((0,), num_keep_alive_refs=5, max_chunk_length=length)
    for value in range(length):
        writer.append([value])
        writer.create_item("t", 1.0, writer.history[0][-1])
    wait_until(lambda: client.server_info()["t"].current_size == length)


def test_each_column_keeps_its_configured_number_of_steps(client):
    """A column keeps its number of steps from the call of `configure` on."""
    writer = client.trajectory_writer(2)
    writer.configure(("a",), num_keep_alive_refs=5, max_chunk_length=None)
    for value in range(6):
        writer.append({"a": value, "b": value})
    kept = lambda name: [reference is not None for reference in writer.history[name]].index(True)  # noqa: E731
    assert (kept("a"), kept("b")) == (1, 4)
    writer.configure(("b",), num_keep_alive_refs=8, max_chunk_length=8)
    writer.configure(["a"], num_keep_alive_refs=1, max_chunk_length=None)
    writer.configure(("c",), num_keep_alive_refs=30, max_chunk_length=None)
    for value in range(6, 15):
        writer.append({"a": value, "b": value, "c": value})
    assert (kept("a"), kept("b"), kept("c")) == (14, 7, 6)
    writer.create_item("t", 1.0, [writer.history["c"][6:], writer.history["b"][-8:]])
    writer.flush()
    assert items(client) == [[[*range(6, 15)], [*range(7, 15)]]]


@pytest.mark.parametrize("gaps", [False, True])
def test_references_depend_on_the_number_of_steps_alone(client, gaps):
    """They do not depend on pending items of the same steps, and steps without a value count, too."""
    writer = client.trajectory_writer(2)
    writer.configure(("x",), num_keep_alive_refs=2, max_chunk_length=2)
    writer.append({"x": 0, "y": 0})
    column = writer.history["x"][-1:]
    if not gaps:
        writer.append({"x": 1, "y": 1})
        column = writer.history["x"][-1:]
        writer.append({"x": 2, "y": 2})
        writer.create_item("t", 1.0, [column, writer.history["x"][-1:]])
    assert [reference.expired for reference in column] == [False]
    for value in (3, 4):
        writer.append({"x": None if gaps else value, "y": value})
    assert [reference.expired for reference in column] == [True]
    with pytest.raises(ValueError, match=r"^Error in column 0: Column contains expired CellRef"):
        writer.create_item("t", 1.0, column)
    writer.flush()
    assert items(client) == ([] if gaps else [[[1], [2]]])


def test_columns_share_the_longest_configured_chunk(client):
    writer = client.trajectory_writer(4)
    for name, length in (("a", 1), ("b", 3)):
        writer.configure((name,), num_keep_alive_refs=4, max_chunk_length=length)
    for value in range(2):
        writer.append({"a": value, "b": value})
        writer.create_item("t", 1.0, writer.history["a"][-1])
    assert "writers hold 2 items for this or other tables in unfinished chunks" in client._store.info()["t"].blocked
    writer.append({"a": 2, "b": 2})
    writer.create_item("t", 1.0, writer.history["a"][-1])
    assert [sample_item(client, "t") for _ in range(3)] == [[0], [1], [2]]


def test_invalid_configurations_are_rejected(writer):
    with raises(ValueError, "num_keep_alive_refs (0) must be a positive integer"):
        writer.configure(("a",), num_keep_alive_refs=0, max_chunk_length=1)
    text = "max_chunk_length (3) must be None or a positive integer <= num_keep_alive_refs (2)"
    with raises(ValueError, text):
        writer.configure(("a",), num_keep_alive_refs=2, max_chunk_length=3)
    with raises(TypeError, """`path` must be a tuple like ("observation",); got 'obs' (str)"""):
        writer.configure("obs", num_keep_alive_refs=2, max_chunk_length=2)
    with raises(TypeError, "`max_chunk_length` must be an integer; got 1.0 (float)"):
        writer.configure(("a",), num_keep_alive_refs=2, max_chunk_length=1.0)


def test_close_sends_items_and_later_calls_are_rejected(client, writer):
    """Closing again is allowed."""
    column = writer.history["b"][-1]
    writer.create_item("t", 1.0, column)
    writer.close()
    writer.close()
    wait_until(lambda: client.server_info()["t"].current_size == 1)
    calls = (
        lambda: writer.append(step(1)),
        lambda: writer.create_item("t", 1.0, column),
        writer.flush,
        writer.end_episode,
    )
    for call in calls:
        with raises(RuntimeError, "TrajectoryWriter::Close has been called."):
            call()
    assert column.numpy() == 2


def test_pending_items_are_limited(client, monkeypatch):
    assert _sending.MAX_IN_FLIGHT_ITEMS == 1_000_000
    monkeypatch.setattr(_sending, "MAX_IN_FLIGHT_ITEMS", 2)
    writer = client.trajectory_writer(1)

    def write():
        for value in range(6):
            writer.append([value])
            writer.create_item("queue", 1.0, writer.history[0][-1])

    writing = BackgroundCall(write)
    writing.join(0.5)
    assert writing.is_alive()  # waits until items are sampled
    reading = BackgroundCall(lambda: [sample_item(client, "queue")[0] for _ in range(6)])
    writing.result()
    writer.flush()
    assert reading.result() == list(range(6))


@pytest.mark.parametrize(("pending", "count"), [(1, "1 item"), (2, "2 items")])
def test_closing_does_not_wait_for_a_table(client, pending, count):
    writer = client.trajectory_writer(1)
    for value in range(pending + 1):
        writer.append([value])
        writer.create_item("queue", 1.0, writer.history[0][-1])
    text = f"a TrajectoryWriter was closed before {count} reached their table `queue`; flush it first"
    with pytest.warns(UserWarning, match=f"^{text}$") as caught:
        BackgroundCall(writer.close).result()
    assert len(caught) == 1


def test_garbage_collected_writers_send_their_items(client):
    writer = client.trajectory_writer(20)
    for value in range(13):
        writer.append([value])
        writer.create_item("t", 1.0, writer.history[0][-1])
    del writer
    wait_until(lambda: client.server_info()["t"].current_size == 13)


def test_leaving_the_with_block_flushes_except_after_a_reverb_error(client, writer):
    """Leaving it does not close the writer."""
    with writer as same:
        assert same is writer
        writer.create_item("t", 1.0, writer.history["b"][-1])
    assert items(client) == [[2]]
    with pytest.raises(ZeroDivisionError), writer:
        writer.create_item("t", 1.0, writer.history["b"][0])
        1 / 0  # noqa: B018, an error
    assert items(client) == [[0]]
    queue = client.trajectory_writer(1)
    with pytest.raises(reverb.ReverbError), queue:
        for value in range(3):
            queue.append([value])
            queue.create_item("queue", 1.0, queue.history[0][-1])
        raise reverb.ReverbError


def test_a_writer_without_steps_can_be_flushed_and_closed(client):
    with client.trajectory_writer(3) as writer:
        assert writer.episode_steps == 0
        writer.end_episode()
        writer.flush()
    writer.close()


@pytest.mark.frameworks
def test_tensorflow_tensors_can_be_appended(client, tf):
    writer = client.trajectory_writer(2)
    writer.append({"x": tf.constant([1.0, 2.0]), "y": tf.constant("text")})
    writer.create_item("t", 1.0, [writer.history["x"][-1], writer.history["y"][-1]])
    writer.flush()
    assert items(client) == [[[1.0, 2.0], b"text"]]


def test_large_steps_have_chunks_of_their_own(client):
    """Items of large steps do not wait for further steps."""
    writer = client.trajectory_writer(30)
    for value in range(15):
        writer.append([np.full(1 << 14, value, np.uint8)])
        writer.create_item("t", 1.0, writer.history[0][-1])
        assert sample_item(client, "t")[0][0] == value
