"""The info of a table from those of its shards."""

from collections.abc import Callable
from typing import Any

__all__ = ["merge_infos"]

_SUMS = (
    "size",
    "total_weight",
    "max_size",
    "bytes",
    "hidden_items",
    "num_episodes",
    "num_deleted_episodes",
    "num_unique_samples",
    "inserts",
    "samples",
    "deletes",
    "unreadable_items",
    "inserts_per_s",
    "samples_per_s",
    "waiting_inserts",
)


def merge_infos(by_shard: dict[int, list[dict[str, Any]]], name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Merges the infos of all tables.

    Args:
        by_shard: Infos of each shard, as the native `Store` returns them.
        name_of: Returns the name of a shard.

    Returns:
        An info per table, in the order of the first shard. Numbers are sums. The options are those of the first shard,
        its rate limiter too; `max_size` and `max_bytes` are sums.
    """
    first = next(iter(by_shard.values()))
    merged = []
    for table in first:
        parts = {shard: info for shard, infos in by_shard.items() for info in infos if info["name"] == table["name"]}
        merged.append(_merge(parts, name_of))
    return merged


def _merge(parts: dict[int, dict[str, Any]], name_of: Callable[[int], str]) -> dict[str, Any]:
    infos = list(parts.values())
    merged = {**infos[0], **{name: sum(info[name] for info in infos) for name in _SUMS}}
    limits = [info["max_bytes"] for info in infos]
    merged["max_bytes"] = None if None in limits else sum(limits)
    # A sample that finds all shards empty waits at each of them.
    merged["waiting_samples"] = max(info["waiting_samples"] for info in infos)
    # Empty shards are not sampled as long as others have items.
    filled = {shard: info for shard, info in parts.items() if info["size"] > info["hidden_items"]}
    merged["sampling_blocked"] = _reason(filled or dict([next(iter(parts.items()))]), "sampling_blocked", name_of)
    for field in ("inserting_blocked", "storage_problem"):
        merged[field] = _reason(parts, field, name_of)
    return merged


def _reason(parts: dict[int, dict[str, Any]], field: str, name_of: Callable[[int], str]) -> str | None:
    reasons = [f"{info[field]} ({name_of(shard)})" for shard, info in parts.items() if info[field]]
    return "; ".join(reasons) or None
