"""Who may open the dashboard and change tables: the command `engram dashboard` in a process of its own."""

import re
import urllib.error
import urllib.request

import pytest
from helpers.commands import running_dashboard
from helpers.support import raises, wait_until
from playwright.sync_api import expect

from engram import Table
from engram.dashboard import DashboardOptions
from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.page


def status(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_page_that_others_can_reach_needs_a_token():
    text = "`host` is 0.0.0.0, which other machines can reach; set `page_token`, listen on 127.0.0.1, or set `insecure`"
    with raises(InvalidArgumentError, text):
        DashboardOptions(host="0.0.0.0")
    with raises(InvalidArgumentError, "`page_token` must not be empty; omit it for a page without a token"):
        DashboardOptions(page_token="")
    assert "secret" not in repr(DashboardOptions(host="0.0.0.0", page_token="secret"))


def test_a_token_is_required_and_is_not_in_the_address(browser, server):
    with running_dashboard(server.address, token="correct horse") as url:
        assert status(url) == 200  # the form
        assert status(f"{url}/table?table=replay") == 401
        assert status(f"{url}/table?table=replay", Authorization="Bearer wrong") == 401
        assert status(f"{url}/table?table=replay", Authorization="Bearer correct horse") == 200
        tab = browser.new_page()
        tab.goto(url)
        tab.get_by_label("Token of this page").fill("wrong")
        tab.get_by_role("button", name="Open").click()
        expect(tab.get_by_text("This is not the token of this page.")).to_be_visible()
        tab.get_by_label("Token of this page").fill("correct horse")
        tab.get_by_role("button", name="Open").click()
        expect(tab.get_by_text("replay", exact=True)).to_be_visible()
        assert "correct" not in tab.url
        tab.close()


def test_other_web_sites_cannot_read_a_page_of_this_machine(dashboard):
    assert status(dashboard.url) == 200
    assert status(dashboard.url, Host="evil.example") == 403
    assert status(dashboard.url, Origin="http://evil.example") == 403
    assert status(dashboard.url, Host=f"localhost:{dashboard.port}") == 200


def test_changes_are_confirmed_twice(browser, server, store):
    store.create_table(Table("victim"))
    store.insert({"x": 1}, {"victim": 1.0})
    with running_dashboard(server.address, "--allow-changes") as url:
        tab = browser.new_page()
        tab.goto(f"{url}/change")
        wait_until(lambda: tab.get_by_label("Table").count() > 0)
        tab.wait_for_timeout(2_000)
        tab.get_by_label("Table").click()
        tab.get_by_role("option", name="victim").click()
        tab.get_by_role("button", name="Reset table").click()
        tab.get_by_role("button", name="Yes").click()
        tab.get_by_label("Name").fill("wrong")
        tab.get_by_role("button", name="Confirm").click()
        expect(tab.get_by_text("Nothing was changed.")).to_be_visible()
        assert store.info()["victim"].size == 1
        tab.get_by_role("button", name="Reset table").click()
        tab.get_by_role("button", name="Yes").click()
        tab.get_by_label("Name").fill("victim")
        tab.get_by_role("button", name="Confirm").click()
        expect(tab.get_by_text(re.compile("^Done: reset victim on"))).to_be_visible()
        assert store.info()["victim"].size == 0
        tab.get_by_role("button", name="Write checkpoint").click()
        tab.get_by_role("button", name="Yes").click()
        tab.get_by_label("Name").fill(server.address)
        tab.get_by_role("button", name="Confirm").click()
        expect(tab.get_by_text(re.compile("^this store is in memory only, so it has no checkpoints"))).to_be_visible()
        tab.close()
    store.drop_table("victim")
