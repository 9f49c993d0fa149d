"""The engine faces of the stand-in: vLLM under /engine/v1, SGLang under /sglang (chat and `/generate`). They return ids and cost nothing.

Belongs here: their routes, checks and waiting. Does not belong here: bodies (`engine_wire`), OpenRouter (`server`).
Both answer with the model and the latency of `[engine]`, from the same source and into the same ledger, without a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from eagle3_assets.errors import Eagle3Error
from eagle3_assets.standin import engine_wire, wire
from eagle3_assets.standin.generation import EngineKind, Generation, Generator
from eagle3_assets.standin.ledger import Ledger
from eagle3_assets.standin.native import read_native
from eagle3_assets.standin.request import BadRequest, ChatRequest, read_request
from eagle3_assets.standin.transport import json_response, write_paced
from eagle3_assets.standin.vocabulary import Ids

VLLM, SGLANG = "/engine/v1", "/sglang"
ErrorShape = Callable[[int, str], dict[str, Any]]


class _Refused(Exception):
    """What the engine says instead of an answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Engines:
    """Handlers over the stand-in's generator and ledger."""

    generator: Generator
    ledger: Ledger

    def routes(self) -> Iterable[web.RouteDef]:
        yield web.post(f"{VLLM}/chat/completions", self.vllm_chat)
        yield web.get(f"{VLLM}/models", self.vllm_models)
        yield web.post(f"{SGLANG}/v1/chat/completions", self.sglang_chat)
        yield web.get(f"{SGLANG}/v1/models", self.sglang_models)
        yield web.post(f"{SGLANG}/generate", self.sglang_generate)

    # -------------------------------------------------------------------------------------------- vLLM
    async def vllm_chat(self, http: web.Request) -> web.StreamResponse:
        try:
            request, prompt_ids = self._read(await http.read())
            if request.stream:
                return await self._vllm_stream(http, request, prompt_ids)
            generation = await self._answer("vllm", request, prompt_ids)
        except _Refused as refused:
            return json_response(engine_wire.vllm_error(refused.code, str(refused)), refused.code)
        return _body(engine_wire.vllm_body(generation, with_ids=request.return_token_ids), generation)

    async def _vllm_stream(self, http: web.Request, request: ChatRequest, prompt_ids: Ids) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
        await response.prepare(http)
        begun = time.monotonic()
        try:
            generation = await self._sample("vllm", request, prompt_ids)
        except _Refused as refused:  # the 200 is out
            await response.write(wire.sse(engine_wire.vllm_error(refused.code, str(refused))) + wire.SSE_DONE)
            return response
        self.ledger.settle(generation)
        with_usage = "include_usage" in request.flags
        chunks = list(engine_wire.vllm_chunks(generation, with_ids=request.return_token_ids, with_usage=with_usage))
        taken_s, first_s = time.monotonic() - begun, generation.ttft_s * self._scale
        await asyncio.sleep(max(first_s - taken_s, 0.0))
        with contextlib.suppress(ConnectionError):  # the client left; nothing is billed here
            await write_paced(response, chunks, generation.duration_s * self._scale - max(first_s, taken_s))
        return response

    async def vllm_models(self, http: web.Request) -> web.Response:
        return self._models({"owned_by": "stand-in"})

    # -------------------------------------------------------------------------------------------- SGLang
    async def sglang_chat(self, http: web.Request) -> web.StreamResponse:
        try:
            request, prompt_ids = self._read(await http.read())
            if request.stream:
                raise _Refused(400, _no_stream(request))
            generation = await self._answer("sglang", request, prompt_ids)
        except _Refused as refused:
            return json_response(engine_wire.sglang_error(refused.code, str(refused)), refused.code)
        return _body(engine_wire.sglang_body(generation, self.generator.vocabulary), generation)

    async def sglang_generate(self, http: web.Request) -> web.StreamResponse:
        """Text or ids in, text and ids out. Any mistake is a 400, as SGLang's is (http_server.py)."""
        vocabulary = self.generator.vocabulary
        try:
            native = read_native(await http.read(), vocabulary)
            self._check_length(native.prompt_ids)
            generation = await self._answer("sglang", native.chat, native.prompt_ids)
        except (BadRequest, _Refused) as error:
            return json_response(engine_wire.generate_error(str(error)), 400)
        body = engine_wire.generate_body(generation, vocabulary, text_in_logprobs=native.text_in_logprobs)
        return _body(body, generation)

    async def sglang_models(self, http: web.Request) -> web.Response:
        return self._models({"owned_by": "sglang", "max_model_len": self.generator.context_length})

    # -------------------------------------------------------------------------------------------- both
    def _read(self, body: bytes) -> tuple[ChatRequest, Ids]:
        engine = self.generator.profiles.engine
        try:
            request = read_request(body)
        except BadRequest as error:
            raise _Refused(400, str(error)) from None
        if request.model not in ("", engine.model):
            raise _Refused(404, f"The model `{request.model}` does not exist.")
        prompt_ids = self.generator.prompt_ids(request, engine)
        self._check_length(prompt_ids)
        return request, prompt_ids

    def _check_length(self, prompt_ids: Ids) -> None:
        longest = self.generator.context_length
        if len(prompt_ids) > longest:
            why = f"This model's maximum context length is {longest} tokens."
            raise _Refused(400, f"{why} However, your messages have {len(prompt_ids)} tokens.")

    async def _sample(self, kind: EngineKind, request: ChatRequest, prompt_ids: Ids) -> Generation:
        created = int(time.time())
        attempt = self.ledger.next_attempt(self.generator.engine_key(kind, request))
        try:
            sampled = await self.generator.ask_engine(request, prompt_ids, attempt)
        except Eagle3Error as error:
            raise _Refused(500, str(error)) from None
        return self.generator.of_engine(request, kind, sampled, prompt_ids=prompt_ids, attempt=attempt, created=created)

    async def _answer(self, kind: EngineKind, request: ChatRequest, prompt_ids: Ids) -> Generation:
        """The whole answer when its time is over, settled."""
        begun = time.monotonic()
        generation = await self._sample(kind, request, prompt_ids)
        await asyncio.sleep(max(generation.duration_s * self._scale - (time.monotonic() - begun), 0.0))
        self.ledger.settle(generation)
        return generation

    @property
    def _scale(self) -> float:
        return self.generator.profiles.server.time_scale

    def _models(self, more: dict[str, Any]) -> web.Response:
        model, created = self.generator.profiles.engine.model, self.generator.profiles.model.created
        return json_response(
            {"object": "list", "data": [{"id": model, "object": "model", "created": created, "root": model, **more}]}
        )


def _body(body: bytes, generation: Generation) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers={"X-Generation-Id": generation.id})


def _no_stream(request: ChatRequest) -> str:
    """SGLang streams chat without ids; this stand-in does not."""
    if "return_token_ids" in request.flags:
        return (
            "return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when using "
            "return_token_ids=true."
        )
    return "stream = true is not supported on /sglang by this stand-in"
