"""One generation: request + provider -> prompt ids, truth ids, bent answer, bill. The heart of the stand-in, free of any network.

Belongs here: the type `Generation` and how it comes about. Does not belong here: bodies, sockets, money that is already spent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from openrouter_standin import chance
from openrouter_standin.answers.logprobs import Entries, entries_of
from openrouter_standin.answers.sampled import AnswerSource, Sampled
from openrouter_standin.bending.bend import Bent, bend_answer
from openrouter_standin.bending.bill import Bill, make_bill
from openrouter_standin.bending.render_prompt import render_prompt
from openrouter_standin.profiles import PICO, Profiles
from openrouter_standin.request import ChatRequest
from openrouter_standin.schema.provider import Engine, Latency, Provider, Text
from openrouter_standin.vocabulary import Ids, Parts, Vocabulary, take_apart

EngineKind = Literal["vllm", "sglang"]
_KEPT = 4096  # answers of a bank whose text is remembered: some 60 KB each at 3,500 tokens
_KEPT_BENT = 1024  # bent answers: some 80 KB each


@dataclass(frozen=True)
class _EngineHabits:
    """`name` stands in truth and ledger."""

    name: str
    id_prefix: str
    text: Text


_ENGINES: dict[EngineKind, _EngineHabits] = {
    "vllm": _EngineHabits("engine", "chatcmpl-", Text()),
    "sglang": _EngineHabits("sglang", "", Text(tool_ids="renumbered")),
}


@dataclass(frozen=True)
class Generation:
    """`prompt_ids` as the server saw them, `sampled` as the model gave it: the truth. Times in simulated seconds.

    `engine`: which one answered, empty for OpenRouter. `logprobs`: one place for each sampled id, None where that id has no entry;
    None as a whole where there are none to serve. `tried`: (provider, status) of the endpoints that refused before. `refunded`: billed,
    and given back later. `version`: how often the provider had changed in mid-run.
    """

    id: str
    created: int
    request: ChatRequest
    attempt: int
    model: str
    provider: str
    tag: str
    prompt_ids: Ids
    sampled: Sampled
    parts: Parts
    bent: Bent
    logprobs: Entries | None
    bill: Bill
    engine: str
    tried: tuple[tuple[str, int], ...]
    ttft_s: float
    duration_s: float
    refunded: bool = False
    version: int = 0

    @property
    def completion_ids(self) -> Ids:
        return self.sampled.ids

    @property
    def request_key(self) -> str:
        """Under which attempts are counted: OpenRouter and each engine count apart."""
        return f"{self.engine}:{self.request.hash}" if self.engine else self.request.hash

    def truth(self) -> dict[str, Any]:
        """The line of truth.jsonl, for orjson."""
        return {
            "generation_id": self.id,
            "request_hash": self.request_key,
            "attempt": self.attempt,
            "provider": self.provider,
            "profile": f"{self.tag}#{self.version}" if self.version else self.tag,
            "prompt_ids": self.prompt_ids,
            "completion_ids": orjson.Fragment(self.sampled.ids_json),
            "edits": self.bent.edits,
            "habits": self.sampled.habits,
            "cost_pico": 0 if self.refunded else self.bill.total_pico,
        }

    def account(self) -> dict[str, Any]:
        """The line of ledger.jsonl: all that /generation tells, and nothing of the truth."""
        return {
            "generation_id": self.id,
            "request_hash": self.request_key,
            "attempt": self.attempt,
            "created": self.created,
            "model": self.model,
            "provider": self.provider,
            "tag": self.tag,
            "tried": self.tried,
            "streamed": self.request.stream,
            "finish_reason": self.bent.finish_reason,
            "prompt_tokens": self.bill.prompt_tokens,
            "completion_tokens": self.bill.completion_tokens,
            "reasoning_tokens": self.bill.reasoning_tokens,
            "ttft_s": round(self.ttft_s, 6),
            "duration_s": round(self.duration_s, 6),
            "cost_pico": self.bill.total_pico,
            **({"refund_due": True} if self.refunded else {}),
            **({"session_id": self.request.session_id} if self.request.session_id else {}),
        }


def usd(pico: int) -> float:
    """Picodollars as the nearest float of USD."""
    return pico / PICO


def _times(law: Latency, tokens: int, *parts: object) -> tuple[float, float]:
    ttft = chance.lognormal(law.ttft_median_s, law.ttft_sigma, "ttft", *parts)
    return ttft, ttft + tokens / law.tokens_per_s


@dataclass(frozen=True)
class Generator:
    """Everything that a generation depends on beside the request. `seed` joins the file's seed and the launcher's."""

    profiles: Profiles
    vocabulary: Vocabulary
    source: AnswerSource
    seed: str
    _known: dict[tuple[int, bool], Parts] = field(default_factory=dict, repr=False)
    _bent: dict[tuple[int, bool, str, int], Bent] = field(default_factory=dict, repr=False)

    def _taken_apart(self, sampled: Sampled, thinking: bool) -> Parts:
        """The parts of an answer; a bank's are kept (with their text, the dearest step), as each will be served many times."""
        if sampled.key is None:
            return take_apart(sampled.ids, thinking, self.vocabulary)
        parts = self._known.get((sampled.key, thinking))
        if parts is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
                self.vocabulary.forget()
            parts = take_apart(sampled.ids, thinking, self.vocabulary)
            self._known[sampled.key, thinking] = parts
            self.vocabulary.keep(parts.reasoning, parts.content)
        return parts

    def _bend(self, request: ChatRequest, provider: Provider, sampled: Sampled, parts: Parts, salt: str) -> Bent:
        """As the provider returns it. Without calls and not streamed nothing of a bank's answer depends on the request: kept."""
        kept = None
        if sampled.key is not None and not request.stream and not parts.section:
            kept = sampled.key, request.thinking, provider.tag, provider.version
            if (known := self._bent.get(kept)) is not None:
                return known
        bent = bend_answer(
            sampled.ids,
            parts,
            provider.text,
            self.vocabulary,
            salt=salt,
            thinking=request.thinking,
            streamed=request.stream,
            calls_so_far=request.calls_so_far,
        )
        if kept is not None:
            if len(self._bent) >= _KEPT_BENT:
                self._bent.clear()
            self._bent[kept] = bent
        return bent

    def prompt_ids(self, request: ChatRequest, provider: Provider | Engine) -> Ids:
        return render_prompt(request.messages, request.tools, self.vocabulary, thinking=request.thinking, bending=provider.prompt)

    @property
    def context_length(self) -> int:
        """The longest prompt, in tokens, that the model as sold and the source can answer."""
        sold, able = self.profiles.model.context_length, self.source.context_length
        return sold if able is None else min(sold, able - 1)

    def provider_id(self, request: ChatRequest, *, attempt: int, created: int) -> str:
        """The generation id, known before the answer is."""
        return f"gen-{created}-{chance.alnum(20, 'id', self.seed, request.hash, attempt)}"

    def ask_provider(self, request: ChatRequest, provider: Provider, prompt_ids: Ids, attempt: int) -> asyncio.Future[Sampled]:
        """The truth, drawn once; awaiting them decides nothing."""
        limits = (request.max_tokens, provider.max_completion_tokens, provider.silent_max_tokens)
        limit = min(limit for limit in limits if limit is not None)
        return self.source.answer(request, prompt_ids, seed=self.seed, attempt=attempt, limit=limit)

    def engine_key(self, kind: EngineKind, request: ChatRequest) -> str:
        """Under which an engine's attempts are counted."""
        return f"{_ENGINES[kind].name}:{request.hash}"

    def ask_engine(self, request: ChatRequest, prompt_ids: Ids, attempt: int) -> asyncio.Future[Sampled]:
        """The same for the engine, whose limit is what the context leaves."""
        limit = request.max_tokens or max(self.profiles.model.context_length - len(prompt_ids), 1)
        return self.source.answer(request, prompt_ids, seed=self.seed, attempt=attempt, limit=limit)

    def of_provider(
        self,
        request: ChatRequest,
        provider: Provider,
        sampled: Sampled,
        *,
        prompt_ids: Ids,
        attempt: int,
        created: int,
        tried: tuple[tuple[str, int], ...],
    ) -> Generation:
        """An answer through OpenRouter, from its truth."""
        key, ids = (self.seed, request.hash, attempt), sampled.ids
        parts = self._taken_apart(sampled, request.thinking)
        salt = ":".join(map(str, key))
        bent = self._bend(request, provider, sampled, parts, salt)
        ttft, duration = _times(provider.latency, len(ids), *key, provider.tag)
        return Generation(
            id=self.provider_id(request, attempt=attempt, created=created),
            created=created,
            request=request,
            attempt=attempt,
            model=self.profiles.model.dated_slug,
            provider=provider.name,
            tag=provider.tag,
            prompt_ids=prompt_ids,
            sampled=sampled,
            parts=parts,
            bent=bent,
            logprobs=entries_of(sampled, parts, provider.logprob_entries, request, self.vocabulary)
            if provider.logprobs
            else None,
            bill=make_bill(prompt_ids, ids, parts, bent, provider, self.vocabulary, salt=salt),
            engine="",
            tried=tried,
            ttft_s=ttft,
            duration_s=duration,
            version=provider.version,
        )

    def of_engine(
        self, request: ChatRequest, kind: EngineKind, sampled: Sampled, *, prompt_ids: Ids, attempt: int, created: int
    ) -> Generation:
        """An answer of an id-returning engine: text as the ids say, nothing billed in money. SGLang numbers tool calls anew, and its
        id is a bare uuid (docs/research/openrouter-contract.md#4.2; its serving_chat.py)."""
        engine, name = self.profiles.engine, _ENGINES[kind].name
        key, ids = (self.seed, request.hash, attempt, name), sampled.ids
        parts = self._taken_apart(sampled, request.thinking)
        salt = ":".join(map(str, key))
        bent = bend_answer(
            ids,
            parts,
            _ENGINES[kind].text,
            self.vocabulary,
            salt=salt,
            thinking=request.thinking,
            calls_so_far=request.calls_so_far,
        )
        ttft, duration = _times(engine.latency, len(ids), *key)
        return Generation(
            id=f"{_ENGINES[kind].id_prefix}{chance.hexadecimal(32, 'id', created, *key)}",
            created=created,
            request=request,
            attempt=attempt,
            model=request.model or engine.model,
            provider=name,
            tag=name,
            prompt_ids=prompt_ids,
            sampled=sampled,
            parts=parts,
            bent=bent,
            logprobs=None,
            bill=Bill(len(prompt_ids), len(ids), len(parts.reasoning) + parts.closed, 0, 0),
            engine=name,
            tried=(),
            ttft_s=ttft,
            duration_s=duration,
        )
