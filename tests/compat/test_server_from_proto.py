"""Tables created from the protobuf messages of a server's configuration."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.support import raises

from engram.compat import reverb
from engram.compat.reverb import _nest, reverb_types
from engram.compat.reverb.server_executable import _structured_value, server_from_proto
from engram.compat.reverb.tensor_spec import BoundedTensorSpec, TensorSpec, as_spec

pytest.importorskip("google.protobuf", reason="the extra `protobuf`")

LIMITER = "rate_limiter { samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 3 }"
QUEUE = f"tables {{ table_name: 'q' sampler {{ fifo: true }} remover {{ fifo: true }} max_size: 3 {LIMITER} }}"
NEVER_SAMPLED = "nothing could ever be sampled: RateLimiter waits for 4 items, but `max_size` is 3"
NO_FIELD = 'Message type "deepmind.reverb.{}" has no field named "{}"; its fields are '
TABLE_FIELDS = (
    "table_name, rate_limiter, sampler, remover, max_size, max_times_sampled, num_deleted_episodes, signature, "
    "num_unique_samples"
)
SELECTORS = "fifo, uniform, prioritized, heap, lifo"
DTYPES = (
    "float32, float64, int32, uint8, int16, int8, string, complex64, int64, bool, bfloat16, uint16, complex128, "
    "float16, uint32, uint64"
)


def tables_of(text):
    return server_from_proto.tables_from_proto(server_from_proto.parse_config(text).tables)


def signature_of(text):
    """The signature of a table whose configured signature has these fields (a `StructuredValue`)."""
    (table,) = tables_of(QUEUE.replace("max_size", f"signature {{ {text} }} max_size"))
    return _nest.map_structure(as_spec, table.info.signature)


def test_tables_have_the_options_of_the_messages():
    text = f"""
        # a comment
        port: 7
        tables: {{
          table_name: "a" max_size: 5 max_times_sampled: 2
          sampler: {{ prioritized: {{ priority_exponent: 0.5 }} }}
          remover: {{ heap: {{ min_heap: true }} is_deterministic: true }}
          rate_limiter: {{ samples_per_insert: 1.5 min_size_to_sample: 2 min_diff: -4 max_diff: 8 insert_count: 9 }}
          num_deleted_episodes: 3
        }}
        tables {{ table_name: "b" max_size: 5 sampler {{ heap {{ }} }} remover {{ lifo: true }} {LIMITER} }}
        tables {{ table_name: "c" max_size: 5 sampler {{ uniform: true }} remover {{ fifo: true }} {LIMITER} }}
    """
    config = server_from_proto.parse_config(text)
    assert config.port == 7
    first, second, third = [table.info for table in server_from_proto.tables_from_proto(config.tables)]
    assert (first.name, first.max_size, first.max_times_sampled) == ("a", 5, 2)
    assert first.sampler_options.prioritized.priority_exponent == 0.5
    assert first.remover_options.heap.min_heap
    limiter = first.rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (1.5, 2)
    assert (limiter.min_diff, limiter.max_diff, limiter.insert_stats.completed) == (-4.0, 8.0, 0)
    assert second.sampler_options.WhichOneof("distribution") == "heap"
    assert not second.sampler_options.heap.min_heap
    assert (second.remover_options.lifo, third.sampler_options.uniform, third.remover_options.fifo) == (True,) * 3
    assert first.signature is None


def test_signatures_are_converted():
    signature = signature_of(
        """
        tuple_value {
          values { named_tuple_value {
            name: "Pair"
            values { key: "x" value { tensor_spec_value {
              name: "n" shape { dim { size: -1 } dim { size: 2 } } dtype: DT_DOUBLE
            } } }
            values { key: "y" value { tensor_spec_value { shape { unknown_rank: true } dtype: DT_STRING } } }
          } }
          values { dict_value { fields { key: "k" value { tensor_spec_value { dtype: DT_BOOL } } } } }
          values { list_value { } }
        }
        """
    )
    assert type(signature[0]).__name__ == "Pair"
    assert signature == (
        (TensorSpec([None, 2], np.float64, "n"), TensorSpec(None, "string")),
        {"k": TensorSpec([], np.bool_)},
        [],
    )


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("DT_INT16", r"tensor_content: '\001\000\377\377'", np.array([1, -1], np.int16)),
        ("DT_INT8", "int_val: -3", np.array([-3, -3], np.int8)),
        ("DT_HALF", "half_val: 15360 half_val: 0", np.array([1, 0], np.float16)),
        ("DT_FLOAT", "float_val: 1.5", np.array([1.5, 1.5], np.float32)),
        ("DT_UINT64", "uint64_val: 18446744073709551615", np.array([2**64 - 1] * 2, np.uint64)),
    ],
)
def test_bounds_of_specs_are_converted(dtype, value, expected):
    bound = f"dtype: {dtype} tensor_shape {{ dim {{ size: 2 }} }} {value}"
    spec = signature_of(
        f"bounded_tensor_spec_value {{ name: 'b' shape {{ dim {{ size: 2 }} }} dtype: {dtype} "
        f"minimum {{ {bound} }} maximum {{ {bound} }} }}"
    )
    assert isinstance(spec, BoundedTensorSpec)
    for side in (spec.minimum, spec.maximum):
        assert side.dtype == spec.dtype == expected.dtype
        assert side.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a signature consists of lists, tuples, dicts, named tuples and tensor specs; got an empty value"),
        (
            "list_value { values { none_value { } } }",
            "a signature consists of lists, tuples, dicts, named tuples and tensor specs; got none_value",
        ),
        (
            "tensor_spec_value { dtype: 11 }",
            f"dtype 11 of TensorFlow's DataType is not supported; supported are {DTYPES}",
        ),
        (
            "bounded_tensor_spec_value { dtype: DT_INT8 minimum { int_val: [1, 2] } maximum { int_val: 1 } }",
            "a bound of shape [] has 2 values; expected 1",
        ),
        (
            "bounded_tensor_spec_value { dtype: DT_INT8 minimum { } maximum { int_val: 1 } }",
            "a bound of shape [] has 0 values; expected 1",
        ),
        (
            "bounded_tensor_spec_value { dtype: 6 minimum { tensor_shape { dim { size: 2 } } int_val: [1, 2, 3] } }",
            "a bound of shape [2] has 3 values; expected 1 to 2",
        ),
        (
            "bounded_tensor_spec_value { dtype: DT_INT8 minimum { int_val: 0 } maximum { int_val: 300 } }",
            "a bound of dtype int8 must be from -128 to 127; got 300",
        ),
        (
            "bounded_tensor_spec_value { dtype: DT_UINT16 minimum { int_val: [5, -1] } maximum { int_val: 1 } }",
            "a bound of dtype uint16 must be from 0 to 65535; got -1",
        ),
        ("bounded_tensor_spec_value { dtype: DT_STRING }", "a spec of dtype string must not have bounds"),
    ],
)
def test_invalid_signatures_are_rejected(text, message):
    with raises(ValueError, f"table `q`: signature: {message}"):
        signature_of(text)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (QUEUE.replace(LIMITER, ""), ValueError, "table `q`: no `rate_limiter`"),
        (
            f"tables {{ table_name: 'q' {LIMITER} }}",
            NotImplementedError,
            "table `q`: sampler: no selector is set; set one of fifo, lifo, uniform, prioritized, heap",
        ),
        (
            QUEUE.replace("remover { fifo: true }", ""),
            NotImplementedError,
            "table `q`: remover: no selector is set; set one of fifo, lifo, uniform, prioritized, heap",
        ),
        (
            QUEUE.replace("fifo: true", "fifo: false", 1),
            ValueError,
            "table `q`: sampler: `fifo` must be true; got False",
        ),
        (QUEUE.replace("max_size: 3", ""), ValueError, "table `q`: max_size (0) must be a positive integer"),
        (
            QUEUE.replace("max_size: 3", "max_size: 3000000000"),
            TypeError,
            "table `q`: `max_size` must be at most 2147483647; got 3000000000",
        ),
        (QUEUE.replace("'q'", "''"), ValueError, "table ``: name must be nonempty"),
        (
            QUEUE.replace("max_diff: 3", "max_diff: -3"),
            ValueError,
            "table `q`: rate_limiter: `min_diff` must be at most `max_diff`; got 0 and -3",
        ),
        (
            QUEUE.replace("min_size_to_sample: 1", "min_size_to_sample: 4"),
            ValueError,
            f"table `q`: {NEVER_SAMPLED}; increase `max_size`",
        ),
    ],
)
def test_invalid_tables_are_rejected(text, error, message):
    with raises(error, message):
        tables_of(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ports: 3",
            f"line 1, column 1: {NO_FIELD.format('ReverbServerConfig', 'ports')}tables, port",
        ),
        (
            "tables {\n sampler { random: true } }",
            f"line 2, column 12: {NO_FIELD.format('KeyDistributionOptions', 'random')}{SELECTORS}, is_deterministic",
        ),
        (
            "tables { deprecated_items { } }",
            f"line 1, column 10: {NO_FIELD.format('PriorityTableCheckpoint', 'deprecated_items')}{TABLE_FIELDS}",
        ),
        ("tables {", 'line 1, column 8: Expected "}"'),
        ("port: 'x'", "line 1, column 7: 'port: 'x'': Couldn't parse integer: 'x'"),
    ],
)
def test_invalid_text_is_rejected(text, message):
    with raises(ValueError, message):
        server_from_proto.parse_config(text)


def test_dtypes_are_those_of_the_messages():
    messages = importlib.import_module(f"{server_from_proto.__package__}.reverb_config_pb2")
    values = messages.StructuredValue.DESCRIPTOR.file.enum_types_by_name["DataType"].values
    renamed = {"float": "float32", "double": "float64", "half": "float16"}
    names = {value.number: value.name.removeprefix("DT_").lower() for value in values if value.number}
    assert {number: renamed.get(name, name) for number, name in names.items()} == _structured_value._DTYPES


def test_messages_of_other_classes_are_accepted():
    """For example messages of an installed dm-reverb. Only the fields matter."""
    options = reverb_types.KeyDistributionOptions(prioritized=reverb_types.PrioritizedOptions(priority_exponent=0.5))
    limiter = SimpleNamespace(samples_per_insert=2.0, min_size_to_sample=1, min_diff=-1.0, max_diff=5.0)
    config = SimpleNamespace(
        table_name="t",
        sampler=options,
        remover=reverb_types.KeyDistributionOptions(fifo=True),
        max_size=7,
        max_times_sampled=0,
        rate_limiter=limiter,
        HasField=lambda name: name == "rate_limiter",
    )
    (table,) = server_from_proto.tables_from_proto([config])
    assert (table.name, table.info.max_size) == ("t", 7)
    assert table.info.sampler_options.prioritized.priority_exponent == 0.5
    assert table.info.rate_limiter_info.samples_per_insert == 2.0


@pytest.mark.parametrize("config", ["replay", {"table_name": "t"}])
def test_values_that_are_no_messages_are_rejected(config):
    text = f"each of `configs` must be a PriorityTableCheckpoint; got {config!r} ({type(config).__name__})"
    with raises(TypeError, text):
        server_from_proto.tables_from_proto([config])


def test_a_server_of_configured_tables_accepts_items():
    config = server_from_proto.parse_config(QUEUE)
    tables = server_from_proto.tables_from_proto(config.tables)
    server = reverb.Server(tables, port=config.port, host="localhost")
    try:
        client = reverb.Client(f"localhost:{server.port}")
        client.insert([1], {"q": 1.0})
        assert client.server_info()["q"].current_size == 1
    finally:
        server.stop()
