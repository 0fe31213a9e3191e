"""Pictures of all views in light and dark, on wide and narrow screens; no view is wider than the screen."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.page

VIEWS = {
    "overview": "/",
    "table": "/table?server=0&table=replay",
    "items": "/items?server=0&table=frames",
    "training": "/training",
}


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("view", VIEWS)
def test_pictures(page, pictures, view, scheme):
    page.emulate_media(color_scheme=scheme)
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(VIEWS[view])
        expect(page.get_by_text("Engram", exact=True)).to_be_visible()
        expect(page.locator("canvas").first).to_be_visible()
        page.wait_for_timeout(2_000)
        page.screenshot(path=pictures / f"{view}-{scheme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.body.classList.contains('body--dark')") == (scheme == "dark")
