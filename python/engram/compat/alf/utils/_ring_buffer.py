"""The newest steps of several environments."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import optree
import torch

from engram import Nest, _checks
from engram.compat.alf._host import FixedBuffersModule, Ints, TensorLike, host_ints, on_default_device
from engram.compat.alf._lock import BufferLock, Signal
from engram.compat.alf._nest import DataSpec
from engram.errors import InvalidArgumentError

__all__ = ["POS", "SIZE", "RingBuffer"]

_POLL_INTERVAL = 0.2
"""Seconds after which a waiting call tests its condition again, even without a signal."""

_AS_BITS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
"""Dtypes of the same size for those with which PyTorch cannot index."""

SIZE, POS = "_current_size", "_current_pos"
"""Names of the buffers with the number of stored steps, and of steps ever added, of each environment."""


class RingBuffer(FixedBuffersModule):
    """A ring of steps for each of several environments, as ALF's.

    The steps are in tensors on `device`; sizes and positions are on the host. Results are on the default device of
    PyTorch; arguments may be on any.

    A step's position is the number of steps that its environment had before it. The step of position `pos` is in slot
    `pos` modulo `max_length`.

    Threads may share a buffer. Processes may if `allow_multiprocess` is set and they are forked.

    Args:
        data_spec: Nest of the specs of a step; a spec has `shape` and `dtype`, see `TensorSpec`.
        num_environments: Number of environments.
        max_length: Maximum number of steps of each environment; then the oldest ones are overwritten.
        device: Where the steps are stored.
        allow_multiprocess: Whether forked processes share the buffer and calls may be `blocking`.
        name: The name of the buffer.

    Raises:
        InvalidArgumentError: An argument is invalid.
    """

    def __init__(  # noqa: PLR0917, ALF's signature
        self,
        data_spec: Nest,
        num_environments: int,
        max_length: int = 1024,
        device: str = "cpu",
        allow_multiprocess: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        name: str = "RingBuffer",
    ) -> None:
        super().__init__(shared=allow_multiprocess)
        self._spec = DataSpec(data_spec)
        self._num_envs = _checks.integer("`num_environments`", num_environments)
        self._max_length = _checks.integer("`max_length`", max_length)
        self._device = str(device)
        self._place = torch.empty(0, device=device).device  # the current one, for "cuda"
        self._name = name
        self._keys = [path.replace(".", "|") or "_buffer0" for path in self._spec.names]
        if not {SIZE, POS}.isdisjoint(self._keys):
            raise InvalidArgumentError(f"`data_spec` must not have the fields {SIZE} and {POS}; rename them")
        for key in (SIZE, POS):
            self._add(key, (self._num_envs,), torch.int64)
        for key, shape, dtype in zip(self._keys, self._spec.shapes, self._spec.dtypes, strict=True):
            self._add(key, (self._num_envs, self._max_length, *shape), dtype, device=self._place)
        self._lock = BufferLock(processes=allow_multiprocess)
        self._enqueued: Signal | None = None
        self._dequeued: Signal | None = None
        if allow_multiprocess:
            self._enqueued, self._dequeued = Signal(), Signal()
            self._stopped = torch.zeros((), dtype=torch.bool, device="cpu").share_memory_()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "RingBuffer":  # noqa: FBT001, FBT002, PyTorch's signature
        index = {key: self._buffers[key] for key in (SIZE, POS)}
        super()._apply(fn, recurse)
        self._buffers.update(index)
        place = fn(torch.empty(0, device=self._place)).device
        if place != self._place:
            self._place, self._device = place, str(place)
        return self

    # --- what is stored -----------------------------------------------------------------------

    @property
    def device(self) -> str:
        """Where the steps are stored."""
        return self._device

    @property
    def name(self) -> str:
        """The name of the buffer."""
        return self._name

    @property
    def num_environments(self) -> int:
        """Number of environments."""
        return self._num_envs

    @property
    def max_length(self) -> int:
        """Maximum number of steps of each environment."""
        return self._max_length

    @property
    def _size(self) -> Ints:
        """Number of stored steps of each environment: the memory of the buffer."""
        return self._array(SIZE)

    @property
    def _pos(self) -> Ints:
        """Position of the next step of each environment: the memory of the buffer."""
        return self._array(POS)

    @property
    def _buffer(self) -> Nest:
        """The storage, under ALF's name: a nest of tensors `[num_environments, max_length, ...]`."""
        return self._spec.nest(self._buffers[key] for key in self._keys)

    def circular(self, pos: TensorLike) -> TensorLike:
        """Returns the slots of positions: `pos`, a tensor or a number, modulo `max_length`; at least 0."""
        return pos % self._max_length

    def get_earliest_position(self, env_ids: TensorLike | None = None) -> torch.Tensor:
        """Returns the position of the oldest stored step of environments; that of the next step if none is stored.

        Args:
            env_ids: Numbers of environments, of any shape. None: all.

        Returns:
            int64, with the shape of `env_ids`.

        Raises:
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        envs = self._env_ids(env_ids)
        with self._lock:
            return on_default_device(self._pos[envs] - self._size[envs])

    def get_current_position(self) -> torch.Tensor:
        """Returns the position of the next step of each environment: a copy, int64, `[num_environments]`."""
        with self._lock:
            return on_default_device(self._pos.copy())

    def has_space(self, env_ids: TensorLike | None = None) -> bool:
        """Returns True if none of these environments is full.

        Args:
            env_ids: Numbers of environments. None: all.

        Raises:
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        return bool((self._size[self._env_ids(env_ids)] < self._max_length).all())

    def has_data(self, env_ids: TensorLike | None = None, n: int = 1) -> bool:
        """Returns True if each of these environments has at least `n` steps.

        Args:
            env_ids: Numbers of environments. None: all.
            n: Number of steps.

        Raises:
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        return bool((self._size[self._env_ids(env_ids)] >= n).all())

    # --- changes ------------------------------------------------------------------------------

    def enqueue(self, batch: Nest, env_ids: TensorLike | None = None, blocking: bool = False) -> bool:  # noqa: FBT001, FBT002, ALF's signature
        """Adds one step of each of several environments.

        Args:
            batch: Nest of tensors `[B, ...]`. Step `i` is of environment `env_ids[i]`. A value is converted to the
                dtype of its spec if that is of the same kind, and repeated on the axes of a step where its size is 1.
            env_ids: B different numbers of environments. None: all of them.
            blocking: True to wait until all these environments have space, instead of overwriting their oldest steps.

        Returns:
            False if `stop` ended the wait, or was called before; nothing is added then. Otherwise True.

        Raises:
            AssertionError: `env_ids` is not one-dimensional, or repeats an environment; the batch has another number of
                steps; or `blocking` without `allow_multiprocess`.
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
            InvalidArgumentError: The batch does not fit `data_spec`.
        """
        envs = self._different_env_ids(env_ids)
        given = self._spec.leaves(batch, len(envs))
        stored = self._converted(given)
        if not blocking:
            with self._lock:
                self._write(envs, given, stored)
            return True
        with self._locked_when(self._dequeued, lambda: self.has_space(envs)) as ready:
            if ready:
                self._write(envs, given, stored)
        return ready

    def dequeue(self, env_ids: TensorLike | None = None, n: int = 1, blocking: bool = False) -> Nest:  # noqa: FBT001, FBT002, ALF's signature
        """Removes the oldest steps of environments and returns them.

        Args:
            env_ids: B different numbers of environments. None: all of them.
            n: Number of steps of each, at most `max_length`.
            blocking: True to wait until all these environments have `n` steps.

        Returns:
            Nest of tensors `[B, n, ...]`, the oldest step first; None if `stop` ended the wait, or was called before.

        Raises:
            AssertionError: `env_ids` is not one-dimensional, or repeats an environment; `n` is above `max_length`; an
                environment has fewer than `n` steps; or `blocking` without `allow_multiprocess`.
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        envs = self._different_env_ids(env_ids)
        if not 0 <= n <= self._max_length:
            raise AssertionError(f"`n` must be from 0 to {self._max_length}, the `max_length`; got {n}")
        if blocking:
            with self._locked_when(self._enqueued, lambda: self.has_data(envs, n)) as ready:
                return self._take(envs, n) if ready else None
        with self._lock:
            if not self.has_data(envs, n):
                env = envs[np.argmin(self._size[envs])]
                raise AssertionError(
                    f"each environment must have {n} steps to dequeue; environment {env} has {self._size[env]}"
                )
            return self._take(envs, n)

    def remove_up_to(self, n: int, env_ids: TensorLike | None = None) -> None:
        """Removes the oldest `n` steps of environments, or all if there are fewer.

        Args:
            n: Number of steps of each.
            env_ids: Different numbers of environments. None: all of them.

        Raises:
            AssertionError: `env_ids` is not one-dimensional, or repeats an environment; or `n` is negative.
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        envs = self._different_env_ids(env_ids)
        if n < 0:
            raise AssertionError(f"`n` must be at least 0; got {n}")
        with self._lock:
            self._remove(envs, np.minimum(n, self._size[envs]))

    def clear(self, env_ids: TensorLike | None = None) -> None:
        """Removes all steps of environments. Their positions begin again with 0.

        Args:
            env_ids: Different numbers of environments. None: all of them.

        Raises:
            AssertionError: `env_ids` is not one-dimensional, or repeats an environment.
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
        """
        envs = self._different_env_ids(env_ids)
        with self._lock:
            self._reset(envs)

    def stop(self) -> None:
        """Ends all waiting calls; until `revive`, calls with `blocking=True` do nothing and return False or None."""
        if self._enqueued is not None and self._dequeued is not None:
            self._stopped.fill_(1)
            self._enqueued.set()
            self._dequeued.set()

    def revive(self) -> None:
        """Lets calls wait again after `stop`."""
        if self._enqueued is not None:
            self._stopped.fill_(0)

    # --- shared with the classes based on this one ---------------------------------------------

    def _env_ids(self, env_ids: TensorLike) -> Ints:
        if env_ids is None:
            return np.arange(self._num_envs)
        envs = host_ints("`env_ids`", env_ids)
        if envs.size and not 0 <= envs.min() <= envs.max() < self._num_envs:
            bad = envs[(envs < 0) | (envs >= self._num_envs)][0]
            raise IndexError(f"each of `env_ids` must be from 0 to {self._num_envs - 1}; got {bad}")
        return envs

    def _different_env_ids(self, env_ids: TensorLike) -> Ints:
        envs = self._env_ids(env_ids)
        if envs.ndim != 1:
            raise AssertionError(f"`env_ids` must have one axis; got shape {[*envs.shape]}")
        if len({*envs.tolist()}) < len(envs):
            raise AssertionError(f"`env_ids` must be different; got {envs.tolist()}")
        return envs

    def _converted(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Leaves with the dtypes and on the device that they are stored with."""
        dtypes = self._spec.dtypes
        return [leaf.to(device=self._place, dtype=dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]

    @contextlib.contextmanager
    def _locked_when(self, signal: Signal | None, ready: Callable[[], bool]) -> Iterator[bool]:
        """Locks the buffer once `ready()`, and yields True; yields False as soon as `stop` has been called."""
        if signal is None:
            raise AssertionError("`blocking=True` needs a buffer with `allow_multiprocess=True`")
        while True:
            with self._lock:
                if self._stopped or ready():
                    yield not self._stopped
                    return
            signal.wait(_POLL_INTERVAL)

    def _write(self, envs: Ints, given: list[torch.Tensor], stored: list[torch.Tensor]) -> None:
        """Adds a step of each of `envs`; `stored` are the leaves `given`, converted."""
        del given
        self._store(envs, self._pos[envs], stored)
        self._advance(envs, 1)

    def _store(self, envs: Ints, positions: Ints, leaves: list[torch.Tensor]) -> None:
        rows = self._rows(envs, positions)
        for key, leaf in zip(self._keys, leaves, strict=True):
            flat, bits = self._buffers[key].flatten(0, 1), _AS_BITS.get(leaf.dtype)
            if bits is None:
                flat.index_copy_(0, rows, leaf)
            else:
                flat.view(bits).index_copy_(0, rows, leaf.view(bits))

    def _advance(self, envs: Ints, steps: int) -> None:
        """Makes the steps visible that were stored after the newest ones."""
        self._size[envs] = np.minimum(self._size[envs] + steps, self._max_length)
        self._pos[envs] += steps
        if self._enqueued is not None:
            self._enqueued.set()

    def _take(self, envs: Ints, n: int) -> Nest:
        oldest = (self._pos - self._size)[envs, None]
        data = self._read(envs[:, None], oldest + np.arange(n))
        self._remove(envs, n)
        return data

    def _remove(self, envs: Ints, steps: Ints | int) -> None:
        """Removes the oldest steps, of which there are enough."""
        self._size[envs] -= steps
        if self._dequeued is not None:
            self._dequeued.set()

    def _reset(self, envs: Ints) -> None:
        self._remove(envs, self._size[envs])
        self._pos[envs] = 0

    def _rows(self, envs: Ints, positions: Ints) -> torch.Tensor:
        """The rows of steps in the flat storage, on its device, as a tensor with one axis."""
        rows = envs * self._max_length + positions % self._max_length
        return torch.from_numpy(rows.ravel()).to(self._place)

    def _read(self, envs: Ints, positions: Ints, field: Nest | None = None, *, convert: bool = True) -> Nest:
        """Reads steps at positions, broadcast with `envs`. `field`: the index of a leaf, or a nest of indices."""
        rows, shape = self._rows(envs, positions), np.broadcast_shapes(envs.shape, positions.shape)

        def leaf(index: int) -> torch.Tensor:
            flat = self._buffers[self._keys[index]].flatten(0, 1)
            steps = flat.index_select(0, rows).view((*shape, *self._spec.shapes[index]))
            return on_default_device(steps) if convert else steps

        return optree.tree_map(leaf, self._spec.field("") if field is None else field)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401, PyTorch's
        sizes, positions = (state_dict.get(prefix + key, self._buffers[key]) for key in (SIZE, POS))
        if bool(((sizes < 0) | (sizes > self._max_length) | (sizes > positions)).any()):
            args[-1].append(f"{prefix}{SIZE} must be from 0 to {POS} and to {self._max_length}, the `max_length`")
            return
        with self._lock:
            super()._load_from_state_dict(state_dict, prefix, *args)
