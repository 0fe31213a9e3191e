"""The `reverb_server` command."""

import re
import signal
import subprocess
import sys

import pytest

from engram.compat import reverb
from engram.compat.reverb.server_executable import server_main

pytest.importorskip("google.protobuf", reason="the extra `protobuf`")

QUEUE = """
    tables {
      table_name: "q"
      sampler { fifo: true }
      remover { fifo: true }
      max_size: 3
      rate_limiter { samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 3 }
      signature { tensor_spec_value { dtype: DT_INT64 } }
    }
"""


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "required: --config"),
        (["--config", "tables {"], 1, 'error: line 1, column 8: Expected "}"\n'),
        (["--config", ""], 1, "error: At least one table must be provided\n"),
        (["--config", "tables { table_name: 'q' }"], 1, "error: table `q`: sampler: no selector is set; set one of"),
        (["--config", f"port: 70000 {QUEUE}"], 1, "error: `port` must be at most 65535; got 70000\n"),
    ],
)
def test_invalid_configs_are_rejected(capsys, arguments, status, text):
    with pytest.raises(SystemExit) as ended:
        server_main.main(arguments)
    assert ended.value.code == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(number):
    command = [sys.executable, "-m", "engram.compat.reverb.server_executable.server_main", "--config", QUEUE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = re.fullmatch(r"serving q on port (\d+)\n", process.stderr.readline())[1]
            client = reverb.Client(f"localhost:{port}")
            client.insert(1, {"q": 1.0})
            info = client.server_info()["q"]
            assert (info.current_size, info.signature.dtype) == (1, int)
            process.send_signal(number)
            assert process.communicate(timeout=20) == (None, "")
            assert process.returncode == 0
        finally:
            process.kill()
