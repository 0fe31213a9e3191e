"""Experience replay: tables that actors write and learners sample."""

from engram import errors, rate_limiters, selectors
from engram._engram import __version__
from engram.batch import Batch, BatchInfo, Sample
from engram.dataset import Dataset
from engram.errors import EngramError
from engram.info import TableInfo
from engram.specs import ArraySpec
from engram.store import Store
from engram.table import Table

__all__ = [
    "ArraySpec",
    "Batch",
    "BatchInfo",
    "Dataset",
    "EngramError",
    "Sample",
    "Store",
    "Table",
    "TableInfo",
    "__version__",
    "errors",
    "rate_limiters",
    "selectors",
]
