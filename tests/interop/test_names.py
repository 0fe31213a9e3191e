"""`engram.compat.reverb` has every public name of dm-reverb, except documented omissions and internals."""

import importlib

import pytest

pytestmark = pytest.mark.interop

ABSENT = {
    "reverb.platform.default.ensure_tf_install",
    "reverb.platform.default.load_op_library",
    "reverb.platform.default.server_main_command_line_args",
    "reverb.reverb_types.TableInfo.from_serialized_proto",
    "reverb.server_executable.server_from_proto",
    "reverb.server_executable.server_main.app_run_main",
}


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
