"""Experience replay: tables that actors write and learners sample."""

from engram import errors, patterns, rate_limiters, selectors
from engram._engram import __version__
from engram.batch import Batch, BatchInfo, Sample
from engram.client import Client
from engram.dataset import Dataset
from engram.errors import EngramError
from engram.importing import Imported, import_reverb
from engram.info import Checkpoint, TableInfo
from engram.inspection import Inspection, inspect_directory
from engram.patterns import Pattern
from engram.server import Server
from engram.specs import ArraySpec
from engram.store import AnyStore, Store
from engram.table import Table
from engram.writer import BatchedWriter, PatternWriter, TrajectoryWriter

__all__ = [
    "AnyStore",
    "ArraySpec",
    "Batch",
    "BatchInfo",
    "BatchedWriter",
    "Checkpoint",
    "Client",
    "Dataset",
    "EngramError",
    "Imported",
    "Inspection",
    "Pattern",
    "PatternWriter",
    "Sample",
    "Server",
    "Store",
    "Table",
    "TableInfo",
    "TrajectoryWriter",
    "__version__",
    "errors",
    "import_reverb",
    "inspect_directory",
    "patterns",
    "rate_limiters",
    "selectors",
]
