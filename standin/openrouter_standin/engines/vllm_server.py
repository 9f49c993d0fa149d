"""vLLM under /engine: chat with ids, models, health, version, tokenize and detokenize.

Belongs here: routes and checks. Does not belong here: bodies (`vllm_wire`), what SGLang shares (`engine_face`).
Chosen: n > 1 is answered once; /tokenize puts no special ids in front (Kimi has none) and names no token_strs.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from openrouter_standin.engines import vllm_wire
from openrouter_standin.engines.engine_face import EngineFace, Refused, open_stream, write_events
from openrouter_standin.engines.engine_logprobs import vllm_entries
from openrouter_standin.engines.engine_request import EngineRequest, read_engine_request
from openrouter_standin.openrouter import wire
from openrouter_standin.openrouter.transport import json_response
from openrouter_standin.request import BadRequest, read_request
from openrouter_standin.truth.generation import Generation
from openrouter_standin.vocabulary import Ids

PREFIX = "/engine"


class Vllm(EngineFace):
    """Handlers."""

    def routes(self) -> Iterable[web.RouteDef]:
        yield web.post(f"{PREFIX}/v1/chat/completions", self.chat)
        yield web.get(f"{PREFIX}/v1/models", self.models)
        yield web.get(f"{PREFIX}/health", self.health)
        yield web.get(f"{PREFIX}/version", self.version)
        yield web.post(f"{PREFIX}/tokenize", self.tokenize)
        yield web.post(f"{PREFIX}/detokenize", self.detokenize)

    # -------------------------------------------------------------------------------------------- chat
    async def chat(self, http: web.Request) -> web.StreamResponse:
        try:
            request, prompt_ids = self._read(await http.read(), http)
            if request.chat.stream:
                return await self._stream(http, request, prompt_ids)
            generation = await self.answer(request.chat, prompt_ids)
        except Refused as refused:
            return json_response(vllm_wire.vllm_error(refused.code, str(refused), refused.param), refused.code)
        with_ids = "return_token_ids" in request.wants
        body = vllm_wire.vllm_body(generation, self._entries(generation, request), with_ids=with_ids)
        return web.Response(body=body, content_type="application/json", headers={"X-Generation-Id": generation.id})

    async def _stream(self, http: web.Request, request: EngineRequest, prompt_ids: Ids) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        with contextlib.suppress(ConnectionError):  # the client left; nothing is billed here
            response, begun = await open_stream(http), time.monotonic()
            try:
                generation = await self.sample(request.chat, prompt_ids)
            except Refused as refused:  # the 200 is out
                await response.write(wire.sse(vllm_wire.vllm_error(refused.code, str(refused))) + wire.SSE_DONE)
                return response
            chunks = vllm_wire.vllm_chunks(generation, self._entries(generation, request), request.wants)
            left_s = await self.first_token(generation, begun)
            await write_events(response, chunks, len(generation.completion_ids), left_s)
        return response

    def _entries(self, generation: Generation, request: EngineRequest) -> tuple[dict[str, Any], ...] | None:
        as_ids = "return_tokens_as_token_ids" in request.wants
        return vllm_entries(generation.sampled, request.chat, self.generator.vocabulary, as_ids=as_ids)

    def _read(self, body: bytes, http: web.Request) -> tuple[EngineRequest, Ids]:
        """Raises Refused."""
        try:
            request = read_engine_request(body, http.headers)
        except BadRequest as error:
            raise Refused(400, str(error)) from None
        chat, longest = request.chat, self.longest
        if chat.model not in ("", self.model):
            raise Refused(404, f"The model `{chat.model}` does not exist.")
        if request.stream_options and not chat.stream:
            raise Refused(400, "Stream options can only be defined when `stream=True`.", "stream_options")
        if request.top_without_logprobs:
            raise Refused(400, "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        prompt_ids = self.generator.prompt_ids(chat, self.generator.profiles.engine)
        sold = self.generator.profiles.model.context_length  # a source that can less cuts the answer
        if len(prompt_ids) > longest or len(prompt_ids) + (chat.max_tokens or 0) > sold:
            raise Refused(400, vllm_wire.too_long(len(prompt_ids), chat.max_tokens or 0, longest), "input_tokens")
        return request, prompt_ids

    # -------------------------------------------------------------------------------------------- the small routes
    async def models(self, http: web.Request) -> web.Response:
        return json_response(vllm_wire.vllm_models(self.model, self.created, self.longest))

    async def health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def version(self, http: web.Request) -> web.Response:
        return json_response({"version": vllm_wire.VERSION})

    async def tokenize(self, http: web.Request) -> web.Response:
        """Ids of `prompt`, or of `messages` and `tools` with the prompt of an answer behind them."""
        body = await http.read()
        try:
            raw = _object(body)
            prompt = raw.get("prompt")
            if isinstance(prompt, str):
                ids = self.generator.vocabulary.encode_prompt(prompt)
            else:
                ids = self.generator.prompt_ids(read_request(body), self.generator.profiles.engine)
        except BadRequest as error:
            return json_response(vllm_wire.vllm_error(400, str(error)), 400)
        return json_response({"count": len(ids), "max_model_len": self.longest, "tokens": list(ids), "token_strs": None})

    async def detokenize(self, http: web.Request) -> web.Response:
        encoding = self.generator.vocabulary.encoding
        try:
            ids = _object(await http.read()).get("tokens")
        except BadRequest as error:
            return json_response(vllm_wire.vllm_error(400, str(error)), 400)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < encoding.n_vocab for i in ids):
            return json_response(vllm_wire.vllm_error(400, f"tokens: expected ids in [0, {encoding.n_vocab})", "tokens"), 400)
        return json_response({"prompt": encoding.decode(ids)})


def _object(body: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("Invalid JSON in request body") from None
    if not isinstance(raw, dict):
        raise BadRequest("Request body must be a JSON object")
    return raw
