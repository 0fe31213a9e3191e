"""Fixtures: the classes, and functions that create buffers of each storage."""

import importlib

import pytest


@pytest.fixture
def replay_buffers(tf):  # noqa: ARG001, needs TensorFlow
    """The package `engram.compat.tf_agents.replay_buffers`."""
    return importlib.import_module("engram.compat.tf_agents.replay_buffers")


@pytest.fixture(params=["ring", pytest.param("tables", marks=pytest.mark.slow)])
def create(request, replay_buffers):
    """Runs a test with buffers whose items are in Engram's ring, then with those of a `table_fn`.

    Only tests that are parametrized with `create` use a `table_fn` by default; the others do in `make test-all`.
    """

    class OtherTable(replay_buffers.table.Table):
        """A table that is not the default one."""

    def create(*args, **options):
        if request.param == "tables":
            options["table_fn"] = OtherTable
        return replay_buffers.TFUniformReplayBuffer(*args, **options)

    return create
