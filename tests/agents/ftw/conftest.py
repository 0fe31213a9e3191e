"""Fixtures of the tests of FTW."""

import pytest


@pytest.fixture
def jax64():
    """JAX, with float64 as the default type."""
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    with jax.enable_x64(True):  # noqa: FBT003, JAX's signature
        yield jax
