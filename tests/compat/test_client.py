"""`Client`: construction, changing priorities, infos, and waiting."""

import multiprocessing
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.certificates import Certificates
from helpers.compat_tables import four_tables, keys, serving, steps, table
from helpers.support import raises, wait_until

import engram
from engram.compat import reverb
from engram.compat.reverb import DeadlineExceededError
from engram.compat.reverb.tensor_spec import TensorSpec


@pytest.fixture
def client():
    with four_tables() as client:
        yield client


@pytest.mark.parametrize("scheme", ["dns:///", "dns:", "ipv4:"])
def test_addresses_may_have_a_scheme_of_grpc(scheme):
    with serving(table()) as (server, _):
        client = reverb.Client(f"{scheme}127.0.0.1:{server.port}")
        assert client.server_address == f"{scheme}127.0.0.1:{server.port}"
        assert list(client.server_info(5)) == ["t"]
        client.insert([1], {"t": 1.0})
        assert steps(client) == [[1]]


def test_the_constructor_does_not_connect():
    client = reverb.Client("localhost:1")
    assert repr(client) == "Client, server_address=localhost:1"
    assert client.server_address == "localhost:1"
    with pytest.raises(AttributeError):
        client.server_address = "localhost:2"


def test_invalid_addresses_are_rejected():
    with raises(TypeError, "`server_address` must be text; got 3 (int)"):
        reverb.Client(3)
    with raises(ValueError, "address is `nonsense`: it has no port; give `host:port` or `unix:PATH`"):
        reverb.Client("nonsense")


def test_clients_can_be_pickled(client):
    client.insert([1], {"t": 1.0})
    other = pickle.loads(pickle.dumps(client))  # noqa: S301, our own
    assert other.server_address == client.server_address
    assert steps(other) == [[1]]


def _insert(client):
    client.insert([7], {"t": 1.0})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_works_in_other_processes(client, method):
    client.insert([1], {"queue": 1.0})  # connects
    child = multiprocessing.get_context(method).Process(target=_insert, args=(client,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert steps(client) == [[7]]


def test_mutate_sets_priorities(client):
    client.insert([1], {"prioritized": 1.0})
    (key,) = keys(client, "prioritized")
    client.mutate_priorities("prioritized", updates={key: 4, np.uint64(3): np.float32(2.0)})
    assert next(client.sample("prioritized"))[0].info.priority == 4.0


def test_a_key_in_updates_and_deletes_is_deleted(client):
    client.insert([1], {"t": 1.0})
    (key,) = keys(client, "t")
    client.mutate_priorities("t", updates={key: 4.0}, deletes=[key, 5])
    assert client.server_info()["t"].current_size == 0


def test_keys_may_be_an_array(client):
    client.insert([1], {"t": 1.0})
    client.mutate_priorities("t", deletes=np.array(keys(client, "t"), np.uint64))
    assert client.server_info()["t"].current_size == 0


def test_mutate_without_changes_is_accepted(client):
    client.mutate_priorities("t")
    client.mutate_priorities("t", {}, [])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"updates": {1: "a"}}, "`updates[1]` must be a number; got 'a' (str)"),
        ({"updates": {1.5: 1.0}}, "each key of `updates` must be an integer; got 1.5 (float)"),
        ({"updates": {-1: 1.0}}, "each key of `updates` must be from 0 to 2**64 - 1; got -1"),
        ({"updates": {2**64: 1.0}}, "each key of `updates` must be from 0 to 2**64 - 1; got 18446744073709551616"),
        ({"updates": np.ones(2)}, "`updates` must map keys to priorities; got array([1., 1.]) (ndarray)"),
        ({"updates": []}, "`updates` must map keys to priorities; got [] (list)"),
        ({"updates": [(1, 1.0)]}, "`updates` must map keys to priorities; got [(1, 1.0)] (list)"),
        ({"deletes": [1.5]}, "each key of `deletes` must be an integer; got 1.5 (float)"),
        ({"deletes": 3}, "`deletes` must be a list of keys; got 3 (int)"),
    ],
)
def test_mutate_arguments_of_wrong_types_are_rejected(client, changes, text):
    with raises(TypeError, text):
        client.mutate_priorities("t", **changes)


@pytest.mark.parametrize(
    ("priority", "text"),
    [
        (
            -1.0,
            "priority for table `prioritized` is -1; a Prioritized selector needs a finite value that is not negative",
        ),
        (float("nan"), "priority for table `prioritized` is NaN; it must be a number"),
    ],
)
def test_a_rejected_mutate_changes_nothing(client, priority, text):
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
def test_mutate_and_reset_of_unknown_tables_are_rejected(client, call):
    with raises(RuntimeError, "Priority table x was not found; known tables: `prioritized`, `queue`, `signed`, `t`"):
        call(client)


def test_reset_empties_one_table(client):
    client.insert([1], {"t": 1.0, "queue": 1.0})
    client.reset("t")
    info = client.server_info()
    assert (info["t"].current_size, info["t"].rate_limiter_info.insert_stats.completed) == (0, 0)
    assert info["queue"].current_size == 1
    with raises(TypeError, "`table` must be text; got 3 (int)"):
        client.reset(3)


def test_server_info_contains_all_tables(client):
    for timeout in (None, 0, 5):
        assert sorted(client.server_info(timeout)) == ["prioritized", "queue", "signed", "t"]
    with raises(TypeError, "`timeout` must be an integer; got 1.5 (float)"):
        client.server_info(1.5)


def test_a_table_created_later_can_be_used(client):
    client.insert([1], {"t": 1.0})
    client._store.create_table(engram.Table("later"))
    client.insert([1], {"later": 1.0})
    assert client.server_info()["later"].current_size == 1


def test_a_server_that_requires_a_token_or_tls(tmp_path):
    secure = Certificates(tmp_path).server
    no_token = (
        "the server at {} rejected the call: token required, none sent; Reverb's API has no token: use engram.Client, "
        "or a server without one"
    )
    no_tls = "the server at {} uses TLS; Reverb's API has no TLS: use engram.Client, or a server without TLS"
    for options, reason in (({"token": "t"}, no_token), (secure, no_tls)):
        with engram.Server([engram.Table("t")], **options) as server:
            client = reverb.Client(server.address)
            for call in (client.server_info, lambda client=client: client.server_info(5), client.checkpoint):
                with raises(RuntimeError, reason.format(server.address)):
                    call()


def test_server_info_raises_after_its_timeout():
    with pytest.raises(DeadlineExceededError, match="ServerInfo call did not complete within provided timeout of 1s: "):
        reverb.Client("localhost:1").server_info(1)  # an integer, as in Reverb: the shortest timeout


def test_info_of_a_table_created_by_the_engine():
    table = engram.Table("t", max_times_sampled=3, signature={"x": engram.ArraySpec((None, 2), "float32")})
    with engram.Server([table]) as server:
        client = reverb.Client(server.address)
        info = client.server_info()["t"]
        assert (info.max_times_sampled, info.sampler_options.WhichOneof("distribution")) == (3, "uniform")
        assert client._signature("t") == {"x": TensorSpec((None, 2), np.float32)}
        assert info.rate_limiter_info.max_diff == np.finfo(np.float64).max


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.server_info(),
        lambda client: client.insert([1], {"t": 1.0}),
        lambda client: next(client.sample("t")),
        lambda client: next(client.sample("t", 2)),
        lambda client: client.mutate_priorities("t", {1: 1.0}),
        lambda client: client.reset("t"),
    ],
)
def test_calls_raise_if_the_server_stays_unreachable(monkeypatch, call):
    module = sys.modules["engram.compat.reverb.client"]
    assert module._RECONNECT_TIMEOUT == 3_600  # seconds
    monkeypatch.setattr(module, "_RECONNECT_TIMEOUT", 0.1)
    with pytest.raises(RuntimeError, match=r"^the server at localhost:1 cannot be reached: .*; tried for 0.1 s(;|$)"):
        call(reverb.Client("localhost:1"))


WAITING = """
import sys
from engram.compat import reverb
client = reverb.Client(sys.argv[1])
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""


@contextmanager
def calling(call, address):
    """Runs a process that waits in a call, and checks at the end of the block that Ctrl-C ends the call."""
    command = [sys.executable, "-c", WAITING.format(call=call), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "waiting\n"
            yield
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20)[0] == "interrupted\n"
        finally:
            process.kill()


@pytest.mark.parametrize(
    "call", ["next(client.sample('t'))", pytest.param("next(client.sample('t', 2))", marks=pytest.mark.slow)]
)
def test_ctrl_c_ends_a_waiting_call(call):
    with serving(table()) as (server, client), calling(call, client.server_address):
        wait_until(lambda: server._server_store.store.info()["t"].waiting_samples > 0)


@pytest.mark.parametrize(
    "call",
    [
        "client.insert([1], {'t': 1.0})",
        pytest.param("client.server_info()", marks=pytest.mark.slow),
        pytest.param("client.reset('t')", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_a_call_to_a_silent_port(call):
    with socket.create_server(("localhost", 0)) as silent, calling(call, f"localhost:{silent.getsockname()[1]}"):
        silent.settimeout(20)
        connection, _ = silent.accept()  # the call has started
        connection.recv(1)
    connection.close()


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
def test_invalid_arguments_of_writers_are_rejected(client, arguments, error, text):
    with raises(error, text):
        client.writer(**arguments)


def test_invalid_arguments_of_other_writers_are_rejected(client):
    with raises(ValueError, "num_keep_alive_refs (0) must be a positive integer"):
        client.trajectory_writer(0)
    with raises(TypeError, "`num_keep_alive_refs` must be an integer; got 1.5 (float)"):
        client.trajectory_writer(1.5)
    with raises(ValueError, "At least one config must be provided."):
        client.structured_writer([])
