"""What every test gets: frameworks checked by marker, hypothesis quick at the desk, slow in CI."""

import importlib.util
import os
import signal

import hypothesis
import pytest
from certificates import Certificates

import engram

IN_CI = os.environ.get("CI") == "true"

# Who is started in the background is born with SIGINT ignored, and so are the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Marker -> the modules that its tests import. They import it inside the test or a fixture, so that a
# checkout without it can still collect them.
FRAMEWORKS = {"frameworks": ("tensorflow", "torch"), "jax": ("jax",)}


class RemoteStore(engram.Client):
    """A client whose server comes and goes with it."""

    def __init__(self, tables, *, seed) -> None:
        self.server = engram.Server(tables, seed=seed)
        super().__init__(self.server.address)

    def close(self) -> None:
        """Close what is at the other end."""
        self.server.store.close()


# The doors: every promise of a store is kept through each of them.
STORE_TYPES = {"in_process": engram.Store, "remote": RemoteStore}

hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=500, deadline=None, derandomize=True)
hypothesis.settings.load_profile("slow" if IN_CI else "fast")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose framework is missing; in CI, where none may be, fail it."""
    wanted = (module for marker, modules in FRAMEWORKS.items() if item.get_closest_marker(marker) for module in modules)
    for module in wanted:
        if importlib.util.find_spec(module) is None:
            missing = f"`{module}` is not installed"
            pytest.fail(missing, pytrace=False) if IN_CI else pytest.skip(missing)


@pytest.fixture(params=sorted(STORE_TYPES))
def open_store(request: pytest.FixtureRequest):
    """Opens stores, `open_store(*tables, seed=0)`, and closes them after the test."""
    opened = []

    def open_one(*tables: engram.Table, seed: int = 0) -> engram.Store:
        opened.append(STORE_TYPES[request.param](tables, seed=seed))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
        if isinstance(store, RemoteStore):
            store.server.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A server's and a client's, of one authority."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """The same of another authority."""
    return Certificates(tmp_path_factory.mktemp("other_certificates"))
