"""What both engine faces do: an answer from the source into the ledger, its time, a stream that the client may leave.

Belongs here: sampling, waiting, writing events at a pace. Does not belong here: routes and bodies (`vllm_server`, `sglang_server`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aiohttp import web

from kimi_mini.errors import KimiMiniError
from openrouter_standin.openrouter.transport import write_paced
from openrouter_standin.request import ChatRequest
from openrouter_standin.truth.generation import EngineKind, Generation, Generator
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Ids

_AT_ONCE = (
    1 << 20
)  # bytes of a stream that exist at a time: events that say all again are 700 MB in all (4,500 ids, log-probabilities)


class Refused(Exception):
    """What the engine says instead of an answer."""

    def __init__(self, code: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


@dataclass(frozen=True)
class EngineFace:
    """An engine over the stand-in's generator and ledger: no key, no bill, attempts counted apart (`kind`)."""

    generator: Generator
    ledger: Ledger
    kind: EngineKind

    @property
    def scale(self) -> float:
        """Real seconds per simulated second."""
        return self.generator.profiles.server.time_scale

    @property
    def model(self) -> str:
        return self.generator.profiles.engine.model

    @property
    def created(self) -> int:
        return self.generator.profiles.model.created

    @property
    def longest(self) -> int:
        """Tokens of a prompt, and with its answer of what the model as sold can take."""
        return self.generator.context_length

    async def sample(self, request: ChatRequest, prompt_ids: Ids) -> Generation:
        """Drawn and settled; its time has not passed. Raises Refused 500 when the model fails."""
        created = int(time.time())
        attempt = self.ledger.next_attempt(self.generator.engine_key(self.kind, request))
        try:
            sampled = await self.generator.ask_engine(request, prompt_ids, attempt)
        except KimiMiniError as error:
            raise Refused(500, str(error)) from None
        generation = self.generator.of_engine(
            request, self.kind, sampled, prompt_ids=prompt_ids, attempt=attempt, created=created
        )
        try:
            self.ledger.settle(generation)
        except OSError as error:
            raise Refused(500, f"the answer cannot be written down ({error.strerror})") from None
        return generation

    async def answer(self, request: ChatRequest, prompt_ids: Ids) -> Generation:
        """The whole answer when its time is over."""
        begun = time.monotonic()
        generation = await self.sample(request, prompt_ids)
        await asyncio.sleep(max(generation.duration_s * self.scale - (time.monotonic() - begun), 0.0))
        return generation

    async def first_token(self, generation: Generation, begun: float) -> float:
        """Wait until the first token is due; the real seconds that the rest of the answer takes."""
        taken_s, first_s = time.monotonic() - begun, generation.ttft_s * self.scale
        await asyncio.sleep(max(first_s - taken_s, 0.0))
        return max(generation.duration_s * self.scale - max(first_s, taken_s), 0.0)


async def open_stream(http: web.Request, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Status 200 of an SSE response. Raises ConnectionError when the client left."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", **(headers or {})}
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    return response


async def write_events(response: web.StreamResponse, events: Iterable[bytes], about: int, left_s: float) -> None:
    """The events, `about` so many, spread over `left_s` real seconds; made as they are needed. Raises ConnectionError when the client
    left."""
    for some in _portions(events):
        await write_paced(response, some, left_s * len(some) / max(about, len(some)))


def _portions(events: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for event in events:
        some.append(event)
        size += len(event)
        if size >= _AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some
