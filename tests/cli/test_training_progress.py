"""The display of a training run."""

import pytest

from engram.cli.training_progress import sparkline

INF, NAN, HUGE, TINY = float("inf"), float("nan"), 1.7e308, 5e-324


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([5.0], "▁"),
        ([0, 1, 7], "▁▂█"),
        ([NAN, 1.0], " ▁"),
        ([NAN], " "),
        ([-INF, 0.0, 7.0, INF], "▁▁██"),
        ([INF, -INF], "█▁"),
        ([INF, 1.0], "█▁"),
        ([-HUGE, HUGE], "▁█"),
        ([0.0, TINY], "▁▁"),
    ],
)
def test_a_sparkline_has_one_bar_per_value_between_smallest_and_largest(values, expected):
    assert sparkline(values) == expected
