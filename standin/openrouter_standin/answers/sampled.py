"""What a source of answers is: truth ids first, everything else is derived from them.

Belongs here: the types. Does not belong here: any source (`source`, `live`, `replay`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import orjson

from openrouter_standin.request import ChatRequest
from openrouter_standin.vocabulary import Ids


class Answer(Protocol):
    """What this room needs of a bank's answer (`kimi_mini.bank.BankAnswer`, `replay.ReplayAnswer`). One may also tell its
    `habits`, a tuple of names: what it does that a re-encoder of its text does not expect."""

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
    """The truth of one answer. `logprobs[k]`: natural logarithm of the model's probability of `ids[k]`, None where the source
    has none. `top[k]`: the most probable (id, logarithm) of that position, as many as were asked for or as the source knows.

    `key`: number of the bank's answer when nothing but that answer is here, with its own ids (the same object each time); None
    when it was cut or renumbered, or has log-probabilities, or is of no bank. `habits`: what the answer does that a re-encoder
    of its text does not expect (of the whole answer; a `max_tokens` may have cut the place off).
    """

    ids: Ids
    logprobs: tuple[float, ...] | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    key: int | None = None
    habits: tuple[str, ...] = ()

    @cached_property
    def ids_json(self) -> bytes:
        """The ids as JSON; a bank's answer is written down many times."""
        return orjson.dumps(self.ids)


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
