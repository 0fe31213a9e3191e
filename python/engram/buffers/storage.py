"""Where a replay buffer stores its steps."""

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from engram import _checks
from engram._extras import importing_extra

if TYPE_CHECKING:
    from engram.buffers._device_buffer import DeviceArrays

__all__ = ["DeviceStorage", "JaxArrays", "MappedFile", "TorchTensors"]


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that has the steps of a replay buffer, mapped into memory; it can be larger than the memory.

        with ReplayBuffer(50_000_000, storage=MappedFile("/data/replay.buffer")) as buffer:
            ...

    If the file does not exist, it is created when the columns are known, with its full size: a full disk is an error
    then, and not later. If it exists, the buffer continues with its steps, priorities, random state and columns; `seed`
    has no influence. Episodes that were running continue, too: if your environments are reset, call `end_episodes`
    first. Only one process at a time can use the file.

    `capacity` and `num_envs` must be those of the file, `items` and `sampler` may differ. `Steps()` keep the ends of
    episodes, and `Uniform()` the priorities, for a later buffer. With `Prioritized` and other `items` than before, a
    step loses its priority if none of the new items begins with it; an item that begins with it later gets the largest
    one.

    - After the end of the process, even by `kill -9`, the file has every step whose `add*` has returned. A call that
      has not returned may have added the steps of some of its environments; an episode of `add_episode` is there
      completely or not at all.
    - After a power failure or a restart of the machine, it has the steps of the last `flush` or `close`, except those
      that were overwritten since. An environment that has overwritten some may lose up to an eighth of its
      `capacity / num_envs` steps more.

    In both cases, no step is partly written. The random state is that of the last `flush` or `close`.

    Sampling a step that is not in memory waits for the disk; use a fast one, such as an SSD. Do not truncate the file
    while it is in use, and do not copy it then: the copy could have steps that are partly written. Do not use it on a
    file system that allocates space again when a file is overwritten, such as btrfs with snapshots: if the system
    cannot provide a part of a mapped file, it ends the process.

    Attributes:
        path: The file. Its directory must exist.

    Raises:
        InvalidArgumentError: `path` is not a path.
    """

    path: str | PathLike[str]

    def __post_init__(self) -> None:
        _checks.file("`path`", self.path)


@dataclass(frozen=True, slots=True)
class TorchTensors:
    """Steps of a replay buffer are PyTorch tensors on a device, such as a GPU; so is the data of its batches.

        buffer = ReplayBuffer(1_000_000, items=Transitions(discount=0.99), storage=TorchTensors("cuda:0"))

    The device has the columns of more than 8 bytes per step, such as observations, with all `capacity` steps. A sample
    reads them there: only their row numbers are copied from the host. The host has the smaller columns, such as
    rewards, and everything that is needed to choose items; its values are copied with each batch. The goals of `HER`
    are on the host, too. `batch.info` and importance weights are NumPy arrays.

    Steps are added as without `storage`, as NumPy arrays or numbers. They are copied to the device in blocks, at the
    latest by the next call that reads items. `save` and `restore` need memory on the host for all steps, and use the
    same files as other buffers.

    Attributes:
        device: The device, as PyTorch accepts it, for example `"cuda:0"`. Default: PyTorch's default device.
    """

    device: Any = None

    def _arrays(self) -> "DeviceArrays":
        """Returns arrays without memory, after checking that PyTorch can use the device.

        Raises:
            ModuleNotFoundError: PyTorch is not installed.
            InvalidArgumentError: PyTorch cannot use the device.
        """
        with importing_extra("torch", "engram.buffers.TorchTensors"):
            from engram.buffers._torch_arrays import TorchArrays  # noqa: PLC0415, an extra
        return TorchArrays(self.device)


@dataclass(frozen=True, slots=True)
class JaxArrays:
    """Steps of a replay buffer are JAX arrays on a device, such as a GPU; so is the data of its batches.

        buffer = ReplayBuffer(1_000_000, items=Transitions(discount=0.99), storage=JaxArrays())

    As for `TorchTensors`, the device has the columns of more than 8 bytes per step, and the host the others. The arrays
    are updated in place: JAX donates their memory to the update.

    Unless `jax_enable_x64` is set, JAX has no values of 64 bits. Columns with such values that would be in a batch are
    rejected: declare 32 bits in `signature`. The reward of `Transitions` may have 64 bits, as its sum is float32. A
    `scan` of steps returns columns of 64 bits as NumPy arrays.

    Attributes:
        device: A `jax.Device`, for example `jax.devices()[0]`. Default: JAX's default device.
    """

    device: Any = None

    def _arrays(self) -> "DeviceArrays":
        """Returns arrays without memory, after checking the device.

        Raises:
            ModuleNotFoundError: JAX is not installed.
            InvalidArgumentError: `device` is not a device of JAX.
        """
        with importing_extra("jax", "engram.buffers.JaxArrays"):
            from engram.buffers._jax_arrays import JaxDeviceArrays  # noqa: PLC0415, an extra
        return JaxDeviceArrays(self.device)


DeviceStorage: TypeAlias = TorchTensors | JaxArrays
"""The kinds of storage on a device."""
