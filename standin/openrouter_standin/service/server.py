"""The OpenRouter face of the stand-in: its routes.

Belongs here: routes, the application, what it keeps. Does not belong here: what is decided (`gateway`), how an answer gets out
(`delivery`), bodies (`wire`, `records`), engines (`engine_server`).

One process, one event loop, and a ledger without a lock, because every decision is made without awaiting, at two moments:
- admission (after the body was read, before the first byte): key, money, attempt number, route, room, fault, generation id, and the draw
  that the answer will come from. Two identical requests at once get two attempts, so two answers.
- settling (once the truth ids are there and the time is over): the bill, truth and ledger in one go.
Between the two only time passes: a live model samples, a simulated one sleeps, keep-alives are written, the client may leave. Credit
is checked at admission and charged at settling, so what is in flight together may overdraw the account, as at the real one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from openrouter_standin.clock import Clock
from openrouter_standin.engines.engine_server import Engines
from openrouter_standin.openrouter import records, refusals, wire
from openrouter_standin.openrouter.delivery import deliver, repeat
from openrouter_standin.openrouter.gateway import Gateway, check_key, parse
from openrouter_standin.openrouter.refusals import Refusal
from openrouter_standin.openrouter.response_cache import read_asked
from openrouter_standin.openrouter.transport import json_response
from openrouter_standin.truth.generation import Generator, usd
from openrouter_standin.truth.ledger import Ledger

API = "/api/v1"
_MAX_BODY = 64 * 1024**2
_LAST_WORDS_S = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Standin:
    """The running server's state. `nonce` names this instance in /health; `touched` is the last sign of a client (monotonic)."""

    generator: Generator
    ledger: Ledger
    api_key: str
    truth_token: str
    management_key: str = ""
    nonce: str = ""
    touched: float = field(default_factory=time.monotonic)
    in_flight: int = 0
    most_in_flight: int = 0
    gateway: Gateway = field(init=False)
    _busy: set[asyncio.Task[object]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gateway = Gateway(self.generator, self.ledger, Clock(self.generator.profiles.server.time_scale))

    @property
    def idle_s(self) -> float:
        return 0.0 if self.in_flight else time.monotonic() - self.touched

    async def break_off(self) -> None:
        """End what is in flight: the server is going away."""
        busy = set(self._busy)
        for task in busy:
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=_LAST_WORDS_S)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._outer])
        app.router.add_post(f"{API}/chat/completions", self.chat)
        app.router.add_get(f"{API}/key", self.key)
        app.router.add_get(f"{API}/auth/key", self.key)
        app.router.add_get(f"{API}/credits", self.credits)
        app.router.add_get(f"{API}/generation", self.generation)
        app.router.add_get(f"{API}/generation/content", self.content)
        app.router.add_get(f"{API}/models", self.models)
        app.router.add_get(f"{API}/models/{{author}}/{{slug}}/endpoints", self.endpoints)
        app.router.add_routes(Engines(self.generator, self.ledger).routes())
        app.router.add_get("/health", self.health)
        app.router.add_get("/truth", self.truth)
        return app

    @web.middleware
    async def _outer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refusals become bodies; the idle clock is kept (a health probe is no client)."""
        client, task = request.path != "/health", asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        self.in_flight += client
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await handler(request)
        except Refusal as refusal:
            if isinstance(refusal.body, bytes):
                kind = "text/html" if refusal.body.startswith(b"<") else "text/plain"
                return web.Response(body=refusal.body, status=refusal.status, content_type=kind, headers=refusal.headers)
            return json_response(refusal.body, refusal.status, refusal.headers)
        except web.HTTPException as error:  # no such route, another method, a body that is too large
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return json_response(wire.error_body(error.status, error.reason), error.status, allowed)
        except web.RequestPayloadError:  # half a body, or one that is not what its headers say
            unread = json_response(wire.error_body(400, "Request body could not be read"), 400)
            unread.force_close()
            request.content.feed_eof()  # the library would try to read the rest, and fail in the log
            return unread
        except ConnectionError:
            return web.Response()  # the client left: there is nobody to tell
        finally:
            self._busy.discard(task)
            self.in_flight -= client
            if client:
                self.touched = time.monotonic()

    # -------------------------------------------------------------------------------------------- OpenRouter
    async def chat(self, http: web.Request) -> web.StreamResponse:
        check_key(http.headers.get("Authorization"), self.api_key)
        model = self.generator.profiles.model
        body = await http.read()
        request = parse(body, (model.slug, model.dated_slug))
        asked = read_asked(http.headers, body)
        if asked is not None and (hit := self.gateway.cache.ask(asked)) is not None:
            return await repeat(http, hit, self.gateway)
        return await deliver(http, self.gateway.admit(request), self.gateway, asked)

    async def key(self, http: web.Request) -> web.Response:
        check_key(http.headers.get("Authorization"), self.api_key)
        label = f"{self.api_key[:12]}...{self.api_key[-3:]}"
        server = self.generator.profiles.server
        shown = self.gateway.account.shown_key_pico()
        return json_response({"data": records.key_record(shown, label, server.money.key_limit_usd, server.credit_usd)})

    async def credits(self, http: web.Request) -> web.Response:
        server = self.generator.profiles.server
        given = http.headers.get("Authorization")
        if server.money.credits_need_management_key:
            check_key(given, self.api_key, self.management_key)
            if given != f"Bearer {self.management_key}":
                raise refusals.management_key_needed()
        else:
            check_key(given, self.api_key)
        shown = self.gateway.account.shown_credits_pico()
        return json_response({"data": {"total_credits": server.credit_usd, "total_usage": usd(shown)}})

    async def generation(self, http: web.Request) -> web.Response:
        check_key(http.headers.get("Authorization"), self.api_key)
        wanted = http.query.get("id", "")
        known = self.ledger.generations if wanted.startswith("gen-") else {}  # an engine's ids are none of OpenRouter's
        account = known.get(wanted) or self.gateway.cache.account_of(wanted)
        delay = self.gateway.clock.real(self.generator.profiles.server.generation_delay_s)
        if account is None or time.time() < account.get("settled", 0.0) + delay:
            raise refusals.not_found(f"Generation {wanted} not found")
        return json_response({"data": records.generation_record(account, self.generator.profiles)})

    async def content(self, http: web.Request) -> web.Response:
        """Of an account that does not log inputs and outputs."""
        check_key(http.headers.get("Authorization"), self.api_key)
        raise refusals.not_found("Generation content is not stored: input and output logging is off")

    async def models(self, http: web.Request) -> web.Response:
        return json_response(records.models_page(self.generator.profiles, http.path, http.query))

    async def endpoints(self, http: web.Request) -> web.Response:
        slug = f"{http.match_info['author']}/{http.match_info['slug']}"
        if slug not in (self.generator.profiles.model.slug, self.generator.profiles.model.dated_slug):
            raise refusals.not_found(f"Model {slug} not found")
        known = self._known(http)
        return json_response(
            {"data": records.endpoints_record(self.generator.profiles, self.gateway.providers(), known_caller=known)}
        )

    def _known(self, http: web.Request) -> bool:
        """Whether a caller who needs no key gave a right one."""
        try:
            check_key(http.headers.get("Authorization"), self.api_key, self.management_key or self.api_key)
        except Refusal:
            return False
        return True

    # -------------------------------------------------------------------------------------------- ours
    async def health(self, http: web.Request) -> web.Response:
        state = {"status": "ok", "nonce": self.nonce, "pid": os.getpid(), "in_flight": self.in_flight}
        return json_response({**state, "most_in_flight": self.most_in_flight, "answers": len(self.ledger.generations)})

    async def truth(self, http: web.Request) -> web.Response:
        """The oracle: only with the token of `truth.token` (tests; `score` reads the file)."""
        try:
            check_key(http.headers.get("Authorization"), self.truth_token)
        except Refusal:
            raise Refusal(403, wire.error_body(403, "Forbidden")) from None
        truth = self.ledger.truth_of(self.gateway.cache.source_of(http.query.get("generation_id", "")))
        if truth is None:
            raise Refusal(404, wire.error_body(404, "Not Found"))
        return json_response(truth)
