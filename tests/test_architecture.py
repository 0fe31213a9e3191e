"""The files that ARCHITECTURE.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/.-]+\.(?:rs|py|proto|md)\b", text))
    assert len(named) > 50
    files = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("crates", "python", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
    ]
    # `core/pages.rs` is short for `crates/engram-core/src/pages.rs`.
    files += [re.sub(r"^/crates/engram-(\w+)/src/", r"/\1/", file) for file in files]
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert missing == set()
