"""FTW's Python API on Engram's engine, with FTW's module paths."""
