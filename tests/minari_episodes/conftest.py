"""A folder for Minari's datasets. Without Minari, as in the environment of `make frameworks`, nothing is collected."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("minari") else ["test_*.py"]


@pytest.fixture(autouse=True)
def datasets_path(tmp_path, monkeypatch):
    """Where Minari has its datasets."""
    path = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    return path
