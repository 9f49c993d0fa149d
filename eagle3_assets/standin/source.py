"""Where answers come from: truth ids first, everything else is derived from them.

Belongs here: choosing an answer of the bank for a request and fitting it into the conversation (tool numbering, max_tokens).
Does not belong here: text. A live model joins as a second source with the same one method.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_assets.standin import chance
from eagle3_assets.standin.profiles import Source
from eagle3_assets.standin.request import ChatRequest
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


class AnswerSource(Protocol):
    """Truth ids for a request: `<|im_end|>` last, or cut (finish_reason length)."""

    def answer(self, request: ChatRequest, *, seed: str, attempt: int, limit: int) -> Ids: ...


@dataclass(frozen=True)
class Bank:
    """Answers of a replay bank, chosen by (seed, request, attempt)."""

    answers: tuple[Answer, ...]
    vocabulary: Vocabulary
    settings: Source

    def answer(self, request: ChatRequest, *, seed: str, attempt: int, limit: int) -> Ids:
        """`limit` is max_tokens as the provider applies it: the ids behind it are never generated."""
        options = self._candidates(request, seed, attempt)
        chosen = chance.pick(options, seed, request.hash, attempt, "answer")
        ids = renumber_calls(tuple(int(i) for i in chosen.ids), request.calls_so_far, self.vocabulary)
        return ids[:limit]

    def _candidates(self, request: ChatRequest, seed: str, attempt: int) -> Sequence[Answer]:
        mode = [a for a in self.answers if a.thinking == request.thinking] or list(self.answers)
        plain = [a for a in mode if not a.tool_names]
        calling = [a for a in mode if a.tool_names and set(a.tool_names) <= request.tool_names]
        share = self._tool_share(request)
        wants_call = chance.unit(seed, request.hash, attempt, "tool call") < share
        return (calling if wants_call and calling else plain) or calling or mode

    def _tool_share(self, request: ChatRequest) -> float:
        if not request.tools or request.tool_choice == "none":
            return 0.0
        if request.tool_choice == "required":
            return 1.0
        after_tool = request.messages[-1]["role"] == "tool"
        return self.settings.tool_share_after_tool if after_tool else self.settings.tool_share_after_user


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


def load_bank_source(settings: Source) -> tuple[Bank, Vocabulary]:
    """The committed bank and tokenizer of kimi-mini."""
    from eagle3_assets.kimi_mini import bank, tokenizer

    vocabulary = Vocabulary.of(tokenizer.load_encoding())
    answers: tuple[Any, ...] = bank.load_bank()
    return Bank(answers, vocabulary, settings), vocabulary
