"""What every test gets: frameworks checked by marker, hypothesis quick at the desk, slow in CI."""

import importlib.util
import os

import hypothesis
import pytest

IN_CI = os.environ.get("CI") == "true"

# Marker -> the module that its tests import. They import it inside the test or a fixture, so that a
# checkout without it can still collect them.
FRAMEWORKS = {"jax": "jax", "tf": "tensorflow", "torch": "torch", "interop": "reverb"}

hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=500, deadline=None, derandomize=True)
hypothesis.settings.load_profile("slow" if IN_CI else "fast")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose framework is missing; in CI, where none may be, fail it."""
    for marker, module in FRAMEWORKS.items():
        if item.get_closest_marker(marker) and importlib.util.find_spec(module) is None:
            missing = f"`{module}` is not installed"
            pytest.fail(missing, pytrace=False) if IN_CI else pytest.skip(missing)
