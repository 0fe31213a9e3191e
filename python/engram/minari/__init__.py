"""Minari's datasets as items of tables, and tables of episodes as Minari's datasets; see docs/import-export.md.

Needs Minari: `pip install 'engram-replay[minari]'`.
"""

import importlib

from engram._extras import importing_extra

with importing_extra("minari", "engram.minari"):
    for _package in ("h5py", "PIL", "minari"):  # Minari itself imports the first two later
        importlib.import_module(_package)
    from engram.minari.reading import read_minari
    from engram.minari.writing import write_minari

__all__ = ["read_minari", "write_minari"]
