"""Reverb's configuration messages as protobuf classes: `ReverbServerConfig` and the messages that it consists of.

The classes belong to a descriptor pool of their own, so that this module can be imported together with dm-reverb or
TensorFlow, which define messages with the same names.
"""

from typing import Any

from engram import _engram
from engram._extras import importing_extra

with importing_extra("protobuf", "engram.compat.reverb.server_executable.reverb_config_pb2"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "KeyDistributionOptions",
    "PriorityTableCheckpoint",
    "RateLimiterCheckpoint",
    "ReverbServerConfig",
    "StructuredValue",
    "TensorShapeProto",
]


def _build_pool() -> Any:  # noqa: ANN401, a pool
    """Returns a pool of the engine's messages, without deprecated fields."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_engram.REVERB_DESCRIPTORS).file:
        for message in file.message_type:
            fields = [field for field in message.field if not field.name.startswith("deprecated_")]
            del message.field[:]
            message.field.extend(fields)
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
