"""The leaves and the number of steps that the patterns of configs need. The engine applies them (`_pattern_writer`)."""

from collections.abc import Sequence

from engram.compat.reverb._configs import Config

__all__ = ["already_set_text", "check_source_leaves", "history_length", "source_leaves"]


def history_length(configs: Sequence[Config]) -> int:
    """Number of newest steps that the patterns need."""
    lengths: list[int] = [-node.window()[0] for config in configs for node in config.flat]
    return max(lengths)


def source_leaves(configs: Sequence[Config]) -> list[int]:
    """Sorted numbers of the leaves that patterns or conditions read."""
    conditions = [condition for config in configs for condition in config.conditions]
    compared = {each.flat_source_index for each in conditions if each.WhichOneof("left") == "flat_source_index"}
    return sorted(compared | {node.flat_source_index for config in configs for node in config.flat})


def check_source_leaves(configs: Sequence[Config], count: int) -> None:
    """Checks that steps with `count` leaves have all leaves that configs read."""
    last = source_leaves(configs)[-1]
    if last >= count:
        leaves = "1 leaf" if count == 1 else f"{count} leaves"
        raise ValueError(
            f"a config reads leaf {last} of a step (`flat_source_index`, from 0); steps have only {leaves}"
        )


def already_set_text(leaf: int) -> str:
    """The error text for a leaf that already has a value in the step."""
    return f"A value for column {leaf} was provided by multiple append calls in the same step."
