"""What makes a structured writer's items: the engine's patterns, or, where those lack something, Python."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import engram
from engram import patterns
from engram.compat.reverb._configs import Condition, Config, PatternNode
from engram.compat.reverb._patterns import Made, PatternSet, look_back, sources, td_error
from engram.compat.reverb._sending import MOST_IN_FLIGHT
from engram.compat.reverb._steps import LONGEST_CHUNK
from engram.errors import EngramError

__all__ = ["Maker", "has_more", "maker"]


class Maker(Protocol):
    """Takes steps and makes their items.

    Attributes:
        native: The engine's writer.
    """

    native: Any

    def append(self, row: Sequence[Any], *, partial: bool) -> None:
        """Takes the leaves that are read, in the order of `sources`; None: no value."""

    def end_episode(self, timeout: float | None, clear: bool) -> None:  # noqa: FBT001, as the engine's
        """Ends the episode; waits until the tables have all items."""


def maker(store: Any, configs: Sequence[Config], *, whole: bool, chunk_length: int) -> Maker:  # noqa: ANN401, the engine's client
    """The quickest that can do what the configs ask.

    Args:
        store: Where the tables are.
        configs: Valid ones.
        whole: The first append is a complete step with a value in each leaf that is read: the engine's patterns begin
            only when such a one has come.
        chunk_length: Steps of a chunk.
    """
    options = {
        # The engine may lay small steps out better where the length is its own choice.
        "chunk_length": chunk_length if chunk_length < LONGEST_CHUNK else None,
        "max_in_flight_items": MOST_IN_FLIGHT,
    }
    if whole and all(_is_native(config) for config in configs):
        return _ByPatterns(store, configs, options)
    return _ByHand(store, configs, options)


def has_more(native: Any, steps: int) -> bool:  # noqa: ANN401, the engine's writer
    """True if an episode of so many steps has more by now: an append that raised an error was taken all the same."""
    try:
        found: int = native.episode_steps
    except (EngramError, RuntimeError):  # another thread's or process's
        return False
    return found != steps


def _is_native(config: Config) -> bool:
    plain = all(condition.WhichOneof("left") != "buffer_length" for condition in config.conditions)
    return plain and config.priority.HasField("constant_fn")


class _ByPatterns:
    """The engine makes the items."""

    def __init__(self, store: Any, configs: Sequence[Config], options: dict[str, Any]) -> None:  # noqa: ANN401, the engine's client
        order = sources(configs)
        writer = store.pattern_writer([_pattern(config, order) for config in configs], **options)
        self.native = writer._native  # noqa: SLF001, its other half
        self._append = self.native.append

    def append(self, row: Sequence[Any], *, partial: bool) -> None:
        self._append(tuple(row), partial_step=partial)

    def end_episode(self, timeout: float | None, clear: bool) -> None:  # noqa: FBT001, as the engine's
        self.native.end_episode(timeout, clear)


def _pattern(config: Config, order: Sequence[int]) -> engram.Pattern:
    nodes = list(config.flat)
    return engram.Pattern(
        config.table,
        lambda step: tuple(_window(step, order.index(node.flat_source_index), node) for node in nodes),
        when=[_condition(condition, order) for condition in config.conditions],
        priority=config.priority.constant_fn.value,
    )


def _window(step: Any, at: int, node: PatternNode) -> Any:  # noqa: ANN401, the engine's
    start, stop, stride, squeeze = node.window()
    return step[at][start] if squeeze else step[at][start : stop or None : stride]


def _condition(condition: Condition, order: Sequence[int]) -> patterns.Condition:
    subjects: dict[str | None, Callable[[], patterns.Subject]] = {
        "step_index": patterns.step_index,
        "steps_since_applied": patterns.steps_since_applied,
    }
    left = condition.WhichOneof("left")
    if left == "is_end_episode":
        return patterns.end_of_episode()
    if left == "flat_source_index":
        at = order.index(condition.flat_source_index)
        subject = patterns.column(lambda step: step[at])
    else:
        subject = subjects[left]()
    made: patterns.Condition
    match condition.WhichOneof("cmp"):
        case "eq":
            made = subject == condition.eq
        case "ge":
            made = subject >= condition.ge
        case _:
            made = subject % condition.mod_eq.mod == condition.mod_eq.eq
    return ~made if condition.inverse else made


class _ByHand:
    """Python decides which items there are; their columns are the engine's all the same."""

    def __init__(self, store: Any, configs: Sequence[Config], options: dict[str, Any]) -> None:  # noqa: ANN401, the engine's client
        self._configs = configs
        self._order = sources(configs)
        self._set = PatternSet(configs)
        self._width = self._order[-1] + 1
        self.native = store.writer(history=look_back(configs), **options)._native  # noqa: SLF001, its other half
        self._history: Any = None
        self._version = -1

    def append(self, row: Sequence[Any], *, partial: bool) -> None:
        steps = self.native.episode_steps
        try:
            self.native.append(tuple(row), partial_step=partial)
        except BaseException:
            if has_more(self.native, steps):  # an error of an earlier item
                self._take(row, partial=partial)
            raise
        self._take(row, partial=partial)

    def _take(self, row: Sequence[Any], *, partial: bool) -> None:
        """Makes the items that are due now that the engine has a step, or a part of one."""
        values: list[Any] = [None] * self._width
        cells = [None if value is None else True for value in row]
        there: list[Any] = [None] * self._width
        for leaf, value, cell in zip(self._order, row, cells, strict=True):
            values[leaf], there[leaf] = value, cell
        self._make(self._set.append(values, partial=partial, cells=there))

    def end_episode(self, timeout: float | None, clear: bool) -> None:  # noqa: FBT001, as the engine's
        try:
            self._make(self._set.end_episode(clear=clear))
        finally:
            self.native.end_episode(timeout, clear)

    def _make(self, items: Sequence[Made]) -> None:
        if not items:
            return
        if self._version != self.native.structure_version:
            self._version, self._history = self.native.structure_version, self.native.history()
        problem = None
        for item in items:
            try:
                self._make_one(item)
            except Exception as error:  # noqa: BLE001, raised once the other items are made
                problem = problem or error
        if problem is not None:
            raise problem

    def _make_one(self, item: Made) -> None:
        columns = []
        for column in item.columns:
            history, window = self._history[self._order.index(column.leaf)], column.window
            columns.append(
                history[window[0]] if column.squeeze else history[window.start : window.stop or None : window.step]
            )
        config = self._configs[item.config]
        self.native.create_item(config.table, self._priority(config, item, columns), tuple(columns), None)

    def _priority(self, config: Config, item: Made, columns: Sequence[Any]) -> float:
        if config.priority.HasField("constant_fn"):
            return float(config.priority.constant_fn.value)
        error = config.priority.td_error
        found = 0.0
        for column, values in zip(item.columns, columns, strict=True):
            if column.leaf == error.flat_source_index:
                found = td_error(error.max_priority_weight, values.numpy())
        return found
