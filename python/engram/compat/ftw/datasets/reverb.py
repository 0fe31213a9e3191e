"""Datasets of tables that adders write to. Each client's table is read in one stream, in the order of sampling."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, get_args

from engram import Nest, TableInfo
from engram.compat.ftw._same_arguments import arguments_of, same_arguments
from engram.compat.ftw.adders.reverb._options import ClientLike
from engram.compat.ftw.datasets import _specs
from engram.compat.ftw.datasets._arrays import ArrayDataset, array_converter
from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.ftw.datasets._sequences import as_whole_items, check_length, cut_into_sequences
from engram.compat.ftw.datasets._tensorflow import tensorflow_dataset
from engram.compat.ftw.specs import EnvironmentSpecLike
from engram.compat.reverb import _arguments
from engram.compat.reverb._block_reader import FetchOptions
from engram.compat.reverb._dataset_common import ElementSource, server_store
from engram.compat.reverb._elements import timesteps
from engram.compat.reverb._nest import flatten
from engram.data._tf_types import TfDataset
from engram.table_store import TableStore

__all__ = ["make_reverb_fifo_sampler_dataset", "make_reverb_rnn_sequence_fifo_sampler_dataset"]

Framework = Literal["tensorflow", "numpy", "torch", "jax"]

_FRAMEWORKS = get_args(Framework)

_PREFETCHED_ITEMS = 100
"""Number of items to fetch ahead if there is no batch size."""


def make_reverb_fifo_sampler_dataset(  # noqa: PLR0917, FTW's signature
    client: ClientLike | Sequence[ClientLike],
    environment_spec: EnvironmentSpecLike | None = None,
    batch_size: int | None = None,
    prefetch_size: int | None = None,
    sequence_length: int | None = None,
    extra_spec: Nest | None = None,
    transition_adder: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    table: str = "priority_table",
    convert_zero_size_to_none: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    num_parallel_calls: int = 1,
    using_deprecated_adder: bool = False,  # noqa: FBT001, FBT002, FTW's signature
    deterministic: bool = True,  # noqa: FBT001, FBT002, FTW's signature
    *,
    framework: Framework = "tensorflow",
) -> ArrayDataset | TfDataset:
    """Returns a dataset of the steps of a table's items, or of sequences of steps, in the order of sampling.

    Elements are `ReplaySample`s. Their data are `Step`s, `(observation, action, reward, discount, start_of_episode,
    extras)`, with leaves `[...]` for a step and `[T, ...]` for a sequence of `T` = `sequence_length` steps; with a
    `batch_size`, `[B, ...]` and `[B, T, ...]`. Their `info` describes the item of each step, `[]` or `[T]`, in a batch
    `[B]` or `[B, T]`: `key` u64, `probability` f64, `table_size` i64, `priority` f64, `times_sampled` i32.

        dataset = make_reverb_fifo_sampler_dataset(client, environment_spec, batch_size=16, sequence_length=20)
        for sample in dataset:
            learn(sample.data)

    Args:
        client: A `TFClient` or `Client` of `engram.compat.reverb`, an `engram.Client` or `engram.Store`, or a list of
            these, which are read in turn. While a server is unreachable, the dataset waits for it without limit, except
            that it raises `UnavailableError` if one of these is an `engram.Client` or `engram.Store`.
        environment_spec: An object with `observations` and `actions`, nests of one step's specs with `shape` and
            `dtype`, for example dm_env's, and optionally `rewards` and `discounts`, by default f32 scalars. None means
            that the table's signature describes the data.
        batch_size: Number of elements per batch, at least 1; `2 * batch_size` items are fetched ahead. Default: None,
            which yields single elements and fetches 100 items ahead.
        prefetch_size: Number of further batches to fetch ahead, at least 0: TensorFlow prefetches whole batches, the
            other frameworks the items of that many batches. Default: 0.
        sequence_length: Number of consecutive steps per element, at least 1. It must divide the number of steps of
            every item. Default: elements are single steps.
        extra_spec: A nest of specs of one step's extras. Default: no extras.
        transition_adder: If True, data are transitions `(observation, action, reward, discount, next_observation)`,
            followed by the extras if there is an `extra_spec`. Default: `Step`s.
        table: Name of the table.
        convert_zero_size_to_none: If True, axes of size 0 in the specs may have any size, and batches whose elements
            differ in shape are `tf.RaggedTensor`s, or lists of `B` arrays. Default: False.
        num_parallel_calls: Number of threads that read from several clients, at least 1. Each client is read by one
            thread. Used with TensorFlow only.
        using_deprecated_adder: If True, data are `(observation, action, reward, discount)`, followed by the extras if
            there is an `extra_spec`. Default: False.
        deterministic: If True, clients are read in strict rotation. If False, a client without items is skipped.
            Default: True.
        framework: `"tensorflow"` returns a `tf.data.Dataset`; `"numpy"`, `"torch"` and `"jax"` return an iterable of
            their arrays, except that `info` and text are NumPy arrays. Default: `"tensorflow"`.

    Returns:
        The dataset. It is endless: it waits while the table has no items. The iterables of the other frameworks can be
        iterated several times.

    Raises:
        ValueError: An argument is out of range, the specs are incomplete, or the items cannot be cut into sequences of
            `sequence_length`; without an `environment_spec`, the table does not exist or has no signature. During
            iteration of an iterable: an item does not fit the specs, or the elements of a batch differ in shape.
        TypeError: A client, or another argument, has the wrong type.
        ImportError: The framework is not installed.
        ClosedError, UnavailableError, UnknownTableError: During iteration of an iterable: a store is closed, a server
            is unreachable and the dataset does not wait for it (see `client`), or the table does not exist. Without an
            `environment_spec`, this call reads the signature from the first client, and raises the first two errors,
            too: it waits 1 s for an unreachable server, or the `reconnect_timeout` of an `engram.Client`.
        tf.errors.InvalidArgumentError: During iteration of a `tf.data.Dataset`, in place of the ValueError of an
            iterable. Other errors are raised as the closest of `tf.errors`, with their text.
    """
    return _make_dataset(SimpleNamespace(**locals()), whole_items=False)


@same_arguments(make_reverb_fifo_sampler_dataset)
def make_reverb_rnn_sequence_fifo_sampler_dataset(**arguments: Any) -> Any:  # noqa: ANN401, see the decorator
    """Returns a dataset of whole items, which are sequences with the recurrent state of their first step only.

    Elements are `ReplaySample`s with one `info` per item, `[]`, or `[B]` with a `batch_size`. Their data are `Step`s
    with leaves `[T, ...]`, or `[B, T, ...]`, of `T` = `sequence_length` steps. The leaves below `core_state` of the
    extras are `[1, ...]`, or `[B, 1, ...]`: `NonOverlappingRNNSequenceAdder` stores no other states.

        dataset = make_reverb_rnn_sequence_fifo_sampler_dataset(
            client, environment_spec, 16, sequence_length=20, extra_spec={"core_state": state_spec}
        )
        for sample in dataset:
            learn(sample.data, initial_state=sample.data.extras["core_state"])

    The other arguments and errors are those of `make_reverb_fifo_sampler_dataset`. A ValueError during iteration can
    also mean that an item's number of steps is not `sequence_length`.

    Args:
        sequence_length: Number of steps of every item, at least 1. Default: any number, equal within a batch.
        extra_spec: A nest of specs of one step's extras, including `core_state`. Default: no extras.

    Returns:
        The dataset, as `make_reverb_fifo_sampler_dataset` returns it.
    """
    return _make_dataset(SimpleNamespace(**arguments), whole_items=True)


def _make_dataset(given: SimpleNamespace, *, whole_items: bool) -> ArrayDataset | TfDataset:
    """Returns a dataset for the arguments of `make_reverb_fifo_sampler_dataset`."""
    _check(given)
    convert = None if given.framework == "tensorflow" else array_converter(given.framework)
    stores, reconnect_forever = _stores(given.client)
    length, batch_size, sequence_length = None, given.batch_size, given.sequence_length
    if given.environment_spec is None:
        if given.extra_spec is not None and flatten(given.extra_spec):
            raise ValueError("`extra_spec` requires an `environment_spec`: without one, the signature is used")
        specs, length = _specs.from_signature(_info(stores[0], given.table), steps=not whole_items)
    else:
        specs = _specs.from_environment(**arguments_of(_specs.from_environment, vars(given)))
    if not whole_items and length is not None and sequence_length is not None:
        check_length(given.table, length, sequence_length)
    source = ElementSource(
        fetch_options=FetchOptions(
            max_in_flight=2 * batch_size if batch_size else _PREFETCHED_ITEMS, reconnect_forever=reconnect_forever
        ),
        convert=timesteps,
    )
    nest = specs.nest
    if whole_items:
        source = replace(source, convert=as_whole_items(sequence_length, specs.is_state))
        if given.environment_spec is not None:  # the nest of a signature describes whole items already
            nest = _specs.sequence_specs(specs, sequence_length, first_state_only=True)
    elif sequence_length is not None:
        source = replace(source, convert=cut_into_sequences(sequence_length), info_shape=(sequence_length,))
        nest = _specs.sequence_specs(specs, sequence_length, first_state_only=False)
    may_be_ragged = any(None in (spec.shape or ()) for spec in flatten(specs.nest))
    options = DatasetOptions(
        table=given.table,
        source=source,
        whole_items=whole_items,
        nest=nest,
        batch_size=batch_size,
        prefetch_size=given.prefetch_size or 0,
        allows_ragged=given.convert_zero_size_to_none and may_be_ragged,
        num_parallel_calls=given.num_parallel_calls,
        deterministic=given.deterministic,
    )
    return tensorflow_dataset(options, stores) if convert is None else ArrayDataset(options, stores, convert)


def _check(given: SimpleNamespace) -> None:
    """Checks arguments that are numbers, text or bools."""
    for name, low in (("batch_size", 1), ("prefetch_size", 0), ("sequence_length", 1), ("num_parallel_calls", 1)):
        value = getattr(given, name)
        if (value is not None or name == "num_parallel_calls") and _arguments.integer(name, value) < low:
            raise ValueError(f"`{name}` must be at least {low}; got {value}")
    _arguments.text("table", given.table)
    for name in ("transition_adder", "convert_zero_size_to_none", "using_deprecated_adder", "deterministic"):
        _arguments.boolean(name, getattr(given, name))
    if given.framework not in _FRAMEWORKS:
        raise ValueError(f"`framework` must be one of {', '.join(map(repr, _FRAMEWORKS))}; got {given.framework!r}")


def _stores(client: ClientLike | Sequence[ClientLike]) -> tuple[list[TableStore], bool]:
    """Returns the stores of the clients, and whether to wait for servers that become unreachable."""
    clients = list(client) if isinstance(client, Sequence) and not isinstance(client, str) else [client]
    if not clients:
        raise ValueError("`client` must be a client or a nonempty list of clients; got an empty list")
    stores: list[TableStore] = []
    for each in clients:
        if isinstance(each, TableStore):
            stores.append(each)
        elif isinstance(getattr(each, "server_address", None), str):  # a Client or TFClient of compat.reverb
            stores.append(server_store(each.server_address))
        else:
            raise TypeError(
                "`client` must be a TFClient or a Client of engram.compat.reverb, an engram.Client, an engram.Store, "
                f"or a list of those; got {_arguments.describe(each)}"
            )
    return stores, not any(isinstance(each, TableStore) for each in clients)


def _info(store: TableStore, table: str) -> TableInfo:
    info = store.info()
    if table not in info:
        raise ValueError(
            f"there is no table `{table}`; known tables: {', '.join(f'`{name}`' for name in sorted(info))}"
        )
    return info[table]
