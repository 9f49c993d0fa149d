"""How an admitted request gets its answer: waiting, keep-alives, the body or the stream, and what a fault does to the socket.

Belongs here: everything between admission and the last byte. Does not belong here: what is decided (`gateway`), made (`generation`) or
written (`wire`, `faulty_bodies`), routes (`server`).

The answer is settled (bill, truth and ledger in one go, without awaiting) once the truth ids are there and the time is over:
- a whole body before its first byte, whether or not the client is still there: a dropped request is billed in full;
- a stream before its last event. Where the provider can cancel, a stream that is left is settled for the share that went out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import math
import time
from asyncio import Future
from dataclasses import replace
from typing import Any

from aiohttp import web

from openrouter_standin import chance
from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.clock import Clock
from openrouter_standin.openrouter import faults, faulty_bodies, refusals, wire
from openrouter_standin.openrouter.gateway import UNWRITABLE, Admitted, Gateway
from openrouter_standin.openrouter.response_cache import Asked, Hit
from openrouter_standin.openrouter.transport import write_paced
from openrouter_standin.schema.faults import FaultName
from openrouter_standin.truth.generation import Generation, Generator
from openrouter_standin.truth.ledger import Ledger

_TICK_S = 0.25  # real seconds between keep-alives at least: 2,000 requests must not spend the machine on whitespace
_LONGEST_SILENCE_S = 5.0  # and at most, while a live model has not answered
_MOST_MARKS = 63  # of one answer's waiting, beside the first
_DRIPS, _DRIP_S = 40, 20.0  # a slow body: so many pieces over so many simulated seconds
_AGAIN_S = 1.0  # real seconds until a refund is tried again that the disk had no room for


class Broken(Exception):
    """There is no answer: the model failed, or the disk has no room for what it would cost. Nothing is billed."""


class Delivery:
    """One admitted request on one socket."""

    def __init__(
        self, http: web.Request, admitted: Admitted, gateway: Gateway, answer: Future[Sampled], asked: Asked | None = None
    ) -> None:
        self.http, self.admitted, self.gateway, self.answer, self.asked = http, admitted, gateway, answer, asked
        self.generator: Generator = gateway.generator
        self.ledger: Ledger = gateway.ledger
        self.clock: Clock = gateway.clock
        self.created = int(time.time())
        self.cost_pico = 0
        self.id = self.generator.provider_id(admitted.request, attempt=admitted.attempt, created=self.created)
        self.fault = self._fault()
        self.mark = wire.SSE_COMMENT if admitted.request.stream else wire.KEEP_ALIVE

    def _fault(self) -> FaultName | None:
        """The fault as this request can show it."""
        admitted, key = self.admitted, (self.generator.seed, self.admitted.request.hash, self.admitted.attempt)
        fault = admitted.fault
        if fault is None and chance.unit(*key, "gzip") < self.generator.profiles.server.gzip:
            fault = "gzip"
        if fault == "gzip" and (admitted.request.stream or "gzip" not in self.http.headers.get("Accept-Encoding", "")):
            return None
        return fault

    async def send(self) -> web.StreamResponse:
        """Raises ConnectionError when the client leaves a stream that nobody has to finish."""
        if self.fault == "silence":
            return await self._hang(None)
        if self.fault in faults.LATE and not (self.admitted.request.stream and self.fault != "reset_before_headers"):
            try:
                return await self._send_late()
            except Broken:
                return web.Response(body=self._error("error_in_200"), headers=self._headers())
        response = web.StreamResponse(headers=self._headers())
        await response.prepare(self.http)
        try:
            return await (self._stream(response) if self.admitted.request.stream else self._whole(response))
        except Broken:
            await response.write(self._error("error_in_200"))
            return response

    def _headers(self) -> dict[str, str]:
        """They leave before the outcome is known (docs/research/openrouter-contract.md#0.6)."""
        kind = "text/event-stream" if self.admitted.request.stream else "application/json"
        cache = {} if self.asked is None else self.asked.headers
        return {"Content-Type": kind, "X-Generation-Id": self.id, "Cache-Control": "no-cache", **cache}

    # -------------------------------------------------------------------------------------------- a whole body
    async def _whole(self, response: web.StreamResponse) -> web.StreamResponse:
        with contextlib.suppress(ConnectionError):
            await self._first_mark(response)
        generation, taken_s = await self._generation(response)
        # a client that leaves is billed in full all the same (docs/research/openrouter-contract.md#2.5)
        await self._pause(response, generation.duration_s, taken_s)
        if self.fault in faults.ERRORS:
            await response.write(self._error(self.fault))
            return response
        self._settle(generation)
        if self.fault == "hang":
            return await self._hang(response)
        body = self._with_metadata(generation, faulty_bodies.body(generation, self.fault))
        if self.clock.scale == 0:
            body = self.mark + body
        match self.fault:
            case "reset":
                return self._break()
            case "reset_mid_body":
                await response.write(body[: len(body) // 2])
                return self._break()
            case "truncated":
                await response.write(body[: len(body) // 2])
                return await self._close(response)
            case "slow_drip":
                size = max(1, len(body) // _DRIPS)
                await write_paced(response, [body[at : at + size] for at in range(0, len(body), size)], self.clock.real(_DRIP_S))
                return response
        self._keep(generation)
        await response.write(body)
        return response

    async def _send_late(self) -> web.StreamResponse:
        """Headers and body in one piece, when the outcome is known."""
        generation, taken_s = await self._generation(None)
        await self._pause(None, generation.duration_s, taken_s)
        self._settle(generation)
        body = self._with_metadata(generation, faulty_bodies.body(generation, None))
        headers = self._headers()
        match self.fault:
            case "reset_before_headers":
                return self._break()
            case "truncated_length":
                return web.Response(body=body[: len(body) // 2], headers=headers)
            case "truncated_wrong_length":
                response = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
                await response.prepare(self.http)
                await response.write(body[: len(body) // 2])
                return await self._close(response)
        self._keep(generation)
        packed = await asyncio.to_thread(gzip.compress, body, 1)
        return web.Response(body=packed, headers={**headers, "Content-Encoding": "gzip"})

    # -------------------------------------------------------------------------------------------- a stream
    async def _stream(self, response: web.StreamResponse) -> web.StreamResponse:
        with contextlib.suppress(ConnectionError):
            await self._first_mark(response)
        generation, taken_s = await self._generation(response)
        await self._pause(response, generation.ttft_s, taken_s)
        if self.fault in faults.ERRORS:
            await response.write(self._error(self.fault))
            return response
        if self.fault == "hang":
            self._settle(generation)
            return await self._hang(response)
        events = faulty_bodies.chunks(generation, self.fault)
        last = -2 if events[-1] == wire.SSE_DONE else -1
        events[last] = self._with_metadata(generation, events[last])
        if self.clock.scale == 0:
            events[0] = self.mark + events[0]
        if self.fault in ("reset", "reset_mid_body", "truncated", "truncated_length", "truncated_wrong_length"):
            self._settle(generation)
            if self.fault != "reset":
                await response.write(b"".join(events[: len(events) // 2]))
            if self.fault == "truncated_length":  # a stream that just ends
                return response
            return self._break() if self.fault.startswith("reset") else await self._close(response)
        cancels = self.admitted.provider.cancels_streams
        if not cancels:
            self._settle(generation)
        left_s = self.clock.real(_DRIP_S) if self.fault == "slow_drip" else self._left_s(generation, taken_s)
        sent = await write_paced(response, events[:-2], left_s)
        if sent < len(events) - 2:  # the client left
            if cancels:
                self._settle(self._cut(generation, sent / len(events)))
            return response
        if cancels:
            self._settle(generation)
        self._keep(generation)
        await response.write(b"".join(events[-2:]))
        return response

    def _left_s(self, generation: Generation, taken_s: float) -> float:
        """Real seconds from the first event to the last."""
        return self.clock.real(generation.duration_s) - max(self.clock.real(generation.ttft_s), taken_s)

    def _cut(self, generation: Generation, share: float) -> Generation:
        """The part of the answer that a left stream is billed for."""
        count = int(share * len(generation.completion_ids))
        return self._of(replace(generation.sampled, ids=generation.completion_ids[:count], logprobs=None, top=()))

    # -------------------------------------------------------------------------------------------- what both need
    def _of(self, sampled: Sampled) -> Generation:
        admitted = self.admitted
        return self.generator.of_provider(
            admitted.request,
            admitted.provider,
            sampled,
            prompt_ids=admitted.prompt_ids,
            attempt=admitted.attempt,
            created=self.created,
            tried=admitted.tried_statuses,
        )

    async def _generation(self, response: web.StreamResponse | None) -> tuple[Generation, float]:
        """The answer, and the real seconds that waiting and sampling took; keep-alives written meanwhile. Raises Broken."""
        if self.admitted.slot is not None:
            await self._until(response, self.admitted.slot)
        begun = time.monotonic()
        await self._until(response, self.answer)
        if self.answer.exception() is not None:  # whatever its kind: the headers are out, so the client is told in the body
            raise Broken
        sampled = self.answer.result()
        if self.fault == "finish_error":
            return faulty_bodies.as_finished(self._of(faulty_bodies.half(sampled)), "error", refunded=True), 0.0
        if self.fault == "empty_stop":
            return faulty_bodies.as_finished(self._of(Sampled(())), "stop"), 0.0
        return self._of(sampled), time.monotonic() - begun

    def _settle(self, generation: Generation) -> None:
        """Raises Broken."""
        try:
            self.ledger.settle(generation)
        except OSError as error:
            logging.getLogger(__name__).error("%s: an answer is lost, and not billed (%s)", self.ledger.folder, error.strerror)
            raise Broken from None
        self.cost_pico = generation.bill.total_pico
        if generation.refunded:
            delay_s = self.clock.real(self.generator.profiles.server.money.refund_delay_s)
            asyncio.get_running_loop().call_later(delay_s, _refund, self.ledger, generation.id)

    def _keep(self, generation: Generation) -> None:
        """For whoever asks the same again; only a sound answer."""
        if self.asked is not None and self.fault in (None, "gzip"):
            self.gateway.cache.keep(self.asked, generation)

    def _with_metadata(self, generation: Generation, written: bytes) -> bytes:
        if not wire.wants_metadata(self.http.headers):
            return written
        return wire.with_metadata(written, _metadata(generation, self.gateway))

    def _error(self, fault: FaultName) -> bytes:
        """An error inside a 200."""
        provider = self.admitted.provider.name
        if self.admitted.request.stream:
            return faulty_bodies.error_events(fault, self.id, self.generator.profiles.model.dated_slug, provider)
        return wire.to_bytes(faulty_bodies.error_object(fault, provider))

    # -------------------------------------------------------------------------------------------- waiting
    @property
    def _tick_s(self) -> float:
        return max(_TICK_S, self.clock.real(self.generator.profiles.server.keep_alive_s))

    async def _first_mark(self, response: web.StreamResponse) -> None:
        """Headers and one keep-alive leave at once; without waiting they go out with the body."""
        if self.clock.scale or not self.answer.done():
            await response.write(self.mark)

    async def _until(self, response: web.StreamResponse | None, future: Future[Any]) -> None:
        pause = self._tick_s
        while not future.done():
            done, _ = await asyncio.wait({future}, timeout=pause)
            if not done and response is not None:
                pause = min(1.5 * pause, _LONGEST_SILENCE_S)
                with contextlib.suppress(ConnectionError):  # the client left; the model goes on, and is paid
                    await response.write(self.mark)

    async def _pause(self, response: web.StreamResponse | None, simulated_s: float, taken_s: float) -> None:
        """Wait `simulated_s`, less the real seconds that sampling took already; about as many keep-alives as a real wait shows."""
        left, tick = self.clock.real(simulated_s) - taken_s, self._tick_s
        marks = min(_MOST_MARKS, int(simulated_s / self.generator.profiles.server.keep_alive_s))
        share = marks / max(math.ceil(left / tick), 1)
        owed = 0.0
        while left > 0:
            await asyncio.sleep(min(tick, left))
            left -= tick
            owed += share
            if response is not None and owed >= 1:
                with contextlib.suppress(ConnectionError):
                    await response.write(self.mark * int(owed))
                owed %= 1

    # -------------------------------------------------------------------------------------------- breaking
    async def _hang(self, response: web.StreamResponse | None) -> web.StreamResponse:
        """Nothing more comes, but keep-alives (without a response: not a byte), until the time is over or the client leaves."""
        seconds = self.clock.real(self.generator.profiles.server.hang_s) or self.generator.profiles.server.hang_s
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.http.transport is not None and not self.http.transport.is_closing():
            await asyncio.sleep(min(self._tick_s, seconds))
            if response is not None:
                await response.write(self.mark)
        return self._break()

    def _break(self) -> web.StreamResponse:
        """Reset the connection."""
        if self.http.transport is not None:
            self.http.transport.abort()
        return web.Response()

    async def _close(self, response: web.StreamResponse) -> web.StreamResponse:
        """End the connection without ending the body."""
        await asyncio.sleep(0)
        if self.http.transport is not None:
            self.http.transport.close()
        return response


def _refund(ledger: Ledger, generation_id: str) -> None:
    try:
        ledger.refund(generation_id)
    except OSError:
        asyncio.get_running_loop().call_later(_AGAIN_S, _refund, ledger, generation_id)


def _metadata(generation: Generation, gateway: Gateway, *, cached: bool = False) -> dict[str, Any]:
    """`openrouter_metadata`, of the endpoints as they are when the answer ends."""
    names = gateway.endpoint_names(generation.request, generation.attempt)
    return wire.router_metadata(generation, names, len(gateway.generator.profiles.provider), cached=cached)


async def repeat(http: web.Request, hit: Hit, gateway: Gateway) -> web.StreamResponse:
    """An answer out of the response cache: at once, through the same writers, after one keep-alive."""
    generation, stream = hit.generation, hit.generation.request.stream
    events = faulty_bodies.chunks(generation, None) if stream else [faulty_bodies.body(generation, None)]
    if wire.wants_metadata(http.headers):
        last = -2 if stream else -1
        events[last] = wire.with_metadata(events[last], _metadata(generation, gateway, cached=True))
    kind, mark = ("text/event-stream", wire.SSE_COMMENT) if stream else ("application/json", wire.KEEP_ALIVE)
    headers = {"Content-Type": kind, "X-Generation-Id": generation.id, "Cache-Control": "no-cache", **hit.headers}
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    await response.write(mark + b"".join(events))
    return response


def _ask(admitted: Admitted, gateway: Gateway) -> Future[Sampled]:
    """Raises Refusal: a bank looks for the prompt as its own model writes it, whatever the provider makes of it."""
    try:
        return gateway.generator.ask_provider(admitted.request, admitted.provider, admitted.prompt_ids, admitted.attempt)
    except UNWRITABLE as error:
        raise refusals.template_failed(admitted.provider, error) from None


async def deliver(http: web.Request, admitted: Admitted, gateway: Gateway, asked: Asked | None = None) -> web.StreamResponse:
    """Answer an admitted request; its slot and its hold are given back whatever happens. `asked`: what it wants of the response cache,
    which had nothing for it."""
    delivery: Delivery | None = None
    try:
        delivery = Delivery(http, admitted, gateway, _ask(admitted, gateway), asked)
        return await delivery.send()
    finally:
        gateway.leave(admitted, delivery.cost_pico if delivery is not None else 0)
        if delivery is not None:
            delivery.answer.cancel()  # this server is ending, or nobody needs the answer any more
