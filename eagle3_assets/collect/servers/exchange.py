"""One HTTP exchange: a payload goes out, bytes come back, or a named transport fault.

Belongs here: sending, keeping what was received before a fault, the headers worth keeping.
Does not belong here: what the bytes mean (`outcomes.py`), building requests (`openrouter.py`, `engines.py`).

Exceptions of the HTTP library carry request headers, the key among them: none leaves this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

CONNECT_TIMEOUT_S = 30.0
# A body beyond this, after decompression, is not read to its end. The longest answer that makes sense (a stream of 16,384 tokens
# with 20 logprobs each) has about 32 MB. Of a body that is too large, its beginning is kept: it says who sent it.
MOST_BODY_BYTES = 64 << 20
KEPT_OF_OVERSIZED = 64 << 10
_KEPT_HEADERS = ("content-type", "x-generation-id", "retry-after", "x-openrouter-cache-status")
_KEPT_PREFIXES = ("x-ratelimit-",)

# The first row that fits names the fault. `connect_failed` is the only one after which it is certain that nothing was sent.
_FAULTS: tuple[tuple[type[BaseException], str], ...] = (
    (aiohttp.ClientConnectorError, "connect_failed"),
    (aiohttp.ConnectionTimeoutError, "connect_failed"),
    (aiohttp.ClientPayloadError, "truncated"),
    (asyncio.TimeoutError, "timeout"),
    (aiohttp.ServerDisconnectedError, "reset"),
    (aiohttp.ClientOSError, "reset"),
    (OSError, "reset"),
    (aiohttp.ClientError, "broken_response"),
)


@dataclass(slots=True)
class Exchange:
    """What came back. `fault` is None or a name of `outcomes.TABLE`; after a fault, `headers` and `body` hold what had
    arrived.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: str | None = None


def new_session() -> aiohttp.ClientSession:
    """The one session of a run: no connection limit (docs/research/perf-baselines.md#2c: a default connector silently stops at
    100), no cookies, nothing from the environment (a proxy or a .netrc must not see the key).
    """
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


async def send(
    session: aiohttp.ClientSession,
    url: str,
    payload: bytes,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    silence_s: float | None = None,
    into: Exchange | None = None,
) -> Exchange:
    """POST `payload`. Never raises for what the network does; redirects are not followed.

    `timeout_s` bounds the whole exchange (fault `timeout`), `silence_s` the time without a byte of an answer (fault `silent`):
    keep-alive whitespace and SSE comments are no answer, a slow drip of anything else is.

    With `into`, that exchange is filled while bytes arrive, so a caller that is cancelled still holds the generation id.
    """
    out = into if into is not None else Exchange()
    # a timer that moves costs as much as parsing the answer: only where silence is shorter than the whole
    ear = _Ear(silence_s) if silence_s is not None and silence_s < timeout_s else None
    try:
        async with (
            ear.clock if ear is not None else contextlib.nullcontext(),
            session.post(url, data=payload, headers=headers, allow_redirects=False, timeout=_limits(timeout_s)) as response,
        ):
            out.status = response.status
            out.headers = _kept(response.headers)
            await _receive(response, out, ear)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        is_silent = ear is not None and ear.clock.expired()
        out.fault = "silent" if is_silent else next(name for kind, name in _FAULTS if isinstance(error, kind))
    except Exception:  # whatever else the HTTP library makes of a server's bytes: the request may have been billed
        out.fault = "broken_response"
    return out


@functools.lru_cache(maxsize=8)
def _limits(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s))


class _Ear:
    """A deadline that bytes of an answer push forward."""

    def __init__(self, silence_s: float) -> None:
        self._now, self._silence_s, self._begun = asyncio.get_running_loop().time, silence_s, b""
        self.clock = asyncio.timeout(silence_s)

    def listen(self, chunk: bytes) -> None:
        is_answer, self._begun = says_something(chunk, self._begun)
        if is_answer:
            self.clock.reschedule(self._now() + self._silence_s)


async def _receive(response: aiohttp.ClientResponse, out: Exchange, ear: _Ear | None) -> None:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > MOST_BODY_BYTES:
                out.fault = "oversized"
                response.close()  # the rest is not waited for
                return
            if ear is not None:
                ear.listen(chunk)
    finally:
        body = b"".join(chunks)
        out.body = body if out.fault is None else body[:KEPT_OF_OVERSIZED]


def says_something(chunk: bytes, begun: bytes) -> tuple[bool, bytes]:
    """Whether `chunk` holds more than blank lines and SSE comments, and the first byte of the line that it leaves unfinished.
    `begun` is that byte of the chunk before.
    """
    lines = (begun + chunk).split(b"\n")
    return any(line[:1] != b":" and not line.isspace() for line in lines if line), lines[-1][:1]


async def read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    """A body of a look-up. Raises aiohttp.ClientPayloadError when it is larger than `most` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            response.close()
            raise aiohttp.ClientPayloadError(f"more than {most} bytes")
    return b"".join(chunks)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Lower-case names; bytes that are not UTF-8 (the library hands them on as lone surrogates) become escapes."""
    lowered = ((name.lower(), value) for name, value in headers.items())
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        for name, value in lowered
        if name in _KEPT_HEADERS or name.startswith(_KEPT_PREFIXES)
    }
