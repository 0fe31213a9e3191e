"""The check of words by `make lint` rejects the listed words, and only those."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_words.py"

LISTS = {
    "words": {"told|tells": "send", "so many": "this many", "hear": "receive"},
    "names": {"Talk|talk": "ReconnectingStream"},
    "exempt": {"paths": ["vendored/*"], "text": [r"\.tells\(\)"]},
}


@pytest.fixture(scope="module")
def check_words():
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a server that is told", "told"),
        ("Told.", "Told"),
        ("is_told = told_at", "told"),
        ("WAS_TOLD", "TOLD"),
        ("struct SentTold;", "Told"),
        ("isToldAt", "Told"),
        ("RPCTold", "Told"),
        ("it tells nothing", "tells"),
        ("so many items", "so many"),
        ("so_many", "so_many"),
        ("takeSoMany", "SoMany"),
        ("/// up to so\n    /// many items", "so /// many"),
        ("# so\n# many", "so # many"),
        ("class Talk:", "Talk"),
        ("mod talk;", "talk"),
    ],
)
def test_a_rejected_word_is_found(check_words, text, word):
    assert word in [found for _, found, _ in check_words.Rules(LISTS).in_text(text)]


@pytest.mark.parametrize(
    "text",
    [
        "toldo, untold, TOLDO",
        "shear, heart, rehearsal",
        "do so. Many others",
        "many so",
        "Talk is no definition here; talk(); a stalk",
        "file.tells()",
    ],
)
def test_other_words_are_accepted(check_words, text):
    assert list(check_words.Rules(LISTS).in_text(text)) == []


def test_a_finding_has_its_line_and_its_replacement(check_words):
    rules = check_words.Rules(LISTS)
    assert list(rules.in_text("one\ntwo\nso many, and told")) == [(3, "so many", "this many"), (3, "told", "send")]
    assert list(rules.in_path("crates/engram-rpc/src/told.rs")) == [("told", "send")]
    assert list(rules.in_path("crates/engram-rpc/src/talk.rs")) == [("talk", "ReconnectingStream")]
    assert rules.exempts("vendored/told.rs")
    assert not rules.exempts("docs/told.md")


def test_the_check_fails_and_counts(check_words, capsys, monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("# told, told\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("# sent\n", encoding="utf-8")
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "checked_files", lambda _: ["a.py", "b.py"])
    assert check_words.main(["."]) == 1
    printed = capsys.readouterr().out
    assert 'a.py:1: "told": write send' in printed
    assert "     2 a.py" in printed
    assert "b.py" not in printed
    monkeypatch.setattr(check_words, "checked_files", lambda _: ["b.py"])
    assert check_words.main([]) == 0
    assert not capsys.readouterr().out


def test_every_listed_phrase_can_be_found(check_words):
    lists = tomllib.loads(check_words.LISTS.read_text(encoding="utf-8"))
    rules = check_words.Rules(lists)
    for phrase in (one for alternatives in lists["words"] for one in alternatives.split("|")):
        assert [found for _, found, _ in rules.in_text(phrase)] == [phrase]
