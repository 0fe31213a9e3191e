"""Changes the number of shards of a cluster in place."""

import logging
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from engram import _engram
from engram.distributed._ray import ray
from engram.distributed.manifest import Manifest, read_manifest, write_manifest
from engram.distributed.registry import shard_names
from engram.distributed.shards import divide_tables, is_held, kill_shards, place_shards, start_shards, stop_shards
from engram.distributed.spec import ClusterSpec, registry_name
from engram.errors import EngramError, InvalidArgumentError, StorageError, UnavailableError

__all__ = ["remove_old_generations", "reshard", "scale"]

PLACE_TIMEOUT = 30.0
"""Seconds to wait for the resources of new shards, which the old ones have just released. Calls of clients wait too."""
RELEASE_TIMEOUT = 5.0
RELEASE_INTERVAL = 0.2

logger = logging.getLogger("engram.distributed")


def reshard(path: str, manifest: Manifest, shards: int) -> Manifest:
    """Divides the closed directories of a generation into those of the next; returns its manifest, now the current one.

    Until the new manifest is written, the old generation stays as it is, and can be used again.

    Raises:
        StorageError: A directory cannot be read or written, or another process uses the new ones.
    """
    from engram.resharding import reshard as reshard_directories  # noqa: PLC0415, rarely needed

    following = manifest.next(shards)
    output = Path(path) / following.generation_directory
    if output.exists():  # left by a run that was killed
        _engram.check_unused(output)
        shutil.rmtree(output)
    # A start that failed has not created all of them.
    directories = [directory for directory in manifest.directories(path) if Path(directory).exists()]
    missing = [directory for directory in manifest.directories(path) if directory not in directories]
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while directories:
        try:
            resharded = reshard_directories(directories, into=shards, output=output)
            break
        except StorageError:
            # The processes of the shards were killed, and release their directories soon.
            if time.monotonic() > deadline:
                raise
            time.sleep(RELEASE_INTERVAL)
    if directories:
        if missing and any(map(any, resharded.tables.values())):
            shutil.rmtree(output)
            raise StorageError(
                f"{missing[0]} is missing, but other shards have items; restore it, or start the cluster with "
                f"{len(missing) + len(directories)} shards as before, which creates an empty one"
            )
        for note in resharded.notes:
            logger.warning("resharding: %s", note)
    write_manifest(path, following)
    return following


def remove_old_generations(path: str, current: Manifest) -> None:
    """Removes the directories of the generations before this one, which the shards serve, unless a store uses them."""
    for generation in range(current.generation):
        directory = Path(path) / replace(current, generation=generation).generation_directory
        with suppress(StorageError):
            _engram.check_unused(directory)
            shutil.rmtree(directory, ignore_errors=True)


def scale(spec: ClusterSpec, registry: "ray.actor.ActorHandle", shards: int) -> None:
    """Stops the shards, reshards their directories, and starts the new shards; see `Cluster.scale`."""
    if not spec.detached and not is_held(spec, registry_name(spec.name)):
        raise InvalidArgumentError(
            f"cluster `{spec.name}` was started by another process, and new shards would end with this one; call "
            "`scale` in the process that called `start`, or give `detached=True` to `start`"
        )
    divide_tables(spec, shards)
    refused = ray.get(registry.begin_scaling.remote(shards))
    if refused:
        raise UnavailableError(refused)
    try:
        # Not before: another process may have scaled the cluster.
        manifest = _current(spec)
        if shards != len(manifest.shard_ids):
            manifest.next(shards)  # an error if there are not enough ids
            _replace_shards(spec, manifest, shards)
    finally:
        _end_scaling(registry)


def _replace_shards(spec: ClusterSpec, old: Manifest, shards: int) -> None:
    try:
        stop_shards(spec, shard_names(spec, old), close=False)
        strategies = place_shards(spec, shards, PLACE_TIMEOUT)
        start_shards(spec, reshard(spec.path, old, shards), strategies)
    except BaseException as error:
        try:
            _restore(spec, old)
        except EngramError as failed:
            error.add_note(f"No shard runs now, because they could not be started again: {failed}")
        raise
    remove_old_generations(spec.path, _current(spec))


def _restore(spec: ClusterSpec, old: Manifest) -> None:
    """Starts the old number of shards, with the current items."""
    current = _current(spec)
    for manifest in (old, current):
        kill_shards(spec, shard_names(spec, manifest))
    if current.generation != old.generation:
        # Not the old directories: clients may have used the new shards.
        current = reshard(spec.path, current, len(old.shard_ids))
    start_shards(spec, current)
    remove_old_generations(spec.path, current)


def _current(spec: ClusterSpec) -> Manifest:
    manifest = read_manifest(spec.path, spec.name)
    if manifest is None:
        raise StorageError(f"{spec.path} has no manifest of cluster `{spec.name}`; it was removed while it was in use")
    return manifest


def _end_scaling(registry: "ray.actor.ActorHandle") -> None:
    # A registry that Ray has restarted meanwhile does not know that the cluster was scaled.
    with suppress(ray.exceptions.RayActorError):
        ray.get(registry.end_scaling.remote())
