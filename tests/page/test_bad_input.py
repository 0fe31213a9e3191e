"""Servers that disappear or refuse, thousands of tables and huge items: the page states it, and lives."""

import re
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import running_dashboard
from playwright.sync_api import expect

from engram import ArraySpec, Server, Store, Table

pytestmark = pytest.mark.page

GIB = 1 << 30


@contextmanager
def opened(browser, *arguments):
    """Yields a tab of a dashboard that runs in its own process, and checks at the end that the page had no error."""
    with running_dashboard(*arguments) as url:
        context = browser.new_context(base_url=url)
        tab = context.new_page()
        problems = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto("/")
        tab.wait_for_function("window.did_handshake")
        yield tab
        context.close()
        assert problems == []


def memory_of_dashboard(port):
    """Returns the largest memory of the dashboard's process so far, in bytes."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
            status = (directory / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"engram.cli" in command and f"127.0.0.1:{port}".encode() in command:
            return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])
    raise AssertionError("the dashboard does not run")


def test_a_server_that_stops_and_returns_while_it_is_shown(browser):
    store = Store([Table("replay")])
    server = Server(store)
    port = server.port
    with opened(browser, server.address) as tab:
        expect(tab.get_by_text("1 table", exact=True)).to_be_visible()
        gray = tab.locator(".engram-gray")
        expect(gray).to_have_count(0)
        server.close()
        expect(
            tab.get_by_text(re.compile(r"^no reply \(last reply .* ago\): the server .* cannot be reached"))
        ).to_be_visible()
        expect(gray).to_have_count(1)
        expect(tab.get_by_text("replay", exact=True)).to_be_visible()
        tab.get_by_text("replay", exact=True).click()
        expect(tab.get_by_text(re.compile(f"^127.0.0.1:{port} does not reply: "))).to_be_visible()
        with Server(store, port=port):
            expect(tab.get_by_text(re.compile("does not reply"))).to_have_count(0)
            expect(tab.get_by_text("MinSize(min_size=1)")).to_be_visible()
            tab.goto("/")
            expect(tab.get_by_text("1 table", exact=True)).to_be_visible()
            expect(gray).to_have_count(0)
    store.close()


def test_a_wrong_token_is_stated_in_every_view(browser, tmp_path):
    with (
        Store([Table("replay")]) as store,
        Server(store, token="right") as server,
        opened(browser, server.address, "--token", "wrong", "--runs", str(tmp_path)) as tab,
    ):
        text = (
            f"the server at {server.address} rejected the call: wrong token; start the dashboard with the token of this"
        )
        expect(tab.get_by_text(re.compile(f"^no reply: {text} server$"))).to_be_visible()
        for view in ("table", "items"):
            tab.goto(f"/{view}?server=0&table=replay")
            expect(tab.get_by_text(re.compile(text))).to_be_visible()
        tab.goto("/training")
        expect(tab.get_by_text(re.compile("^No runs with a progress.jsonl in /"))).to_be_visible()


def test_an_item_of_a_gibibyte_is_not_read(browser):
    signature = {"x": ArraySpec((GIB,), np.uint8), "more": {"y": ArraySpec((None, 3), np.float32)}}
    with Store([Table("big", signature=signature), Table("any")]) as store, Server(store) as server:
        store.insert(
            {"x": np.zeros(GIB, np.uint8), "more": {"y": np.zeros((5, 3), np.float32)}}, {"big": 1.0, "any": 1.0}
        )
        with opened(browser, server.address) as tab:
            tab.goto("/items?server=0&table=big")
            expect(tab.get_by_text("This item has 1.0 GiB; the page reads items up to 64.0 MiB.")).to_be_visible()
            shapes = "By the table's signature, it has more/y: float32 [any, 3]; x: uint8 [1073741824]"
            expect(tab.get_by_text(shapes)).to_be_visible()
            tab.goto("/items?server=0&table=any")
            expect(tab.get_by_text(re.compile("^Its table has no signature: without reading the item"))).to_be_visible()
            assert memory_of_dashboard(server.port) < GIB // 2


def test_a_table_that_is_dropped_while_its_items_are_shown(browser):
    with Store([Table("short")]) as store, Server(store) as server, opened(browser, server.address) as tab:
        store.insert({"x": 1.0}, {"short": 1.0})
        tab.goto("/items?server=0&table=short")
        expect(tab.get_by_text("1 of 1 items")).to_be_visible()
        store.drop_table("short")
        tab.get_by_role("button", name="Look").click()
        expect(tab.get_by_text(re.compile("^no table `short`"))).to_be_visible()
        expect(tab.get_by_text("1 of 1 items")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ten_thousand_tables(browser):
    with (
        Store([Table(f"table-{index:05}") for index in range(10_000)]) as store,
        Server(store) as server,
        opened(browser, server.address, "--allow-changes") as tab,
    ):
        store.insert({"x": 1.0}, {"table-07654": 1.0})
        started = time.monotonic()
        tab.goto("/")
        status = "10,000 tables, 24 shown; type a part of a name to find the others"
        expect(tab.get_by_text(status, exact=True)).to_be_visible()
        seconds = {"open": time.monotonic() - started}
        expect(tab.get_by_text(re.compile(r"^table-\d{5}$"))).to_have_count(24)
        started = time.monotonic()
        tab.get_by_label("Find a table").fill("07654")
        expect(tab.get_by_text(re.compile(r"^table-\d{5}$"))).to_have_count(1)
        seconds["find"] = time.monotonic() - started
        expect(tab.get_by_text(re.compile(r"^1 of .* items, "))).to_be_visible()
        started = time.monotonic()
        tab.get_by_text("table-07654", exact=True).click()
        expect(tab.get_by_text(re.compile(r"^1 of .* items, .* in total"))).to_be_visible()
        seconds["table"] = time.monotonic() - started
        tab.goto("/change")
        tab.wait_for_function("window.did_handshake")
        started = time.monotonic()
        tab.get_by_label("Table").fill("07654")
        expect(tab.get_by_role("option", name="table-07654")).to_be_visible()
        seconds["choose"] = time.monotonic() - started
        print("seconds:", {name: round(each, 2) for name, each in seconds.items()})  # noqa: T201, the figures
        assert max(seconds.values()) < 10
