"""Without PyArrow, as in the environment of `make frameworks`, these tests cannot be collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("pyarrow") else ["test_*.py"]
