"""The file in a cluster's directory that names its shards and their directories."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from engram._complete_output import complete_output, fsync, make_directory
from engram.errors import StorageError
from engram.server import MAX_SHARD_ID

__all__ = ["MANIFEST", "Manifest", "read_manifest", "write_manifest"]

MANIFEST = "cluster.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The newest generation of shards. Each resharding makes a new generation, with new ids and directories."""

    name: str
    generation: int
    shard_ids: tuple[int, ...]
    format: int = FORMAT

    @classmethod
    def first(cls, name: str, shards: int) -> "Manifest":
        """Returns the manifest of a new cluster."""
        return cls(name=name, generation=0, shard_ids=tuple(range(1, shards + 1)))

    def next(self, shards: int) -> "Manifest":
        """Returns the manifest after resharding.

        Raises:
            StorageError: There are not enough shard ids left.
        """
        first = max(self.shard_ids) + 1
        last = first + shards - 1
        if last > MAX_SHARD_ID:
            raise StorageError(
                f"cluster `{self.name}` has used {first - 1} of {MAX_SHARD_ID} shard ids, and {shards} new shards need "
                "as many more; ids are not used twice, because keys contain them: copy the items to a new cluster"
            )
        return Manifest(name=self.name, generation=self.generation + 1, shard_ids=tuple(range(first, last + 1)))

    @property
    def generation_directory(self) -> str:
        """Directory of the shards' directories, in the cluster's."""
        return f"generation-{self.generation}"

    def directories(self, path: str) -> list[str]:
        """Directories of the shards, in order."""
        parent = Path(path) / self.generation_directory
        return [str(parent / f"shard-{index}") for index in range(len(self.shard_ids))]


def read_manifest(path: str, name: str) -> Manifest | None:
    """Returns the manifest of cluster `name` in the directory `path`; None if there is none.

    Raises:
        StorageError: It is the manifest of another cluster, or unreadable.
    """
    file = Path(path) / MANIFEST
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise StorageError(
                f"{file} has format {fields['format']}, but this version of Engram reads format {FORMAT}; "
                "use the version that has written it"
            )
        manifest = Manifest(**{**fields, "shard_ids": tuple(fields["shard_ids"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{file} cannot be read: {error}; restore it from a backup") from error
    if manifest.name != name:
        raise StorageError(
            f"{path} is the directory of cluster `{manifest.name}`, but cluster `{name}` was to be started there; give "
            f"another `path`, or `name={manifest.name!r}`"
        )
    return manifest


def write_manifest(path: str, manifest: Manifest) -> None:
    """Replaces the manifest in one step; it is durable when this returns.

    Raises:
        StorageError: It cannot be written.
    """
    file = Path(path) / MANIFEST
    try:
        make_directory(file.parent)
        with complete_output(file, is_directory=False) as temporary:
            temporary.write_text(json.dumps(asdict(manifest)), encoding="utf-8")
            fsync(temporary)
        fsync(path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {file}: {error.strerror or error}") from error
