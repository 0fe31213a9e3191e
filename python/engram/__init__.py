"""Experience replay: tables that actors write and learners sample."""

from typing import TYPE_CHECKING

from engram.nests import Nest  # first: other modules import it from here

# isort: split
from engram import errors, patterns, rate_limiters, selectors
from engram._engram import __version__
from engram._lazy_modules import lazy_modules
from engram.batch import Batch, BatchInfo, Sample
from engram.client import Client
from engram.dataset import Dataset
from engram.errors import EngramError
from engram.importing import import_reverb
from engram.info import Checkpoint, TableInfo, TableUser
from engram.inspection import inspect_directory
from engram.patterns import Pattern
from engram.peek import Histogram, Peek, PeekedItem
from engram.scan import Scan
from engram.server import Server
from engram.sharded import ShardedClient
from engram.specs import ArraySpec
from engram.store import Store
from engram.table import Table
from engram.table_store import TableStore
from engram.writer import BatchedWriter, PatternWriter, TrajectoryWriter
from engram.writer_options import WriterOptions

__all__ = [
    "ArraySpec",
    "Batch",
    "BatchInfo",
    "BatchedWriter",
    "Checkpoint",
    "Client",
    "Dataset",
    "EngramError",
    "Histogram",
    "Nest",
    "Pattern",
    "PatternWriter",
    "Peek",
    "PeekedItem",
    "Sample",
    "Scan",
    "Server",
    "ShardedClient",
    "Store",
    "Table",
    "TableInfo",
    "TableStore",
    "TableUser",
    "TrajectoryWriter",
    "WriterOptions",
    "__version__",
    "adders",
    "buffers",
    "data",
    "errors",
    "gymnasium",
    "import_reverb",
    "inspect_directory",
    "patterns",
    "rate_limiters",
    "resharding",
    "selectors",
]

if TYPE_CHECKING:
    from engram import adders, buffers, data, gymnasium, resharding
    from engram import distributed as distributed
    from engram import minari as minari
    from engram import parquet as parquet
else:
    # They need optional packages. Not in `__all__`, so that `from engram import *` works without these packages.
    _EXTRAS = ("distributed", "minari", "parquet")
    __getattr__ = lazy_modules("engram", ("adders", "buffers", "data", "gymnasium", "resharding", *_EXTRAS))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "distributed", "minari", "parquet"})
