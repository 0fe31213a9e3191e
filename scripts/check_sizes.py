"""Fails if a Rust or Python file has too many lines; stubs (.pyi) and generated code are exempt."""

import subprocess
import sys
from pathlib import Path

MAX_LINES = 600  # of a file


def main() -> int:
    """Prints every file over the limit, longest first."""
    tracked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*tracked, "*.rs", "*.py"], check=True, capture_output=True, text=True)
    files = [Path(name) for name in listed.stdout.split("\0") if name and Path(name).exists()]
    files = [file for file in files if "generated" not in file.parts]
    lengths = {file: len(file.read_bytes().splitlines()) for file in files}
    too_long = {file: n for file, n in lengths.items() if n > MAX_LINES}
    for file, lines in sorted(too_long.items(), key=lambda pair: -pair[1]):
        print(f"{file}: too long; got {lines} lines, expected at most {MAX_LINES}; move a part of it to another file")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
