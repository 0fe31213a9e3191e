"""`engram.compat.reverb` has every public name of dm-reverb, except documented omissions and internals."""

import importlib

import pytest
from helpers.reverb_messages import message_fields

pytestmark = pytest.mark.interop

ABSENT = {
    "reverb.platform.default.ensure_tf_install",
    "reverb.platform.default.load_op_library",
    "reverb.platform.default.server_main_command_line_args",
    "reverb.reverb_types.TableInfo.from_serialized_proto",
    "reverb.server_executable.server_main.app_run_main",
}


def test_messages_have_no_field_that_reverb_lacks(programs):
    from engram.compat.reverb.server_executable import reverb_config_pb2  # noqa: PLC0415, needs protobuf

    expected = programs.run("config_messages", "-")
    messages = message_fields(reverb_config_pb2.ReverbServerConfig.DESCRIPTOR)
    assert len(messages) == 19
    for name, reverb_fields in expected.items():
        assert set(messages.get(name, ())) <= set(reverb_fields), name
    assert messages.keys() <= expected.keys()
    message = "deepmind.reverb.PriorityTableCheckpoint"
    assert {name for name, *_ in set(expected[message]) - set(messages[message])} == {"deprecated_items"}


def test_all_public_names_exist(programs):
    absent = set()
    for module, names in programs.run("public_names", "-").items():
        try:
            compat = importlib.import_module(f"engram.compat.{module}")
        except ModuleNotFoundError:
            absent.add(module)
            continue
        for name, attributes in names.items():
            if not hasattr(compat, name):
                absent.add(f"{module}.{name}")
                continue
            absent |= {f"{module}.{name}.{each}" for each in attributes if not hasattr(getattr(compat, name), each)}
    assert absent == ABSENT
