"""FTW's datasets as NumPy's, PyTorch's and JAX's arrays."""

import importlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, cast

import numpy as np

from engram.compat.ftw.datasets._plan import Plan
from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_face import Source, read_table
from engram.compat.reverb._elements import Convert as Make
from engram.compat.reverb._elements import Elements
from engram.compat.reverb._reader import MismatchError
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.blocks import Array, Block
from engram.errors import NeverServedError
from engram.store import AnyStore

__all__ = ["ArrayDataset", "converter"]

Convert = Callable[[list[Any]], list[Any]]
_REST = 0.002
"""Seconds between glances at several stores that all have nothing."""

_INFO = len(SampleInfo._fields)


class ArrayDataset:
    """An iterable of batches; each iterator fetches ahead, and gives back what it has not used.

    Whole items of one store come in batches, which go back whole. Others come item by item where their table hands each
    out so many times only: an item counts as used with its first element, also where its batch is not full yet.
    Elsewhere they come in blocks of a batch.
    """

    def __init__(self, plan: Plan, stores: Sequence[AnyStore], convert: Convert) -> None:
        """Describes the batches; nothing is fetched before iteration begins."""
        self._plan = plan
        self._is_whole = plan.is_items and len(stores) == 1 and plan.batch_size is not None and not plan.may_differ
        self._waits = plan.deterministic or len(stores) == 1
        self._stores = stores
        self._convert = convert

    def __iter__(self) -> Generator[ReplaySample]:
        if self._is_whole:
            try:
                yield from self._read(is_whole=True)
            except NeverServedError:  # the table never holds as many items as make a batch
                pass
            else:
                return
        yield from self._read(is_whole=False)

    def _read(self, *, is_whole: bool) -> Generator[ReplaySample]:
        plan = self._plan
        source = self._source(is_whole=is_whole)
        made = self._batches if is_whole else self._elements
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(made(store, source))) for store in self._stores]
            elements = _in_turn(readers, waits=self._waits)
            while True:
                if plan.batch_size is None or is_whole:
                    leaves: list[Any] = next(elements)
                else:
                    batch = [next(elements) for _ in range(plan.batch_size)]
                    leaves = [_stacked(plan, column) for column in zip(*batch, strict=True)]
                info, data = leaves[:_INFO], self._convert(leaves[_INFO:])
                yield ReplaySample(SampleInfo(*info), _nest.unflatten_as(plan.nest, data))

    def _source(self, *, is_whole: bool) -> Source:
        plan = self._plan
        fetching = replace(
            plan.source.fetching,
            ahead=plan.source.fetching.ahead + plan.prefetch_size * (plan.batch_size or 1),
            block=plan.batch_size or plan.source.fetching.ahead // 2,
            is_exact=is_whole,
            spares=not is_whole,
            glance=plan.source.fetching.glance if self._waits else 0,
        )
        convert = plan.source.convert
        return replace(plan.source, fetching=fetching, convert=_even(convert) if is_whole else convert)

    def _blocks(self, store: AnyStore, source: Source) -> Any:  # noqa: ANN401, a generator
        return closing(cast("Any", read_table(store, self._plan.table, source, _nest.flatten(self._plan.nest))))

    def _batches(self, store: AnyStore, source: Source) -> Generator[list[Array] | None]:
        """Yields the leaves of one batch after the other; None now and then while there are none."""
        with self._blocks(store, source) as blocks:
            for block in blocks:
                yield None if block is None else [rows.values for rows in block]

    def _elements(self, store: AnyStore, source: Source) -> Generator[list[Array] | None]:
        """Yields the leaves of one element after the other; None now and then while there are none."""
        with self._blocks(store, source) as blocks:
            for block in blocks:
                if block is None:
                    yield None
                else:
                    yield from _each(block)


def _each(block: Elements) -> Iterator[list[Array]]:
    first = block[0]
    count = len(first.values) if first.splits is None else len(first.splits) - 1
    for at in range(count):
        yield [values[at, ...] if splits is None else values[splits[at] : splits[at + 1]] for values, splits in block]


def _in_turn(readers: Sequence[Generator[list[Array] | None]], *, waits: bool) -> Iterator[list[Array]]:
    """One of each, again and again; one that has nothing is waited for, or passed over at once."""
    while True:
        is_dry = True
        for reader in readers:
            found = next(reader)
            while found is None and waits:
                found = next(reader)
            if found is not None:
                is_dry = False
                yield found
        if is_dry:
            time.sleep(_REST)


def _even(make: Make) -> Make:
    """As `make`, of items that all have as many steps."""

    def convert(table: str, specs: Sequence[TensorSpec], block: Block) -> Elements:
        for splits in block.splits:
            lengths: list[int] = [] if splits is None else np.diff(splits).tolist()
            if len(set(lengths)) > 1:
                raise MismatchError(_differ(table, [f"{length} steps" for length in lengths]))
        return make(table, specs, block)

    return convert


def _stacked(plan: Plan, column: Sequence[Array]) -> Any:  # noqa: ANN401, an array, or several
    """`[B, ...]`; a list where they differ in shape, and may do so.

    Raises:
        MismatchError: They may not.
    """
    if len({each.shape for each in column}) == 1:
        return np.stack(column)
    if not plan.may_differ:
        raise MismatchError(_differ(plan.table, [f"the shape {list(each.shape)}" for each in column]))
    return list(column)


def _differ(table: str, found: Sequence[str]) -> str:
    other = next(each for each in found if each != found[0])
    return f"elements of a batch must be alike; of table `{table}`, one has {found[0]} and another {other}"


def converter(framework: str) -> Convert:
    """Makes a framework's arrays of NumPy's; text stays as it is.

    Raises:
        ImportError: The framework is not installed.
    """
    if framework == "numpy":
        return lambda leaves: leaves
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        raise ImportError(f"a dataset of the framework `{framework}` needs it, and it is not installed") from error
    one = _torch(module) if framework == "torch" else module.device_put

    def convert(leaves: list[Any]) -> list[Any]:
        return [_converted(one, leaf) for leaf in leaves]

    return convert


def _converted(one: Callable[[Array], Any], leaf: Any) -> Any:  # noqa: ANN401, as `_stacked` makes it
    if isinstance(leaf, list):
        return [_converted(one, each) for each in leaf]
    return leaf if leaf.dtype == object else one(leaf)


def _torch(torch: Any) -> Callable[[Array], Any]:  # noqa: ANN401, a module
    def tensor(array: Array) -> Any:  # noqa: ANN401, a tensor
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.asarray(array))

    return tensor
