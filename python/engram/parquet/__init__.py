"""Tables as Parquet files, for example for pandas, polars and DuckDB, and back; see docs/import-export.md.

Needs PyArrow: `pip install 'engram-replay[parquet]'`.
"""

from engram._extras import importing_extra

with importing_extra("parquet", "engram.parquet"):
    from engram.parquet.reading import read_parquet
    from engram.parquet.writing import write_parquet

__all__ = ["read_parquet", "write_parquet"]
