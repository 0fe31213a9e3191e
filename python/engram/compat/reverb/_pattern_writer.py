"""Converts configs to the engine's patterns, which create the items; and the leaves and steps that these need."""

from collections.abc import Callable, Sequence
from typing import Any

import engram
from engram import patterns
from engram.compat.reverb._configs import Condition, Config, PatternNode
from engram.compat.reverb._sending import MAX_IN_FLIGHT_ITEMS, NativeWriter
from engram.compat.reverb._steps import LONGEST_CHUNK
from engram.table_store import TableStore

__all__ = ["check_source_leaves", "history_length", "pattern_writer", "source_leaves"]


def pattern_writer(store: TableStore, configs: Sequence[Config], *, chunk_length: int) -> NativeWriter:
    """Creates the engine's writer for valid configs, with `chunk_length` steps per chunk.

    Its steps are tuples of the leaves that the configs read, sorted by `flat_source_index`.
    """
    order = source_leaves(configs)
    writer = engram.PatternWriter(
        store,
        [_pattern(config, order) for config in configs],
        # None: the engine chooses the length, and may store small steps more compactly.
        chunk_length=chunk_length if chunk_length < LONGEST_CHUNK else None,
        max_in_flight_items=MAX_IN_FLIGHT_ITEMS,
        max_waiting_items=None,
        timeout=None,
        compression="auto",
        uniform=True,
    )
    return writer._native  # noqa: SLF001, same package


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


def _pattern(config: Config, order: Sequence[int]) -> engram.Pattern:
    """Converts a config. `order` has the `flat_source_index` of each leaf of the writer's steps."""
    nodes = list(config.flat)
    return engram.Pattern(
        config.table,
        lambda step: tuple(_window(step, order.index(node.flat_source_index), node) for node in nodes),
        when=[_condition(condition, order) for condition in config.conditions],
        priority=_priority(config, order),
    )


def _window(step: Any, column_index: int, node: PatternNode) -> Any:  # noqa: ANN401, the engine's
    start, stop, stride, squeeze = node.window()
    return step[column_index][start] if squeeze else step[column_index][start : stop or None : stride]


def _condition(condition: Condition, order: Sequence[int]) -> patterns.Condition:
    subjects: dict[str | None, Callable[[], patterns.Subject]] = {
        "step_index": patterns.step_index,
        "steps_since_applied": patterns.steps_since_applied,
        "buffer_length": patterns.history_length,
    }
    left = condition.WhichOneof("left")
    if left == "is_end_episode":
        return patterns.end_of_episode()
    if left == "flat_source_index":
        column_index = order.index(condition.flat_source_index)
        subject = patterns.column(lambda step: step[column_index])
    else:
        subject = subjects[left]()
    converted: patterns.Condition
    match condition.WhichOneof("cmp"):
        case "eq":
            converted = subject == condition.eq
        case "ge":
            converted = subject >= condition.ge
        case _:
            converted = subject % condition.mod_eq.mod == condition.mod_eq.eq
    return ~converted if condition.inverse else converted


def _priority(config: Config, order: Sequence[int]) -> float | patterns.TdError:
    """Returns the priority of a config's items; 0 if it depends on a leaf that the items do not contain."""
    if config.priority.HasField("constant_fn"):
        return float(config.priority.constant_fn.value)
    error = config.priority.td_error
    if all(node.flat_source_index != error.flat_source_index for node in config.flat):
        return 0.0
    column_index = order.index(error.flat_source_index)
    return patterns.TdError(lambda step: step[column_index], error.max_priority_weight)
