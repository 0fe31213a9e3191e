"""Files that earlier releases wrote are read: stores, saved replay buffers and replay buffers in mapped files."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.format_samples import contents

from engram import Store, Table

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("version", sorted(path.name for path in FOLDER.glob("format-*")))
def test_files_of_earlier_releases_are_read(version, tmp_path):
    files = shutil.copytree(FOLDER / version, tmp_path / "files")
    expected = json.loads((files / "expected.json").read_text(encoding="utf-8"))
    del expected["written by"]
    assert contents(files) == expected
    with Store.open(files / "store", [Table("new")]) as store:  # closed by this release
        store.insert({"x": 1}, {"new": 1.0})
        assert store.checkpoint().items == 1 + sum(info.size for info in store.info().values()) - 1
