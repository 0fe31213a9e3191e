"""Programs that examine dm-reverb itself."""

import importlib
import pkgutil

import reverb
from helpers.random_writers import PROGRAMS, outcomes
from helpers.reverb_messages import message_fields
from reverb.server_executable import reverb_config_pb2


def random_writers(address):
    """Returns the outcomes of all random programs of a trajectory writer's calls."""
    client = reverb.Client(address)
    return [outcomes(client, "random", seed) for seed in range(PROGRAMS)]


def config_messages(address):
    """Returns the fields of the messages of a server's configuration."""
    del address
    return message_fields(reverb_config_pb2.ReverbServerConfig.DESCRIPTOR)


def public_names(address):
    """Returns the public definitions of each module, and the public attributes of its classes."""
    del address
    modules = {}
    for module in pkgutil.walk_packages(reverb.__path__, "reverb."):
        if any(word in module.name for word in ("_test", "_pb2", ".cc", "pybind", "_cc_proto", "pip_package")):
            continue
        defined = modules[module.name] = {}
        for name, value in vars(importlib.import_module(module.name)).items():
            if not name.startswith("_") and getattr(value, "__module__", "").partition(".")[0] == "reverb":
                is_class = isinstance(value, type) and "_pb2" not in value.__module__
                defined[name] = [each for each in vars(value) if not each.startswith("_")] if is_class else []
    return modules
