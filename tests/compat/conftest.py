"""Frameworks, imported by the tests that need them."""

import pytest


@pytest.fixture
def tf():
    """TensorFlow; the marker `frameworks` skips a test where it is missing."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    return tf
