"""SGLang under /sglang: chat, the native /generate, models, health and info.

Belongs here: routes and checks. Does not belong here: bodies (`sglang_wire`), reading of /generate (`native`), what vLLM shares
(`engine_face`).

Checked against SGLang's source (openai/serving_chat.py, http_server.py): a chat stream's 200 leaves with its first event, so a request
that cannot be served is a 400 there; on /generate it is an event inside the 200; ids of each id-returning kind but `sglext` are refused
with a stream. Chosen: any model name is served; chat with n > 1 is answered once; a model that fails is an InternalServerError on chat.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from openrouter_standin import chance
from openrouter_standin.engines import sglang_wire
from openrouter_standin.engines.engine_face import EngineFace, Refused, open_stream, write_events
from openrouter_standin.engines.engine_logprobs import sglang_entries, triples_of
from openrouter_standin.engines.engine_request import EngineRequest, read_engine_request
from openrouter_standin.engines.native import Malformed, NativeBatch, NativeRequest, read_body, read_native
from openrouter_standin.openrouter import wire
from openrouter_standin.openrouter.transport import json_response
from openrouter_standin.request import BadRequest
from openrouter_standin.truth.generation import Generation
from openrouter_standin.vocabulary import Ids

PREFIX = "/sglang"
# in the order of the checks; return_token_ids alone names the route (openai/serving_chat.py)
_NOT_STREAMED = {
    "return_prompt_token_ids": "return_prompt_token_ids is not supported with streaming.",
    "return_token_ids": "return_token_ids is not supported with streaming on /v1/chat/completions.",
    "return_meta_info": "return_meta_info is not supported with streaming.",
}


class Sglang(EngineFace):
    """Handlers."""

    def routes(self) -> Iterable[web.RouteDef]:
        yield web.post(f"{PREFIX}/v1/chat/completions", self.chat)
        yield web.get(f"{PREFIX}/v1/models", self.models)
        yield web.post(f"{PREFIX}/generate", self.generate)
        yield web.put(f"{PREFIX}/generate", self.generate)
        for path in ("health", "health_generate"):
            yield web.get(f"{PREFIX}/{path}", self.health)
        for path in ("model_info", "get_model_info"):
            yield web.get(f"{PREFIX}/{path}", self.model_info)
        for path in ("server_info", "get_server_info"):
            yield web.get(f"{PREFIX}/{path}", self.server_info)

    # -------------------------------------------------------------------------------------------- chat
    async def chat(self, http: web.Request) -> web.StreamResponse:
        vocabulary = self.generator.vocabulary
        try:
            request, prompt_ids = self._read(await http.read(), http)
            if request.chat.stream:
                return await self._stream(http, request, prompt_ids)
            generation = await self.answer(request.chat, prompt_ids)
        except Refused as refused:
            return json_response(sglang_wire.sglang_error(refused.code, str(refused)), refused.code)
        entries = sglang_entries(generation.sampled, request.chat, vocabulary)
        triples = triples_of(generation.sampled, request.chat, vocabulary, with_text=True)
        body = sglang_wire.sglang_body(generation, vocabulary, request.wants, entries, triples)
        return web.Response(body=body, content_type="application/json", headers={"X-Generation-Id": generation.id})

    async def _stream(self, http: web.Request, request: EngineRequest, prompt_ids: Ids) -> web.StreamResponse:
        begun, vocabulary = time.monotonic(), self.generator.vocabulary
        response = web.StreamResponse()
        with contextlib.suppress(ConnectionError):  # the client left; nothing is billed here
            try:
                generation = await self.sample(request.chat, prompt_ids)
            except Refused as refused:
                response = await open_stream(http)
                error = sglang_wire.sglang_error(refused.code, str(refused), "INTERNAL_SERVER_ERROR")
                await response.write(wire.sse({"error": error}) + wire.SSE_DONE)
                return response
            entries = sglang_entries(generation.sampled, request.chat, vocabulary)
            left_s = await self.first_token(generation, begun)
            response = await open_stream(http, {"X-Generation-Id": generation.id})
            chunks = sglang_wire.sglang_chunks(generation, vocabulary, request.wants, entries)
            await write_events(response, chunks, len(generation.completion_ids), left_s)
        return response

    def _read(self, body: bytes, http: web.Request) -> tuple[EngineRequest, Ids]:
        """Raises Refused."""
        try:
            request = read_engine_request(body, http.headers)
        except BadRequest as error:
            raise Refused(400, str(error)) from None
        for switch, why in _NOT_STREAMED.items():
            if request.chat.stream and switch in request.wants:
                raise Refused(400, f"{why} Please set stream=false when using {switch}=true.")
        prompt_ids = self.generator.prompt_ids(request.chat, self.generator.profiles.engine)
        self._check_length(prompt_ids, request.chat.max_tokens)
        return request, prompt_ids

    def _check_length(self, prompt_ids: Ids, max_tokens: int | None) -> None:
        sold = self.generator.profiles.model.context_length  # a source that can less cuts the answer
        if len(prompt_ids) > self.longest or len(prompt_ids) >= sold:
            raise Refused(400, sglang_wire.too_long(len(prompt_ids), self.longest))
        if len(prompt_ids) + (max_tokens or 0) > sold:
            raise Refused(400, sglang_wire.too_much(len(prompt_ids), max_tokens or 0, sold))

    # -------------------------------------------------------------------------------------------- /generate
    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Text or ids in, text and ids out, for one prompt or a batch."""
        streaming = False
        try:
            raw = read_body(await http.read())
            streaming = raw.get("stream") is True
            batch = read_native(raw, self.generator.vocabulary)
            for one in batch.requests:
                self._check_length(one.prompt_ids, one.chat.max_tokens)
            if streaming:
                return await self._stream_batch(http, batch)
            generations = await asyncio.gather(*(self.answer(one.chat, one.prompt_ids) for one in batch.requests))
        except Malformed as error:
            return json_response(sglang_wire.sglang_error(400, str(error), "Bad Request"), 400)
        except Refused as refused:
            if refused.code == 500:
                return json_response(sglang_wire.sglang_error(500, str(refused), "500"), 500)
            return await self._refuse(http, str(refused), streaming)
        except BadRequest as error:
            return await self._refuse(http, str(error), streaming)
        answers = [
            sglang_wire.generate_answer(generation, self.generator.vocabulary, **self._how(batch, generation))
            for generation in generations
        ]
        return json_response(answers[0] if batch.single else answers)

    async def _refuse(self, http: web.Request, message: str, streaming: bool) -> web.StreamResponse:
        error = sglang_wire.generate_error(message)
        if not streaming:
            return json_response(error, 400)
        response = web.StreamResponse()
        with contextlib.suppress(ConnectionError):  # the client left
            response = await open_stream(http)
            await response.write(wire.sse(error) + wire.SSE_DONE)
        return response

    def _how(self, batch: NativeBatch, generation: Generation) -> dict[str, Any]:
        triples = triples_of(generation.sampled, generation.request, self.generator.vocabulary, with_text=batch.text_in_logprobs)
        return {
            "thinking": batch.require_reasoning and generation.request.thinking,
            "triples": triples,
            "with_prompt": batch.return_prompt_token_ids,
        }

    async def _stream_batch(self, http: web.Request, batch: NativeBatch) -> web.StreamResponse:
        """Each answer at its own pace, their events between one another, told apart by `index`."""
        response = web.StreamResponse()
        with contextlib.suppress(ConnectionError):  # the client left; nothing is billed here
            response = await open_stream(http)
            index = (None,) if batch.single else tuple(range(len(batch.requests)))
            writers = (self._stream_one(response, batch, one, k) for one, k in zip(batch.requests, index, strict=True))
            await asyncio.gather(*writers)
            await response.write(wire.SSE_DONE)
        return response

    async def _stream_one(self, response: web.StreamResponse, batch: NativeBatch, one: NativeRequest, index: int | None) -> None:
        begun, place = time.monotonic(), {} if index is None else {"index": index}
        try:
            generation = await self.sample(one.chat, one.prompt_ids)
        except Refused as refused:
            nobody = chance.hexadecimal(32, "aborted", one.chat.hash, begun)
            await response.write(wire.sse({**sglang_wire.aborted(nobody, len(one.prompt_ids), str(refused)), **place}))
            return
        left_s = await self.first_token(generation, begun)
        events = sglang_wire.generate_events(generation, self.generator.vocabulary, index=index, **self._how(batch, generation))
        await write_events(response, events, len(generation.completion_ids), left_s)

    # -------------------------------------------------------------------------------------------- the small routes
    async def models(self, http: web.Request) -> web.Response:
        return json_response(sglang_wire.sglang_models(self.model, self.created, self.longest))

    async def health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def model_info(self, http: web.Request) -> web.Response:
        return json_response(sglang_wire.model_info(self.model))

    async def server_info(self, http: web.Request) -> web.Response:
        return json_response(sglang_wire.server_info(self.model, self.longest))
