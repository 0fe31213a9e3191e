"""Reports items that may be lost because their writer is gone."""

import logging
import warnings
from collections.abc import Collection

__all__ = ["report", "tables_text"]

_LOG = logging.getLogger("engram")


def tables_text(tables: Collection[str]) -> str:
    """Returns "table `replay`", or "tables `a`, `b`"; "table" if none is known."""
    names = ", ".join(f"`{table}`" for table in sorted(tables))
    return f"table{'s' if len(tables) > 1 else ''} {names}".rstrip()


def report(text: str, category: type[Warning], source: object, *, stacklevel: int) -> None:
    """Logs the text, and warns with it: Python hides a `ResourceWarning`, and a repeated warning of any category."""
    _LOG.warning("%s", text)
    warnings.warn(text, category, stacklevel=stacklevel + 1, source=source)
