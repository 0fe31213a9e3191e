"""Changes the number of shards of a cluster in place."""

import shutil
import time
from pathlib import Path

from engram.distributed._ray import ray
from engram.distributed.manifest import Manifest, read_manifest, write_manifest
from engram.distributed.registry import ShardList, shard_names
from engram.distributed.shards import start_shards, stop_shards
from engram.distributed.spec import ClusterSpec
from engram.errors import StorageError, UnavailableError

__all__ = ["reshard", "scale"]

RELEASE_TIMEOUT = 5.0
RELEASE_INTERVAL = 0.2


def reshard(path: str, manifest: Manifest, shards: int) -> Manifest:
    """Divides the closed directories of a generation into those of the next; returns its manifest, now the current one.

    Until the new manifest is written, the old generation stays as it is, and can be used again.

    Raises:
        StorageError: A directory cannot be read or written.
    """
    from engram.resharding import reshard as reshard_directories  # noqa: PLC0415, rarely needed

    following = manifest.next(shards)
    output = Path(path) / following.generation_directory
    if output.exists():  # left by a run that was killed
        shutil.rmtree(output)
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while True:
        try:
            reshard_directories(manifest.directories(path), into=shards, output=output)
            break
        except StorageError:
            # The processes of the shards were killed, and release their directories soon.
            if time.monotonic() > deadline:
                raise
            time.sleep(RELEASE_INTERVAL)
    write_manifest(path, following)
    return following


def scale(spec: ClusterSpec, registry: "ray.actor.ActorHandle", shards: int) -> None:
    """Stops the shards, reshards their directories, and starts the new shards; see `Cluster.scale`."""
    manifest = read_manifest(spec.path, spec.name)
    if manifest is None:
        raise StorageError(f"{spec.path} has no manifest of cluster `{spec.name}`; it was removed while it was in use")
    if shards == len(manifest.shard_ids):
        return
    refused = ray.get(registry.begin_scaling.remote(shards))
    if refused:
        raise UnavailableError(refused)
    try:
        stop_shards(spec, shard_names(spec, ShardList(manifest.generation, manifest.shard_ids)), close=False)
        old = manifest
        try:
            manifest = reshard(spec.path, manifest, shards)
        finally:
            start_shards(spec, manifest)
    finally:
        ray.get(registry.end_scaling.remote())
    shutil.rmtree(Path(spec.path) / old.generation_directory, ignore_errors=True)
