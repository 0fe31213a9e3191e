"""Without an optional package, its features raise an ImportError that names the extra to install."""

import importlib
import sys
from types import ModuleType

import pytest
from helpers.support import raises

from engram._extras import importing_extra


@pytest.fixture
def hide(monkeypatch):
    """Hides a package and unloads modules, given by prefixes, that import it: `hide("torch", "engram.data.torch")`."""

    def hide(package, *modules):
        for name in list(sys.modules):
            if name == package or name.startswith((f"{package}.", *modules)):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize(
    ("module", "package", "text"),
    [
        ("torch", "torch", "engram.data.torch needs PyTorch, which is not installed"),
        ("jax", "jax", "engram.data.jax needs JAX, which is not installed"),
        ("tensorflow", "tensorflow", "engram.data.tensorflow needs TensorFlow, which is not installed"),
    ],
)
def test_datasets_name_the_extra_of_their_framework(hide, module, package, text):
    hide(package, f"engram.data.{module}", "engram.data._tf_")
    with raises(ImportError, f"{text}; install it with `pip install 'engram-replay[{module}]'`"):
        importlib.import_module(f"engram.data.{module}")


@pytest.mark.parametrize("module", ["utils.data_buffer", "experience_replayers", "tensor_specs"])
def test_the_buffers_of_alf_name_their_extra(hide, module):
    hide("torch", "engram.compat.alf")
    text = (
        "engram.compat.alf needs PyTorch, which is not installed; install it with `pip install 'engram-replay[torch]'`"
    )
    with raises(ModuleNotFoundError, text):
        importlib.import_module(f"engram.compat.alf.{module}")
    alf = importlib.import_module("engram.compat.alf")
    with raises(ModuleNotFoundError, text):
        _ = alf.ReplayBuffer


@pytest.mark.parametrize(
    ("module", "package", "text"),
    [
        ("engram.envs", "dm_env", "engram.envs needs dm_env"),
        ("engram.envs.gymnasium", "gymnasium", "engram.envs.gymnasium needs Gymnasium"),
        ("engram.agents.ftw.losses.vtrace", "jax", "engram.agents needs JAX"),
    ],
)
def test_environments_and_losses_name_their_extra(hide, module, package, text):
    hide(package, "engram.envs", "engram.agents")
    with raises(
        ModuleNotFoundError, f"{text}, which is not installed; install it with `pip install 'engram-replay[agents]'`"
    ):
        importlib.import_module(module)


@pytest.mark.parametrize(
    ("name", "package", "text"),
    [
        ("train", "gymnasium", "engram.agents needs Gymnasium, which is not installed"),
        ("Actor", "threadpoolctl", "engram.agents needs threadpoolctl, which is not installed"),
    ],
)
def test_agents_name_their_extra(hide, name, package, text):
    hide(package, "engram.agents")
    dqn = importlib.import_module("engram.agents.dqn")
    with raises(ModuleNotFoundError, f"{text}; install it with `pip install 'engram-replay[agents]'`") as caught:
        getattr(dqn, name)
    assert caught.value.name == package


def test_shards_on_ray_name_their_extra(hide):
    hide("ray", "engram.distributed")
    text = "engram.distributed needs Ray, which is not installed; install it with `pip install 'engram-replay[ray]'`"
    with raises(ModuleNotFoundError, text):
        importlib.import_module("engram.distributed")


def test_an_old_ray_is_rejected(hide, monkeypatch):
    hide("ray", "engram.distributed")
    old = ModuleType("ray")
    old.__version__ = "2.9.3"
    monkeypatch.setitem(sys.modules, "ray", old)
    text = (
        "engram.distributed needs Ray 2.40 or newer; found 2.9.3; install it with "
        "`pip install --upgrade 'engram-replay[ray]'`"
    )
    with raises(ImportError, text):
        importlib.import_module("engram.distributed")


def test_server_configurations_name_their_extra(hide):
    hide("google.protobuf", "engram.compat.reverb.server_executable")
    server_from_proto = importlib.import_module("engram.compat.reverb.server_executable.server_from_proto")
    assert server_from_proto.tables_from_proto([]) == []
    needs = "needs protobuf, which is not installed; install it with `pip install 'engram-replay[protobuf]'`"
    with raises(ModuleNotFoundError, f"a server's configuration in protobuf's text format {needs}"):
        server_from_proto.parse_config("")
    messages = "engram.compat.reverb.server_executable.reverb_config_pb2"
    with raises(ModuleNotFoundError, f"{messages} {needs}"):
        importlib.import_module(messages)


def test_other_import_errors_are_unchanged():
    with raises(ModuleNotFoundError, "No module named 'no_package_of_an_extra'"), importing_extra("torch", "a feature"):
        importlib.import_module("no_package_of_an_extra")


def test_the_dashboard_names_its_extra(hide):
    dashboard = importlib.import_module("engram.dashboard")
    hide("nicegui", "engram.dashboard.pages")
    hide("uvicorn")
    text = (
        "the dashboard needs NiceGUI, which is not installed; install it with `pip install 'engram-replay[dashboard]'`"
    )
    with raises(ModuleNotFoundError, text):
        dashboard.DashboardServer({})
