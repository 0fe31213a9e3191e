"""Reverb's configuration messages as protobuf classes: `ReverbServerConfig` and the messages that it consists of.

The classes belong to a descriptor pool of their own, so that this module can be imported together with dm-reverb or
TensorFlow, which define messages with the same names.
"""

from typing import Any

from engram._extras import importing_extra

with importing_extra("protobuf", "engram.compat.reverb.server_executable.reverb_config_pb2"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from engram.compat.reverb.server_executable._structured_value import DATA_TYPES

__all__ = [
    "KeyDistributionOptions",
    "PriorityTableCheckpoint",
    "RateLimiterCheckpoint",
    "ReverbServerConfig",
    "StructuredValue",
    "TensorShapeProto",
]

_REVERB = {
    "ReverbServerConfig": """
        repeated PriorityTableCheckpoint tables = 1
        int32 port = 2
    """,
    "PriorityTableCheckpoint": """
        string table_name = 1
        RateLimiterCheckpoint rate_limiter = 3
        KeyDistributionOptions sampler = 4
        KeyDistributionOptions remover = 5
        int64 max_size = 6
        int32 max_times_sampled = 7
        int64 num_deleted_episodes = 8
        tensorflow.StructuredValue signature = 9
        int64 num_unique_samples = 10
    """,
    "RateLimiterCheckpoint": """
        double samples_per_insert = 2
        double min_diff = 3
        double max_diff = 4
        int64 min_size_to_sample = 5
        int64 sample_count = 6
        int64 insert_count = 7
        int64 delete_count = 8
    """,
    "KeyDistributionOptions": """
        oneof distribution bool fifo = 1
        oneof distribution bool uniform = 2
        oneof distribution KeyDistributionOptions.Prioritized prioritized = 3
        oneof distribution KeyDistributionOptions.Heap heap = 4
        oneof distribution bool lifo = 6
        bool is_deterministic = 7
    """,
    "KeyDistributionOptions.Prioritized": "double priority_exponent = 1",
    "KeyDistributionOptions.Heap": "bool min_heap = 1",
}
"""Messages of the package `deepmind.reverb`; deprecated fields are omitted. Names with a dot are nested messages."""

_TENSORFLOW = {
    "TensorShapeProto": """
        repeated TensorShapeProto.Dim dim = 2
        bool unknown_rank = 3
    """,
    "TensorShapeProto.Dim": """
        int64 size = 1
        string name = 2
    """,
    "TensorProto": """
        DataType dtype = 1
        TensorShapeProto tensor_shape = 2
        bytes tensor_content = 4
        repeated float float_val = 5
        repeated double double_val = 6
        repeated int32 int_val = 7
        repeated int64 int64_val = 10
        repeated bool bool_val = 11
        repeated int32 half_val = 13
        repeated uint32 uint32_val = 16
        repeated uint64 uint64_val = 17
    """,
    "NoneValue": "",
    "TensorSpecProto": """
        string name = 1
        TensorShapeProto shape = 2
        DataType dtype = 3
    """,
    "BoundedTensorSpecProto": """
        string name = 1
        TensorShapeProto shape = 2
        DataType dtype = 3
        TensorProto minimum = 4
        TensorProto maximum = 5
    """,
    "ListValue": "repeated StructuredValue values = 1",
    "TupleValue": "repeated StructuredValue values = 1",
    "DictValue": "repeated DictValue.FieldsEntry fields = 1",
    "DictValue.FieldsEntry": """
        string key = 1
        StructuredValue value = 2
    """,
    "PairValue": """
        string key = 1
        StructuredValue value = 2
    """,
    "NamedTupleValue": """
        string name = 1
        repeated PairValue values = 2
    """,
    "StructuredValue": """
        oneof kind NoneValue none_value = 1
        oneof kind TensorSpecProto tensor_spec_value = 33
        oneof kind BoundedTensorSpecProto bounded_tensor_spec_value = 35
        oneof kind ListValue list_value = 51
        oneof kind TupleValue tuple_value = 52
        oneof kind DictValue dict_value = 53
        oneof kind NamedTupleValue named_tuple_value = 54
    """,
}
"""Messages of the package `tensorflow` that signatures consist of, with the fields that Engram supports."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")


def _file(name: str, package: str, messages: dict[str, str]) -> Any:  # noqa: ANN401, a message
    """Returns the descriptor of a file of messages."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    by_name: dict[str, Any] = {}
    for path, fields in messages.items():
        outer, _, inner = path.rpartition(".")
        message = by_name[path] = by_name[outer].nested_type.add() if outer else file.message_type.add()
        message.name = inner
        message.options.map_entry = inner == "FieldsEntry"
        for line in fields.strip().splitlines():
            _add_field(message, package, line.split())
    return file


def _add_field(message: Any, package: str, words: list[str]) -> None:  # noqa: ANN401, a descriptor
    """Adds a field, described by words as in a `.proto` file."""
    *label, kind, name, _, number = words
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if label == ["repeated"] else _Field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    else:
        field.type = _Field.TYPE_ENUM if kind == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{kind}" if kind.startswith("tensorflow.") else f".{package}.{kind}"
    if label[:1] == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name=label[1])
        field.oneof_index = 0


def _build_pool() -> Any:  # noqa: ANN401, a pool
    pool = descriptor_pool.DescriptorPool()
    tensorflow = _file("engram/tensorflow.proto", "tensorflow", _TENSORFLOW)
    data_type = tensorflow.enum_type.add(name="DataType")
    for name, number in DATA_TYPES.items():
        data_type.value.add(name=name, number=number)
    reverb = _file("engram/reverb_config.proto", "deepmind.reverb", _REVERB)
    reverb.dependency.append(tensorflow.name)
    for file in (tensorflow, reverb):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _build_pool()


def _message_class(name: str) -> Any:  # noqa: ANN401, a class
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


ReverbServerConfig = _message_class("deepmind.reverb.ReverbServerConfig")
PriorityTableCheckpoint = _message_class("deepmind.reverb.PriorityTableCheckpoint")
RateLimiterCheckpoint = _message_class("deepmind.reverb.RateLimiterCheckpoint")
KeyDistributionOptions = _message_class("deepmind.reverb.KeyDistributionOptions")
StructuredValue = _message_class("tensorflow.StructuredValue")
TensorShapeProto = _message_class("tensorflow.TensorShapeProto")


def field_names(message: str) -> list[str]:
    """Returns the names of the fields of `message`, such as `"deepmind.reverb.ReverbServerConfig"`."""
    return [field.name for field in _POOL.FindMessageTypeByName(message).fields]
