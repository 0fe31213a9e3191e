"""Fixtures and settings of all tests: framework markers, hypothesis profiles, stores in process and remote."""

import gc
import importlib.util
import os
import re
import signal
import threading

import hypothesis
import pytest
from helpers.certificates import Certificates
from helpers.commands import RunningCommand
from helpers.not_over_shards import reason_against_shards
from helpers.store_types import STORE_TYPES
from helpers.support import runs_all_tests

import engram

# `make test-all`: more random examples, and nothing is skipped because a package is missing.
RUNS_ALL = runs_all_tests()
# These run in one environment only: `.venv-outside`.
ELSEWHERE = set() if os.environ.get("ENGRAM_TEST_ALL") == "outside" else {"rlax", "tf_agents"}

# A shell may start the tests with SIGINT ignored, and child processes inherit that; tests of Ctrl-C need the handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules that the tests of each marker need. Tests import them inside functions, so that pytest can collect the tests
# where a module is missing. `frameworks` marks all tests of `make frameworks`: they need TensorFlow to be installed,
# even those that use only PyTorch.
FRAMEWORKS = {"frameworks": ("tensorflow",), "torch": ("torch",), "jax": ("jax",), "ray": ("ray",)}


hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=200, deadline=None, derandomize=True)
hypothesis.settings.load_profile("slow" if RUNS_ALL else "fast")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose framework is missing; fails it if all tests must run."""
    required = (
        module for marker, modules in FRAMEWORKS.items() if item.get_closest_marker(marker) for module in modules
    )
    for module in required:
        if importlib.util.find_spec(module) is None:
            missing = f"`{module}` is not installed"
            pytest.fail(missing, pytrace=False) if RUNS_ALL else pytest.skip(missing)


def fail_if_missing(report: pytest.CollectReport | pytest.TestReport) -> None:
    """If all tests must run, a skip by `importorskip` is a failure."""
    if RUNS_ALL and report.skipped and isinstance(report.longrepr, tuple):
        missing = re.search(r"could not import '(\w+)", report.longrepr[2])
        if missing and missing[1] not in ELSEWHERE:
            report.outcome, report.longrepr = "failed", report.longrepr[2]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):  # noqa: ARG001, pytest's name
    report = yield
    fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # noqa: ARG001, pytest's name
    report = yield
    fail_if_missing(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `open_store` that cannot hold for a store that is sharded."""
    for item in items:
        reason = reason_against_shards(item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Makes the garbage collector skip what the collection of the tests created: it is kept until the end anyway."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=sorted(STORE_TYPES))
def open_store(request: pytest.FixtureRequest):
    """Runs a test with a store in process, with a remote one, and with one that is sharded over three servers.

    Returns `open_store(*tables, seed=0)`, which opens a store that is closed after the test.
    """
    opened = []

    def open_one(*tables: engram.Table, seed: int = 0) -> engram.Store:
        opened.append(STORE_TYPES[request.param](tables, seed=seed))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
        if hasattr(store, "close_servers"):
            store.close_servers()


@pytest.fixture
def other_thread():
    """Another thread, so that no writer reports a deadlock."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture
def spawn():
    """Returns `spawn("top", address)`, which starts a command in another process and returns a `RunningCommand`."""
    spawned = []

    def start(*args, **options):
        spawned.append(RunningCommand(*args, **options))
        return spawned[-1]

    yield start
    for command in spawned:
        command.process.kill()
        command.process.communicate()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Certificates of a server and a client, signed by one authority."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """Certificates signed by another authority."""
    return Certificates(tmp_path_factory.mktemp("other_certificates"))


@pytest.fixture
def tf():
    """TensorFlow. The marker `frameworks` skips the test if it is not installed."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    return tf
