"""Fixtures of the tests of FTW's published names."""

import importlib.util

import pytest

# The environments of `make frameworks` have no extra `agents`. The datasets' tests are in `tests/compat`.
collect_ignore_glob = [] if importlib.util.find_spec("equinox") else ["*"]


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Makes JAX compile without most optimizations: these tests compile whole learner steps."""
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    jax.config.update("jax_disable_most_optimizations", True)  # noqa: FBT003, JAX's signature
    yield
    jax.config.update("jax_disable_most_optimizations", False)  # noqa: FBT003
