"""The addresses of the views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from nicegui import ui

from engram.dashboard.access import AccessCheck
from engram.dashboard.change import change_view
from engram.dashboard.items import items_view
from engram.dashboard.overview import overview
from engram.dashboard.table_view import table_view
from engram.dashboard.training import training_view

if TYPE_CHECKING:
    from engram.dashboard.state import DashboardState

__all__ = ["create_app"]


def create_app(state: DashboardState, storage_secret: str) -> AccessCheck:
    """Returns the ASGI application of a dashboard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/")
    def overview_page() -> None:
        overview(state)

    @ui.page("/table")
    def table_page(table: str, server: int = 0) -> None:
        table_view(state, server, table)

    @ui.page("/items")
    def items_page(table: str, server: int = 0) -> None:
        items_view(state, server, table)

    @ui.page("/training")
    def training_page() -> None:
        training_view(state)

    @ui.page("/change")
    def change_page() -> None:
        change_view(state)

    ui.run_with(app, title="Engram", dark=None, storage_secret=storage_secret, show_welcome_message=False)
    return AccessCheck(app, state.options)
