"""The tests with `open_store` that cannot hold for a store that is sharded over three servers, each with the reason."""

import re

_REASONS: dict[str, tuple[str, ...]] = {}


def reason_against_shards(node_id: str) -> str | None:
    """Returns why a test cannot hold; None if it can, or does not use shards."""
    match = re.fullmatch(r"(?:.*/)?(\w+\.py::\w+)\[.*\bsharded\b.*\]", node_id)
    name = match and match[1]
    return next((reason for reason, names in _REASONS.items() if name in names), None)
