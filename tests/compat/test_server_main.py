"""The `reverb_server` command and its text format."""

import re
import signal
import subprocess
import sys

import pytest
from support import raises

from engram.compat import reverb
from engram.compat.reverb.server_executable import server_main
from engram.compat.reverb.server_executable._text_format import parse

LIMITER = "rate_limiter { samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 3 }"
NUMBERS = "samples_per_insert, min_diff, max_diff, min_size_to_sample"
QUEUE = f"tables {{ table_name: 'q' sampler {{ fifo: true }} remover {{ fifo: true }} max_size: 3 {LIMITER} }}"


def test_text_format():
    text = r"""
        # a comment
        a: 1, b { c: "x\"" 'y' d: -1.5e3; } b: < c: true > e: [1, 2] f: -inf g: 2.5f h: 0x10 i {}
    """
    assert parse(text) == [
        ("a", 1),
        ("b", [("c", 'x"y'), ("d", -1500.0)]),
        ("b", [("c", True)]),
        ("e", 1),
        ("e", 2),
        ("f", float("-inf")),
        ("g", 2.5),
        ("h", 16),
        ("i", []),
    ]
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "line 1, column 2: expected `:` or `{` after `a`; got 'the end'"),
        ("a:", "line 1, column 3: expected a value; got 'the end'"),
        ("a: b", "line 1, column 4: expected a value; got 'b'"),
        ("a {\n  b: 1", "line 2, column 7: expected the name of a field; got 'the end'"),
        ("a: 1 }", "line 1, column 6: expected the name of a field; got '}'"),
        ("a: [1 2]", "line 1, column 7: expected `,` or `]`; got '2]'"),
        ("a: 'x", 'line 1, column 4: expected a name, a value or a bracket; got "\'x"'),
        ("a: $", "line 1, column 4: expected a name, a value or a bracket; got '$'"),
    ],
)
def test_invalid_text_format(text, message):
    with raises(ValueError, message):
        parse(text)


def test_tables():
    text = """
        port: 7
        tables: {
          table_name: "a" max_size: 5 max_times_sampled: 2
          sampler: { prioritized: { priority_exponent: 0.5 } }
          remover: { heap: { min_heap: true } is_deterministic: true }
          rate_limiter: { samples_per_insert: 1.5 min_size_to_sample: 2 min_diff: -4 max_diff: 8 }
        }
        tables { table_name: "b" max_size: 5 sampler { uniform: true } remover { lifo: true } %s }
    """
    fields = parse(text % LIMITER)
    assert server_main.port_of(fields) == 7
    first, second = [table.info for table in server_main.tables_of(fields)]
    assert (first.name, first.max_size, first.max_times_sampled) == ("a", 5, 2)
    assert first.sampler_options.prioritized.priority_exponent == 0.5
    assert first.remover_options.heap.min_heap
    limiter = first.rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (1.5, 2)
    assert (limiter.min_diff, limiter.max_diff) == (-4.0, 8.0)
    assert (second.sampler_options.uniform, second.remover_options.lifo) == (True, True)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("tables { table_name: 'q' max_size: 3 }", ValueError, "table `q`: no `rate_limiter`"),
        (
            f"tables {{ table_name: 'q' {LIMITER} }}",
            NotImplementedError,
            "table `q`: sampler: no selector is set; set one of fifo, lifo, uniform, prioritized, heap",
        ),
        (
            QUEUE.replace("fifo: true", "fifo: false", 1),
            ValueError,
            "table `q`: sampler: `fifo` must be true; got False",
        ),
        (
            QUEUE.replace("fifo: true", "fifo: true uniform: true", 1),
            ValueError,
            "table `q`: sampler: fifo and uniform exclude each other",
        ),
        (
            QUEUE.replace("max_size: 3", "max_size: 'x'"),
            ValueError,
            "tables: `max_size` must be an integer; got 'x'",
        ),
        (QUEUE.replace("max_size: 3", ""), ValueError, "max_size (0) must be a positive integer"),
        (QUEUE.replace("'q'", "''"), ValueError, "name must be nonempty"),
        (QUEUE.replace("'q'", "3"), ValueError, "tables: `table_name` must be text; got 3"),
        (
            QUEUE.replace("max_diff: 3", "max_diff: true"),
            ValueError,
            "table `q`: rate_limiter: `max_diff` must be a number; got True",
        ),
        (
            QUEUE.replace("max_diff: 3", "max: 3"),
            ValueError,
            f"table `q`: rate_limiter: unknown field `max`; known fields: {NUMBERS}",
        ),
        (QUEUE.replace("max_size: 3", "max_size: 3 max_size: 4"), ValueError, "tables: `max_size` is set 2 times"),
        ("tables: 3", ValueError, "tables: expected { ... }; got 3"),
    ],
)
def test_tables_refused(text, error, message):
    with raises(error, message):
        server_main.tables_of(parse(text))


def test_configs_refused(capsys):
    with raises(ValueError, "config: unknown field `ports`; known fields: port, tables"):
        server_main.port_of(parse("ports: 3"))
    with raises(ValueError, "config: `port` is set 2 times"):
        server_main.port_of(parse("port: 3 port: 4"))
    for arguments, code in (([], 2), (["--config", "tables {"], 1), (["--config", ""], 1)):
        with pytest.raises(SystemExit) as ended:
            server_main.main(arguments)
        assert ended.value.code == code
    errors = capsys.readouterr().err
    assert "required: --config" in errors
    assert "error: line 1, column 9: expected the name of a field; got 'the end'\n" in errors
    assert "error: At least one table must be provided\n" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(number):
    command = [sys.executable, "-m", "engram.compat.reverb.server_executable.server_main", "--config", QUEUE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = re.fullmatch(r"serving q on port (\d+)\n", process.stderr.readline())[1]
            client = reverb.Client(f"localhost:{port}")
            client.insert([1], {"q": 1.0})
            assert client.server_info()["q"].current_size == 1
            process.send_signal(number)
            assert process.communicate(timeout=20) == (None, "")
            assert process.returncode == 0
        finally:
            process.kill()
