"""The replay: a queue for the actor-critic, and tables for the auxiliary tasks, in one store in this process.

An item has T transitions, T + 1 rows and the core's state before the first. The queue and the table of pixel control
share items. The two tables of reward prediction have windows of a few observations, split by whether a reward follows.
"""

import shutil
from pathlib import Path
from typing import Self

import numpy as np

import engram
from engram import ArraySpec, Nest, rate_limiters
from engram.adders.rnn_sequence import NonOverlappingRNNSequenceAdder
from engram.adders.step import MaskedStep, map_leaves
from engram.agents.ftw.config import ReplayConfig
from engram.agents.ftw.trajectory import Batch, Windows
from engram.agents.ftw.windows import NONZERO_REWARD, ZERO_REWARD, WindowRecorder, window_signature

QUEUE = "queue"
"""Items of the actor-critic's losses: in order, each once."""
PIXEL_CONTROL = "uniform_replay_buffer_pixel_control"
"""The newest of these items, for pixel control."""


class Replay:
    """The tables of an agent. Close it, or use it in a `with` block.

    Attributes:
        config: Its configuration.
        store: The store.
    """

    def __init__(
        self,
        config: ReplayConfig,
        row: MaskedStep,
        *,
        seed: int | None = None,
        path: Path | None = None,
        saved: Path | None = None,
    ) -> None:
        """Creates the tables.

        Args:
            config: Sizes.
            row: One row of an item, of arrays without a time axis.
            seed: Seed of what is sampled for the auxiliary tasks.
            path: A new directory, which `save` needs. Default: None, the replay cannot be saved.
            saved: Directory that `save` wrote, of a replay with the same arguments: the tables, with their random
                state, are those that were saved. Needs `path`. Default: None, the tables are empty.
        """
        self.config = config
        self._item = item_signature(row, config.sequence_length)
        length = config.reward_prediction_sequence_length
        self._window = window_signature(row.observation.observation, row.reward, length)
        self._path = path
        tables = make_tables(config, self._item, self._window)
        if path is None:
            self.store = engram.Store(tables, seed=seed)
            return
        # Only `save` stores anything.
        self.store = engram.Store.open(
            path,
            [] if saved else tables,
            durability="none",
            checkpoint_interval=None,
            checkpoint_bytes=None,
            keep=1,
            seed=seed,
        )
        if saved:
            self.store.restore(saved)

    def can_sample_queue(self) -> bool:
        """Returns whether the queue has a batch."""
        return can_sample_queue(self.store, self.config)

    def can_sample_auxiliary(self) -> bool:
        """Returns whether the tables of all auxiliary tasks have a batch; False if all tasks are off."""
        return can_sample_auxiliary(self.store, self.config)

    def sample(self, timeout: float | None = None) -> Batch:
        """Returns a batch, whose leaves are NumPy arrays.

        If the tables of the auxiliary tasks have no batch yet, their part of it is zeros, with weight 0.

        Args:
            timeout: Seconds to wait for the queue. Default: None, wait forever.

        Raises:
            DeadlineExceededError: The queue had no batch in time.
        """
        config, sample = self.config, self.store.sample
        items = sample(QUEUE, config.batch_size, timeout=timeout).data
        ready = self.can_sample_auxiliary()
        control = windows = None
        if config.use_pixel_control:
            size = config.batch_size
            control = sample(PIXEL_CONTROL, size).data if ready else _zeros(self._item, size)
        if config.use_reward_prediction:
            size = config.num_windows
            zero, nonzero = (
                sample(table, size).data if ready else _zeros(self._window, size)
                for table in (ZERO_REWARD, NONZERO_REWARD)
            )
            windows = Windows(zero.observation, nonzero.observation, nonzero.reward)
        return Batch(items, control, windows, np.float32(ready))

    def adder(self, *, timeout: float | None = None) -> NonOverlappingRNNSequenceAdder:
        """Returns an adder of one environment's items, for the queue and for pixel control.

        Args:
            timeout: Seconds that it waits for the queue. Default: None, wait forever.
        """
        tables = [QUEUE, *[PIXEL_CONTROL] * self.config.use_pixel_control]
        return NonOverlappingRNNSequenceAdder(
            self.store,
            self.config.sequence_length,
            priority_fns=dict.fromkeys(tables),
            overlap=True,
            timeout=timeout,
        )

    def window_recorder(self, num_envs: int) -> WindowRecorder | None:
        """Returns a recorder of the windows of `num_envs` environments, or None if reward prediction is off."""
        if not self.config.use_reward_prediction:
            return None
        return WindowRecorder(self.store, num_envs, self.config.reward_prediction_sequence_length)

    def save(self, target: Path) -> None:
        """Writes the tables with their random state to a new directory; no other thread may write to them meanwhile."""
        assert self._path is not None  # noqa: S101, see `__init__`
        self.store.checkpoint()
        shutil.copytree(self._path, target, ignore=shutil.ignore_patterns("LOCK"))

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_tables(config: ReplayConfig, item: Nest, window: Nest) -> list[engram.Table]:
    """Returns the tables in the order queue, pixel control, nonzero and zero rewards, without those of absent tasks."""

    def uniform(name: str, max_size: int, batch_size: int, signature: Nest) -> engram.Table:
        limiter = rate_limiters.MinSize(batch_size)
        return engram.Table(name, max_size=max_size, rate_limiter=limiter, signature=signature)

    tables = [engram.Table.queue(QUEUE, max_size=config.max_queue_size, signature=item)]
    if config.use_pixel_control:
        tables.append(uniform(PIXEL_CONTROL, config.max_pixel_control_buffer_size, config.batch_size, item))
    if config.use_reward_prediction:
        size = config.max_reward_prediction_buffer_size
        tables += [uniform(name, size, config.num_windows, window) for name in (NONZERO_REWARD, ZERO_REWARD)]
    return tables


def can_sample_queue(store: engram.Store, config: ReplayConfig) -> bool:
    """Returns whether the queue has at least `batch_size` items."""
    return store.info()[QUEUE].size >= config.batch_size


def can_sample_auxiliary(store: engram.Store, config: ReplayConfig) -> bool:
    """Returns whether the tables of all auxiliary tasks have a batch; False if all tasks are off."""
    if not config.has_auxiliary_tasks:
        return False
    needed = {PIXEL_CONTROL: config.batch_size} if config.use_pixel_control else {}
    if config.use_reward_prediction:
        needed |= dict.fromkeys((NONZERO_REWARD, ZERO_REWARD), config.num_windows)
    info = store.info()
    return all(info[table].size >= size for table, size in needed.items())


def item_signature(row: MaskedStep, sequence_length: int) -> MaskedStep:
    """Returns the signature of items, given one row of arrays: `[T + 1, ...]`, of the core's state `[1, ...]`."""
    signature: MaskedStep = _signature(row, sequence_length + 1)
    first_state = _signature(row.extras["core_state"], 1)
    return signature._replace(extras={**signature.extras, "core_state": first_state})


def _signature(row: Nest, length: int) -> Nest:
    return map_leaves(lambda leaf: ArraySpec((length, *np.shape(leaf)), np.asarray(leaf).dtype), row)


def _zeros(signature: Nest, batch_size: int) -> Nest:
    return map_leaves(lambda spec: np.zeros((batch_size, *spec.shape), spec.dtype), signature)
