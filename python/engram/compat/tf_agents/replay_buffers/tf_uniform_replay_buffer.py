"""A replay buffer of batched items that are sampled uniformly."""

import secrets
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram import Nest, _checks
from engram._extras import importing_extra
from engram.errors import InvalidArgumentError

with importing_extra("tensorflow", "engram.compat.tf_agents"):
    import tensorflow as tf

    from engram.compat.tf_agents.replay_buffers._columns import Columns
    from engram.compat.tf_agents.replay_buffers._deterministic_pass import DeterministicPass
    from engram.compat.tf_agents.replay_buffers._python_calls import Tensor, TfDataset, without_autograph
    from engram.compat.tf_agents.replay_buffers._ring_storage import RingStorage
    from engram.compat.tf_agents.replay_buffers._table_storage import TableStorage
    from engram.compat.tf_agents.replay_buffers._tracked import as_tracked
    from engram.compat.tf_agents.replay_buffers.replay_buffer import ReplayBuffer
    from engram.compat.tf_agents.replay_buffers.table import Table

__all__ = ["BufferInfo", "TFUniformReplayBuffer"]

BufferInfo = namedtuple("BufferInfo", ["ids", "probabilities"])  # noqa: PYI024, as in TF-Agents
BufferInfo.__doc__ = """What a `TFUniformReplayBuffer` returns with items.

Attributes:
    ids: int64 tensor: the ids of the items; with `single_deterministic_pass`, see `as_dataset`.
    probabilities: float32 tensor: the probability with which a draw chooses the sequence; `()` with
        `single_deterministic_pass`.
"""


class TFUniformReplayBuffer(ReplayBuffer):
    """A ring of items for each of `batch_size` segments, from which sequences are sampled with equal probability.

        buffer = TFUniformReplayBuffer(data_spec, batch_size=1, max_length=100_000)
        buffer.add_batch(tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], item))
        for items, info in buffer.as_dataset(sample_batch_size=32, num_steps=2).prefetch(3):
            learn(items)

    Items are in Engram's memory, not in variables. If `table_fn` is not `Table`, or a column has text or another dtype
    that Engram's rings do not store, they are in the tables that `table_fn` creates.

    Calls in a `tf.function` run in the process that traced it, on the CPU. `tf.random.set_seed` determines what is
    sampled. A `tf.train.Checkpoint` of the buffer has the content of one of TF-Agents' buffer: either restores the
    other's.

    An item has an id: the number of items that were added before to its segment, since the last `clear`. So the items
    of one batch have the same id. With `single_deterministic_pass`, they are other numbers: see `as_dataset`.
    """

    def __init__(  # noqa: PLR0917, TF-Agents' signature
        self,
        data_spec: Nest,
        batch_size: int,
        max_length: int = 1000,
        scope: str = "TFUniformReplayBuffer",
        device: str = "cpu:*",
        table_fn: Callable[..., Any] = Table,
        dataset_drop_remainder: bool = False,  # noqa: FBT001, FBT002, TF-Agents' signature
        dataset_window_shift: int | None = None,
        stateful_dataset: bool = False,  # noqa: FBT001, FBT002, TF-Agents' signature
    ) -> None:
        """Creates an empty buffer.

        Args:
            data_spec: Nest of `tf.TensorSpec` that describes one item, without a batch axis.
            batch_size: Number of items that are added together; each belongs to a segment.
            max_length: Maximum number of items of a segment. Then its oldest items are overwritten.
            scope: Prefix of the names of variables and operations.
            device: Where tables, and tensors that are returned, are placed.
            table_fn: Called as `table_fn(spec, capacity)`, creates an object like `Table`: once for `data_spec`, and
                once for ids. Default: `Table`, used only for columns that rings do not store, see the class.
            dataset_drop_remainder: If True, datasets of a single deterministic pass leave out elements with fewer than
                `sample_batch_size` segments or `num_steps` items. Their tensors then have known shapes.
            dataset_window_shift: In datasets of a single deterministic pass: number of items from the beginning of one
                sequence to that of the next. Default: `num_steps`.
            stateful_dataset: Without effect: TensorFlow 2.15 and newer have no mark for stateful datasets.

        Raises:
            ValueError: A number is out of range; or `data_spec` has no columns, or an axis without a known size.
            TypeError: A leaf of `data_spec` is not a `tf.TensorSpec`.
        """
        batch_size = _integer("`batch_size`", batch_size)
        max_length = _integer("`max_length`", max_length, high=_MAX_CAPACITY // batch_size)
        if dataset_window_shift is not None:
            dataset_window_shift = _integer("`dataset_window_shift`", dataset_window_shift)
        super().__init__(data_spec, batch_size * max_length, stateful_dataset)
        self._options = _Options(
            batch_size, max_length, scope, device, table_fn, dataset_drop_remainder, dataset_window_shift
        )
        self._columns = Columns(data_spec, batch_size)
        with self._placed():
            if table_fn is Table and self._columns.fit_a_ring:
                self._storage: Any = RingStorage(self._columns, max_length)
            else:
                self._storage = TableStorage(self._columns, data_spec, max_length, table_fn)
            # Attributes of TF-Agents, for checkpoints.
            self._data_table, self._id_table, self._last_id = self._storage.tracked(data_spec)
        self._data_spec = as_tracked(data_spec)

    @property
    def scope(self) -> str:
        """Prefix of the names of variables and operations."""
        return self._options.scope

    @property
    def device(self) -> str:
        """Where tables, and tensors that are returned, are placed."""
        return self._options.device

    @property
    def table_fn(self) -> Callable[..., Any]:
        """The function that creates tables."""
        return self._options.table_fn

    def variables(self) -> list[Any]:
        """The variables of the tables of data and of ids, and the last id; none if items are in Engram's memory."""
        return self._storage.variables()  # type: ignore[no-any-return]  # of two classes

    @without_autograph
    def as_dataset(  # type: ignore[override]  # without `sequence_preprocess_fn`, as in TF-Agents
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | Tensor | None = None,
        single_deterministic_pass: bool = False,  # noqa: FBT001, FBT002, TF-Agents' signature
    ) -> TfDataset:
        """Creates a dataset of the buffer's items.

        By default, it is infinite: each element is the result of a call `get_next(sample_batch_size, num_steps)`, made
        when the element is requested. tf.data's automatic prefetching is disabled: call `prefetch`.

        With `single_deterministic_pass`, an iteration reads the items that the buffer has when the iteration begins:

        - Without `sample_batch_size`, one segment after the other. With `num_steps`, sequences begin every
          `dataset_window_shift` items; the last ones of a segment have fewer than `num_steps` items.
        - With `sample_batch_size`, `N` segments together, then the next `N`; the last group may have fewer segments.
          With `num_steps`, sequences with fewer than `num_steps` items are left out.

        The ids are `segment * max_length + id`, as in TF-Agents: the number of the item's row only while `id` is below
        `max_length`. The probabilities are an empty tuple. Items that are overwritten during the iteration have newer
        content.

        Args:
            sample_batch_size: Number of sequences of an element, `N`. Default: one, without the axis `N`.
            num_steps: Number of items of a sequence, `T`. Default: one, without the axis `T`.
            num_parallel_calls: Number of elements that are created in parallel, or `tf.data.AUTOTUNE`. Default: one. No
                effect with `single_deterministic_pass`.
            single_deterministic_pass: If True, the dataset visits the items once, in order.

        Returns:
            A `tf.data.Dataset` of pairs as `get_next` returns them.

        Raises:
            ValueError: `sample_batch_size` or `num_steps` is out of range; `data_spec` contains lists; or
                `dataset_drop_remainder` would leave out all data.
            tf.errors.InvalidArgumentError: On iteration: no segment has `num_steps` items; with
                `single_deterministic_pass`, the buffer is empty.
        """
        return super().as_dataset(
            sample_batch_size, num_steps, num_parallel_calls, single_deterministic_pass=single_deterministic_pass
        )

    def _num_frames(self) -> Tensor:
        with self._placed():
            return self._storage.num_frames()

    def _add_batch(self, items: Nest) -> Tensor | None:
        leaves = self._columns.flatten(items)
        with self._placed():
            return self._storage.add(leaves)

    def _get_next(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        time_stacked: bool = True,  # noqa: FBT001, FBT002, as `get_next`
    ) -> tuple[Nest, Nest]:
        batch_size, num_steps = _sizes(sample_batch_size, num_steps, min_batch=0)
        with self._placed():
            leaves, ids, probabilities = self._storage.sample(_draw_seeds(), batch_size, num_steps)
            if num_steps is None or time_stacked:
                return self._columns.pack(leaves), BufferInfo(ids, probabilities)
            axis = 0 if batch_size is None else 1
            steps = zip(*[tf.unstack(leaf, num_steps, axis) for leaf in leaves], strict=True)
            data = tuple(self._columns.pack(step) for step in steps)
            return data, BufferInfo(tuple(tf.unstack(ids, num_steps, axis)), probabilities)

    def _as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        sequence_preprocess_fn: Callable[..., Nest] | None = None,
        num_parallel_calls: int | Tensor | None = None,
    ) -> TfDataset:
        _check_no_preprocessing(sequence_preprocess_fn)
        batch_size, num_steps = _sizes(sample_batch_size, num_steps, min_batch=0)

        def sample(seeds: Tensor) -> tuple[Nest, Nest]:
            with self._placed():
                leaves, ids, probabilities = self._storage.sample(seeds, batch_size, num_steps)
            return self._columns.pack(leaves), BufferInfo(ids, probabilities)

        if tf.is_tensor(num_parallel_calls):
            num_parallel_calls = tf.cast(num_parallel_calls, tf.int64)  # TF-Agents documents int32
        # Drawn in order, so that results of parallel calls do not depend on which of them is first.
        seeds = tf.data.Dataset.random(rerandomize_each_iteration=True).batch(2, drop_remainder=True)
        return seeds.map(without_autograph(sample), num_parallel_calls)

    def _single_deterministic_pass_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        sequence_preprocess_fn: Callable[..., Nest] | None = None,
        num_parallel_calls: int | Tensor | None = None,
    ) -> TfDataset:
        del num_parallel_calls
        _check_no_preprocessing(sequence_preprocess_fn)
        batch_size, num_steps = _sizes(sample_batch_size, num_steps, min_batch=1)
        options = self._options
        if options.drop_remainder:
            _check_not_dropped("sample_batch_size", batch_size, "batch_size", options.batch_size)
            _check_not_dropped("num_steps", num_steps, "max_length", options.max_length)
        plan = DeterministicPass(
            options.batch_size,
            options.max_length,
            batch_size,
            num_steps,
            options.window_shift,
            options.drop_remainder,
        )

        def parts(_: Tensor) -> TfDataset:
            with self._placed():
                frames = self._storage.frames()
            num_added = frames[0]

            def read(number: Tensor) -> tuple[Nest, Nest]:
                with self._placed():
                    leaves, ids = self._storage.read(frames, plan.part(number, num_added), plan)
                return self._columns.pack(leaves), BufferInfo(ids, ())

            return tf.data.Dataset.range(plan.num_parts(num_added)).map(without_autograph(read))

        return tf.data.Dataset.from_tensors(0).flat_map(without_autograph(parts))

    def _gather_all(self) -> Nest:
        with self._placed():
            return self._columns.pack(self._storage.gather_all())

    def _clear(self, clear_all_variables: bool = False) -> Tensor | None:  # noqa: FBT001, FBT002, TF-Agents' signature
        """As `clear`; if `clear_all_variables`, it also sets the variables of the tables to zeros."""
        with self._placed():
            return self._storage.clear(with_variables=clear_all_variables)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: object) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and isinstance(self._storage, RingStorage):
            # The items are not variables: a model is saved without them.
            return {
                name: each for name, each in children.items() if name not in {"_data_table", "_id_table", "_last_id"}
            }
        return children

    @property
    def _capacity(self) -> Tensor:
        """As `capacity`; a name that programs for TF-Agents use."""
        return self.capacity

    def _get_last_id(self) -> Tensor:
        """The id of the newest items, -1 if there are none; a name that programs for TF-Agents use."""
        with self._placed():
            return self._storage.newest_id()

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Places operations of the block on the device and in the scope."""
        with tf.device(self._options.device), tf.name_scope(self._options.scope):
            yield


_MAX_CAPACITY = 2**40
"""Maximum of `batch_size * max_length`. More items would not fit into memory: the number is probably a mistake."""


@dataclass(frozen=True)
class _Options:
    """What the constructor received."""

    batch_size: int
    max_length: int
    scope: str
    device: str
    table_fn: Callable[..., Any]
    drop_remainder: bool
    window_shift: int | None


def _draw_seeds() -> Nest:
    """Draws two numbers of 32 bits, int64 `[2]`, from TensorFlow's generator."""
    if not tf.executing_eagerly():
        return tf.random.uniform([2], maxval=2**32, dtype=tf.int64)
    # An eager operation would take longer than sampling: TensorFlow creates it again for each call.
    numbers = [tf.compat.v1.get_seed(None)[1] for _ in range(2)]
    return np.array([secrets.randbits(32) if number is None else number for number in numbers])


def _integer(what: str, value: object, *, low: int = 1, high: int = _checks.MAX_I32) -> int:
    """Returns an integer. Raises a ValueError, because AutoGraph replaces Engram's errors by its own."""
    try:
        return _checks.integer(what, value, low=low, high=high)
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from None


def _sizes(batch_size: object, num_steps: object, *, min_batch: int) -> tuple[int | None, int | None]:
    """Returns the arguments `sample_batch_size` and `num_steps` as numbers."""
    return (
        None
        if batch_size is None
        else _integer("`sample_batch_size`", batch_size, low=min_batch, high=_checks.MAX_BATCH),
        None if num_steps is None else _integer("`num_steps`", num_steps),
    )


def _check_no_preprocessing(sequence_preprocess_fn: object) -> None:
    if sequence_preprocess_fn is not None:
        raise NotImplementedError("TFUniformReplayBuffer: `sequence_preprocess_fn` must be None; use the dataset's map")


def _check_not_dropped(name: str, value: int | None, limit_name: str, limit: int) -> None:
    if value is not None and value > limit:
        raise ValueError(
            f"as_dataset: ALL data will be dropped, because `dataset_drop_remainder` is True and `{name}` ({value}) is "
            f"above `{limit_name}` ({limit})"
        )
