"""A bank as a source: one of its answers chosen for a request and fitted into the conversation (tool numbering, `max_tokens`).

Does not belong here: what a source is (`sampled`), which one a profiles file asks for (`load`), text, the live model (`live`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from kimi_mini.bank import prompt_key
from openrouter_standin import chance
from openrouter_standin.answers.sampled import Answer, Sampled
from openrouter_standin.request import ChatRequest
from openrouter_standin.schema.source import Source
from openrouter_standin.vocabulary import Ids, Vocabulary

_NATIVE_ID = re.compile(r"functions\.(.+):(\d+)")


@dataclass(frozen=True)
class _Call:
    """A call's header in an answer: `ids[start:end]`, and what it says where it is `functions.NAME:NUMBER` (else it is left
    alone)."""

    start: int
    end: int
    name: str | None
    number: int


class _Entry:
    """A bank's answer as it is served. Headers are looked for when it is first served."""

    def __init__(self, key: int, answer: Answer, vocabulary: Vocabulary) -> None:
        self.key, self._vocabulary = key, vocabulary
        self.ids: Ids = answer.ids if type(answer.ids) is tuple else tuple(map(int, answer.ids))
        self.thinking, self.tool_names = answer.thinking, frozenset(answer.tool_names)
        self.prompt, self.temperature = answer.prompt, answer.temperature
        self.habits: tuple[str, ...] = getattr(answer, "habits", ())

    @cached_property
    def whole(self) -> Sampled:
        """Served as it is: one object, whatever the request."""
        return Sampled(self.ids, key=self.key, habits=self.habits)

    @cached_property
    def calls(self) -> tuple[_Call, ...]:
        v, ids, calls, at = self._vocabulary, self.ids, [], 0
        while v.call_begin in ids[at:]:
            start = ids.index(v.call_begin, at) + 1
            if v.argument_begin not in ids[start:]:
                break
            at = ids.index(v.argument_begin, start)
            native = _NATIVE_ID.fullmatch(v.text(ids[start:at]))
            calls.append(_Call(start, at, native.group(1), int(native.group(2))) if native else _Call(start, at, None, 0))
        return tuple(calls)

    def served(self, first: int, names: Mapping[str, str]) -> Ids:
        """The ids with each call's header numbered on from `first`, its name replaced where `names` has another; the answer's
        own ids where that changes nothing."""
        out: list[int] = []
        done = 0
        for k, call in enumerate(self.calls, first):
            if call.name is not None and (call.number != k or call.name in names):
                header = self._vocabulary.encode_text(f"functions.{names.get(call.name, call.name)}:{k}")
                out += self.ids[done : call.start] + header
                done = call.end
        return (*out, *self.ids[done:]) if done else self.ids


class Bank:
    """Answers of a bank, chosen by (seed, request, attempt): known at once, whatever the prompt.

    A prompt that the bank was sampled on gets one of its own answers, of the nearest temperature; any other prompt gets one that
    fits its mode and tools. `renames`: a call to a tool that the request does not declare gets a declared tool's name, so that a
    bank that knows nothing of a client's tools still calls them.
    """

    context_length: int | None = None

    def __init__(self, answers: Sequence[Answer], vocabulary: Vocabulary, settings: Source, *, renames: bool = False) -> None:
        self.vocabulary, self.settings, self.renames = vocabulary, settings, renames
        entries = [_Entry(key, answer, vocabulary) for key, answer in enumerate(answers)]
        self._modes = {t: [e for e in entries if e.thinking == t] or entries for t in (True, False)}
        self._groups: dict[tuple[bool, frozenset[str]], tuple[Sequence[_Entry], Sequence[_Entry]]] = {}
        self._own: dict[str, list[_Entry]] = {}
        for entry in entries:
            if entry.prompt:
                self._own.setdefault(entry.prompt, []).append(entry)

    def answer(self, request: ChatRequest, prompt_ids: Ids, *, seed: str, attempt: int, limit: int) -> asyncio.Future[Sampled]:
        future = asyncio.get_running_loop().create_future()
        sampled = self.choose(request, seed=seed, attempt=attempt, limit=limit)
        made_up = request.logprobs and self.settings.synthetic_logprobs
        future.set_result(_with_made_up(sampled, seed, request, attempt) if made_up else sampled)
        return future

    def close(self) -> None:
        pass

    def choose(self, request: ChatRequest, *, seed: str, attempt: int, limit: int) -> Sampled:
        """The truth for this request; of an answer longer than `limit` its beginning."""
        if own := self._sampled_on(request):
            entry = chance.pick(own, seed, request.hash, attempt, "answer")
            ids = entry.ids
        else:
            plain, calling = self._group(request.thinking, request.tool_names)
            wants_call = chance.unit(seed, request.hash, attempt, "tool call") < self._tool_share(request)
            options = (calling if wants_call else plain) or plain or calling or self._modes[request.thinking]
            entry = chance.pick(options, seed, request.hash, attempt, "answer")
            ids = entry.served(request.calls_so_far, self._names(entry, request, seed, attempt))
        if len(ids) <= limit and ids is entry.ids:
            return entry.whole
        return Sampled(ids[:limit], habits=entry.habits)

    def _names(self, entry: _Entry, request: ChatRequest, seed: str, attempt: int) -> Mapping[str, str]:
        """Name in the bank -> declared name, where they differ."""
        unknown = entry.tool_names - request.tool_names if self.renames and request.tools else frozenset()
        declared = sorted(request.tool_names) if unknown else []
        return {name: chance.pick(declared, seed, request.hash, attempt, "tool", name) for name in unknown}

    def _sampled_on(self, request: ChatRequest) -> Sequence[_Entry]:
        """The answers to this very prompt, nearest temperature first wins; none where `tool_choice` rules them out."""
        if not self._own:
            return ()
        own: Sequence[_Entry] = self._own.get(prompt_key(request.messages, request.tools, thinking=request.thinking), ())
        if request.tool_choice in ("none", "required"):
            own = [entry for entry in own if bool(entry.tool_names) == (request.tool_choice == "required")]
        wanted = 1.0 if request.temperature is None else request.temperature
        nearest = min((abs(entry.temperature - wanted) for entry in own), default=0.0)
        return [entry for entry in own if abs(entry.temperature - wanted) == nearest]

    def _group(self, thinking: bool, declared: frozenset[str]) -> tuple[Sequence[_Entry], Sequence[_Entry]]:
        """(answers without calls, answers that call declared tools only; where there are none and names can be replaced, any
        calls)."""
        key = thinking, declared
        if key not in self._groups:
            mode = self._modes[thinking]
            calling = [e for e in mode if e.tool_names]
            fitting = [e for e in calling if e.tool_names <= declared]
            usable = fitting or (calling if self.renames and declared else [])
            self._groups[key] = [e for e in mode if not e.tool_names], usable
        return self._groups[key]

    def _tool_share(self, request: ChatRequest) -> float:
        if not request.tools or request.tool_choice == "none":
            return 0.0
        if request.tool_choice == "required":
            return 1.0
        after_tool = request.messages[-1]["role"] == "tool"
        return self.settings.tool_share_after_tool if after_tool else self.settings.tool_share_after_user


def _with_made_up(sampled: Sampled, seed: str, request: ChatRequest, attempt: int) -> Sampled:
    """Log-probabilities of no model: minus an exponential draw (mean 0.3). Of a position only the sampled id itself is known."""
    draw = Random(chance.hexadecimal(32, seed, request.hash, attempt, "logprob"))
    logprobs = tuple(-draw.expovariate(1 / 0.3) for _ in sampled.ids)
    top = tuple(((i, logprob),) for i, logprob in zip(sampled.ids, logprobs, strict=True)) if request.top_logprobs else ()
    return replace(sampled, logprobs=logprobs, top=top, key=None)
