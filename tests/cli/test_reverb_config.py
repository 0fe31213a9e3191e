"""`engram serve --reverb-config`: tables in the text format of Reverb's server configurations."""

import errno
import os
import signal
import sys

import numpy as np
import pytest

import engram
from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec

TABLE = """
    tables {
      table_name: "q"
      sampler { fifo: true }
      remover { fifo: true }
      max_size: 3
      max_times_sampled: 1
      rate_limiter { samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 3 }
      signature { dict_value { fields { key: "x" value { tensor_spec_value {
        name: "n" shape { dim { size: 2 } } dtype: DT_FLOAT
      } } } } }
    }
"""


@pytest.fixture
def config(tmp_path):
    """Returns `config(text)`, which writes a configuration file and returns its path."""
    pytest.importorskip("google.protobuf", reason="the extra `protobuf`")

    def write(text):
        file = tmp_path / "server.textproto"
        file.write_text(text)
        return file

    return write


def test_tables_have_the_options_and_signatures_of_the_file(serve, config):
    server, line, address = serve("--reverb-config", config(TABLE))
    assert line.startswith("serving q at ")
    client = reverb.Client(address)
    info = client.server_info()["q"]
    assert (info.max_size, info.max_times_sampled) == (3, 1)
    assert info.signature == {"x": TensorSpec([2], np.float32, "n")}
    client.insert({"x": np.ones(2, np.float32)}, {"q": 1.0})
    assert engram.Client(address).sample("q", 1, timeout=10).data[0].tolist() == [[[1.0, 1.0]]]
    assert server.end(signal.SIGTERM) == (0, "stopping\n", "")


def test_the_port_is_that_of_the_file_unless_an_option_gives_one(run, serve, config):
    with engram.Server([]) as other:
        file = config(f"port: {other.port} {TABLE}")
        text = f"error: --port {other.port} is already in use; choose another, or 0 for any free port\n"
        result = run("serve", "--reverb-config", file)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", text)
        _, _, address = serve("--reverb-config", file)  # with --port 0
        assert engram.Client(address).tables == ["q"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("port: {}", "cannot read tables from `FILE`: line 1, column 7: 'port: {}': Couldn't parse integer: {"),
        (
            TABLE.replace("max_size: 3", ""),
            "cannot read tables from `FILE`: table `q`: max_size (0) must be a positive integer",
        ),
        ("port: 3", "`FILE` has no tables; each table is a field `tables { ... }`"),
    ],
)
def test_bad_files_are_rejected(run, config, text, reason):
    file = config(text)
    result = run("serve", "--port", 0, "--reverb-config", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {reason.replace('FILE', str(file))}\n"


def test_a_missing_file_is_reported(run):
    result = run("serve", "--reverb-config", "missing.textproto")
    text = f"error: cannot read tables from `missing.textproto`: {os.strerror(errno.ENOENT)}\n"
    assert (result.exit_code, result.stderr) == (1, text)


def test_a_toml_file_and_a_reverb_configuration_exclude_each_other(run, config):
    result = run("serve", "--tables", "tables.toml", "--reverb-config", config(TABLE))
    text = "error: --tables and --reverb-config must not be given together\n"
    assert (result.exit_code, result.stderr) == (1, text)


def test_an_error_names_the_extra_if_protobuf_is_missing(run, config, monkeypatch):
    file = config(TABLE)
    for name in [name for name in sys.modules if name.startswith("engram.compat.reverb.server_executable")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    result = run("serve", "--port", 0, "--reverb-config", file)
    text = (
        "error: a server's configuration in protobuf's text format needs protobuf, which is not installed; "
        "install it with `pip install 'engram-replay[protobuf]'`\n"
    )
    assert (result.exit_code, result.stderr) == (1, text)
