"""Stores of two tables, and files of limited size: writes then fail as on a full disk, in the middle of a record.

The limit needs no privileges.
"""

import inspect
import os
import resource
import signal

import numpy as np

from engram import Store, Table, selectors
from engram.errors import StorageError
from helpers.python_process import PIPE, PythonProcess, script

ITEM_BYTES = 1_000
"""Size of an item's content."""


def tables():
    return [Table.queue("queue", max_size=10_000), Table("drawn", max_size=10_000, sampler=selectors.Uniform())]


def item(value):
    content = np.random.default_rng(value).integers(0, 256, ITEM_BYTES, np.uint8)
    return {"n": np.int64(value), "x": content}


def insert(store, value, *names):
    data = {name: leaf[None] for name, leaf in item(value).items()}
    store.insert(data, dict.fromkeys(names, 1.0), time_axis=True)


def newest_log(path):
    return max(path.glob("log-*"))


def limit_file_size(size):
    """Limits the size of files in bytes from now on; None removes the limit."""
    hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit if size is None else size, hard_limit))


def write_error(path):
    error = "File too large; the changes are kept in memory, and writing is retried twice a second"
    return f"changes cannot be written to {path}: {error}"


def is_durable(store):
    """True if all changes are as durable as the store promises."""
    try:
        store.update_priorities("queue", [], [])
    except StorageError:
        return False
    return True


def kill_this_process():
    """Kills this process, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_in_process(call, path, durability):
    """Runs a function of a test module, as a program, until the function kills it; returns its output."""
    process = PythonProcess(script(inspect.getfile(call)), call.__name__, path, durability, stdout=PIPE, stderr=PIPE)
    output, errors = process.communicate()
    assert (process.returncode, errors) == (-signal.SIGKILL, "")
    return output


def queued(path):
    """Checks the content of the queue; returns its numbers, and the store's notes."""
    with Store.open(path) as store:
        data = store.sample("queue", store.info()["queue"].size).data
        numbers = data["n"].ravel().tolist()
        content = data["x"].reshape(len(numbers), -1)
        assert all((content[index] == item(value)["x"]).all() for index, value in enumerate(numbers))
        return numbers, store.notes
