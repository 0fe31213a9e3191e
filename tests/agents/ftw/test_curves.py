"""The picture of learning curves."""

import io

import numpy as np
import pytest

from engram.agents.ftw.curves import draw_curves, smoothed
from engram.agents.ftw.run_logs import read_log

pytestmark = pytest.mark.jax

NAN = float("nan")


def log(auxiliary):
    frames = np.arange(50.0)
    names = ("mean_return", "loss", "entropy_loss")
    return {
        "frames": frames,
        **{name: np.sin(frames) for name in names},
        **dict.fromkeys(("pixel_control_loss", "reward_prediction_loss"), auxiliary + 0 * frames),
        "evaluation": {"frames": np.array([10.0, 20.0]), "success": np.array([0.2, 0.4])},
    }


def test_losses_of_auxiliary_tasks_are_drawn_if_a_run_has_them():
    assert len(draw_curves({"off": log(0)}).axes) == 4
    figure = draw_curves({"off": log(0), "on": log(0.5)})
    assert len(figure.axes) == 6
    assert [line.get_ydata().tolist() for line in figure.axes[1].lines] == [[0.2, 0.4]] * 2
    figure.savefig(io.BytesIO())
    (legend,) = figure.legends
    assert [each.get_text() for each in legend.get_texts()] == ["off", "on"]
    area = legend.get_window_extent()
    assert not any(area.overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_lines_are_means_of_the_values_around():
    values = np.arange(200.0)
    values[100] = NAN
    expected = [np.nanmean(values[max(i - 5, 0) : i + 6]) for i in range(200)]
    np.testing.assert_allclose(smoothed(values), expected)
    assert smoothed(np.array([1.0, NAN, 2.0])).tolist()[::2] == [1, 2]
    assert smoothed(np.zeros(0)).tolist() == []


def test_logs_without_rows_or_values(tmp_path):
    (tmp_path / "log").write_text("a,b\n1,2\n3,\n")
    columns = read_log(tmp_path / "log")
    assert columns["a"].tolist() == [1, 3]
    np.testing.assert_array_equal(columns["b"], [2, NAN])
    (tmp_path / "log").write_text("a,b\n")
    assert {name: column.tolist() for name, column in read_log(tmp_path / "log").items()} == {"a": [], "b": []}
