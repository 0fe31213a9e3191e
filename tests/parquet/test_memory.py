"""Tables that are larger than the batches and row groups are written and read within the memory of these."""

import pytest
from helpers.support import run_python

PROGRAM = """
import resource
import numpy as np
from engram import Store, Table
from engram.parquet import read_parquet, write_parquet

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

item = np.arange(1 << 18)  # 2 MiB
store = Store([Table("t"), Table("newest", max_size=4)])

def insert(count):
    for n in range(count):
        store.insert({"x": item + n}, {"t": 1.0})
"""

WRITE = """
insert(8)
write_parquet(store, "t", PATH, batch_size=2, row_group_size=4)  # what the libraries themselves need
insert(40)
before = peak()
write_parquet(store, "t", PATH, batch_size=2, row_group_size=4)
print(peak() - before)
"""

READ = """
insert(8)
write_parquet(store, "t", f"{PATH}.small", batch_size=2, row_group_size=4)
read_parquet(store, "newest", f"{PATH}.small", batch_size=2)
before = peak()
read_parquet(store, "newest", PATH, batch_size=2)
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """The table has 96 MiB, a row group 8 MiB and a batch 4 MiB."""
    prefix = f"{PROGRAM}\nPATH = {str(tmp_path / 't.parquet')!r}\n"
    for program in (WRITE, READ):
        assert int(run_python(prefix + program)) < 48
