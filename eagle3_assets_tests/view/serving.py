"""A viewer that serves in a thread, for tests that speak HTTP or drive a browser."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from eagle3_assets.view.library import Library
from eagle3_assets.view.server import bind, serve


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Served:
    url: str
    port: int

    def get(self, path: str, method: str = "GET", **headers: str) -> Answered:
        """One request; a header named `host` replaces the true one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": f"127.0.0.1:{self.port}", **{name.replace("_", "-").title(): value for name, value in headers.items()}}
        connection.request(method, path, headers=sent)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return Answered(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


@contextmanager
def served(library: Library) -> Iterator[Served]:
    listening = bind(0)
    ready: threading.Event = threading.Event()
    address: list[str] = []
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def on_ready(url: str) -> None:
        address.append(url)
        ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(library, listening, stop, on_ready)))
    thread.start()
    assert ready.wait(30)
    try:
        yield Served(address[0], int(address[0].rsplit(":", 1)[1].strip("/")))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
