"""Tests of environments."""

import importlib.util

# The environment of `make frameworks` has no Gymnasium.
collect_ignore_glob = [] if importlib.util.find_spec("gymnasium") else ["test_wrappers.py"]
