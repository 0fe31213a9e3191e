"""The view Items: looks at single items, without sampling them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from nicegui import run, ui

from engram._text import bytes_text
from engram.dashboard.calls import fetch
from engram.dashboard.frame import chart_options, frame, line, refresh_with, table_url
from engram.dashboard.leaf_display import LeafDisplay, display_leaf, leaves
from engram.dashboard.texts import count_text, number_text

if TYPE_CHECKING:
    from engram import Peek, PeekedItem
    from engram.dashboard.server_poller import ServerPoller
    from engram.dashboard.state import DashboardState

__all__ = ["items_view"]

MAX_BYTES = 64 << 20
"""The data of larger items is not fetched."""

MAX_LEAVES = 100
MAX_SHOWN = 100
MAX_KEY = 2**63 - 1

ORDERS = {
    "newest": "newest",
    "oldest": "oldest",
    "highest_priority": "highest priority",
    "lowest_priority": "lowest priority",
    "most_sampled": "most sampled",
}

COLUMNS = ("key", "priority", "times sampled", "age (inserts)", "size", "episode", "chunk")

FRAME_S = 0.1


def items_view(state: DashboardState, server: int, table: str) -> None:
    """Builds the page."""
    poller = state.server(server)
    with frame(state, f"Items of {table}"):
        if poller is None:
            ui.label(f"This dashboard has no server with the number {server}.")
            return
        with ui.row().classes("items-baseline gap-4"):
            ui.label(f"Items of {table}").classes("text-lg font-medium engram-text")
            ui.link("Table", table_url("/table", server, table))
        refresh_with([poller], lambda: None)
        ItemsPage(poller, table)


class ItemsPage:
    """The items that were found, and the one that is shown."""

    def __init__(self, poller: ServerPoller, table: str) -> None:
        self._poller = poller
        self._table = table
        self._found: dict[str, PeekedItem] = {}
        with ui.row().classes("items-center gap-4"):
            self._order = ui.select(ORDERS, value="newest", label="Order").classes("w-40").mark("order")
            self._number = ui.number("Number", value=10, min=1, max=MAX_SHOWN, format="%.0f").classes("w-24")
            self._key = ui.input("Key").props("dense clearable").classes("w-56").mark("key")
            ui.button("Look", on_click=self._look).mark("look")
        self._note = ui.label("Looking changes nothing: it does not count as sampling.").classes("text-sm engram-text")
        self._note.mark("note")
        shown = [{"name": name, "label": name, "field": name, "align": "left"} for name in COLUMNS]
        self._rows = ui.table(columns=shown, rows=[], row_key="key", selection="single").props(
            'dense flat no-data-label="none" hide-selected-banner'
        )
        self._rows.classes("max-w-full").mark("rows")
        self._rows.on_select(lambda event: self._show(event.selection))
        self._details = ui.column().classes("w-full gap-4")
        ui.timer(0.1, self._look, once=True)

    async def _look(self) -> None:
        keys = None
        if self._key.value:
            text = self._key.value.strip()
            if not text.isdecimal():
                self._note.set_text(f"A key is a whole number, as in the list below; got {text}")
                return
            keys = [min(int(text), MAX_KEY)]
        order, count = self._order.value, max(1, min(MAX_SHOWN, int(self._number.value or 1)))
        peek, error = await fetch(
            self._poller,
            lambda store: store.peek(self._table, count, order=order, keys=keys, max_bytes=MAX_BYTES),
        )
        if peek is None:
            self._note.set_text(error or "")
            return
        self._note.set_text(peek_text(peek))
        self._found = {str(item.key): item for item in peek.items}
        self._rows.rows = [item_row(item) for item in peek.items]
        self._rows.selected = self._rows.rows[:1]
        await self._show(self._rows.selected)

    async def _show(self, selected: list[dict[str, str]]) -> None:
        item = self._found.get(selected[0]["key"]) if selected else None
        displays = [] if item is None else await run.io_bound(item_displays, item)
        if self._details.default_slot.children:
            # A chart that is removed before the browser has drawn it is an error there.
            with suppress(TimeoutError):
                await ui.run_javascript("new Promise(done => setTimeout(done, 300))", timeout=5.0)
        self._details.clear()
        if item is None:
            return
        with self._details:
            info = self._poller.state.infos.get(self._table)
            for text in item_notes(item, None if info is None else info.signature):
                ui.label(text).classes("engram-waits engram-text")
            for each in displays or ():
                _leaf_card(each)


def peek_text(peek: Peek) -> str:
    """Returns how many items were compared."""
    if not peek.items:
        return "No items." if peek.table_size == 0 else "No item with this key."
    of = f"{len(peek.items):,} of {peek.table_size:,} items"
    return f"{of}, chosen from {peek.num_compared:,} at random" if peek.is_approximate else of


def item_row(item: PeekedItem) -> dict[str, str]:
    """Returns the row of an item."""
    return {
        "key": str(item.key),
        "priority": number_text(item.priority),
        "times sampled": count_text(item.times_sampled),
        "age (inserts)": count_text(item.age),
        "size": bytes_text(item.bytes),
        "episode": "several" if item.episode is None else f"{item.episode:016x}",
        "chunk": f"{item.chunk:016x}",
    }


def item_notes(item: PeekedItem, signature: object) -> list[str]:
    """Returns why data is not shown, and what is known of it: `signature` is that of the table, or `None`."""
    if item.error is not None:
        return [item.error]
    if item.data is None:
        notes = [f"This item has {bytes_text(item.bytes)}; the page reads items up to {bytes_text(MAX_BYTES)}."]
        if signature is None:
            return [*notes, "Its table has no signature: without reading the item, dtypes and shapes are not known."]
        specs = list(leaves(signature))
        known = [f"{name}: {np.dtype(spec.dtype)} {_shape_text(spec.shape)}" for name, spec in specs[:MAX_LEAVES]]
        return [*notes, f"By the table's signature, it has {'; '.join(known)}"]
    return []


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return str(["any" if size is None else size for size in shape]).replace("'", "")


def item_displays(item: PeekedItem) -> list[LeafDisplay]:
    """Returns how the leaves of an item are shown."""
    if item.data is None:
        return []
    return [display_leaf(name, value) for name, value in list(leaves(item.data))[:MAX_LEAVES]]


def _leaf_card(leaf: LeafDisplay) -> None:
    with ui.card().classes("w-full gap-1").mark(f"leaf-{leaf.name}"):
        with ui.row().classes("items-baseline gap-2"):
            ui.label(leaf.name).classes("font-medium engram-text")
            ui.label(leaf.summary).classes("text-sm engram-text")
        if leaf.frames:
            _film(leaf.frames)
        elif leaf.curves:
            lines = [
                line(index, [[step, value] for step, value in enumerate(curve)], str(index))
                for index, curve in enumerate(leaf.curves)
            ]
            options = chart_options(lines, x="step", legend=len(lines) > 1)
            if len(leaf.curves[0]) == 1:
                options = _bars([curve[0] for curve in leaf.curves])
            ui.echart(options).classes("h-40 w-full")
        elif leaf.text is not None:
            ui.label(leaf.text).classes("engram-text")


def _bars(values: list[float | None]) -> dict[str, Any]:
    options = chart_options([{"type": "bar", "name": "value", "data": values}], legend=False)
    options["xAxis"] = {"type": "category", "data": [str(index) for index in range(len(values))]}
    return options


def _film(frames: tuple[str, ...]) -> None:
    """A player, and below it a strip of all frames."""
    player = ui.element("img").props(f'src="{frames[0]}" alt="frame"').classes("engram-film")
    if len(frames) == 1:
        return
    with ui.row().classes("items-center gap-2 w-full no-wrap"):
        button = ui.button("Play").props('dense flat no-data-label="none" hide-selected-banner').mark("play")
        slider = ui.slider(min=0, max=len(frames) - 1, value=0).classes("w-64")
        position = ui.label(f"frame 1 of {len(frames)}").classes("text-sm")

    def show(index: int) -> None:
        player.props(f'src="{frames[index]}"')
        position.set_text(f"frame {index + 1} of {len(frames)}")

    def advance() -> None:
        slider.set_value((int(slider.value) + 1) % len(frames))

    def toggle() -> None:
        timer.active = not timer.active
        button.set_text("Pause" if timer.active else "Play")

    slider.on_value_change(lambda event: show(int(event.value)))
    timer = ui.timer(FRAME_S, advance, active=False)
    button.on_click(toggle)
    with ui.element("div").classes("engram-strip"):
        for each in frames:
            ui.element("img").props(f'src="{each}" alt="frame"')
