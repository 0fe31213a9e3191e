"""Experience replay: tables that actors write and learners sample."""

from engram import errors, rate_limiters, selectors
from engram.errors import EngramError
from engram.table import Table

__all__ = ["EngramError", "Table", "errors", "rate_limiters", "selectors"]
