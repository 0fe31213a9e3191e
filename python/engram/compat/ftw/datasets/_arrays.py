"""FTW's datasets as NumPy's, PyTorch's and JAX's arrays."""

import importlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from engram.compat.ftw.datasets._plan import Plan
from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_face import read_table
from engram.compat.reverb._elements import Elements
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.store import AnyStore

__all__ = ["ArrayDataset", "converter"]

Array = npt.NDArray[Any]
Convert = Callable[[list[Any]], list[Any]]
_INFO = len(SampleInfo._fields)


class ArrayDataset:
    """An iterable of batches; each iterator fetches ahead, and gives back what it has not used."""

    def __init__(self, plan: Plan, stores: Sequence[AnyStore], convert: Convert) -> None:
        """Describes the batches; nothing is fetched before iteration begins."""
        fetching = plan.source.fetching
        more = plan.prefetch_size * (plan.batch_size or 1)
        self._plan = plan
        self._source = replace(plan.source, fetching=replace(fetching, ahead=fetching.ahead + more))
        self._stores = stores
        self._convert = convert

    def __iter__(self) -> Generator[ReplaySample]:
        plan = self._plan
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(self._elements(store))) for store in self._stores]
            elements = _in_turn(readers, waits=plan.deterministic)
            while True:
                if plan.batch_size is None:
                    leaves: list[Any] = next(elements)
                else:
                    batch = [next(elements) for _ in range(plan.batch_size)]
                    leaves = [_stacked(column) for column in zip(*batch, strict=True)]
                info, data = leaves[:_INFO], self._convert(leaves[_INFO:])
                yield ReplaySample(SampleInfo(*info), _nest.unflatten_as(plan.nest, data))

    def _elements(self, store: AnyStore) -> Generator[list[Array] | None]:
        """Yields the leaves of one element after the other; None now and then while there are none."""
        wanted = _nest.flatten(self._plan.nest)
        with closing(cast("Any", read_table(store, self._plan.table, self._source, wanted))) as blocks:
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
    """One of each, again and again; one that has nothing is waited for, or passed over."""
    while True:
        for reader in readers:
            found = next(reader)
            while found is None and waits:
                found = next(reader)
            if found is not None:
                yield found


def _stacked(column: Sequence[Array]) -> Any:  # noqa: ANN401, an array, or several
    """`[B, ...]`; a list where they differ in shape."""
    if len({each.shape for each in column}) > 1:
        return list(column)
    return np.stack(column)


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
