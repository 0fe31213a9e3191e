"""Fixtures of the tests of FTW."""

import importlib.util

import pytest

# `make frameworks` collects all tests, in an environment without the extra `agents`.
collect_ignore_glob = [] if importlib.util.find_spec("equinox") else ["*"]


@pytest.fixture
def jax64():
    """JAX, with float64 as the default type."""
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    with jax.enable_x64(True):  # noqa: FBT003, JAX's signature
        yield jax


@pytest.fixture(scope="module")
def quick_compilation():
    """Makes JAX compile without most optimizations, for tests that compile whole learner steps."""
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    jax.config.update("jax_disable_most_optimizations", True)  # noqa: FBT003, JAX's signature
    # JAX would go on with what earlier tests have compiled with optimizations, which rounds in another way.
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", False)  # noqa: FBT003
