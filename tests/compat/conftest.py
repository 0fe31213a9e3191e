"""Fixtures with frameworks that only some tests need."""

import pytest


@pytest.fixture
def tf():
    """TensorFlow. The marker `frameworks` skips the test if it is not installed."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    return tf
