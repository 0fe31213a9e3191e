"""Progress bars of functions that read or write many items."""

from helpers.support import run_python

from engram._progress import progress_bar


def run(*, show):
    with progress_bar("reading a\x1bfile", 5, show=show) as advance:
        advance(2)
        advance(3)


def test_a_bar_is_shown_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(show=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert r"reading a\x1bfile" in err
    assert "5/5" in err


def test_nothing_is_shown_elsewhere(capsys):
    run(show=True)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_by_default(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(show=False)
    assert capsys.readouterr() == ("", "")


def test_rich_is_imported_only_for_a_bar():
    code = """
import sys
from engram._progress import progress_bar
with progress_bar("", 1, show=False) as advance:
    advance(1)
print("rich" in sys.modules)
"""
    assert run_python(code) == "False\n"
