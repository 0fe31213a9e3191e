"""In a forked child, clients and datasets work; the parent's servers, writers and iterators raise an error there."""

from pathlib import Path

import pytest
from helpers.forks import PROGRAM, needs_fork
from helpers.python_process import run_program
from helpers.support import runs_all_tests

pytestmark = needs_fork

HEAD = (
    PROGRAM
    + """
server = engram.Server([engram.Table("t"), engram.Table.queue("q", max_size=1000)])
client = engram.Client(server.address)
for value in range(20):
    client.insert({"x": value}, {"q": 1.0})
"""
)


def test_clients_and_datasets_work_and_everything_else_is_rejected():
    code = """
writer, patterns = client.writer(), client.pattern_writer([engram.Pattern("t", num_steps=1)])
batched = client.batched_writer(2, [engram.Pattern("t", num_steps=1)])
writer.append({"x": 1})
dataset = engram.Dataset(client, "q", 2, max_batches=2)
batches = iter(dataset)
assert next(batches).data["x"].tolist() == [0, 1]

def child():
    expect_forked_error("server", lambda: server.address)
    expect_forked_error("server", server.close)
    expect_forked_error("store", server.store.info)
    expect_forked_error("writer", lambda: writer.append({"x": 2}))
    expect_forked_error("writer", lambda: writer.flush())
    expect_forked_error("writer", lambda: patterns.append({"x": 2}))
    expect_forked_error("writer", lambda: batched.append_batch({"x": np.zeros(2)}))
    expect_forked_error("dataset", lambda: next(batches))
    with server, writer:
        pass  # only the parent closes them
    assert client.info()["q"].hidden_items == 2  # the parent's
    assert client.sample("q", 2).data["x"].tolist() == [4, 5]
    assert [batch.data["x"].tolist() for batch in dataset] == [[6, 7], [8, 9]]
    client.insert({"x": 30}, {"t": 1.0})
    with client.writer() as own:
        own.append({"x": 31})
        own.create_item("t", num_steps=1)
    client.close()

in_child(child)
assert next(batches).data["x"].tolist() == [2, 3]
assert next(batches, None) is None
assert client.sample("q", 2).data["x"].tolist() == [10, 11]
writer.create_item("t", num_steps=1)
writer.close()
assert client.info()["t"].size == 3
client.close()
server.close()
print("parent continues")
"""
    assert run_program(HEAD + code) == "parent continues\n"


def test_a_worker_process_acknowledges_its_samples_before_it_ends():
    code = """
import multiprocessing
context = multiprocessing.get_context("fork")
for _ in range(10):
    worker = context.Process(target=lambda: client.sample("q", 2))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
info = server.store.info()["q"]
assert (info.size, info.hidden_items) == (0, 0), info
"""
    assert run_program(HEAD + code) == ""


def test_children_of_one_parent_have_different_sessions():
    code = """
def child():
    for value in range(10):
        client.insert({"x": value}, {"t": 1.0})
    with client.writer() as writer:
        for value in range(10):
            writer.append({"x": value})
            writer.create_item("t", num_steps=1)

def fresh():
    with engram.Client(client.address) as own:
        for value in range(10):
            own.insert({"x": value}, {"t": 1.0})

for pid in [fork(work) for work in (child, child, child, fresh, fresh)]:
    assert os.waitpid(pid, 0)[1] == 0
# With a shared session, the server would treat items of one child as duplicates of another's.
assert client.info()["t"].size == 80, client.info()["t"].size
"""
    assert run_program(HEAD + code) == ""


def test_a_child_drops_an_unused_client_at_once():
    code = """
def insert():
    for value in range(20):
        client.insert({"x": value}, {"t": 1.0})

threads = [threading.Thread(target=insert) for _ in range(10)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

def child():
    began = time.monotonic()
    globals().pop("client")
    assert time.monotonic() - began < 1.9

in_child(child)
assert client.info()["t"].size == 200
"""
    assert run_program(HEAD + code) == ""


@pytest.mark.skipif(not Path("/proc/net/unix").exists(), reason="needs Linux's list of sockets")
def test_servers_of_siblings_have_different_socket_names():
    code = """
read_end, write_end = os.pipe()

def child():
    own = engram.Server([])
    name = f"@engram-{own.address.rpartition(':')[2]}-"
    with open("/proc/net/unix") as sockets:
        [found] = [line.split(name)[1].strip() for line in sockets if name in line]
    os.write(write_end, f"{found}\\n".encode())

in_child(child)
in_child(child)
one, other = os.read(read_end, 100).decode().split()
assert len(one) == len(other) == 16, (one, other)
assert one != other
"""
    assert run_program(HEAD + code) == ""


def test_a_child_does_not_keep_the_ports_of_a_closed_server_open():
    code = """
import socket
server = engram.Server([], metrics_port=0)
stop, started = os.pipe(), os.pipe()

def child():
    os.write(started[1], b".")
    os.read(stop[0], 1)

ports = [int(address.rpartition(":")[2]) for address in (server.address, server.metrics_address)]
pid = fork(child)
os.read(started[0], 1)
server.close()
for port in ports:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5)
    except ConnectionRefusedError:
        pass
    else:
        sys.exit(f"port {port} still accepts connections")
again = engram.Server([], port=ports[0], metrics_port=ports[1])
assert engram.Client(again.address).tables == []
os.write(stop[1], b".")
assert os.waitpid(pid, 0)[1] == 0
"""
    assert run_program(PROGRAM + code) == ""


def test_children_work_if_they_are_forked_while_calls_wait():
    code = """
client.sample("q", 20)  # all items of the queue
waiting = threading.Thread(target=lambda: client.sample("q", 2))
waiting.start()
for value in range(10):
    def child():
        client.insert({"x": value}, {"t": 1.0})
        assert client.sample("t", 1).data["x"].tolist()
    in_child(child)
client.insert({"x": 1}, {"q": 1.0})
client.insert({"x": 2}, {"q": 1.0})
waiting.join()
assert client.info()["t"].size == 10
"""
    assert run_program(HEAD + code) == ""


@pytest.mark.timeout(600)
def test_children_work_if_they_are_forked_while_threads_start_and_end():
    code = """
import signal
done = threading.Event()

def use(value):
    mine = engram.Store([engram.Table("t")])
    for size in range(1, 20):
        mine.insert({"x": np.full(1 << size, value, np.uint8)}, {"t": 1.0}, time_axis=True)
    assert mine.sample("t", 8, pad=True).data["x"][:, 0].tolist() == [value] * 8

def start_and_join():
    while not done.is_set():
        thread = threading.Thread(target=use, args=(1,))
        thread.start()
        thread.join()

def child():
    signal.alarm(20)  # instead of hanging
    thread = threading.Thread(target=use, args=(2,))
    thread.start()
    thread.join()
    assert client.info()["q"].size == 20

threads = [threading.Thread(target=start_and_join) for _ in range(3)]
for thread in threads:
    thread.start()
try:
    for _ in range(int(sys.argv[1])):
        in_child(child)
finally:
    done.set()
    for thread in threads:
        thread.join()
"""
    assert run_program(HEAD + code, 100 if runs_all_tests() else 10, seconds=500) == ""
