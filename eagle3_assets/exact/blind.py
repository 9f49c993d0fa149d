"""Answers whose ids are known, rebuilt as if they were not: what the audit counts.

Belongs here: which ids may be called the truth, the blind rebuild and its comparison, regions that are not canonical. Does not belong
here: rates and bounds (`audit.py`), which answers are looked at (`cli/audit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.audit import Judged
from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import Parts, check, split
from eagle3_assets.exact.reconstruct import reconstruct
from eagle3_assets.exact.render import wants_thinking
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.wire_text import matching_spacing

Ids = tuple[int, ...]


def judge(
    profile: Profile,
    request: Mapping[str, Any],
    fields: Fields,
    wire_profile: Mapping[str, Any] | None,
    *,
    provider: str,
    dataset: str,
    source: str,
    thinking: bool = True,
    at: float | None = None,
) -> Judged | None:
    """Rebuild an answer from its text and bill alone and compare. None where its true ids are not known beyond doubt."""
    instant = profile.facts["reasoning"].get("instant")
    thinks = profile.opened_by != "never" and (not instant or wants_thinking(request, thinking))
    truncated = fields.finish_reason == "length"
    known = true_ids(profile, fields, thinking=thinks, truncated=truncated)
    if known is None:
        return None
    truth, how = known
    parts = split(profile, truth, thinking=thinks, truncated=truncated)
    blind = replace(fields, prompt_ids=None, output_ids=None, logprobs=None)
    if blind.billed_completion is None:  # engines that return ids may leave out the bill; the number of ids is what it would say
        blind = replace(blind, billed_completion=len(truth))
    found = reconstruct(profile, request, blind, wire_profile, source=source, thinking=thinking)
    rebuilt = found.input_ids[found.prompt_len :]
    prompt = None if fields.prompt_ids is None else found.input_ids[: found.prompt_len] == fields.prompt_ids
    return Judged(
        provider=provider,
        dataset=dataset,
        tools=bool(request.get("tools")),
        truth=how,
        length=len(truth),
        exact=rebuilt == truth,
        same_count=len(rebuilt) == len(truth),
        regions=noncanonical_regions(profile, parts),
        grade=found.grade,
        p_exact=found.p_exact,
        prompt_exact=prompt,
    )


def true_ids(profile: Profile, fields: Fields, *, thinking: bool, truncated: bool) -> tuple[Ids, str] | None:
    """(the sampled ids, server_ids or logprob_bytes), or None. Ids are believed when the grammar accepts them and they decode to the
    returned text; log-probabilities also when they leave out the end of turn."""
    if fields.output_ids is not None:
        candidates, how = [fields.output_ids], "server_ids"
    else:
        ids = _ids_of_logprobs(profile, fields.logprobs or ())
        candidates, how = ([ids, (*ids, profile.end_id)] if ids else []), "logprob_bytes"
    for ids in candidates:
        if check(profile, ids, thinking=thinking, truncated=truncated) is None:
            parts = split(profile, ids, thinking=thinking, truncated=truncated)
            if matching_spacing(profile, parts, fields)[0] is not None:
                return tuple(ids), how
    return None


def _ids_of_logprobs(profile: Profile, entries: Sequence[Mapping[str, Any]]) -> Ids | None:
    """Each entry's id: `token_id:N`, else the one token with its bytes (byte strings are unique: exactness.md 2c). None as soon as one
    entry cannot be resolved (vLLM writes U+FFFD for a token that is not UTF-8 by itself)."""
    out = []
    for entry in entries:
        token, data = entry.get("token"), entry.get("bytes")
        if isinstance(token, str) and token.startswith("token_id:") and token[9:].isdecimal():
            out.append(int(token[9:]))
            continue
        try:
            raw = bytes(data) if isinstance(data, list) else str(token).encode()
            if raw == "\ufffd".encode():
                return None
            out.append(profile.encoding.encode_single_token(raw))
        except (ValueError, TypeError, KeyError):
            return None
    return tuple(out) or None


def noncanonical_regions(profile: Profile, parts: Parts) -> int:
    """Places where the sampled ids of a field cut its bytes otherwise than its canonical encoding does."""
    fields = [parts.reasoning, parts.content, *(ids for call in parts.calls for ids in (call.head, call.arguments or ()))]
    return sum(_divergences(profile, tuple(ids)) for ids in fields if ids)


def _divergences(profile: Profile, ids: Ids) -> int:
    try:
        canonical = tuple(profile.encode(profile.decode_bytes(ids).decode("utf-8")))
    except (ExactError, UnicodeDecodeError):  # a truncated field may end inside a character
        return 0
    if canonical == ids:
        return 0
    ours, theirs = _cuts(profile, ids), _cuts(profile, canonical)
    common = sorted(ours.keys() & theirs.keys())
    return sum(ids[ours[a] : ours[b]] != canonical[theirs[a] : theirs[b]] for a, b in pairwise(common))


def _cuts(profile: Profile, ids: Ids) -> dict[int, int]:
    """Byte offset of each token's front, and of the end → its place in `ids`."""
    at, out = 0, {0: 0}
    for k, token in enumerate(ids, start=1):
        at += len(profile.encoding.decode_single_token_bytes(token))
        out[at] = k
    return out
