"""The options of `engram demo` and `engram serve` that open a page: what they need, and what excludes them."""

import sys

import pytest


@pytest.mark.parametrize(
    ("command", "feature"),
    [
        (["dashboard"], "`engram dashboard`"),
        (["serve", "--port", "0", "--dashboard-port", "0"], "`engram serve --dashboard-port`"),
        pytest.param(["demo", "--dashboard"], "`engram demo --dashboard`", marks=pytest.mark.jax),
    ],
)
def test_a_missing_package_names_the_extra(run, monkeypatch, tmp_path, command, feature):
    monkeypatch.chdir(tmp_path)
    for module in [name for name in sys.modules if name.startswith("engram.dashboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "nicegui", None)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = run(*command)
    text = f"{feature} needs NiceGUI, which is not installed; install it with `pip install 'engram-replay[dashboard]'`"
    assert (result.exit_code, result.stderr) == (1, f"error: {text}\n")


def test_the_port_of_the_demos_page_needs_the_page(run):
    result = run("demo", "--dashboard-port", 0)
    text = "`--dashboard-port` needs --dashboard; add it, or omit --dashboard-port"
    assert (result.exit_code, result.stderr) == (1, f"error: {text}\n")


def test_a_page_cannot_bypass_the_certificates_of_clients(run, tmp_path):
    result = run("serve", "--port", 0, "--dashboard-port", 0, "--client-ca", tmp_path / "ca.pem")
    text = (
        "--dashboard-port with --client-ca needs --token: the page cannot check certificates, so it would be open to "
        "all programs of this machine"
    )
    assert (result.exit_code, result.stderr) == (1, f"error: {text}\n")


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_ports_are_bounded(run, command):
    result = run(command, "--dashboard-port", 65_536)
    assert result.exit_code == 2
    assert "Input should be less than or equal to 65535" in " ".join(result.stderr.replace("│", " ").split())
