"""One attempt at one prompt: sent, received, judged. Whatever happens in between, there is a record to journal.

Belongs here: the identity of a request, sending that outlives a cancelled task, judging that never raises, the key taken out of
what came back. Does not belong here: what outcomes mean (`outcomes.py`), what follows from them (`collector.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiohttp

from eagle3_assets.campaign import Collect
from eagle3_assets.collect.run.outcomes import Finding, classify, to_answer
from eagle3_assets.collect.servers.exchange import Exchange, send
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.chunks import is_stream
from eagle3_assets.wire.journal import dump_json, load_json
from eagle3_assets.wire.wire_answer import WireAnswer

log = logging.getLogger(__name__)
_chance = random.Random()  # seeded by the operating system; asking it for every request costs ten times as much


@dataclass(slots=True)
class Attempt:
    """Attempt `number` (from 1) at `prompt`. `request` is the JSON that is sent."""

    prompt: Prompt
    shard: str
    source: Literal["openrouter", "engine"]
    request: dict[str, Any]
    number: int
    server: str | None = None
    request_id: str = ""
    started_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.request_id = f"{self.prompt.sample_id}-{self.prompt.turn}-{self.number}-{_chance.getrandbits(40):010x}"

    async def send(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], limits: Collect) -> Exchange:
        """Being cancelled is a fault like others (the answer is lost, perhaps billed), so that it is recorded like others."""
        exchange, self.started_at = Exchange(), time.time()
        payload, silence_s = dump_json(self.request), limits.silence_of(bool(self.request.get("stream")))
        try:
            await send(session, url, payload, headers=headers, timeout_s=limits.timeout_s, silence_s=silence_s, into=exchange)
        except asyncio.CancelledError:
            exchange.fault = "cancelled"
        return exchange

    def judge(
        self,
        exchange: Exchange,
        *,
        key: ApiKey | None = None,
        is_asked_model: Callable[[str | None], bool] = lambda model: True,
        is_eligible: Callable[[str | None], bool] = lambda provider: True,
    ) -> tuple[WireAnswer, Finding]:
        """The record of an exchange, and the verdict on it. Never raises for what a server sent: these bytes may be paid for.

        `key` is what must not be written: where a server echoes it, it is blotted out before anything is read, and an answer that
        held it is not used (its bytes are no longer those received).
        """
        is_clean = key is None or not _hide_key(exchange, key)
        try:
            asked = self.request.get("model")
            finding = classify(exchange, is_asked_model=is_asked_model, is_eligible=is_eligible, asked_model=asked)
        except Exception as error:  # a shape that nobody thought of: a failure with its bytes, bounded like others
            log.error("the answer of %s could not be judged (%s); its bytes are kept", self.request_id, type(error).__name__)
            finding = Finding(exchange.fault or "unreadable")
        if key is not None:
            finding, was_spelled = _hide_spelled_key(exchange, finding, key)
            is_clean = is_clean and not was_spelled
        if not is_clean and finding.handling.then == "done":
            finding = replace(finding, reason="key_echoed")
        return self._record(exchange, finding), finding

    def _record(self, exchange: Exchange, finding: Finding) -> WireAnswer:
        return to_answer(
            self.prompt,
            exchange,
            finding,
            source=self.source,
            request_id=self.request_id,
            request=self.request,
            shard=self.shard,
            attempt=self.number,
            started_at=self.started_at,
            server=self.server,
        )


def _hide_key(exchange: Exchange, key: ApiKey) -> bool:
    """Blot the key out of headers and body; returns whether the body held it (a header is no part of an answer)."""
    exchange.headers = {name: key.hide_in_text(value) for name, value in exchange.headers.items()}
    body = key.hide_in(exchange.body)
    held = body != exchange.body
    exchange.body = body
    return held


def _hide_spelled_key(exchange: Exchange, finding: Finding, key: ApiKey) -> tuple[Finding, bool]:
    """The pieces of a stream, or JSON in UTF-16, may spell the key although the bytes do not hold it: the body then becomes the
    answer as it was read, without the key.
    """
    in_pieces = is_stream(exchange.body, exchange.headers.get("content-type", "")) or b"\x00" in exchange.body
    if finding.completion is None or not in_pieces:
        return finding, False
    merged = dump_json(finding.completion)
    hidden = key.hide_in(merged)
    if hidden == merged:
        return finding, False
    exchange.body, exchange.headers["content-type"] = hidden, "application/json"
    return replace(finding, completion=load_json(hidden), message=key.hide_in_text(finding.message)), True
