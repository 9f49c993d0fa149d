"""A scriptable OpenRouter on loopback: `scripts[user text]` is a list of behaviours, one for each request, then `ok`.

Every behaviour is written from the contract (docs/research/openrouter-contract.md#1.3, #2.1, #2.2, #2.4), not from the code under
test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from aiohttp import web

from eagle3_assets_tests.collect.samples import MODEL, a_snapshot

COST = 0.0005


def completion(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"gen-{number}", "object": "chat.completion", "created": 1, "model": f"{MODEL}-0127", "provider": "Chutes",
        "choices": [
            {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop",
             "message": {"role": "assistant", "content": f" Oi {number}!", "reasoning": " The user wants.", "refusal": None}}
        ],
        "usage": {"prompt_tokens": 21, "completion_tokens": 12, "total_tokens": 33, "cost": COST}, **more,
    }  # fmt: skip


def error(code: int, message: str = "no", **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": metadata}}


class FakeOpenRouter:
    """`async with FakeOpenRouter() as server`; the address is `server.base_url`."""

    def __init__(self, snapshot: dict[str, Any] | None = None) -> None:
        self.snapshot = snapshot or a_snapshot()
        self.listing: bytes | None = None  # what the endpoints route says instead
        self.scripts: dict[str, list[str]] = {}
        self.raw: dict[str, tuple[int, bytes, dict[str, str]]] = {}  # behaviours of one test: status, body, headers
        self.default = "ok"
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked: dict[str, int] = defaultdict(int)  # user text -> requests
        self.in_flight = self.peak = 0
        self.gate: asyncio.Event | None = None  # when set, answers wait for it
        self.barrier = 0  # answers wait until so many requests are in flight together
        self.full = asyncio.Event()
        self.arrived = asyncio.Condition()
        self.generations: dict[str, float] = {}  # id -> total_cost, as /generation knows it
        self.generation_body: bytes | None = None  # what /generation says to everything
        self.generation_asks: list[str] = []
        self.usages: list[float] = []  # what /key says, one after the other, then the last again
        self.credits: list[float] | None = None  # the same for /credits; None: 403, as for an inference key
        self.looks = {"key": 0, "credits": 0}
        self.key_follows = True  # /key refuses what every completion is refused for
        self.key_says: list[tuple[int, bytes, str]] = []  # what /key says first: status, body, content type
        self.holds_most: int | None = None  # more requests at once are refused with the transient 402
        self.refused_402 = 0
        self.takes_s = 0.0  # an answer
        self.spent = 0.0  # what was really billed
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> FakeOpenRouter:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/api/v1/chat/completions", self.chat)
        app.router.add_post("/engine/v1/chat/completions", self.engine)
        app.router.add_get("/api/v1/key", self.key)
        app.router.add_get("/api/v1/credits", self.look_at_credits)
        app.router.add_get("/api/v1/generation", self.generation)
        app.router.add_get("/api/v1/models/{author}/{slug}/endpoints", self.endpoints)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.root = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        self.base_url = f"{self.root}/api/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.gate is not None:
            self.gate.set()
        await self.runner.cleanup()

    async def wait_until(self, so_far: Callable[[], bool]) -> None:
        """Until `so_far()` holds; looked at whenever a request arrives."""
        async with self.arrived:
            await self.arrived.wait_for(so_far)

    async def endpoints(self, request: web.Request) -> web.Response:
        if self.listing is not None:
            return web.Response(body=self.listing, content_type="application/json")
        return web.json_response(self.snapshot)

    async def key(self, request: web.Request) -> web.Response:
        self.looks["key"] += 1
        if self.key_says:
            status, body, kind = self.key_says.pop(0)
            return web.Response(status=status, body=body, content_type=kind)
        if self.default in ("401", "401_in_200", "403") and self.key_follows:
            return web.json_response(error(401), status=401)
        async with self.arrived:
            self.arrived.notify_all()
        usage = self._next(self.usages) if self.usages else 1.0
        return web.json_response({"data": {"label": "test", "limit": 10.0, "limit_remaining": 9.0, "usage": usage}})

    async def look_at_credits(self, request: web.Request) -> web.Response:
        self.looks["credits"] += 1
        if self.credits is None:
            return web.json_response(error(403, "management key required"), status=403)
        return web.json_response({"data": {"total_credits": 100.0, "total_usage": self._next(self.credits)}})

    @staticmethod
    def _next(values: list[float]) -> float:
        return values.pop(0) if len(values) > 1 else values[0]

    async def generation(self, request: web.Request) -> web.Response:
        self.generation_asks.append(request.query["id"])
        if self.generation_body is not None:
            return web.Response(body=self.generation_body, content_type="application/json")
        cost = self.generations.get(request.query["id"])
        if cost is None:
            return web.json_response(error(404), status=404)
        return web.json_response({"data": {"id": request.query["id"], "total_cost": cost}})

    async def engine(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        body = completion(next(self._numbers), prompt_token_ids=[1, 2, 3])
        del body["provider"], body["usage"]["cost"]
        body["choices"][0]["token_ids"] = [7, 8, 9]
        return web.json_response(body)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        sent = await request.json()
        self.requests.append(sent)
        self.headers.append(dict(request.headers))
        text = [m["content"] for m in sent["messages"] if m["role"] == "user"][-1]
        self.asked[text] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        if self.in_flight >= self.barrier:
            self.full.set()
        async with self.arrived:
            self.arrived.notify_all()
        try:
            if self.holds_most is not None and self.in_flight > self.holds_most:
                self.refused_402 += 1
                return await self.behave(request, "402_in_flight")
            if self.gate is not None:
                await self.gate.wait()
            await self.full.wait()
            if self.takes_s:
                await asyncio.sleep(self.takes_s)
            script = self.scripts.get(text)
            return await self.behave(request, script.pop(0) if script else self.default)
        finally:
            self.in_flight -= 1

    async def behave(self, request: web.Request, how: str) -> web.StreamResponse:
        number = next(self._numbers)
        if how in self.raw:
            status, sent, headers = self.raw[how]
            self.spent += COST
            return web.Response(status=status, body=sent, headers={"Content-Type": "application/json", **headers})
        if how.partition("@")[0] in _NAMED:  # "401@Novita": a provider's own error, passed on
            kind, _, provider = how.partition("@")
            code, words, more = _NAMED[kind]
            status = 200 if kind.endswith("_in_200") else code
            return web.json_response(error(code, words, provider_name=provider, **more), status=status)
        if how in _STATUSES:
            status, body, headers = _STATUSES[how]
            return web.json_response(body, status=status, headers=headers)
        if how in _BODIES:
            body = _BODIES[how](number)
            usage = body.get("usage")
            self.spent += usage.get("cost", 0.0) if isinstance(usage, dict) else 0.0
            return web.json_response(body, headers={"X-Generation-Id": f"gen-{number}"})
        if how == "html_502":
            return web.Response(text="<html>502 Bad Gateway</html>", status=502, content_type="text/html")
        if how in _PAGES:
            status, text, kind = _PAGES[how]
            return web.Response(text=text, status=status, content_type=kind)
        if how == "redirect":
            return web.Response(status=302, headers={"Location": "http://127.0.0.1:9/steal"})
        if how == "echo_key":
            return web.json_response(error(400, f"bad header {request.headers['Authorization']}"), status=400)
        return await self.break_off(request, how, number)

    async def break_off(self, request: web.Request, how: str, number: int) -> web.StreamResponse:
        """Billed, and the client does not get it whole."""
        self.spent += COST
        assert request.transport is not None
        if how == "reset_before_headers":
            request.transport.abort()
            return web.Response()
        whole = json.dumps(completion(number)).encode()
        response = web.StreamResponse(headers={"Content-Type": "application/json", "X-Generation-Id": f"gen-{number}"})
        if how == "cut_with_wrong_length":
            response.content_length = len(whole)
        await response.prepare(request)
        await response.write(b"\n         \n" if how == "keep_alive" else b"")
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "ok_after_keep_alive":
            await response.write(b"\n         \n\n         \n" + whole)
        elif how == "stream":
            await response.write(_sse(number))
        else:
            assert how in ("cut", "cut_with_wrong_length", "reset_mid_body"), how
            await response.write(whole[: len(whole) // 2])
            if how != "cut":
                request.transport.abort()
        return response


def _sse(number: int) -> bytes:
    def chunk(delta: dict[str, Any], **more: Any) -> bytes:
        value = {"id": f"gen-{number}", "model": MODEL, "provider": "Chutes", "choices": [{"index": 0, "delta": delta, **more}]}
        return b"data: " + json.dumps(value).encode() + b"\n\n"

    usage = {"prompt_tokens": 21, "completion_tokens": 12, "cost": COST}
    last = {"id": f"gen-{number}", "model": MODEL, "provider": "Chutes", "usage": usage,
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}  # fmt: skip
    return (
        b": OPENROUTER PROCESSING\n\n" + chunk({"role": "assistant", "reasoning": "Hm"}) + chunk({"content": "O"})
        + chunk({"content": "i"}, finish_reason="stop") + b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
    )  # fmt: skip


# OpenRouterTeam/ai-sdk-provider#24 (401), the same form for 402 and 403, OmniRoute#3044 (400)
_NAMED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "named_401": (401, "Provider returned error", {"raw": "invalid api key"}),
    "named_401_in_200": (401, "Provider returned error", {"raw": "invalid api key"}),
    "named_402": (402, "Provider returned error", {"raw": "insufficient balance"}),
    "named_402_in_200": (402, "Provider returned error", {"raw": "insufficient balance"}),
    "named_403": (403, "Provider returned error", {"raw": "account suspended"}),
    "named_403_in_200": (403, "Provider returned error", {"raw": "account suspended"}),
    "named_400": (400, "Provider returned error", {"raw": "this model does not support tools"}),
    "named_400_in_200": (400, "Provider returned error", {"raw": "this model does not support tools"}),
    "named_502": (502, "Provider returned error", {"error_type": "provider_unavailable"}),
}
# Cloudflare in front: HTML of any status, or its one line (RooCodeInc/Roo-Code#6459 and public reports)
_PAGES: dict[str, tuple[int, str, str]] = {
    "page_403": (403, "<!DOCTYPE html><html><title>Just a moment...</title></html>", "text/html"),
    "page_400": (400, "<html><center><h1>400 Bad Request</h1></center><hr>cloudflare</html>", "text/html"),
    "page_401": (401, "<html><h1>401</h1></html>", "text/html"),
    "line_1010": (403, "error code: 1010", "text/plain"),
    "line_1020": (403, "error code: 1020", "text/plain"),
    "page_520": (520, "<html>520: Web server is returning an unknown error</html>", "text/html"),
}

_STATUSES: dict[str, tuple[int, Any, dict[str, str]]] = {
    "400": (400, error(400, "context too long"), {}),
    "401": (401, error(401, "No auth credentials found"), {}),
    "402": (402, error(402, "Insufficient credits", limit_source="openrouter_key_limit"), {}),
    "402_in_flight": (
        402,
        error(402, "busy", reason="in_flight_budget_exhausted", limit_source="openrouter_in_flight_budget"),
        {"Retry-After": "0"},
    ),
    "402_too_big": (402, error(402, "too big", reason="weight_exceeds_budget", limit_source="openrouter_credits"), {}),
    "402_bare": (402, error(402, "Insufficient balance somewhere"), {}),
    "403": (403, error(403, "forbidden region"), {}),
    "403_moderated": (403, error(403, "flagged", reasons=["violence"], flagged_input="..."), {}),
    "403_budget": (403, error(403, "limit", limit_source="openrouter_guardrail_budget"), {}),
    "404": (404, {"error": {"message": "No endpoints", "availability": {"code": "no_endpoints"}, "http_status": 404}}, {}),
    "408": (408, error(408), {}),
    "413": (413, error(413), {}),
    "422": (422, error(422), {}),
    "429": (429, error(429), {"Retry-After": "0"}),
    "429_absurd": (429, error(429), {"Retry-After": "999999999"}),
    "429_date": (429, error(429), {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "500": (500, error(500, "Internal Server Error"), {}),
    "502": (502, error(502, "Provider returned error", provider_name="Chutes"), {}),
    "503": (503, error(503, "temporarily unavailable"), {}),
    "504": (504, error(504), {}),
    "524": (524, {"error": {"message": "edge"}}, {}),
    "529": (529, error(529, "overloaded"), {}),
}  # fmt: skip

_BODIES: dict[str, Any] = {
    "ok": completion,
    "error_in_200": lambda n: error(502, "Provider returned error"),
    "error_in_200_with_empty_choices": lambda n: {"choices": [], **error(429, "slow down")},
    "error_in_200_as_text": lambda n: {"choices": None, "error": {"code": "server_error", "message": "x"}},
    "401_in_200": lambda n: error(401, "key"),
    "error_finish": lambda n: completion(
        n, usage=None,
        choices=[{"finish_reason": "error", "error": {"code": 502}, "message": {"role": "assistant", "content": "Par"}}],
    ),
    "empty": lambda n: completion(
        n, choices=[{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}],
        usage={"prompt_tokens": 21, "completion_tokens": 0, "cost": 0.0001},
    ),
    "no_choices": lambda n: {"id": f"gen-{n}", "choices": []},
    "no_usage": lambda n: completion(n, usage=None),
    "claims_free": lambda n: completion(n, usage={"prompt_tokens": 21, "completion_tokens": 12, "cost": 0}),
    "wrong_provider": lambda n: completion(n, provider="BaseTen"),
    "wrong_model": lambda n: completion(n, model="moonshotai/kimi-k2"),
    "content_filter": lambda n: completion(
        n, choices=[{"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": "I"}}]
    ),
    "no_finish_reason": lambda n: completion(
        n, choices=[{"index": 0, "finish_reason": None, "message": {"role": "assistant", "content": "I"}}]
    ),
    "garbage_types": lambda n: {"choices": [{"message": [1], "finish_reason": {}}], "usage": "x", "model": 3, "provider": []},
}  # fmt: skip
