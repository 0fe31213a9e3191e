"""A dashboard of a real server under load, and a browser to look at it."""

import importlib.util
import os
from pathlib import Path

import pytest
from helpers.dashboard_load import HTML_NAME, Load, fill

from engram import Client, Server, Store, Table, rate_limiters, selectors

IS_INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("nicegui", "playwright"))

collect_ignore_glob = [] if IS_INSTALLED else ["test_*.py"]

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

SCREENSHOTS = Path(os.environ.get("SCREENSHOTS", "site/screenshots"))


@pytest.fixture(scope="session")
def store():
    """The tables that the pages show."""
    limiter = rate_limiters.SampleToInsertRatio(8, min_size=100, error_buffer=1_000)
    tables = [
        Table("replay", max_size=10_000, rate_limiter=limiter, sampler=selectors.Prioritized()),
        Table("frames"),
        Table("heap", sampler=selectors.MaxHeap()),
        Table(HTML_NAME),
    ]
    with Store(tables) as opened:
        fill(opened)
        yield opened


@pytest.fixture(scope="session")
def server(store):
    with Server(store) as opened:
        yield opened


@pytest.fixture(scope="session")
def load(server):
    working = Load(server.address)
    yield working
    working.close()


@pytest.fixture(scope="session")
def dashboard(server, load, tmp_path_factory):
    """A dashboard of the server under load, and of one that does not exist."""
    assert load.is_reading
    from engram.dashboard import DashboardOptions, DashboardServer  # noqa: PLC0415, an extra

    servers = {
        server.address: lambda: Client(server.address, reconnect_timeout=1),
        "127.0.0.1:1": lambda: Client("127.0.0.1:1", reconnect_timeout=1),
    }
    runs = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        (runs / f"seed-{seed}").mkdir()
        rows = [
            f'{{"steps": {step}, "mean_return": {step * (seed + 1)}, "loss": {2 / (step + 100)}}}'
            for step in range(0, 1_000, 100)
        ]
        (runs / f"seed-{seed}" / "progress.jsonl").write_text("\n".join([*rows, '{"steps": 12']))
    with DashboardServer(servers, DashboardOptions(port=0, runs=runs)) as page:
        yield page


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415, not always installed

    expect.set_options(timeout=20_000)

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, dashboard):
    """A tab; the test fails if its console has errors."""
    context = browser.new_context(base_url=dashboard.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    tab = context.new_page()
    # Input before the page is connected would be lost.
    load = tab.goto
    tab.goto = lambda url: (load(url), tab.wait_for_function("window.did_handshake"))
    problems = []
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(dialog.message))
    yield tab
    context.close()
    assert problems == []


@pytest.fixture
def screenshot(page, request):
    """Saves a picture of the page; its name is the first word of the test's name."""

    def save(suffix=""):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        name = request.node.name.removeprefix("test_").split("_", maxsplit=1)[0]
        page.screenshot(path=SCREENSHOTS / f"{name}{suffix}.png", full_page=True)

    return save


@pytest.fixture
def pictures():
    """The directory for pictures."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
