from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from engram.rate_limiters import AnyRateLimiter

__all__ = [
    "MAX_PRIORITY",
    "REVERB_DESCRIPTORS",
    "Batch",
    "BatchedWriter",
    "BufferBatch",
    "BufferReader",
    "ColumnHistory",
    "PatternWriter",
    "PriorityTree",
    "ReplayBuffer",
    "SavedBuffer",
    "Scan",
    "Server",
    "ShardedTables",
    "Snapshot",
    "Store",
    "Stream",
    "TrajectoryColumn",
    "TrajectoryWriter",
    "VectorWriter",
    "Writer",
    "__profile__",
    "__version__",
    "after_fork_in_child",
    "as_array",
    "check_env_ids",
    "check_progress",
    "check_unused",
    "flatten",
    "import_reverb",
    "inspect",
    "mapped_signature",
    "names",
    "replace_unused",
    "reshard",
    "set_long_wait",
    "set_only_thread_checks",
    "unflatten",
]

__profile__: str  # "release", or "dev" for the build of `make`
__version__: str
MAX_PRIORITY: float  # of a PriorityTree
REVERB_DESCRIPTORS: bytes  # a FileDescriptorSet

def after_fork_in_child() -> None: ...
def check_env_ids(env_ids: npt.ArrayLike, num_envs: int) -> None: ...
def check_progress(limiter: AnyRateLimiter) -> None: ...
def set_long_wait(seconds: float) -> None: ...
def set_only_thread_checks(writers: float, calls: float) -> None: ...
def as_array(value: Any, path: str) -> npt.NDArray[Any]: ...  # a value of the column with this path
def flatten(tree: Any) -> tuple[list[Any], list[str], str]: ...  # leaves, their names, structure as JSON

# The checkpoint's directory, the number of items by table, notes.
def import_reverb(store: Store, path: str) -> tuple[Path, dict[str, int], list[str]]: ...
def inspect(path: str) -> dict[str, Any]: ...
def mapped_signature(path: str) -> Any: ...  # of the steps in the file of a buffer; None if there is no file
def names(structure: str) -> list[str]: ...  # names of the leaves
def check_unused(path: str | PathLike[str], *, in_own_directory: bool = False) -> None: ...
def replace_unused(source: str | PathLike[str], target: str | PathLike[str]) -> None: ...

# The new directories, the number of items of each table by shard, notes.
def reshard(
    directories: list[str], into: int, output: str, progress: Callable[[int, int], object] | None
) -> tuple[list[Path], list[tuple[str, list[int]]], list[str]]: ...
def unflatten(structure: str, leaves: list[Any]) -> Any: ...

@final
class Batch:
    @property
    def data(self) -> Any: ...
    @property
    def row_splits(self) -> Any: ...
    @property
    def lengths(self) -> Any: ...
    @property
    def squeezed(self) -> list[bool]: ...
    # Leaves of `data`, `row_splits` and `lengths`, and the structure of `data`. Leaves of a nest that is None are None.
    def flat(
        self,
    ) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any] | None], list[npt.NDArray[Any] | None], str]: ...
    def __len__(self) -> int: ...
    def key(self) -> npt.NDArray[np.uint64]: ...
    def probability(self) -> npt.NDArray[np.float64]: ...
    def priority(self) -> npt.NDArray[np.float64]: ...
    def times_sampled(self) -> npt.NDArray[np.int32]: ...
    def table_size(self) -> npt.NDArray[np.int64]: ...
    def candidates(self) -> npt.NDArray[np.float64]: ...
    def min_probability(self) -> npt.NDArray[np.float64]: ...
    def importance_weights(
        self, beta: float, normalize: Literal["batch", "table"] | None
    ) -> npt.NDArray[np.float32]: ...

@final
class BufferBatch:
    @property
    def data(self) -> Any: ...
    def hidden(self) -> list[npt.NDArray[Any]]: ...  # columns that are not part of `data`
    @property
    def staged_end(self) -> int: ...  # the `end` of `ReplayBuffer.staged` that its cells need
    def __len__(self) -> int: ...
    def key(self) -> npt.NDArray[np.uint64]: ...
    def env_id(self) -> npt.NDArray[np.int64]: ...
    def position(self) -> npt.NDArray[np.uint64]: ...
    def probability(self) -> npt.NDArray[np.float64]: ...
    def priority(self) -> npt.NDArray[np.float64] | None: ...  # None without priorities
    def relabeled(self) -> npt.NDArray[np.bool_] | None: ...  # None without HER
    def importance_weights(
        self, beta: float, normalize: Literal["batch", "buffer"] | None
    ) -> npt.NDArray[np.float32]: ...

@final
class ReplayBuffer:
    def __new__(
        cls,
        signature: Any,
        items: Any,  # an engram.buffers.items.CompiledItems
        size: tuple[int, int],  # number of environments, and steps of each
        sampler: Any,  # an engram.buffers.items.CompiledSampler
        seed: int,
        path: str | None = None,  # of the file that the steps are in
        # Columns larger than 8 bytes are on a device, except those of these numbers. The function copies the staged
        # cells of this buffer there. The last number is the maximum size of a block in bytes.
        device: tuple[list[int], Callable[[ReplayBuffer], None], int] | None = None,
    ) -> ReplayBuffer: ...
    def add(self, step: Any, *, env_id: int | None = None) -> None: ...
    def add_batch(self, steps: Any, *, env_ids: npt.ArrayLike | None = None) -> None: ...
    def add_steps(self, steps: Any, *, env_ids: npt.ArrayLike | None = None) -> None: ...
    def add_episode(self, steps: Any, *, env_id: int | None = None) -> None: ...
    def end_episodes(self, *, env_ids: npt.ArrayLike | None = None) -> None: ...
    def sample(self, batch_size: int, replacement: bool, out: Any | None) -> BufferBatch: ...
    # Sequences of `length` consecutive steps of one environment, `[n, length, ...]`, whatever the buffer's items are,
    # and across the ends of episodes. Drawn with replacement; all are equally likely.
    def sample_sequences(self, n: int, length: int, seed: int, out: Any | None = None) -> BufferBatch: ...
    # The slots of these positions and the `length - 1` slots after each, with whatever steps they contain now.
    def read_sequences(
        self,
        env_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.uint64],
        length: int,
        out: Any | None = None,
    ) -> Any: ...
    def epoch(self) -> BufferReader: ...
    def scan(self, of_steps: bool) -> BufferReader: ...
    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int: ...
    def clear(self) -> None: ...
    def columns(self) -> list[tuple[np.dtype[Any], list[int]]]: ...  # dtypes and shapes of those of a step
    def device_columns(self) -> list[int]: ...
    # Numbers and cells, out of the first `end` steps that were staged (None: of all), after their `end`.
    # With `padded`, their number is a power of two.
    def staged(
        self, end: int | None, padded: bool
    ) -> tuple[int, npt.NDArray[np.int64], list[npt.NDArray[Any]]] | None: ...
    def mark_written(self, end: int) -> None: ...
    # `device_cells`: copies of the arrays on the device, as bytes; `restore` fills them.
    def save(self, path: str, device_cells: list[npt.NDArray[np.uint8]] = ...) -> int: ...
    def restore(self, saved: SavedBuffer, device_cells: list[npt.NDArray[np.uint8]] = ...) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...  # closes it; removes its file if it did not exist before
    def next_position(self, env_id: int) -> int: ...  # of the next step
    def sizes(self) -> tuple[int, int]: ...  # number of steps, number of items

@final
class PriorityTree:
    def __new__(cls, rows: int) -> PriorityTree: ...  # all priorities are 0
    def set(self, rows: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None: ...
    def total(self) -> float: ...
    def largest(self) -> float: ...
    def non_zero(self) -> int: ...  # number of priorities above 0
    # The first row for which the sum of all priorities up to and including its own exceeds the mass.
    def find(self, masses: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]: ...

@final
class SavedBuffer:
    def __new__(cls, path: str) -> SavedBuffer: ...
    def signature(self) -> Any: ...  # of a step

@final
class BufferReader:
    def next(self, batch_size: int) -> BufferBatch | None: ...  # None: all items were returned

@final
class Stream:
    delivered: int  # number of items delivered by the caller; assigning it acknowledges them
    @property
    def lease_timeout(self) -> float | None: ...
    def next(self) -> Batch | None: ...  # None: the wait timed out, or the stream has ended
    def stop(self) -> None: ...
    # Both timeouts are in seconds. Returns False if the removal of sampled items is not known to be durable.
    def close(self, timeout: float, durability_timeout: float | None) -> bool: ...

@final
class Scan:
    @property
    def num_items(self) -> int: ...
    # Only of a peek: number of compared items, size of the table, and of each item its key, priority, number of
    # samples, age, bytes, chunk and episode, and whether `next` returns its data.
    @property
    def peeked(self) -> tuple[int, int, list[tuple[int, float, int, int, int, int, int | None, bool]]]: ...
    def next(self) -> Batch | None: ...  # None: the scan has ended
    def close(self) -> None: ...

@final
class Snapshot:
    def __len__(self) -> int: ...
    def describe(self) -> str: ...  # for tests

@final
class Server:
    def __new__(
        cls,
        store: Store,
        host: str,
        port: int,
        token: str | None,
        tls: tuple[bytes, bytes, bytes | None] | None,  # PEM: certificate, key, authority of the clients
        insecure: bool,
        lease_timeout: float,
        metrics_port: int | None,
        shard_id: int,  # 0: none
    ) -> Server: ...
    @property
    def address(self) -> str: ...
    @property
    def metrics_address(self) -> str | None: ...
    def close(self) -> None: ...

@final
class Store:
    def __new__(cls, tables: list[Any], seed: int) -> Store: ...
    @staticmethod
    def open(
        path: str,
        tables: list[Any],
        seed: int,
        storage: tuple[str, float, int],  # durability, sync_interval, keep
        opening: tuple[dict[str, str], set[str], bool],  # rename, drop, repair
        progress: Callable[[int, int], object] | None,
    ) -> tuple[Store, list[str]]: ...  # the store, notes
    def restore(
        self,
        path: str,
        opening: tuple[dict[str, str], set[str], bool],  # rename, drop, repair
        progress: Callable[[int, int], object] | None,
    ) -> tuple[list[str], list[str]]: ...  # names of the added tables, notes
    def log_bytes(self) -> int | None: ...  # bytes logged since the last checkpoint; None: in memory
    def checkpoint(self) -> tuple[int, int, int]: ...  # number, bytes, items
    @staticmethod
    def connect(
        address: str,
        token: str | None,
        tls: tuple[bytes, tuple[bytes, bytes] | None, str | None] | None,  # PEM: ca, (certificate, key); server_name
        reconnect_timeout: float,
    ) -> Store: ...
    def set_address(self, address: str) -> None: ...
    def close(self) -> None: ...
    def wait_for_pending_replies(self) -> None: ...
    def create_table(self, config: Any) -> None: ...
    def drop_table(self, name: str) -> None: ...
    def set_rate_limiter(self, table: str, limiter: Any) -> None: ...
    def tables(self) -> list[str]: ...
    def insert(self, data: Any, priorities: list[tuple[str, float]], timeout: float | None, time_axis: bool) -> int: ...
    def insert_batch(
        self,
        table: str,
        items: Any,
        priorities: npt.NDArray[np.float64],  # [N], or a number for all items
        timeout: float | None,
        time_axis: bool,
    ) -> npt.NDArray[np.uint64]: ...
    def sample(self, table: str, n: int, at_least: int | None, timeout: float | None, pad: bool) -> Batch: ...
    def stream(
        self,
        table: str,
        config: Mapping[str, object],  # the options of an engram.Dataset, with all keys, and open_timeout
    ) -> Stream: ...
    def scan(
        self,
        table: str,
        batch_size: int | None,
        newest_first: bool,
        keys: npt.NDArray[np.uint64] | None,
        pad: bool,
    ) -> Scan: ...
    def peek(
        self, table: str, n: int, order: str, keys: npt.NDArray[np.uint64] | None, max_bytes: int | None
    ) -> Scan: ...
    # Counts, edges, numbers of items below and above all edges, size of the table.
    def histogram(self, table: str, of: str, bins: int) -> tuple[list[int], list[float], int, int, int]: ...
    def update_priorities(
        self, table: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64], wait: bool
    ) -> int | None: ...
    def check_priorities(self, table: str, priorities: npt.NDArray[np.float64]) -> None: ...
    def delete(self, table: str, keys: npt.NDArray[np.uint64], wait: bool) -> int | None: ...
    def reset(self, table: str) -> None: ...
    def can_sample(self, table: str, n: int) -> bool: ...
    def can_insert(self, table: str, n: int) -> bool: ...
    def connect_failure(self) -> str | None: ...
    def info(self, timeout: float | None = None) -> list[dict[str, Any]]: ...
    def snapshot(self, table: str) -> Snapshot: ...

@final
class ShardedTables:
    def __new__(cls, stores: list[Store], seed: int | None, items_per_request: int) -> ShardedTables: ...
    def connect(self) -> None: ...
    def shard_ids(self) -> list[int]: ...  # 0: none, or not reached yet
    def reachable(self) -> list[bool]: ...
    def forget_totals(self) -> None: ...
    def sample(self, table: str, n: int, at_least: int | None, timeout: float | None, pad: bool) -> Batch: ...
    def stream(
        self,
        shard: int,  # whose options of the table are used
        table: str,
        config: Mapping[str, object],  # as of Store.stream
    ) -> Stream: ...

@final
class ColumnHistory:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | list[int], /) -> TrajectoryColumn: ...

@final
class TrajectoryColumn:
    def __len__(self) -> int: ...
    @property
    def is_squeezed(self) -> bool: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def numpy(self) -> npt.NDArray[Any]: ...

@disjoint_base
class Writer:
    # Waits until at most `allowed` items are in flight.
    def flush(self, timeout: float | None, allowed: int = 0) -> None: ...
    def close(self, timeout: float | None) -> None: ...
    @property
    def waits_for_tables(self) -> bool: ...  # while False, writes do not wait for earlier items
    @waits_for_tables.setter
    def waits_for_tables(self, waits: bool) -> None: ...
    @property
    def unsent_items(self) -> int: ...  # created items that wait for a chunk to be sealed
    @property
    def pending_items(self) -> int: ...

@final
class TrajectoryWriter(Writer):
    def __new__(
        cls,
        store: Store,
        history: int,
        options: Mapping[str, object],  # an engram.WriterOptions with all keys
    ) -> TrajectoryWriter: ...
    def append(self, step: Any, *, partial_step: bool = False) -> None: ...
    @property
    def structure_version(self) -> int: ...  # increases when the structure of the history changes
    def history(self) -> Any: ...
    def create_item(self, table: str, priority: float, trajectory: Any, num_steps: int | None) -> int: ...
    def extend_history(self, history: int) -> None: ...  # to at least this many steps
    def end_episode(self, timeout: float | None, clear: bool) -> None: ...
    @property
    def episode_steps(self) -> int: ...
    @property
    def has_full_unsent_chunk(self) -> bool: ...  # items wait for the open chunk, which is full, to be sealed

@final
class PatternWriter(Writer):
    def __new__(
        cls,
        store: Store,
        patterns: int,  # number of patterns that `compile` returns
        compile: Any,  # function from the structure of a step to the compiled patterns
        options: Mapping[str, object],  # an engram.WriterOptions with all keys
        uniform: bool,  # True if every append has the same structure
    ) -> PatternWriter: ...
    def append(self, step: Any, *, partial_step: bool = False) -> None: ...
    def append_steps(self, steps: Any) -> None: ...
    def end_episode(self, timeout: float | None, clear: bool) -> None: ...
    @property
    def episode_steps(self) -> int: ...
    @property
    def appends(self) -> int: ...  # number of recorded appends, also of partial steps
    @property
    def has_full_unsent_chunk(self) -> bool: ...  # items wait for the open chunk, which is full, to be sealed

@final
class BatchedWriter(Writer):
    def __new__(
        cls,
        store: Store,
        num_envs: int,
        compile: Any,  # function from the structure of a step to the compiled patterns
        options: Mapping[str, object],  # an engram.WriterOptions with all keys
    ) -> BatchedWriter: ...
    def append_batch(self, steps: Any, episode_ends: npt.NDArray[np.uint8] | None) -> None: ...
    # `episode_ends`: flags [N * T], and T
    def append_steps(self, steps: Any, episode_ends: tuple[npt.NDArray[np.uint8], int] | None) -> None: ...

@final
class VectorWriter(Writer):
    def __new__(
        cls,
        store: Store,
        num_envs: int,
        autoreset_mode: str,
        table_names: list[str],
        compile: Any,  # function from the structures of a step's nests to the compiled items
        final_observations: Any,  # engram.gymnasium.final_observations.final_observations
        options: Mapping[str, object],  # an engram.WriterOptions with all keys
    ) -> VectorWriter: ...
    def reset(self, obs: Any, info: Any = None, *, mask: npt.ArrayLike | None = None) -> None: ...
    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        info: Any = None,
        *,
        extras: Any = None,
    ) -> None: ...
