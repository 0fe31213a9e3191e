"""Fixtures of the tests of FTW's networks."""

import json

import numpy as np
import pytest
from helpers import ftw_fixtures


@pytest.fixture(scope="session")
def other_sizes(tmp_path_factory):
    """A folder with fixtures of other sizes than the published ones, from the naive reference."""
    from helpers import ftw_network_fixtures  # noqa: PLC0415 - read where these tests run

    folder = tmp_path_factory.mktemp("other_sizes")
    ftw_network_fixtures.write(folder)
    return folder


@pytest.fixture(params=["published", "other sizes"])
def load_fixture(request, other_sizes):
    """Reads the content of a fixture: a published one, then one of other sizes."""
    if request.param == "published":
        return ftw_fixtures.load
    return lambda name: json.loads((other_sizes / f"ftw_{name}.json").read_text())


@pytest.fixture
def float64():
    """Enables float64 in JAX for one test."""
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    with jax.enable_x64(new_val=True):
        yield


@pytest.fixture
def helpers():
    from helpers import ftw_networks  # noqa: PLC0415 - needs JAX, an extra that is not needed to collect the tests

    return ftw_networks


@pytest.fixture
def jax():
    import jax  # noqa: PLC0415 - an extra, not needed to collect the tests

    return jax


@pytest.fixture
def rng():
    return np.random.default_rng(0)
