"""Tables, adders, datasets, hyperparameters and internal rewards of the FTW agent."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engram import _checks
from engram.adders import Step
from engram.adders.step import MaskedStep
from engram.agents.ftw.config import ReplayConfig
from engram.agents.ftw.hyperparameters import initialize_hypers
from engram.agents.ftw.internal_rewards import initialize_internal_rewards
from engram.agents.ftw.replay import PIXEL_CONTROL, QUEUE
from engram.agents.ftw.windows import NONZERO_REWARD, ZERO_REWARD
from engram.compat import reverb
from engram.compat.ftw._same_arguments import arguments_of
from engram.compat.ftw.adders.reverb._options import ClientLike, store_of
from engram.compat.ftw.adders.reverb.multi_sequence import MultiSequenceAdder
from engram.compat.ftw.adders.reverb.rnn_sequence import NonOverlappingRNNSequenceAdder
from engram.compat.ftw.agents.tf.ftw._table_batches import TableBatches
from engram.compat.ftw.datasets import _specs
from engram.compat.ftw.specs import EnvironmentSpecLike
from engram.compat.reverb.tensor_spec import TensorSpec

__all__ = [
    "create_adders",
    "create_datasets",
    "create_reverb_tables",
    "initialize_hypers",
    "initialize_internal_rewards",
]


def create_adders(  # noqa: PLR0917, FTW's signature
    server_address: ClientLike,
    sequence_length: int,
    use_pixel_control: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    use_reward_prediction: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    reward_prediction_sequence_length: int = 3,
    reward_prediction_sequence_period: int = 1,
    pad_end_of_episode: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    delta_encoded: bool = True,  # noqa: FBT001, FBT002, FTW's signature
    *,
    overlap: bool = False,
    timeout: float | None = None,
) -> tuple[NonOverlappingRNNSequenceAdder, MultiSequenceAdder | None]:
    """Returns the adders of an actor.

    The first one writes sequences to the queue, and the same items to the table of pixel control. The second one writes
    windows for reward prediction, each to one of two tables: a window's last reward is zero, or it is not, in the case
    of events at least one of them. Windows have no padding, and end with an observed reward.

    Args:
        server_address: Address of the server with the tables, or an `engram.Store`, or a client.
        sequence_length: T, rows of a sequence.
        use_pixel_control: Whether there is a table of pixel control.
        use_reward_prediction: Whether to return the second adder.
        reward_prediction_sequence_length: Rows of a window.
        reward_prediction_sequence_period: Rows from the start of one window to the start of the next.
        pad_end_of_episode: Whether rows of zeros complete the last sequence of an episode, or else it is dropped.
        delta_encoded: Whether integers are stored as differences from step to step.
        overlap: Whether a sequence has T transitions, T + 1 rows and a mask; see
            `engram.adders.NonOverlappingRNNSequenceAdder`. The agents' sequences do.
        timeout: Seconds that adders wait for tables. Default: None, wait forever.

    Returns:
        (adder, adder for reward prediction or None).

    Raises:
        TypeError: `server_address` has the wrong type.
        InvalidArgumentError: Another argument has a type or value that is not allowed.
    """
    for name, value in (("use_pixel_control", use_pixel_control), ("use_reward_prediction", use_reward_prediction)):
        _checks.boolean(f"`{name}`", value)
    store = store_of(server_address)
    adder = NonOverlappingRNNSequenceAdder(
        store,
        sequence_length,
        delta_encoded=delta_encoded,
        priority_fns=dict.fromkeys([QUEUE, *[PIXEL_CONTROL] * use_pixel_control], 1.0),
        pad_end_of_episode=pad_end_of_episode,
        overlap=overlap,
        timeout=timeout,
    )
    if not use_reward_prediction:
        return adder, None
    tables = (NONZERO_REWARD, ZERO_REWARD)
    windows = MultiSequenceAdder(
        store,
        dict.fromkeys(tables, reward_prediction_sequence_length),
        dict.fromkeys(tables, reward_prediction_sequence_period),
        delta_encoded=delta_encoded,
        priority_fns=dict.fromkeys(tables, 1.0),
        should_insert_fns={NONZERO_REWARD: _ends_with_reward, ZERO_REWARD: lambda rows: not _ends_with_reward(rows)},
        pad_end_of_episode=False,
        final_row=False,
        timeout=timeout,
    )
    return adder, windows


def create_datasets(  # noqa: PLR0917, FTW's signature
    learner_client: ClientLike,
    environment_spec: EnvironmentSpecLike,
    batch_size: int,
    sequence_length: int,
    extra_spec: Mapping[str, Any] | None = None,
    use_pixel_control: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    use_reward_prediction: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    reward_prediction_sequence_length: int = 3,
    *,
    overlap: bool = False,
) -> tuple[TableBatches, TableBatches | None, TableBatches | None, TableBatches | None]:
    """Returns the datasets of a learner: iterables of `ReplaySample`s of NumPy arrays `[B, T, ...]`.

    The data are `Step`s, or with `overlap` `MaskedStep`s; of the recurrent state only the first row, `[B, 1, ...]`.
    Nothing is fetched ahead: what the queue holds is what was not trained yet.

    Args:
        learner_client: A client of the server with the tables, its address, or an `engram.Store`.
        environment_spec: The environment's specs, with `observations` and `actions`.
        batch_size: B; there are B // 2 windows of each kind.
        sequence_length: T, as in `create_adders`.
        extra_spec: Specs of one step's extras, such as `logits` and `core_state`, or arrays. Default: no extras.
        use_pixel_control: Whether there is a table of pixel control.
        use_reward_prediction: Whether there are tables of reward prediction.
        reward_prediction_sequence_length: Rows of a window.
        overlap: As in `create_adders`.

    Returns:
        (queue, pixel control, windows with a reward, windows without); those that are not used are None.

    Raises:
        TypeError: `learner_client` has the wrong type.
        ValueError: The specs are incomplete, or a size is not an integer of at least 1.
    """
    tables = ("max_queue_size", "max_pixel_control_buffer_size", "max_reward_prediction_buffer_size")
    given: dict[str, Any] = {**locals(), **dict.fromkeys(tables, batch_size)}
    config = ReplayConfig(**arguments_of(ReplayConfig, given))
    store = store_of(learner_client)
    item, window = item_specs(
        environment_spec, sequence_length, extra_spec, reward_prediction_sequence_length, overlap=overlap
    )
    queue = TableBatches(store=store, table=QUEUE, batch_size=batch_size, nest=item)
    control = TableBatches(store=store, table=PIXEL_CONTROL, batch_size=batch_size, nest=item)
    if not use_reward_prediction:
        return queue, control if use_pixel_control else None, None, None
    nonzero, zero = (
        TableBatches(store=store, table=table, batch_size=config.num_windows, nest=window)
        for table in (NONZERO_REWARD, ZERO_REWARD)
    )
    return queue, control if use_pixel_control else None, nonzero, zero


def item_specs(
    environment_spec: EnvironmentSpecLike,
    sequence_length: int,
    extra_spec: Mapping[str, Any] | None,
    window_length: int,
    *,
    overlap: bool,
) -> tuple[Any, Any]:
    """Returns the specs of items `[T, ...]` and of windows for reward prediction; see `create_datasets`.

    Raises:
        ValueError: The specs are incomplete.
    """
    options = {"transition_adder": False, "using_deprecated_adder": False, "convert_zero_size_to_none": False}
    row = _specs.from_environment(environment_spec, extra_spec, **options)
    item = _specs.sequence_specs(row, sequence_length + overlap, first_state_only=True)
    if overlap:
        item = MaskedStep(**item._asdict(), mask=TensorSpec((sequence_length + 1,), np.float32))
    window_row = _specs.from_environment(environment_spec, None, **options)
    return item, _specs.sequence_specs(window_row, window_length, first_state_only=False)


def create_reverb_tables(  # noqa: PLR0917, FTW's signature
    batch_size: int,
    max_queue_size: int,
    use_pixel_control: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    use_reward_prediction: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    max_pixel_control_buffer_size: int = 100,
    max_reward_pred_buffer_size: int = 800,
) -> tuple[list[reverb.Table], Callable[[], bool], Callable[[], bool]]:
    """Returns the tables of an agent, for `engram.compat.reverb.Server`, and functions that report what can be sampled.

    Args:
        batch_size: Items of a batch.
        max_queue_size: Items that the queue holds; inserts wait when it is full.
        use_pixel_control: Whether there is a table of pixel control.
        use_reward_prediction: Whether there are tables of reward prediction.
        max_pixel_control_buffer_size: Items of the table of pixel control; the oldest is removed first.
        max_reward_pred_buffer_size: Items of each table of reward prediction; the oldest is removed first.

    Returns:
        (tables, can_sample_queue, can_sample_auxiliary). The functions have no arguments: whether the queue has a
        batch, and whether the tables of all auxiliary tasks have one, which is False without auxiliary tasks.

    Raises:
        InvalidArgumentError: A size is not a positive integer, or a table is smaller than its part of a batch.
    """
    config = ReplayConfig(
        batch_size=batch_size,
        max_queue_size=max_queue_size,
        use_pixel_control=use_pixel_control,
        use_reward_prediction=use_reward_prediction,
        max_pixel_control_buffer_size=max_pixel_control_buffer_size,
        max_reward_prediction_buffer_size=max_reward_pred_buffer_size,
    )
    queue = reverb.Table.queue(QUEUE, max_queue_size)
    auxiliary = {}
    if use_pixel_control:
        auxiliary[_uniform(PIXEL_CONTROL, max_pixel_control_buffer_size, batch_size)] = batch_size
    if use_reward_prediction:
        for name in (NONZERO_REWARD, ZERO_REWARD):
            auxiliary[_uniform(name, max_reward_pred_buffer_size, config.num_windows)] = config.num_windows

    def can_sample_queue() -> bool:
        return queue.info.current_size >= batch_size

    def can_sample_auxiliary() -> bool:
        return bool(auxiliary) and all(table.info.current_size >= size for table, size in auxiliary.items())

    return [queue, *auxiliary], can_sample_queue, can_sample_auxiliary


def _uniform(name: str, max_size: int, min_size: int) -> reverb.Table:
    limiter = reverb.rate_limiters.MinSize(min_size)
    return reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), max_size, limiter)


def _ends_with_reward(rows: list[Step]) -> bool:
    return bool(np.any(rows[-1].reward != 0))
