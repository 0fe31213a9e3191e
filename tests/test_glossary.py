"""The glossary of ARCHITECTURE.md names every type that the public API and core export; the files it names exist."""

import re
from pathlib import Path

import pytest

import engram

ROOT = Path(__file__).parents[1]


def exported_by_python():
    return {name for name in engram.__all__ if name[0].isupper()}


def exported_by_core():
    text = (ROOT / "crates/engram-core/src/lib.rs").read_text(encoding="utf-8")
    uses = re.findall(r"^pub use ([^;]+);", text, flags=re.MULTILINE)
    return set(re.findall(r"\b[A-Z]\w*[a-z]\w*", " ".join(uses)))


@pytest.mark.parametrize("exported", [exported_by_python, exported_by_core])
def test_every_exported_type_is_in_the_glossary(exported):
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    glossary = text[text.index("## Glossary") : text.index("## How a table works")]
    names = exported()
    assert len(names) > 10
    explained = {name for name in names if f"`{name}`" in glossary or f"**{name.lower()}**" in glossary.lower()}
    assert explained == names


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/.-]+\.(?:rs|py|proto|md))`", text))
    files = [
        str(path.relative_to(ROOT))
        for folder in ("crates", "python", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
    ]
    full = {f"/{file}".replace("/crates/engram-", "/") for file in files} | {f"/{file}" for file in files}
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in full)}
    assert missing == set()
