"""A replay buffer of one process."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._closing_context import ClosedAtBlockEnd
from engram._item_arrays import key_array, priority_array
from engram._store_options import checked_seed
from engram._text import counted
from engram.buffers._device_buffer import DeviceBatch, DeviceBuffer, DeviceReader
from engram.buffers._steps import derive_signature
from engram.buffers.buffer_batch import BufferBatch
from engram.buffers.hindsight import HER
from engram.buffers.items import CompiledSampler, Episodes, Items, Steps, episode_columns
from engram.buffers.recent_mix import RecentMix
from engram.buffers.storage import DeviceStorage, MappedFile
from engram.buffers.transforms import Transform, checked_transforms
from engram.errors import ClosedError, InvalidArgumentError, UnsatisfiableError
from engram.selectors import Prioritized, Uniform

if TYPE_CHECKING:
    from engram.buffers._hindsight_rewards import HindsightRewards

__all__ = ["ReplayBuffer"]

_MAX_CAPACITY = 2**40
"""Maximum of `capacity`. More steps would not fit into memory: the number is probably a mistake."""


class ReplayBuffer(ClosedAtBlockEnd):
    """The newest steps of one or more environments, in a ring for each, from which batches are sampled.

        buffer = ReplayBuffer(100_000, items=Transitions(n_step=3, discount=0.99), sampler=Prioritized(0.6), seed=0)
        buffer.add({"obs": obs, "action": action, "reward": reward, "next_obs": next_obs,
                    "terminated": terminated, "truncated": truncated})
        batch = buffer.sample(256)
        buffer.update_priorities(batch.info.key, td_errors)

    Steps are nests of arrays and numbers that all have the structure, dtypes and shapes of the first one, or of
    `signature`. A value is converted to the dtype of its column if that is of the same kind (`numpy.can_cast(...,
    "same_kind")`), for example float64 to float32; integers must be in the column's range.

    Memory for `capacity` steps is reserved when the columns are known; the system provides it as steps are added.

    All methods can be called by several threads. A sample never contains steps that are partly written. Adding and
    sampling wait while another thread copies a batch.

    Args:
        capacity: Maximum number of steps, for all environments together; rounded up to a multiple of `num_envs`. Then
            the oldest steps of an environment are overwritten.
        num_envs: Number of environments, each with a ring of `capacity / num_envs` steps.
        signature: Nest of `ArraySpec` that describes a step. Default: that of the first step that is added, in which
            Python's floats are float64, its ints int64.
        items: What is sampled: `Steps()`, `Transitions(...)`, `Sequences(...)` or `Episodes(...)`.
        transforms: What is computed from the steps when they are sampled: `FrameStack(...)`, `HER(...)`. Default:
            nothing.
        sampler: `selectors.Uniform()`: every item is equally likely. `selectors.Prioritized(exponent)`: in proportion
            to `priority ** exponent`. New items of a call get the largest priority of the items that remain in the
            buffer; 1 if none is above 0. `RecentMix(...)`: a part of each batch is from the newest items.
        seed: Seed of all random choices. They do not depend on the number of threads. Default: a random one. With a
            file that exists, it has no influence: the random state is that of the file.
        storage: `MappedFile(path)`: the steps are in this file, which can be larger than the memory and outlives the
            process. `TorchTensors(device)` or `JaxArrays(device)`: they are on a device, such as a GPU, and so are the
            data of batches. Default: in memory.

    Raises:
        InvalidArgumentError: An argument is invalid, or the rings are too short for one item, or for `Episodes` for one
            item until the next one is complete. With a file that exists: it has another `capacity` or `num_envs`.
        SignatureError: The columns of `signature` are not supported, or not those that `items` needs. With a file that
            exists: they are not those of the file.
        OutOfMemoryError: The memory for the columns of `signature` cannot be reserved.
        ModuleNotFoundError: The framework of `storage` is not installed.
        PriorityError: The weight of a priority in the file, `priority ** exponent`, is above 1e290.
        StorageError: The file cannot be created, for example because the disk is full; it is damaged, not that of a
            buffer, or in use.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int = 1,
        *,
        signature: Nest | None = None,
        items: Items = Steps(),  # noqa: B008, a constant
        transforms: Sequence[Transform] = (),
        sampler: Uniform | Prioritized | RecentMix = Uniform(),  # noqa: B008, a constant
        seed: int | None = None,
        storage: MappedFile | DeviceStorage | None = None,
    ) -> None:
        self._num_envs = _checks.integer("`num_envs`", num_envs, high=_checks.MAX_I32)
        capacity = _checks.integer("`capacity`", capacity, high=_MAX_CAPACITY)
        self._ring_length = -(-capacity // self._num_envs)  # in steps, rounded up
        kinds = "one of engram.buffers: Steps(), Transitions(...), Sequences(...), Episodes(...)"
        if type(items).__module__.startswith("engram.gymnasium"):
            kinds += "; those of engram.gymnasium are for tables"
        _checks.instance_of("`items`", items, Items, kinds)
        kinds = "selectors.Uniform(), selectors.Prioritized(...) or engram.buffers.RecentMix(...)"
        _checks.instance_of("`sampler`", sampler, Uniform | Prioritized | RecentMix, kinds)
        self._transforms = checked_transforms(transforms)
        for transform in self._transforms:
            transform._check_items(items)  # noqa: SLF001, this package's own
        self._rewards: HindsightRewards | None = None
        lookback = max((each._lookback for each in self._transforms), default=0)  # noqa: SLF001, this package's own
        item_steps = items._max_steps + lookback  # noqa: SLF001, this package's own
        steps_after = items.max_length - 1 if isinstance(items, Episodes) else 0  # until the next item is complete
        if item_steps + steps_after > self._ring_length:
            environments = counted(self._num_envs, "environment")
            before = f" and {counted(lookback, 'step')} before them, for FrameStack" if lookback else ""
            until = ", each stored until the next one is complete" if steps_after else ""
            raise InvalidArgumentError(
                f"`capacity` must be at least {(item_steps + steps_after) * self._num_envs} for {environments} and "
                f"items of up to {counted(items._max_steps, 'step')}{before}{until}; got {capacity}"  # noqa: SLF001
            )
        self._items, self._sampler, self._seed = items, sampler, checked_seed(seed)
        kinds = "one of engram.buffers: MappedFile(...), TorchTensors(...), JaxArrays(...); or None"
        _checks.instance_of("`storage`", storage, MappedFile | DeviceStorage | None, kinds)
        self._path: str | None = None
        self._device: DeviceStorage | None = None
        if isinstance(storage, MappedFile):
            self._path = str(Path(storage.path).absolute())  # the first step may be added in another directory
            of_file = _engram.mapped_signature(self._path)
            signature = of_file if signature is None else signature
        elif storage is not None:
            storage._arrays()  # noqa: SLF001, of this package; checks the device
            self._device = storage
        self._first_add_lock = threading.Lock()  # held while the first step creates the native buffer
        self._is_closed = False
        self._native: _engram.ReplayBuffer | DeviceBuffer | None = None
        self._signature = signature
        if signature is not None:
            self._use(self._create(signature))

    def add(self, step: Nest, *, env_id: int | None = None) -> None:
        """Adds a step of one environment.

        Args:
            step: Nest of arrays and numbers, without leading axes.
            env_id: The environment, from 0. May be omitted if there is only one.

        Raises:
            SignatureError: The step differs from the signature or the first step in structure, dtype or shape.
            InvalidArgumentError: `env_id` is out of range, or missing although there are several environments.
            OutOfMemoryError: At the first step: the memory for `capacity` steps cannot be reserved.
            StorageError: The file of `storage` cannot be created or written.
            ClosedError: The buffer is closed.
        """
        self._add("add", step, (), env_id=env_id)

    def add_batch(self, steps: Nest, *, env_ids: npt.ArrayLike | None = None) -> None:
        """Adds one step of each environment, or of some of them.

        Args:
            steps: Nest of arrays `[num_envs, ...]`, or `[len(env_ids), ...]`.
            env_ids: The environments, from 0, each at most once. Default: all of them, in order.

        Raises:
            SignatureError: The steps differ from the signature or the first step in structure, dtype or shape.
            InvalidArgumentError: An environment is out of range or repeated.
            OutOfMemoryError: At the first step: the memory for `capacity` steps cannot be reserved.
            StorageError: The file of `storage` cannot be created or written.
            ClosedError: The buffer is closed.
        """
        self._add("add_batch", steps, ("num_envs",), env_ids=env_ids)

    def add_steps(self, steps: Nest, *, env_ids: npt.ArrayLike | None = None) -> None:
        """Adds several consecutive steps of each environment, or of some of them.

        Args:
            steps: Nest of arrays `[num_envs, T, ...]`, or `[len(env_ids), T, ...]`, with any `T`.
            env_ids: The environments, from 0, each at most once. Default: all of them, in order.

        Raises:
            SignatureError: The steps differ from the signature or the first step in structure, dtype or shape.
            InvalidArgumentError: An environment is out of range or repeated.
            OutOfMemoryError: At the first step: the memory for `capacity` steps cannot be reserved.
            StorageError: The file of `storage` cannot be created or written.
            ClosedError: The buffer is closed.
        """
        self._add("add_steps", steps, ("num_envs", "T"), env_ids=env_ids)

    def add_episode(self, steps: Nest, *, env_id: int | None = None) -> None:
        """Adds a whole episode to one environment.

        The first step is the first one of an episode: if an earlier episode of the environment has not ended, it ends
        with its newest step, as `end_episodes` describes. The last step ends the episode: if neither its `terminated`
        nor its `truncated` is True, it counts as truncated, although its `truncated` does not change. `Steps()`
        do not depend on it, as for `end_episodes`.

        Args:
            steps: Nest of arrays `[T, ...]`, with any `T` of at least 1.
            env_id: The environment, from 0. May be omitted if there is only one.

        Raises:
            SignatureError: The steps differ from the signature or the first step in structure, dtype or shape.
            InvalidArgumentError: There are no steps, or a step before the last one ends an episode (not checked with
                `Steps()`); `env_id` is out of range, or missing although there are several environments.
            OutOfMemoryError: At the first step: the memory for `capacity` steps cannot be reserved.
            StorageError: The file of `storage` cannot be created or written.
            ClosedError: The buffer is closed.
        """
        self._add("add_episode", steps, ("T",), env_id=env_id)

    def end_episodes(self, *, env_ids: npt.ArrayLike | None = None) -> None:
        """Ends the episodes of all environments, or of some of them, with their newest steps.

        Call it when an environment is reset before its episode has ended: items then do not continue from its newest
        step with the next one. The newest step counts as truncated, although its `truncated` does not change; a step
        that has ended its episode stays as it is. `Steps()` do not depend on it; in the file of `storage`, it is kept
        for other items.

        Args:
            env_ids: The environments, from 0, each at most once. Default: all of them.

        Raises:
            InvalidArgumentError: An environment is out of range or repeated.
            ClosedError: The buffer is closed.
        """
        if (native := self._open_native()) is not None:
            native.end_episodes(env_ids=env_ids)
        elif env_ids is not None:
            _engram.check_env_ids(env_ids, self._num_envs)

    def sample(self, batch_size: int, *, replacement: bool = True, out: Nest | None = None) -> BufferBatch:
        """Draws items at random.

        Args:
            batch_size: Number of items, `B`.
            replacement: If False, all items of the batch are different ones. Only with `Uniform`.
            out: Nest of arrays to write the data to, such as `batch.data` of an earlier batch of the same size. Its
                arrays must be writable, in C order, and have the shapes and dtypes of the batch. After an error, their
                contents are undefined. Not with `storage` on a device. Default: new arrays.

        Returns:
            The items, as `BufferBatch`; its `data` is `out` if that is given.

        Raises:
            UnsatisfiableError: The buffer has no item yet, or fewer than `batch_size` without replacement.
            InvalidArgumentError: `batch_size` or `out` is invalid, or `replacement` is False, and the sampler is
                not `Uniform`.
            OutOfMemoryError: The batch is too large to be allocated.
            ClosedError: The buffer is closed.
        """
        size = _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
        _checks.boolean("`replacement`", replacement)
        if not replacement and not isinstance(self._sampler, Uniform):
            kind = type(self._sampler).__name__
            raise InvalidArgumentError(f"`replacement` must be True with a {kind} sampler; got False")
        if out is not None and self._device is not None:
            raise InvalidArgumentError(
                f"`out` must be None with storage={type(self._device).__name__}(...), whose batches are always new; "
                f"got {_checks.short_repr(out)}"
            )
        if (native := self._open_native()) is None:
            raise UnsatisfiableError("the replay buffer is empty; add steps before sampling")
        return self._finished(native.sample(size, bool(replacement), out))

    def epoch(self, batch_size: int, *, drop_last: bool = False) -> Iterator[BufferBatch]:
        """Iterates over all current items once, in random order, with 8 bytes of memory per item.

        Items that are overwritten meanwhile are left out, and new ones are not included. Priorities have no influence.

        Args:
            batch_size: Number of items per batch, `B`.
            drop_last: If True, the last items are left out if there are fewer than `batch_size`. Otherwise the last
                batch is smaller.

        Yields:
            Batches, as `BufferBatch`.

        Raises:
            InvalidArgumentError: An argument is invalid.
            OutOfMemoryError: The keys of all items or a batch cannot be allocated.
            ClosedError: The buffer is closed, or was closed during the iteration.
        """
        size = _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
        _checks.boolean("`drop_last`", drop_last)
        if (native := self._open_native()) is None:
            return iter(())
        return self._batches(native.epoch(), size, drop_last=drop_last)

    def scan(self, batch_size: int = 256, *, steps: bool = False) -> Iterator[BufferBatch]:
        """Iterates over all items once, in order: environment after environment, oldest first.

        Unlike `sample` and `epoch`, it makes no random choices, so that later samples do not depend on it; with `HER`,
        items have the goals that were stored. The items are those that the buffer has during this call: later ones are
        not included. A scan holds none of them: each batch is read when it is returned, with the priorities of that
        moment, and without the items that were overwritten or removed meanwhile.

        Args:
            batch_size: Maximum number of items per batch, `B`. Only the last batch has fewer.
            steps: If True, iterate over all stored steps, as they were added, instead of over items. There are more of
                them: those with which no item begins yet are included.

        Yields:
            Batches, as `BufferBatch`. In `info`, `probability` is 1, and for steps `priority` is None.

        Raises:
            InvalidArgumentError: An argument is invalid.
            OutOfMemoryError: A batch is too large to be allocated.
            ClosedError: The buffer is closed, or was closed during the iteration.
        """
        size = _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
        _checks.boolean("`steps`", steps)
        if (native := self._open_native()) is None:
            return iter(())
        return self._batches(native.scan(bool(steps)), size, drop_last=False)

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Sets the priorities of items. Keys of items that are no longer in the buffer are skipped.

        If a key occurs several times, its last priority counts.

        Args:
            keys: `[B]` integers, as in `batch.info.key`.
            priorities: `[B]` numbers of at least 0. Items of priority 0 are not sampled, unless all have priority 0.

        Returns:
            Number of keys found in the buffer.

        Raises:
            PriorityError: A priority is NaN, negative or infinite, or its weight, `priority ** exponent`, is above
                1e290. No priority is changed.
            InvalidArgumentError: The sampler is not Prioritized; `keys` and `priorities` differ in length, have more
                than one axis, or are not numbers.
            ClosedError: The buffer is closed.
        """
        if not isinstance(self._sampler, Prioritized):
            raise InvalidArgumentError(
                "priorities need a Prioritized sampler; create the buffer with `sampler=selectors.Prioritized(...)`"
            )
        checked = key_array(keys), priority_array(priorities)
        native = self._open_native()
        return 0 if native is None else native.update_priorities(*checked)

    def clear(self) -> None:
        """Removes all steps. The columns stay, with their memory; keys are not used again.

        The next step of each environment counts as the first one of an episode.

        Raises:
            ClosedError: The buffer is closed.
        """
        if (native := self._open_native()) is not None:
            native.clear()

    def save(self, path: str | PathLike[str]) -> int:
        """Saves the buffer to a file: its steps, their positions, episodes and priorities, and the random state.

        The file is durable when this returns, and replaces an earlier one only then: after an error, a crash or a power
        failure during the call, the earlier one is still there. Adding and sampling wait meanwhile. A file
        `path.*.tmp` that a crash has left is removed by the next call with this path.

        Args:
            path: The file. Its directory must exist. If it is a symbolic link, the file that it leads to is replaced.

        Returns:
            Size of the file in bytes.

        Raises:
            StorageError: The file cannot be written, for example because the disk is full, or because it is in use, as
                that of a buffer with `storage=MappedFile(...)`.
            UnsatisfiableError: The buffer has no columns yet: no step was added, and there is no `signature`.
            InvalidArgumentError: `path` is not a path.
            ClosedError: The buffer is closed.
        """
        file = _checks.file("`path`", path)
        if (native := self._open_native()) is None:
            raise UnsatisfiableError(
                "the replay buffer has no columns to save yet; add a step first, or create it with `signature`"
            )
        return native.save(os.path.realpath(file) if Path(file).is_symlink() else file)

    def restore(self, path: str | PathLike[str]) -> None:
        """Fills this buffer from a file that `save` has written; no step may have been added to it before.

        Sampling continues as if it had not been interrupted, with the same random numbers, if both buffers have the
        same settings. They may differ in all but `num_envs`:

        - With a smaller `capacity`, the newest steps of each environment are restored.
        - With other `items`, the same steps form other items. If the buffer was saved with `Steps()` and had no
          `storage`, the first restored step of each environment counts as the first one of an episode.
        - Priorities belong to the steps that items begin with. Items that had none in the save get the largest one.
          Without `Prioritized`, priorities are left out.
        - `seed` has no influence.

        If the environments were reset since the save, call `end_episodes` after this: otherwise their steps continue
        the episodes that were running.

        Args:
            path: The file.

        Raises:
            StorageError: The file does not exist, cannot be read, is damaged, or is not a saved replay buffer.
            SignatureError: The steps of the save differ from `signature` in structure, dtype or shape, or do not have
                the columns that `items` needs.
            InvalidArgumentError: Steps were added to this buffer before, the save has another number of environments,
                or `path` is not a path.
            PriorityError: The weight of a priority, `priority ** exponent`, is above 1e290.
            OutOfMemoryError: The memory for `capacity` steps cannot be reserved.
            ClosedError: The buffer is closed.
        """
        saved = _engram.SavedBuffer(_checks.file("`path`", path))
        with self._first_add_lock:
            if (native := self._open_native()) is not None:
                native.restore(saved)
            else:
                self._start(self._create(saved.signature()), "restore", saved)

    def flush(self) -> None:
        """Makes all steps and priorities durable that this buffer has in its file, and the random state.

        After a power failure, the file has the steps of the last flush: see `MappedFile`. Other threads can use the
        buffer meanwhile.

        Raises:
            InvalidArgumentError: The buffer has no `storage`.
            StorageError: The file cannot be written. Then no later flush succeeds, and steps of the last flush are not
                overwritten any more: `add*` raises this error instead.
            ClosedError: The buffer is closed.
        """
        if self._path is None:
            raise InvalidArgumentError(
                "`flush` needs a buffer in a file; create it with `storage=MappedFile(...)`, or use `save`"
            )
        if (native := self._open_native()) is not None:
            native.flush()

    def close(self) -> None:
        """Flushes the buffer, closes its file and releases all memory. Can be called more than once.

        Later calls of other methods raise `ClosedError`. A buffer that is not closed keeps its file in use until it is
        garbage-collected, or the process ends.

        Raises:
            StorageError: The file cannot be written. The buffer is closed nevertheless.
        """
        if self._native is None:  # otherwise not locked: a forked child would wait forever for a thread of its parent
            with self._first_add_lock:
                self._is_closed = True
        self._is_closed = True
        if self._native is not None:
            self._native.close()

    @property
    def num_items(self) -> int:
        """Number of items that `sample` chooses among.

        Raises:
            ClosedError: The buffer is closed.
        """
        native = self._open_native()
        return 0 if native is None else native.sizes()[1]

    @property
    def capacity(self) -> int:
        """Maximum number of steps."""
        return self._ring_length * self._num_envs

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self._num_envs

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a ReplayBuffer cannot be pickled or copied: its steps are in this process; `save` it, and "
            "`restore` it in the other process, or pass batches"
        )

    def __len__(self) -> int:
        """Number of steps in the buffer."""
        native = self._open_native()
        return 0 if native is None else native.sizes()[0]

    def __repr__(self) -> str:
        environments = "" if self._num_envs == 1 else f", {counted(self._num_envs, 'environment')}"
        settings = f"{self._items!r}, {self._sampler!r}"
        if self._is_closed:
            return f"ReplayBuffer(closed, {settings})"
        return (
            f"ReplayBuffer({len(self):,} of {counted(self.capacity, 'step')}{environments}, "
            f"{counted(self.num_items, 'item')}, {settings})"
        )

    def _open_native(self) -> _engram.ReplayBuffer | DeviceBuffer | None:
        """Returns the native buffer, which checks in each call that it is open; None if there are no columns yet."""
        if self._native is None and self._is_closed:
            raise ClosedError("the replay buffer is closed")
        return self._native

    def _create(self, signature: Nest) -> _engram.ReplayBuffer | DeviceBuffer:
        """Returns the native buffer for steps of this signature."""
        structure = _engram.flatten(signature)[2]
        items = self._items._compile(structure)  # noqa: SLF001, this package's own
        for transform in self._transforms:
            items = transform._apply(items, signature)  # noqa: SLF001, this package's own
            if isinstance(transform, HER):
                self._rewards = transform._rewards(self._items, signature)  # noqa: SLF001, this package's own
        if self._transforms and items.episode_columns is None:
            what = f"transforms=[{type(self._transforms[0]).__name__}(...)]"
            items = items._replace(episode_columns=episode_columns(what, structure))
        sampler = CompiledSampler()
        if isinstance(self._sampler, Prioritized):
            sampler = CompiledSampler(exponent=self._sampler.exponent)
        elif isinstance(self._sampler, RecentMix):
            sampler = CompiledSampler(recent=self._sampler._compile(self._num_envs))  # noqa: SLF001, of this package
        size = (self._num_envs, self._ring_length)
        if self._device is not None:
            arrays = self._device._arrays()  # noqa: SLF001, of this package
            return DeviceBuffer(arrays, signature, items, size=size, sampler=sampler, seed=self._seed)
        return _engram.ReplayBuffer(signature, items, size, sampler, self._seed, self._path)

    def _declared(self, name: str) -> Nest | None:
        """Returns the specs of a column of the steps, or of a nest of columns; None if no signature was given."""
        return self._signature.get(name) if isinstance(self._signature, Mapping) else None

    def _add(
        self,
        method: str,
        steps: Nest,
        leading_axes: Sequence[str],
        *,
        are_columns: bool = False,
        **environments: object,
    ) -> None:
        """Calls a method of the native buffer, which is created at the first step.

        With `are_columns`, the elements of a list are columns, also if there are as many as environments.
        """
        with self._first_add_lock:
            if (native := self._open_native()) is not None:
                getattr(native, method)(steps, **environments)
            else:
                self._start(
                    self._create(derive_signature(steps, leading_axes, are_columns=are_columns)),
                    method,
                    steps,
                    **environments,
                )

    def _start(
        self, native: _engram.ReplayBuffer | DeviceBuffer, method: str, data: Nest, **environments: object
    ) -> None:
        """Uses a new native buffer if this method accepts the data; otherwise discards it."""
        try:
            getattr(native, method)(data, **environments)
        except BaseException:
            native.discard()
            raise
        self._use(native)

    def _use(self, native: _engram.ReplayBuffer | DeviceBuffer) -> None:
        """Makes `native` the buffer that all methods use."""
        self._native = native
        # Calls skip the Python methods above, which cost more than the checks of the native ones.
        for name in ("add", "add_batch", "add_steps", "add_episode"):
            if getattr(type(self), name) is getattr(ReplayBuffer, name):
                setattr(self, name, getattr(native, name))

    def _batches(
        self, reader: _engram.BufferReader | DeviceReader, batch_size: int, *, drop_last: bool
    ) -> Iterator[BufferBatch]:
        """Yields the batches of an epoch or a scan."""
        while (native := reader.next(batch_size)) is not None:
            if drop_last and len(native) < batch_size:
                return
            yield self._finished(native)

    def _finished(self, native: _engram.BufferBatch | DeviceBatch) -> BufferBatch:
        """Returns a batch, after setting the rewards of the items that got another goal."""
        batch = BufferBatch(native)
        if self._rewards is not None and (relabeled := batch.info.relabeled) is not None:
            self._rewards.write(batch.data, relabeled, native.hidden())
        if isinstance(native, DeviceBatch):
            batch.data = native.complete(batch.data)
        return batch
