"""Reverb's tutorial with Engram: what the program prints."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "examples" / "reverb_tutorial.py"

PRINTED = re.compile(r"shape=\(([\d, ]*)\), dtype=(\w+)\)")
IN_COMMENTS = re.compile(r"print\(.*\) +# \(\[([\d, ]*)\], (\w+)\)")


def find_shapes(pattern, text):
    """The shapes and dtypes that a pattern finds in a text."""
    matches = pattern.findall(text)
    return [([int(axis) for axis in shape.replace(" ", "").split(",") if axis], dtype) for shape, dtype in matches]


@pytest.mark.frameworks
@pytest.mark.slow
def test_the_tutorial_prints_the_shapes_in_its_comments(capsys, tf):
    tf.random.set_seed(0)
    variables = runpy.run_path(str(TUTORIAL))
    try:
        printed = find_shapes(PRINTED, capsys.readouterr().out)
        assert printed == find_shapes(IN_COMMENTS, TUTORIAL.read_text())
        assert printed == [
            ([2, 3], "uint64"),
            ([2, 3], "float64"),
            ([2, 3, 10, 10], "uint8"),
            ([2, 3, 2], "float32"),
            ([128], "uint64"),
            ([128], "float64"),
            ([128, 100, 10, 10], "uint8"),
            ([128, 99, 2], "float32"),
        ]
        sizes = {name: info.current_size for name, info in variables["client"].server_info().items()}
        assert sizes == {"my_table_a": 2, "my_table_b": 3}
    finally:
        for name in ("simple_server", "complete_episode_server", "multitable_server"):
            variables[name].stop()


def test_only_the_import_names_engram():
    code = [line for line in TUTORIAL.read_text().splitlines() if "engram" in line and not line.startswith("#")]
    assert code == ["import engram.compat.reverb as reverb"]
