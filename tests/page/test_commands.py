"""`engram demo --dashboard` and `engram serve --dashboard-port`: the commands in other processes, in a browser."""

import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
from helpers.support import wait_until
from playwright.sync_api import expect

from engram import Client

pytestmark = pytest.mark.page

CURVES = """metric => {
    const element = document.querySelector(`[data-metric=${metric}]`);
    return getElement(Number(element.id.slice(1))).chart.getOption().series.map(each => [each.name, each.data.length]);
}"""
"""Names and numbers of points of the curves that a chart of the view Training shows."""


@pytest.fixture
def tab(browser):
    """A tab; the test fails if its console has errors."""
    opened = browser.new_page()
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    opened.close()
    assert problems == []


def address_in(stream, pattern):
    """Reads lines until one has an address of a page; returns it."""
    for line in stream:
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError("the command ended without an address")


def is_open(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


@pytest.mark.jax
def test_the_demo_shows_its_training_while_it_trains(spawn, tab, tmp_path):
    demo = spawn("demo", "--dashboard", "--dashboard-port", 0, "--headless", "--target", 501, "--out", tmp_path)
    url = address_in(demo.process.stderr, r"^dashboard: (http://127\.0\.0\.1:\d+)/training$")
    tab.goto(f"{url}/training")
    tab.wait_for_function("window.did_handshake")
    for metric in ("mean_return", "loss", "steps_per_s", "inserts_per_s", "samples_per_s"):
        wait_until(lambda metric=metric: tab.evaluate(CURVES, metric) == [["seed-0", pytest.approx(9, abs=8)]], 60)
    tab.goto(url)
    expect(tab.get_by_text("replay", exact=True)).to_be_visible()
    expect(tab.get_by_text(re.compile(r"items, .*iB$"))).to_be_visible()
    status, stdout, stderr = demo.end(signal.SIGINT)
    assert status == 130, stderr
    assert stdout.startswith("interrupted after")
    assert "Traceback" not in stderr
    assert not is_open(url)


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.timeout(300)
def test_the_page_of_the_demo_stays_open_with_the_curves_of_all_runs(spawn, tab, tmp_path, pictures):
    options = ["--headless", "--target", 501, "--max-steps", 6_000, "--seeds", 2]
    demo = spawn("demo", "--dashboard", "--dashboard-port", 0, *options, cwd=tmp_path)
    url = address_in(demo.process.stderr, r"^the dashboard stays open at (http://.*)/training; Ctrl-C ends it$")
    tab.goto(f"{url}/training")
    tab.wait_for_function("window.did_handshake")
    wait_until(lambda: [name for name, _ in tab.evaluate(CURVES, "loss")] == ["seed-0", "seed-1"], 30)
    assert all(count > 0 for _, count in tab.evaluate(CURVES, "loss"))
    tab.wait_for_timeout(2_000)
    tab.screenshot(path=pictures / "training.png", full_page=True)
    tab.goto(url)
    expect(tab.get_by_text(re.compile("no run is training now; the view Training has the curves"))).to_be_visible()
    status, stdout, stderr = demo.end(signal.SIGINT)
    assert (status, "Traceback" in stderr) == (0, False), stderr
    assert "solved 0 of 2 seeds" in stdout
    assert not is_open(url)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_shows_its_own_page_until_a_signal_ends_both(spawn, tab, number):
    server = spawn("serve", "--port", 0, "--dashboard-port", 0)
    address = address_in(server.process.stdout, r" at (\S+);")
    url = address_in(server.process.stdout, r"^dashboard at (http://127\.0\.0\.1:\d+)$")
    with Client(address) as client:
        client.insert({"x": 1.0}, {"replay": 1.0})
        tab.goto(url)
        expect(tab.get_by_text(re.compile("^1 of .* items, .* B$"))).to_be_visible()
        expect(tab.get_by_text(address, exact=True)).to_be_visible()
    assert server.end(number) == (0, "stopping\n", "")
    assert not is_open(url)


def test_the_page_of_a_server_requires_its_token(spawn, browser):
    server = spawn("serve", "--port", 0, "--dashboard-port", 0, "--token", "correct-horse")
    url = address_in(server.process.stdout, r"^dashboard at (\S+)$")
    tab = browser.new_page()
    tab.goto(url)
    expect(tab.get_by_text("replay", exact=True)).to_have_count(0)
    tab.get_by_label("Token of this page").fill("correct-horse")
    tab.get_by_role("button", name="Open").click()
    expect(tab.get_by_text("replay", exact=True)).to_be_visible()
    tab.close()
    assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["serve", "--port", 0], "--dashboard-port"),
        (["demo", "--dashboard", "--headless"], "--dashboard-port"),
        (["dashboard"], "--port"),
    ],
)
def test_a_port_in_use_is_named(spawn, command, option):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, _, stderr = spawn(*command, option, port).end()
    text = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port, or 0 for any free one"
    assert (status, stderr) == (1, f"error: {option}: {text}\n")


def test_mistakes_with_the_token_and_the_host_name_the_options(spawn):
    status, _, stderr = spawn("dashboard", "--host", "0.0.0.0", "--token", "of the servers").end()
    text = "which other machines can reach; set --page-token, listen on 127.0.0.1, or set --insecure"
    assert (status, stderr) == (1, f"error: --host is 0.0.0.0, {text}\n")
    status, _, stderr = spawn("dashboard", "--host", "192.0.2.1", "--insecure").end()
    text = "must be a name or an address of this machine; got '192.0.2.1': Cannot assign requested address"
    assert (status, stderr) == (1, f"error: --host {text}\n")
