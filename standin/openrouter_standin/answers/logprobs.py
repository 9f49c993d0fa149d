"""`logprobs.content`: an entry for each sampled id, with the bytes that the id stands for.

Belongs here: entries, and which ids have one. Does not belong here: the numbers (`source`), bodies and chunks (`wire`).

Entries are of what the model sampled, before any parser: where a provider strips or injects text, they still say what the ids are
(docs/research/exactness.md#2c), so markers, tool calls and whitespace that the fields lost stand in them. Not known, and
therefore chosen here:
- which ids an OpenRouter provider covers (docs/research/openrouter-contract.md#3.4: all on vLLM, the content elsewhere):
  `[provider.logprob_entries]`;
- what happens with `reasoning.exclude`: here hidden reasoning has no entries either;
- into which chunk of a stream the entry of an id without text goes: here with the next delta, none is lost (a vLLM server skips the
  whole chunk of a marker that its parser swallowed);
- whether `top_logprobs` contains the sampled id when it is none of the most probable: here it does not.
"""

from __future__ import annotations

from typing import Any

from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.request import ChatRequest
from openrouter_standin.schema.provider import LogprobEntries
from openrouter_standin.vocabulary import Parts, Vocabulary

Entry = dict[str, Any]
Entries = tuple[Entry | None, ...]
_LOWEST = -9999.0  # JSON has no minus infinity; what vLLM writes instead (serving_chat.py, _get_top_logprobs)


def entries_of(
    sampled: Sampled, parts: Parts, habits: LogprobEntries, request: ChatRequest, vocabulary: Vocabulary
) -> Entries | None:
    """One place for each sampled id, None where this provider gives none; None when nobody asked or the source has no numbers."""
    if not request.logprobs or sampled.logprobs is None:
        return None
    first, last = _covered(sampled, parts, habits, request)
    out: list[Entry | None] = []
    for k, (i, logprob) in enumerate(zip(sampled.ids, sampled.logprobs, strict=True)):
        if not first <= k < last:
            out.append(None)
            continue
        top = sampled.top[k] if sampled.top else ()
        likely = [_token(other, number, habits, vocabulary) for other, number in top[: request.top_logprobs]]
        out.append({**_token(i, logprob, habits, vocabulary), "top_logprobs": likely})
    return tuple(out)


def _covered(sampled: Sampled, parts: Parts, habits: LogprobEntries, request: ChatRequest) -> tuple[int, int]:
    if habits.cover == "content":
        return parts.content_at, parts.content_at + len(parts.content)
    first = 0 if request.show_reasoning else parts.content_at
    return first, len(sampled.ids) - (parts.ended and not habits.end)


def _token(i: int, logprob: float, habits: LogprobEntries, vocabulary: Vocabulary) -> Entry:
    raw = vocabulary.encoding.decode_single_token_bytes(i)
    text = raw.decode("utf-8", "replace")
    told = {"exact": raw, "replaced": text.encode()}.get(habits.bytes)
    return {"token": text, "logprob": max(logprob, _LOWEST), "bytes": None if told is None else list(told)}


def content_of(entries: Entries) -> dict[str, Any] | None:
    """The `logprobs` object of a choice; None when no id of this choice or chunk has an entry."""
    content = [entry for entry in entries if entry is not None]
    return {"content": content, "refusal": None} if content else None
