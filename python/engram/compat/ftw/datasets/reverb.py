"""Datasets over tables that adders write to: each table is read in order, by one sampler."""

from collections.abc import Sequence
from typing import Any, Literal

from engram import Client, TableInfo
from engram.compat.ftw.datasets import _specs
from engram.compat.ftw.datasets._arrays import ArrayDataset, array_converter
from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.ftw.datasets._sequences import as_whole_items, check_lengths, cut_into_sequences
from engram.compat.ftw.datasets._tensorflow import tensorflow_dataset
from engram.compat.reverb import _arguments
from engram.compat.reverb._block_reader import FetchOptions
from engram.compat.reverb._dataset_common import ElementSource
from engram.compat.reverb._elements import timesteps
from engram.compat.reverb._nest import flatten
from engram.store import TableStore

__all__ = ["make_reverb_fifo_sampler_dataset", "make_reverb_rnn_sequence_fifo_sampler_dataset"]

Framework = Literal["tensorflow", "numpy", "torch", "jax"]

_FRAMEWORKS = ("tensorflow", "numpy", "torch", "jax")
_UNBATCHED_AHEAD = 100
_RECONNECT_SECONDS = 1.0


def make_reverb_fifo_sampler_dataset(  # noqa: PLR0917, as FTW has it
    client: Any,  # noqa: ANN401, of several kinds
    environment_spec: Any = None,  # noqa: ANN401, by its attributes
    batch_size: int | None = None,
    prefetch_size: int | None = None,
    sequence_length: int | None = None,
    extra_spec: Any = None,  # noqa: ANN401, a nest
    transition_adder: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    table: str = "priority_table",
    convert_zero_size_to_none: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    num_parallel_calls: int = 1,
    using_deprecated_adder: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    deterministic: bool = True,  # noqa: FBT001, FBT002, as FTW has it
    *,
    framework: Framework = "tensorflow",
) -> Any:  # noqa: ANN401, a dataset
    """Steps of a table's items, or sequences of them, in the order in which the items were drawn.

    Elements are `ReplaySample`s. Their data are `Step`s, `(observation, action, reward, discount, start_of_episode,
    extras)`, whose leaves are `[...]` for a step and `[T, ...]` for a sequence of `T` = `sequence_length` steps; with a
    `batch_size`, `[B, ...]` and `[B, T, ...]`. Their `info` is of each step's item, `[]` or `[T]`, with a batch `[B]`
    or `[B, T]`: `key` u64, `probability` f64, `table_size` i64, `priority` f64, `times_sampled` i32.

        dataset = make_reverb_fifo_sampler_dataset(client, environment_spec, batch_size=16, sequence_length=20)
        for sample in dataset:
            learn(sample.data)

    Args:
        client: Where the table is: a `TFClient` or a `Client` of `engram.compat.reverb`, an `engram.Client` or an
            `engram.Store`, or a list of those. Several take turns.
        environment_spec: Has `observations` and `actions`, nests of specs with `shape` and `dtype` such as dm_env's,
            of one step, and may have `rewards` and `discounts`; otherwise those are f32 scalars. None: the table's
            signature says what the data are.
        batch_size: Elements per batch, exactly, 1 or more; twice as many items are fetched ahead. None: single
            elements, and 100.
        prefetch_size: Batches that are made ahead (TensorFlow), or whose items are fetched ahead, too (others), 0 or
            more. None: none.
        sequence_length: Combines as many steps, 1 or more, to one element; it must divide the items' lengths. None:
            elements are steps.
        extra_spec: A nest of specs of the extras, of one step. None, or one without specs: there are none.
        transition_adder: Data are transitions: `(observation, action, reward, discount, next_observation)`, and the
            extras behind them if there is an `extra_spec`. Default: steps.
        table: Its name.
        convert_zero_size_to_none: Axes of size 0 in the specs may have any size; batches whose elements differ there
            are `tf.RaggedTensor`s, or lists of `B` arrays. Default: specs are taken as they are.
        num_parallel_calls: Threads that read from several clients, 1 or more; each client is read by one all the same.
            TensorFlow's only.
        using_deprecated_adder: Data are `(observation, action, reward, discount)`, and the extras behind them if there
            is an `extra_spec`.
        deterministic: True: clients take turns strictly; False: one that has nothing is passed over.
        framework: What the arrays are: `"tensorflow"` gives a `tf.data.Dataset`; `"numpy"`, `"torch"` and `"jax"` an
            iterable, whose `info` is NumPy's, and so is text.

    Returns:
        The dataset: endless, as it waits where the table has nothing. An iterable may be iterated any number of times.

    Raises:
        ValueError: An argument is not allowed, the specs are incomplete, there is no `environment_spec` and no such
            table, or one without a signature, or its items cannot be cut into sequences of `sequence_length`. On
            iteration of an iterable: an item does not fit the specs, or elements of a batch differ in shape.
        TypeError: A client, or another argument, is of another kind.
        ImportError: The framework is not installed.
        ClosedError, UnavailableError: A store is closed, or a server is gone: at once without an `environment_spec`,
            otherwise on iteration of an iterable, as is `UnknownTableError`.
        tf.errors.InvalidArgumentError: On iteration of a `tf.data.Dataset`: as for the ValueError of an iterable. Other
            errors come as the `tf.errors` nearest to them, with their text.
    """
    return _made(
        items=False,
        client=client,
        environment_spec=environment_spec,
        batch_size=batch_size,
        prefetch_size=prefetch_size,
        sequence_length=sequence_length,
        extra_spec=extra_spec,
        transition_adder=transition_adder,
        table=table,
        convert_zero_size_to_none=convert_zero_size_to_none,
        num_parallel_calls=num_parallel_calls,
        using_deprecated_adder=using_deprecated_adder,
        deterministic=deterministic,
        framework=framework,
    )


def make_reverb_rnn_sequence_fifo_sampler_dataset(  # noqa: PLR0917, as FTW has it
    client: Any,  # noqa: ANN401, of several kinds
    environment_spec: Any = None,  # noqa: ANN401, by its attributes
    batch_size: int | None = None,
    prefetch_size: int | None = None,
    sequence_length: int | None = None,
    extra_spec: Any = None,  # noqa: ANN401, a nest
    transition_adder: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    table: str = "priority_table",
    convert_zero_size_to_none: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    num_parallel_calls: int = 1,
    using_deprecated_adder: bool = False,  # noqa: FBT001, FBT002, as FTW has it
    deterministic: bool = True,  # noqa: FBT001, FBT002, as FTW has it
    *,
    framework: Framework = "tensorflow",
) -> Any:  # noqa: ANN401, a dataset
    """Whole items of a table, which are sequences with the recurrent state of their first step alone.

    Elements are `ReplaySample`s with one `info` each, `[]`, or `[B]` with a `batch_size`. Their data are `Step`s whose
    leaves are `[T, ...]`, or `[B, T, ...]`, of `T` = `sequence_length` steps, but for those below `core_state` of the
    extras: these are `[1, ...]`, or `[B, 1, ...]`, as `NonOverlappingRNNSequenceAdder` has stored them. No other state
    is kept or sent.

        dataset = make_reverb_rnn_sequence_fifo_sampler_dataset(
            client, environment_spec, 16, sequence_length=20, extra_spec={"core_state": state_spec}
        )
        for sample in dataset:
            learn(sample.data, initial_state=sample.data.extras["core_state"])

    Args:
        client: This and the others are as for `make_reverb_fifo_sampler_dataset`, where not said otherwise.
        environment_spec: As there.
        batch_size: As there.
        prefetch_size: As there.
        sequence_length: Steps of every item, 1 or more. None: any number, the same for all of a batch.
        extra_spec: As there: of one step, also what is below `core_state`.
        transition_adder: As there.
        table: As there.
        convert_zero_size_to_none: As there.
        num_parallel_calls: As there.
        using_deprecated_adder: As there.
        deterministic: As there.
        framework: As there.

    Returns:
        The dataset, as of `make_reverb_fifo_sampler_dataset`.

    Raises:
        ValueError, TypeError, ImportError, ClosedError, UnavailableError: As for `make_reverb_fifo_sampler_dataset`. On
            iteration, an item of another length than `sequence_length` does not fit either.
        tf.errors.InvalidArgumentError: Likewise.
    """
    return _made(
        items=True,
        client=client,
        environment_spec=environment_spec,
        batch_size=batch_size,
        prefetch_size=prefetch_size,
        sequence_length=sequence_length,
        extra_spec=extra_spec,
        transition_adder=transition_adder,
        table=table,
        convert_zero_size_to_none=convert_zero_size_to_none,
        num_parallel_calls=num_parallel_calls,
        using_deprecated_adder=using_deprecated_adder,
        deterministic=deterministic,
        framework=framework,
    )


def _made(
    *,
    items: bool,
    client: Any,  # noqa: ANN401, of several kinds
    environment_spec: Any,  # noqa: ANN401, by its attributes
    batch_size: int | None,
    prefetch_size: int | None,
    sequence_length: int | None,
    extra_spec: Any,  # noqa: ANN401, a nest
    transition_adder: bool,
    table: str,
    convert_zero_size_to_none: bool,
    num_parallel_calls: int,
    using_deprecated_adder: bool,
    deterministic: bool,
    framework: str,
) -> Any:  # noqa: ANN401, a dataset
    _check(
        batch_size=batch_size,
        prefetch_size=prefetch_size,
        sequence_length=sequence_length,
        num_parallel_calls=num_parallel_calls,
    )
    _arguments.text("table", table)
    for name, value in (
        ("transition_adder", transition_adder),
        ("convert_zero_size_to_none", convert_zero_size_to_none),
        ("using_deprecated_adder", using_deprecated_adder),
        ("deterministic", deterministic),
    ):
        _arguments.boolean(name, value)
    if framework not in _FRAMEWORKS:
        raise ValueError(f"`framework` must be one of {', '.join(map(repr, _FRAMEWORKS))}; got {framework!r}")
    convert = None if framework == "tensorflow" else array_converter(framework)
    stores, returns = _stores(client)
    length = None
    if environment_spec is None:
        if extra_spec is not None and flatten(extra_spec):
            raise ValueError("`extra_spec` goes with an `environment_spec`; without one, the signature says it all")
        wanted, length = _specs.from_signature(_info(stores[0], table), steps=not items)
    else:
        wanted = _specs.from_environment(
            environment_spec,
            extra_spec,
            transition_adder=transition_adder,
            using_deprecated_adder=using_deprecated_adder,
            convert_zero_size_to_none=convert_zero_size_to_none,
        )
    if not items and length is not None and sequence_length is not None:
        check_lengths(table, length, sequence_length)
    fetch_options = FetchOptions(
        max_in_flight=2 * batch_size if batch_size else _UNBATCHED_AHEAD, reconnect_forever=returns
    )
    if items:
        signed = environment_spec is None  # then the nest is one of whole items already
        nest = wanted.nest if signed else _specs.sequence_specs(wanted, sequence_length, first_state_only=True)
        source = ElementSource(fetch_options=fetch_options, convert=as_whole_items(sequence_length, wanted.is_state))
    elif sequence_length is not None:
        nest = _specs.sequence_specs(wanted, sequence_length, first_state_only=False)
        source = ElementSource(
            fetch_options=fetch_options,
            convert=cut_into_sequences(sequence_length),
            info_shape=(sequence_length,),
            unsigned_axes=1,
        )
    else:
        nest = wanted.nest
        source = ElementSource(fetch_options=fetch_options, convert=timesteps)
    options = DatasetOptions(
        table=table,
        source=source,
        whole_items=items,
        nest=nest,
        batch_size=batch_size,
        prefetch_size=prefetch_size or 0,
        allows_ragged=convert_zero_size_to_none and any(None in (spec.shape or ()) for spec in flatten(wanted.nest)),
        num_parallel_calls=num_parallel_calls,
        deterministic=deterministic,
    )
    return tensorflow_dataset(options, stores) if convert is None else ArrayDataset(options, stores, convert)


def _check(
    *, batch_size: int | None, prefetch_size: int | None, sequence_length: int | None, num_parallel_calls: int
) -> None:
    for name, value, low in (
        ("batch_size", batch_size, 1),
        ("prefetch_size", prefetch_size, 0),
        ("sequence_length", sequence_length, 1),
        ("num_parallel_calls", num_parallel_calls, 1),
    ):
        if value is None and name != "num_parallel_calls":
            continue
        if _arguments.integer(name, value) < low:
            raise ValueError(f"`{name}` must be {low} or more; got {value}")


def _stores(client: Any) -> tuple[list[TableStore], bool]:  # noqa: ANN401, of several kinds
    """Where the tables are, and whether to wait for servers that go away."""
    clients = list(client) if isinstance(client, Sequence) and not isinstance(client, str) else [client]
    if not clients:
        raise ValueError("`client` must be a client, or a list of at least one")
    stores: list[TableStore] = []
    for each in clients:
        if isinstance(each, TableStore):
            stores.append(each)
        elif isinstance(getattr(each, "server_address", None), str):  # a Client or a TFClient of Reverb's
            stores.append(Client(_arguments.host_and_port(each.server_address), reconnect_timeout=_RECONNECT_SECONDS))
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
