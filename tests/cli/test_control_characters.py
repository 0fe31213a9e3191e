r"""Names from a server or a directory do not control the terminal: escape sequences are shown, as `\x1b`."""

import ast
import json
import re
from pathlib import Path

import pytest

import engram
import engram.cli
from engram.errors import UnknownTableError

NAME = "\x1b[31mred\x07\nsecond line\u202e"
SHOWN = r"\x1b[31mred\x07\nsecond line\u202e"


def check(result, status=0):
    """Checks that the output has the name with escape sequences, and no control characters except line breaks."""
    assert result.exit_code == status, result.output
    control = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
    assert control.search(result.stdout + result.stderr) is None, result.output
    assert SHOWN in result.stdout + result.stderr


@pytest.fixture
def server():
    with engram.Server([engram.Table(NAME)]) as server:
        yield server


@pytest.fixture
def path(tmp_path):
    with engram.Store.open(tmp_path / "store", [engram.Table(NAME)]) as store:
        store.insert({"x": 1}, {NAME: 1.0})
        store.checkpoint()
    return tmp_path / "store"


def test_info_escapes_names_except_in_json(run, server):
    check(run("info", server.address))
    assert list(json.loads(run("info", server.address, "--json").stdout)) == [NAME]


def test_top_escapes_names(run, server):
    check(run("top", server.address, "--count", 1))


def test_inspect_escapes_names_of_tables_and_files(run, path):
    (path / "\x1b[2J").touch()
    check(run("inspect", path))


def test_serve_escapes_names(spawn, path):
    server = spawn("serve", "--path", path, "--port", 0)
    line = server.line()
    assert line.startswith(f"serving {SHOWN} at "), line


def test_errors_of_commands_escape_names(run, tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text(f"[{json.dumps(NAME)}]\nmax_size = 0\n")
    check(run("serve", "--tables", file), 1)


def test_errors_of_the_library_escape_names(server):
    client = engram.Client(server.address)
    for store in (server.store, client):
        for missing in (NAME + "x", "x"):
            with pytest.raises(UnknownTableError) as caught:
                store.sample(missing, 1)
            assert str(caught.value).isprintable()
            assert f"known tables: `{SHOWN}`" in str(caught.value)


def test_the_reason_why_a_table_blocks_escapes_names(server):
    info = engram.Client(server.address).info()[NAME]
    assert info.name == NAME
    assert info.blocked.isprintable()


def prints_unescaped(node):
    """True for calls of `print` and `add_task` with a composed text, parts of which may not be escaped."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    shown = node.args[0]
    is_str_call = isinstance(shown, ast.Call) and isinstance(shown.func, ast.Name) and shown.func.id == "str"
    return node.func.attr in ("print", "add_task") and (isinstance(shown, ast.JoinedStr | ast.BinOp) or is_str_call)


@pytest.mark.parametrize("line", ['console.print(f"path {path}")', "bar.add_task(str(path))", 'console.print("a" + b)'])
def test_prints_unescaped_finds_composed_text(line):
    assert any(map(prints_unescaped, ast.walk(ast.parse(line))))


def test_commands_print_composed_text_only_through_the_module_output():
    for file in Path(engram.cli.__file__).parent.glob("*.py"):
        if file.name == "output.py":
            continue
        source = file.read_text(encoding="utf-8")
        for line in source.splitlines():
            assert "import Text" not in line, (file, line)
            assert "typer.echo(" not in line or "json.dumps(" in line or "__version__" in line, (file, line)
        assert [node.lineno for node in ast.walk(ast.parse(source)) if prints_unescaped(node)] == [], file
