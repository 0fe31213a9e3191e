"""Rejects words that a reader would stumble over; scripts/words.toml lists them with their replacements.

    python scripts/check_words.py           # the whole repository
    python scripts/check_words.py docs ...  # these files and folders, with a count per file

Checks comments, texts, identifiers and file names.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "scripts" / "words.toml"
CHECKED = ["*.rs", "*.py", "*.pyi", "*.md", "*.proto", "*.toml", "*.yaml", "*.sh", "Makefile", ".ci/run"]

# Words, and parts of names in snake or camel case.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Between the words of a phrase: a space, an underscore, nothing (camel case), or a line break with a comment's mark.
GAP = re.compile(r"[ _]?|\s*\n[ \t]*(?://[/!]?|#)?[ \t]*")
DEFINED = r"\b(?:struct|enum|trait|union|type|class|mod|const|static|fn|def)\s+({})\b"


class Rules:
    """The lists of words.toml."""

    def __init__(self, lists: dict[str, Any]) -> None:
        self._exempt_paths = lists["exempt"]["paths"]
        self._exempt_text = re.compile("|".join(lists["exempt"]["text"]))
        self._names = _alternatives(lists["names"])
        self._defined = re.compile(DEFINED.format("|".join(self._names)))
        self._phrases: dict[str, list[tuple[list[str], str]]] = {}  # by their first word
        for phrase, instead in _alternatives(lists["words"]).items():
            first, *rest = phrase.split()
            self._phrases.setdefault(first, []).append((rest, instead))

    def exempts(self, path: str) -> bool:
        """True for files that are not checked."""
        return any(fnmatch(path, pattern) for pattern in self._exempt_paths)

    def in_path(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields the rejected words in the path of a file, each with its replacement."""
        stem = Path(path).stem
        if stem in self._names:
            yield stem, self._names[stem]
        for _, word, instead in self.in_text(path):
            yield word, instead

    def in_text(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Yields the rejected words of a text: line, word, replacement."""
        text = self._exempt_text.sub("", text)
        found = [(match.start(1), match[1], self._names[match[1]]) for match in self._defined.finditer(text)]
        parts = list(PART.finditer(text))
        for index, part in enumerate(parts):
            for rest, instead in self._phrases.get(part[0].lower(), ()):
                phrase = parts[index : index + 1 + len(rest)]
                if [one[0].lower() for one in phrase[1:]] == rest and _adjacent(text, phrase):
                    found.append((part.start(), text[part.start() : phrase[-1].end()], instead))
        for start, word, instead in sorted(found):
            yield text.count("\n", 0, start) + 1, " ".join(word.split()), instead


def _alternatives(table: dict[str, str]) -> dict[str, str]:
    return {one: instead for alternatives, instead in table.items() for one in alternatives.split("|")}


def _adjacent(text: str, parts: list[re.Match[str]]) -> bool:
    return all(GAP.fullmatch(text, a.end(), b.start()) for a, b in pairwise(parts))


def checked_files(paths: list[str]) -> list[str]:
    """Files to check, relative to the repository: those under `paths` that git tracks or does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CHECKED]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    folders = [Path(path).resolve() for path in paths] or [ROOT]
    for folder in folders:
        if not folder.exists():
            sys.exit(f"{folder}: there is no file or folder of this name")
    present = {name for name in listed if name and (ROOT / name).is_file()}
    return sorted(name for name in present if any((ROOT / name).is_relative_to(folder) for folder in folders))


def main(paths: list[str]) -> int:
    """Prints each rejected word with its replacement; returns the exit status."""
    rules = Rules(tomllib.loads(LISTS.read_text(encoding="utf-8")))
    counts: Counter[str] = Counter()
    for name in checked_files(paths):
        if rules.exempts(name):
            continue
        for word, instead in rules.in_path(name):
            print(f'{name}: "{word}" in the path: write {instead}')
            counts[name] += 1
        for line, word, instead in rules.in_text((ROOT / name).read_text(encoding="utf-8")):
            print(f'{name}:{line}: "{word}": write {instead}')
            counts[name] += 1
    if paths and counts:
        print("\n" + "\n".join(f"{count:6} {name}" for name, count in counts.most_common()))
    if counts:
        print(f"{counts.total()} rejected words; scripts/words.toml lists them")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
