"""The OpenRouter face of the stand-in: routes, waiting, keep-alive, streaming, what a fault does to a socket.

Belongs here: transport. Does not belong here: what is decided (`gateway`), made (`generation`) or written (`wire`), engines
(`engine_server`).
One process, one event loop, and a ledger without a lock, because every decision is made without awaiting, at two moments:
- admission (after the body was read, before the first byte): key, credit, attempt number, route, pre-authorisation, fault, generation
  id, and the draw that the answer will come from. Two identical requests at once get two attempts, so two answers.
- settling (once the truth ids are there and the time is over): the bill, truth and ledger in one go.
Between the two only time passes: a live model samples, a simulated one sleeps, keep-alives are written, the client may leave. Credit
is checked at admission and charged at settling, so what is in flight together may overdraw the account, as at the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import time
from asyncio import Future
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from eagle3_assets.standin import wire, wire_stream
from eagle3_assets.standin.engine_server import Engines
from eagle3_assets.standin.gateway import Admitted, Refusal, admit, check_key, parse
from eagle3_assets.standin.generation import Generation, Generator, usd
from eagle3_assets.standin.ledger import Ledger
from eagle3_assets.standin.source import Sampled
from eagle3_assets.standin.transport import SLICE_S, json_response, write_paced

API = "/api/v1"
_MAX_BODY = 64 * 1024**2
_MAX_KEEP_ALIVES = 64
_LONGEST_SILENCE_S = 5.0  # real seconds between keep-alives while a live model has not answered
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Standin:
    """The running server's state. `nonce` names this instance in /health; `touched` is the last sign of a client (monotonic)."""

    generator: Generator
    ledger: Ledger
    api_key: str
    truth_token: str
    nonce: str = ""
    touched: float = field(default_factory=time.monotonic)
    in_flight: int = 0

    @property
    def idle_s(self) -> float:
        return 0.0 if self.in_flight else time.monotonic() - self.touched

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._outer])
        app.router.add_post(f"{API}/chat/completions", self.chat)
        app.router.add_get(f"{API}/key", self.key)
        app.router.add_get(f"{API}/auth/key", self.key)
        app.router.add_get(f"{API}/credits", self.credits)
        app.router.add_get(f"{API}/generation", self.generation)
        app.router.add_get(f"{API}/models", self.models)
        app.router.add_get(f"{API}/models/{{author}}/{{slug}}/endpoints", self.endpoints)
        app.router.add_routes(Engines(self.generator, self.ledger).routes())
        app.router.add_get("/health", self.health)
        app.router.add_get("/truth", self.truth)
        return app

    @web.middleware
    async def _outer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refusals become bodies; the idle clock is kept (a health probe is no client)."""
        client = request.path != "/health"
        self.in_flight += client
        try:
            return await handler(request)
        except Refusal as refusal:
            return json_response(refusal.body, refusal.status, refusal.headers)
        except web.HTTPNotFound:
            return json_response(wire.error_body(404, "Not Found"), 404)
        finally:
            self.in_flight -= client
            if client:
                self.touched = time.monotonic()

    # -------------------------------------------------------------------------------------------- OpenRouter
    async def chat(self, http: web.Request) -> web.StreamResponse:
        check_key(http.headers.get("Authorization"), self.api_key)
        model = self.generator.profiles.model
        request = parse(await http.read(), (model.slug, model.dated_slug))
        admitted, created = admit(request, self.generator, self.ledger), int(time.time())
        answer = self.generator.ask_provider(request, admitted.provider, admitted.prompt_ids, admitted.attempt)
        try:
            send = self._send_stream if request.stream else self._send_body
            return await send(http, admitted, answer, created)
        finally:
            answer.cancel()  # this server is ending; a client that leaves does not get here

    async def _open(self, http: web.Request, admitted: Admitted, created: int, content_type: str) -> web.StreamResponse:
        """Status 200 and the generation id leave before the outcome is known (openrouter-contract 0.6)."""
        generation_id = self.generator.provider_id(admitted.request, attempt=admitted.attempt, created=created)
        response = web.StreamResponse(
            headers={"Content-Type": content_type, "X-Generation-Id": generation_id, "Cache-Control": "no-cache"}
        )
        await response.prepare(http)
        return response

    def _generation(self, admitted: Admitted, sampled: Sampled, created: int) -> Generation:
        return self.generator.of_provider(
            admitted.request,
            admitted.provider,
            sampled,
            prompt_ids=admitted.prompt_ids,
            attempt=admitted.attempt,
            created=created,
            refused=admitted.refused,
        )

    async def _sampled(self, response: web.StreamResponse, answer: Future[Sampled], mark: bytes) -> tuple[Sampled | None, float]:
        """The truth (None: the model failed) and the real seconds that they took, keep-alives written meanwhile."""
        begun, pause = time.monotonic(), max(SLICE_S, self.generator.profiles.server.keep_alive_s * self._scale)
        while not answer.done():
            done, _ = await asyncio.wait({answer}, timeout=pause)
            if not done:
                pause = min(1.5 * pause, _LONGEST_SILENCE_S)
                with contextlib.suppress(ConnectionError):  # the client left; the model goes on, and is paid
                    await response.write(mark)
        if answer.exception() is not None:  # whatever its kind: the headers are out, so the client is told in the body
            return None, 0.0
        return answer.result(), time.monotonic() - begun

    async def _send_body(
        self, http: web.Request, admitted: Admitted, answer: Future[Sampled], created: int
    ) -> web.StreamResponse:
        response = await self._open(http, admitted, created, "application/json")
        sampled, taken_s = await self._sampled(response, answer, wire.KEEP_ALIVE)
        if sampled is None:
            await response.write(wire.to_bytes(_error_in_200(admitted)))
            return response
        generation = self._generation(admitted, sampled, created)
        # a client that leaves is billed in full all the same (openrouter-contract 2.5)
        with contextlib.suppress(ConnectionError):
            await self._keep_alive(response, generation.duration_s, wire.KEEP_ALIVE, taken_s)
        if admitted.fault == "error_in_200":
            await response.write(wire.to_bytes(_error_in_200(admitted)))
            return response
        self.ledger.settle(generation)
        body = wire.completion_body(generation)
        if admitted.fault is None:
            await response.write(body)
            return response
        return await self._break(http, response, body[: len(body) // 2] if admitted.fault == "truncated" else b"")

    async def _send_stream(
        self, http: web.Request, admitted: Admitted, answer: Future[Sampled], created: int
    ) -> web.StreamResponse:
        response = await self._open(http, admitted, created, "text/event-stream")
        sampled, taken_s = await self._sampled(response, answer, wire.SSE_COMMENT)
        if sampled is None:
            await response.write(wire.sse(_error_in_200(admitted)))
            return response
        generation = self._generation(admitted, sampled, created)
        # none of these providers stops for a stream that is left (openrouter-contract 2.5: only some do)
        with contextlib.suppress(ConnectionError):
            await self._keep_alive(response, generation.ttft_s, wire.SSE_COMMENT, taken_s)
        if admitted.fault == "error_in_200":
            await response.write(wire.sse(_error_in_200(admitted)))
            return response
        self.ledger.settle(generation)
        chunks = list(wire_stream.stream_chunks(generation))
        if admitted.fault is not None:
            return await self._break(http, response, b"".join(chunks[: len(chunks) // 2]))
        left_s = generation.duration_s * self._scale - max(generation.ttft_s * self._scale, taken_s)
        await write_paced(response, chunks, left_s)
        await response.write(wire.SSE_DONE)
        return response

    async def _keep_alive(self, response: web.StreamResponse, simulated_s: float, mark: bytes, taken_s: float) -> None:
        """Wait `simulated_s` scaled, less the real seconds that sampling took already; as many keep-alives as a real wait would have
        shown (at least one)."""
        server = self.generator.profiles.server
        due = min(_MAX_KEEP_ALIVES, 1 + int(simulated_s / server.keep_alive_s))
        pause = max(simulated_s * self._scale - taken_s, 0.0)
        rounds = max(1, min(due, int(pause / SLICE_S)))
        written = 0
        for k in range(1, rounds + 1):
            now = max(due * k // rounds, 1)
            await response.write(mark * (now - written))
            written = now
            await asyncio.sleep(pause / rounds)

    @property
    def _scale(self) -> float:
        return self.generator.profiles.server.time_scale

    async def _break(self, http: web.Request, response: web.StreamResponse, part: bytes) -> web.StreamResponse:
        """Send `part`, then drop the connection without ending the body."""
        if part:
            await response.write(part)
            await asyncio.sleep(0)
        if http.transport is not None:
            http.transport.close() if part else http.transport.abort()
        return response

    async def key(self, http: web.Request) -> web.Response:
        check_key(http.headers.get("Authorization"), self.api_key)
        return json_response({"data": wire.key_record(self.ledger.spent_pico, f"{self.api_key[:12]}...{self.api_key[-3:]}")})

    async def credits(self, http: web.Request) -> web.Response:
        check_key(http.headers.get("Authorization"), self.api_key)
        credit = self.generator.profiles.server.credit_usd
        return json_response({"data": {"total_credits": credit, "total_usage": usd(self.ledger.spent_pico)}})

    async def generation(self, http: web.Request) -> web.Response:
        check_key(http.headers.get("Authorization"), self.api_key)
        wanted = http.query.get("id", "")
        account = self.ledger.generations.get(wanted)
        delay = self.generator.profiles.server.generation_delay_s * self._scale
        if account is None or time.time() < account.get("settled", 0.0) + delay:
            raise Refusal(404, wire.error_body(404, f"Generation {wanted} not found"))
        return json_response({"data": wire.generation_record(account)})

    async def models(self, http: web.Request) -> web.Response:
        return json_response({"data": [wire.model_record(self.generator.profiles)]})

    async def endpoints(self, http: web.Request) -> web.Response:
        slug = f"{http.match_info['author']}/{http.match_info['slug']}"
        if slug not in (self.generator.profiles.model.slug, self.generator.profiles.model.dated_slug):
            raise Refusal(404, wire.error_body(404, f"Model {slug} not found"))
        return json_response({"data": wire.endpoints_record(self.generator.profiles)})

    # -------------------------------------------------------------------------------------------- ours
    async def health(self, http: web.Request) -> web.Response:
        return json_response({"status": "ok", "nonce": self.nonce, "pid": os.getpid()})

    async def truth(self, http: web.Request) -> web.Response:
        """The oracle: only with the token of `truth.token` (tests; `score` reads the file)."""
        given = http.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.truth_token.encode()):
            raise Refusal(403, wire.error_body(403, "Forbidden"))
        truth = self.ledger.truth_of(http.query.get("generation_id", ""))
        if truth is None:
            raise Refusal(404, wire.error_body(404, "Not Found"))
        return json_response(truth)


def _error_in_200(admitted: Admitted) -> dict[str, object]:
    """An error object alone, without choices, inside a 200 (openrouter-contract 2.1, third form)."""
    metadata = {"provider_name": admitted.provider.name, "raw": "upstream closed the stream"}
    return wire.error_body(502, "Provider returned error", metadata=metadata)
