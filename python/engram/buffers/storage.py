"""Where a replay buffer stores its steps."""

from dataclasses import dataclass
from os import PathLike

from engram import _checks

__all__ = ["MappedFile"]


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
    episodes, and `Uniform()` the priorities, for a later buffer. With `Prioritized` and other items, steps with which
    none of these begins lose their priority; if an item begins with them again, it gets the largest one.

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
