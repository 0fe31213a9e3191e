"""Who may open the page: checks the host, the origin and the token of each request before the page sees it."""

import hmac
import secrets
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from engram.dashboard.options import DashboardOptions

__all__ = ["AccessCheck"]

COOKIE = "engram-dashboard"
MAX_FORM_BYTES = 10_000
MAX_SESSIONS = 10_000

LOGIN_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Engram</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>body{font:16px system-ui;max-width:22em;margin:15vh auto;padding:0 1em}
input,button{font:inherit;padding:.5em;width:100%;box-sizing:border-box;margin:.3em 0}</style></head>
<body><h1>Engram</h1><form method="post" action="/login"><label for="token">Token of this page</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus>
<button>Open</button></form><p role="alert">MESSAGE</p></body></html>"""


class AccessCheck:
    """An ASGI application that passes only permitted requests to another one.

    A loopback page accepts only requests for a loopback name, so that no other web site can read it through a name of
    its own. Web sockets must have the page's own origin. With a token, a browser first posts it to `/login`, and gets a
    cookie; programs send it as `Authorization: Bearer`.
    """

    def __init__(self, app: Any, options: DashboardOptions) -> None:  # noqa: ANN401, an ASGI application
        self._app = app
        self._options = options
        self._sessions: dict[str, None] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401, ASGI
        """Handles a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers)
        if refusal:
            await _refuse(scope, send, 403, refusal)
        elif self._options.page_token is None or self._is_authorized(headers):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/login" and scope["method"] == "POST":
            await self._log_in(receive, send)
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
            await _send(send, 200, LOGIN_PAGE.replace("MESSAGE", ""), "text/html")
        else:
            await _refuse(scope, send, 401, "token required: open the start page of this dashboard, and enter it there")

    def _refusal(self, headers: Mapping[str, str]) -> str | None:
        host = headers.get("host", "")
        if self._options.is_loopback and _name(host) not in {"localhost", "127.0.0.1", "::1", self._options.host}:
            return "this dashboard listens on a loopback address only; open it as http://localhost"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "requests from other web sites are refused"
        return None

    def _is_authorized(self, headers: Mapping[str, str]) -> bool:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        if cookie is not None and cookie.value in self._sessions:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(token)

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), (self._options.page_token or "").encode())

    async def _log_in(self, receive: Any, send: Any) -> None:  # noqa: ANN401, ASGI
        body = b""
        more = True
        while more and len(body) <= MAX_FORM_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        values = parse_qs(body[:MAX_FORM_BYTES].decode("utf-8", "replace")).get("token", [""])
        if not self._is_token(values[0]):
            page = LOGIN_PAGE.replace("MESSAGE", "This is not the token of this page.")
            await _send(send, 401, page, "text/html")
            return
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/"
        await _send(send, 303, "", "text/plain", [(b"location", b"/"), (b"set-cookie", cookie.encode())])


def _name(host: str) -> str:
    """The name in a `Host` header, without the port."""
    return urlsplit(f"//{host}").hostname or ""


async def _refuse(scope: Any, send: Any, status: int, text: str) -> None:  # noqa: ANN401, ASGI
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text[:100]})
    else:
        await _send(send, status, text, "text/plain")


async def _send(
    send: Any,  # noqa: ANN401, ASGI
    status: int,
    text: str,
    kind: str,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    content_type = (b"content-type", f"{kind}; charset=utf-8".encode())
    no_store = (b"cache-control", b"no-store")
    await send({"type": "http.response.start", "status": status, "headers": [content_type, no_store, *(headers or [])]})
    await send({"type": "http.response.body", "body": text.encode()})
