"""Fixtures of the tests of replay buffers."""

import pytest
from helpers.support import runs_all_tests


@pytest.fixture
def fast_compilation(request):
    """JAX compiles without optimizations: the tests call each compiled function a few times only.

    `make test-all` tests what users run, with optimizations.
    """
    if runs_all_tests() or request.node.get_closest_marker("jax") is None:
        yield
        return
    jax = pytest.importorskip("jax")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # noqa: FBT003, JAX's signature
    yield
    jax.config.update("jax_disable_most_optimizations", before)
