"""The viewer's server: loopback only, GET only, nothing from outside, nothing that a page could be made to run.

Belongs here: routes, headers, refusals. Does not belong here: answers (`pages.py`), the page itself (`static/`).

Why the refusals: a page of another site that is open in the same browser can send requests to loopback, and by DNS rebinding under a name
of its own even read the answers; so only our own names are served (Host), and no other site may embed or fetch anything (CORP, CSP).
"""

from __future__ import annotations

import asyncio
import decimal
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from eagle3_assets.errors import Eagle3Error, StoreError, UsageError
from eagle3_assets.exact.show import visible
from eagle3_assets.view.library import Library
from eagle3_assets.view.one_row import raw_bytes
from eagle3_assets.view.pages import answer

log = logging.getLogger(__name__)
STATIC = Path(__file__).with_name("static")
HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report page is one file with its style and its picture inside; it has no script
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {
    "": "index.html",
    "viewer.js": "viewer.js",
    "viewer.css": "viewer.css",
    "favicon.ico": "icon.svg",
    "icon.svg": "icon.svg",
}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_REPORT = re.compile(r"[\w.-]+\.html")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(library: Library, port: Callable[[], int]) -> web.Application:
    """The application. `port()`: where it is bound, to be named in refusals."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = refusal(request, port())
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.json_response({"error": error.reason}, status=error.status)
            except Eagle3Error as error:
                status = 400 if isinstance(error, UsageError) else 404 if isinstance(error, StoreError) else 422
                response = web.json_response({"error": visible(str(error))}, status=status)
            except Exception as error:  # one page that fails says so; the others go on
                log.exception("%s", request.path)
                response = web.json_response(
                    {"error": visible(f"{type(error).__name__}: {error}"), "unexpected": True}, status=500
                )
        for name, value in HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    async def page(request: web.Request) -> web.StreamResponse:
        name = _FILES.get(request.match_info["name"])
        if name is None:
            raise web.HTTPNotFound(reason="there is no such page")
        path = STATIC / name
        body = await asyncio.to_thread(path.read_bytes)
        return web.Response(body=body, content_type=_TYPES[path.suffix], charset="utf-8")

    async def question(request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(answer, library, request.match_info["name"], list(request.query.items()))
        response = web.Response(body=as_json(found), content_type="application/json")
        response.enable_compression()
        return response

    async def raw(request: web.Request) -> web.StreamResponse:
        """The bytes themselves, to be saved: never shown by the browser."""
        which, root, key = request.match_info["which"], request.query.get("root", ""), request.query.get("key", "")
        data = await asyncio.to_thread(lambda: raw_bytes(library.catalogue(root), key, which))
        name = f"{which}-{re.sub(r'[^0-9A-Za-z._-]', '-', key)[:120]}.txt"
        return web.Response(
            body=data, content_type="application/octet-stream", headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )

    async def report(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if not _REPORT.fullmatch(name):
            raise web.HTTPNotFound(reason="there is no such report")
        path = library.catalogue(request.query.get("root", "")).root.store.reports / name
        try:
            body = await asyncio.to_thread(path.read_bytes)
        except OSError:
            raise StoreError(f"{path}: is not there; `eagle3 run --until report` writes it") from None
        return web.Response(
            body=body, content_type="text/html", charset="utf-8", headers={"Content-Security-Policy": REPORT_POLICY}
        )

    app = web.Application(middlewares=[guarded])
    app.router.add_get("/{name:[^/]*}", page)
    app.router.add_get("/api/{name}", question)
    app.router.add_get("/raw/{which}", raw)
    app.router.add_get("/reports/{name}", report)
    return app


def refusal(request: web.Request, port: int) -> web.StreamResponse | None:
    """Why a request is not served: another method, another Host than ours, a page of another site that asks."""
    if request.method not in ("GET", "HEAD"):
        return web.json_response({"error": "this server only shows; it takes GET"}, status=405)
    if _HOST.fullmatch(request.headers.get("Host", "")) is None:  # the port may be a tunnel's
        return web.json_response({"error": f"this server answers as {HOST}:{port} and localhost:{port} only"}, status=421)
    if (
        request.headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site")
        and request.headers.get("Sec-Fetch-Mode") != "navigate"
    ):
        return web.json_response({"error": "another site may not read this"}, status=403)
    return None


def as_json(value: Any) -> bytes:
    """JSON; numbers that JSON does not know (NaN, infinities) become null."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def bind(port: int) -> socket.socket:
    """A socket on loopback. Raises StoreError where the port is taken."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        raise StoreError(
            f"{HOST}:{port} cannot be used ({error.strerror}); another viewer may be open there; `--port 0` takes a free one"
        ) from None
    return found


async def serve(library: Library, listening: socket.socket, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Serve until `stop`. `on_ready` gets the address."""
    port = int(listening.getsockname()[1])
    runner = web.AppRunner(make_app(library, lambda: port), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        on_ready(f"http://{HOST}:{port}/")
        await stop.wait()
    finally:
        await runner.cleanup()
        library.close()
