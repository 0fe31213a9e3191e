"""The build profile of the engine: only the release build is measured."""

import importlib
import sys

from benchmarks import peers

RELEASE = "release"


def profile() -> str | None:
    """The build profile of the engine that workers measure, such as "release"; `None` if it names none."""
    if "engram" not in sys.modules:  # workers import the engine of the checkout
        sys.path.insert(0, str(peers.ROOT / "python"))
    return getattr(importlib.import_module("engram._engram"), "__profile__", None)


def require_release() -> None:
    """Ends the program with an error unless the engine is the release build; prints the profile."""
    found = profile()
    if found != RELEASE:
        build = "does not name its build profile" if found is None else f"is that of make (profile {found!r})"
        msg = f"the engine {build}; benchmarks measure the release build: run make bench, or make release"
        raise SystemExit(msg)
    peers.log(f"engine: profile {found!r}")
