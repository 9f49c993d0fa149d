"""Where answers come from: truth ids first, everything else is derived from them.

Belongs here: what a source is; choosing an answer of the bank for a request and fitting it into the conversation (tool numbering,
max_tokens). Does not belong here: text, the live model (`live`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from eagle3_assets.kimi_mini.bank import prompt_key
from eagle3_assets.standin import chance
from eagle3_assets.standin.request import ChatRequest
from eagle3_assets.standin.schema.source import Source
from eagle3_assets.standin.vocabulary import Ids, Vocabulary

_NATIVE_ID = re.compile(r"functions\.(.+):\d+")


class Answer(Protocol):
    """What this room needs of a bank's answer (`kimi_mini.bank.BankAnswer`)."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def thinking(self) -> bool: ...
    @property
    def tool_names(self) -> Sequence[str]: ...
    @property
    def prompt(self) -> str: ...
    @property
    def temperature(self) -> float: ...


@dataclass(frozen=True)
class Sampled:
    """The truth of one answer. `logprobs[k]`: natural logarithm of the model's probability of `ids[k]`, None where the source has none.
    `top[k]`: the most probable (id, logarithm) of that position, as many as were asked for or as the source knows."""

    ids: Ids
    logprobs: tuple[float, ...] | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class AnswerSource(Protocol):
    """Truth for a request: ids with `<|im_end|>` last, or cut (finish_reason length), and what the model thought of each.

    `answer` decides at once (two requests never share a draw) and returns a future of the running loop, so that a source may take
    its time without holding the server. `limit` is max_tokens as the provider applies it: the ids behind it are never generated.
    """

    @property
    def context_length(self) -> int | None:
        """A prompt of so many tokens or more cannot be answered; None = any can."""

    def answer(
        self, request: ChatRequest, prompt_ids: Ids, *, seed: str, attempt: int, limit: int
    ) -> asyncio.Future[Sampled]: ...

    def close(self) -> None:
        """Answers that are under way end in an error."""


class Bank:
    """Answers of a replay bank, chosen by (seed, request, attempt): known at once, whatever the prompt.

    A prompt that the bank was sampled on gets one of its own answers, of the nearest temperature; any other prompt gets one that
    fits its mode and tools.
    """

    context_length: int | None = None

    def __init__(self, answers: Sequence[Answer], vocabulary: Vocabulary, settings: Source) -> None:
        self.vocabulary, self.settings = vocabulary, settings
        self._modes = {t: [a for a in answers if a.thinking == t] or list(answers) for t in (True, False)}
        self._groups: dict[tuple[bool, frozenset[str]], tuple[Sequence[Answer], Sequence[Answer]]] = {}
        self._own: dict[str, list[Answer]] = {}
        for answer in answers:
            if answer.prompt:
                self._own.setdefault(answer.prompt, []).append(answer)

    def answer(self, request: ChatRequest, prompt_ids: Ids, *, seed: str, attempt: int, limit: int) -> asyncio.Future[Sampled]:
        future = asyncio.get_running_loop().create_future()
        ids = self.choose(request, seed=seed, attempt=attempt, limit=limit)
        made_up = request.logprobs and self.settings.synthetic_logprobs
        future.set_result(_with_made_up(ids, seed, request, attempt) if made_up else Sampled(ids))
        return future

    def close(self) -> None:
        pass

    def choose(self, request: ChatRequest, *, seed: str, attempt: int, limit: int) -> Ids:
        if own := self._sampled_on(request):
            return tuple(int(i) for i in chance.pick(own, seed, request.hash, attempt, "answer").ids)[:limit]
        plain, calling = self._group(request.thinking, request.tool_names)
        wants_call = chance.unit(seed, request.hash, attempt, "tool call") < self._tool_share(request)
        options = (calling if wants_call else plain) or plain or calling or self._modes[request.thinking]
        chosen = chance.pick(options, seed, request.hash, attempt, "answer")
        return renumber_calls(tuple(int(i) for i in chosen.ids), request.calls_so_far, self.vocabulary)[:limit]

    def _sampled_on(self, request: ChatRequest) -> Sequence[Answer]:
        """The answers to this very prompt, nearest temperature first wins; none where `tool_choice` rules them out."""
        if not self._own:
            return ()
        own = self._own.get(prompt_key(request.messages, request.tools, thinking=request.thinking), ())
        allowed = {"none": lambda a: not a.tool_names, "required": lambda a: bool(a.tool_names)}.get(str(request.tool_choice))
        own = [answer for answer in own if allowed is None or allowed(answer)]
        wanted = 1.0 if request.temperature is None else request.temperature
        nearest = min((abs(answer.temperature - wanted) for answer in own), default=0.0)
        return [answer for answer in own if abs(answer.temperature - wanted) == nearest]

    def _group(self, thinking: bool, declared: frozenset[str]) -> tuple[Sequence[Answer], Sequence[Answer]]:
        """(answers without calls, answers that call declared tools only)."""
        key = thinking, declared
        if key not in self._groups:
            mode = self._modes[thinking]
            plain = [a for a in mode if not a.tool_names]
            self._groups[key] = plain, [a for a in mode if a.tool_names and set(a.tool_names) <= declared]
        return self._groups[key]

    def _tool_share(self, request: ChatRequest) -> float:
        if not request.tools or request.tool_choice == "none":
            return 0.0
        if request.tool_choice == "required":
            return 1.0
        after_tool = request.messages[-1]["role"] == "tool"
        return self.settings.tool_share_after_tool if after_tool else self.settings.tool_share_after_user


def _with_made_up(ids: Ids, seed: str, request: ChatRequest, attempt: int) -> Sampled:
    """Log-probabilities of no model: minus an exponential draw (mean 0.3). Of a position only the sampled id itself is known."""
    draw = Random(chance.hexadecimal(32, seed, request.hash, attempt, "logprob"))
    logprobs = tuple(-draw.expovariate(1 / 0.3) for _ in ids)
    top = tuple(((i, logprob),) for i, logprob in zip(ids, logprobs, strict=True)) if request.top_logprobs else ()
    return Sampled(ids, logprobs, top)


def renumber_calls(ids: Ids, first: int, vocabulary: Vocabulary) -> Ids:
    """The ids with each call's header `functions.NAME:N` numbered on from `first`. Headers of another form stay as they are."""
    out: list[int] = []
    at, index = 0, first
    while at < len(ids):
        out.append(ids[at])
        at += 1
        if out[-1] != vocabulary.call_begin or vocabulary.argument_begin not in ids[at:]:
            continue
        end = ids.index(vocabulary.argument_begin, at)
        native = _NATIVE_ID.fullmatch(vocabulary.text(ids[at:end]))
        out += vocabulary.encode_text(f"functions.{native.group(1)}:{index}") if native else ids[at:end]
        at, index = end, index + 1
    return tuple(out)


def load_source(settings: Source) -> tuple[AnswerSource, Vocabulary]:
    """The source that the profiles ask for and kimi-mini's tokenizer: the committed bank, or the model itself (loads torch)."""
    from eagle3_assets.kimi_mini import bank, tokenizer

    vocabulary = Vocabulary.of(tokenizer.load_encoding())
    if settings.kind == "live":
        from eagle3_assets.standin.live import Live

        return Live.load(settings.slots), vocabulary
    # answers that no client can read are for the live model to give
    answers: list[Any] = [answer for answer in bank.load_bank() if answer.grammar or answer.truncated]
    return Bank(answers, vocabulary, settings), vocabulary
