"""Log-probabilities as engines write them: an entry for each sampled id, markers, calls and the end token included.

Belongs here: entries of vLLM's chat, of SGLang's chat and of its `meta_info`. Does not belong here: the numbers (`source`), OpenRouter's
entries (`logprobs`).

Checked against the servers' sources (autumn 2026):
- vLLM (v1/engine/logprobs.py as of 0.30, `_correct_decoded_token`; chat_completion/serving.py, `_create_chat_logprobs`): an id whose
  text ends in U+FFFD is decoded again behind up to four ids before it; it is "" where that does not help, and the id that ends a
  character tells all of it. `bytes` are those of that text, so they do not identify an id that is a part of a character. The sampled
  id leads the candidates of its position, and `top_logprobs` are the first so many of them. `return_tokens_as_token_ids`: `token` is
  "token_id:N"; the bytes of the entry stay those of the text, those of a candidate are the bytes of "token_id:N".
- SGLang (openai/serving_chat.py, `_build_token_logprobs_from_raw`, newer than release 0.5.8): `token` is the id decoded alone, `bytes`
  the raw bytes of the id, candidates as the sampler ranks them.
Chosen: a source without numbers (a bank without `synthetic_logprobs`) gives no entries; an engine always has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.request import ChatRequest
from openrouter_standin.vocabulary import Vocabulary

Entry = dict[str, Any]
Triple = tuple[float, int, str | None]  # SGLang: (logarithm, id, text)
_LOWEST = -9999.0  # JSON has no minus infinity; what vLLM writes instead (serving_chat.py, _get_top_logprobs)
_BEFORE = 4  # ids before a part of a character that vLLM looks at: UTF-8 has at most four bytes
_PART = "\ufffd"


def vllm_entries(sampled: Sampled, request: ChatRequest, vocabulary: Vocabulary, *, as_ids: bool) -> tuple[Entry, ...] | None:
    """One for each sampled id; None when nobody asked or the source has no numbers."""
    if not request.logprobs or sampled.logprobs is None:
        return None
    raw = [vocabulary.encoding.decode_single_token_bytes(i) for i in sampled.ids]
    out = []
    for k, (i, number) in enumerate(zip(sampled.ids, sampled.logprobs, strict=True)):
        before, likely = raw[max(0, k - _BEFORE) : k], sampled.top[k] if sampled.top else ()
        candidates = ((i, number), *((other, n) for other, n in likely if other != i))[: request.top_logprobs]
        text = text_behind(raw[k], before)
        top = [_vllm_candidate(j, n, before, vocabulary, as_ids) for j, n in candidates]
        out.append(
            {"token": _shown(i, text, as_ids), "logprob": max(number, _LOWEST), "bytes": _bytes(text), "top_logprobs": top}
        )
    return tuple(out)


def _vllm_candidate(i: int, number: float, before: Sequence[bytes], vocabulary: Vocabulary, as_ids: bool) -> Entry:
    token = _shown(i, text_behind(vocabulary.encoding.decode_single_token_bytes(i), before), as_ids)
    return {"token": token, "logprob": max(number, _LOWEST), "bytes": _bytes(token)}


def _shown(i: int, text: str, as_ids: bool) -> str:
    return f"token_id:{i}" if as_ids else text


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def text_behind(raw: bytes, before: Sequence[bytes]) -> str:
    """vLLM's text of an id with the bytes `raw` that follows ids with the bytes `before`."""
    alone = raw.decode("utf-8", "replace")
    if not alone.endswith(_PART):
        return alone
    for size in range(1, len(before) + 1):
        context = before[-size:]
        whole = (b"".join(context) + raw).decode("utf-8", "replace")
        if whole.endswith(_PART):
            continue
        told = size  # ids in front of those that are parts themselves, and therefore told nothing
        while told and context[told - 1].decode("utf-8", "replace").endswith(_PART):
            told -= 1
        prefix = b"".join(context[:told]).decode("utf-8", "replace")
        same = next((k for k, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), min(len(prefix), len(whole)))
        return whole[same:]
    return ""


def sglang_entries(sampled: Sampled, request: ChatRequest, vocabulary: Vocabulary) -> tuple[Entry, ...] | None:
    """One for each sampled id; None when nobody asked or the source has no numbers."""
    if not request.logprobs or sampled.logprobs is None:
        return None

    def entry(i: int, number: float) -> Entry:
        raw = vocabulary.encoding.decode_single_token_bytes(i)
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": max(number, _LOWEST)}

    tops = sampled.top or ((),) * len(sampled.ids)
    return tuple(
        {**entry(i, number), "top_logprobs": [entry(*candidate) for candidate in top[: request.top_logprobs]]}
        for i, number, top in zip(sampled.ids, sampled.logprobs, tops, strict=True)
    )


def triples_of(
    sampled: Sampled, request: ChatRequest, vocabulary: Vocabulary, *, with_text: bool
) -> tuple[list[Triple], list[list[Triple]]] | None:
    """(of each sampled id, its candidates) as `meta_info` has them; text only with `return_text_in_logprobs`."""
    if not request.logprobs or sampled.logprobs is None:
        return None

    def triple(i: int, number: float) -> Triple:
        return max(number, _LOWEST), i, vocabulary.encoding.decode([i]) if with_text else None

    chosen = [triple(i, number) for i, number in zip(sampled.ids, sampled.logprobs, strict=True)]
    tops = sampled.top or ((),) * len(sampled.ids)
    return chosen, [[triple(*candidate) for candidate in top[: request.top_logprobs]] for top in tops]
