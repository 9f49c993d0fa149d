"""Witnesses of segmentation: log-probability entries (each id's bytes) and streams (one delta for each id).

Belongs here: entries → ids, deltas → boundaries, and holding them against a candidate. Does not belong here: grades (`reconstruct.py`).

Byte strings are unique in the Kimi vocabulary (exactness.md 2c), so bytes → id is a lookup; bytes of U+FFFD stand for a part of a character
on some servers (standardcompletions/rfcs#2) and are a hole.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import Ids, Parts
from eagle3_assets.exact.tokenizer import Profile

_TOKEN_ID = re.compile(r"token_id:(\d+)")
_REPLACED = "\ufffd".encode()
# A stream witnesses boundaries when at least this part of its deltas are one token each
ONE_EACH = 0.97
FEWEST_DELTAS = 3


# ---------------------------------------------------------------------------------------------------- log-probabilities
def entry_ids(profile: Profile, entries: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """The id of each entry; None is a hole (lost bytes, no token of the vocabulary)."""
    return [_entry_id(profile, entry) for entry in entries]


def _entry_id(profile: Profile, entry: Mapping[str, Any]) -> int | None:
    token, told = entry.get("token"), entry.get("token_id")
    if type(told) is int and 0 <= told < profile.n_vocab:
        return told
    named = _TOKEN_ID.fullmatch(token) if isinstance(token, str) else None
    if named:
        found = int(named[1])
        return found if found < profile.n_vocab else None
    raw = entry.get("bytes")
    if isinstance(raw, list) and raw and all(type(b) is int and 0 <= b < 256 for b in raw):
        data = bytes(raw)
    elif isinstance(token, str) and token and raw is None:
        data = token.encode("utf-8", "replace")
    else:
        return None
    return None if _REPLACED in data else _lookup(profile, data)


def _lookup(profile: Profile, data: bytes) -> int | None:
    try:
        return int(profile.encoding.encode_single_token(data))
    except KeyError:
        return None


def agree(ids: Sequence[int], told: Sequence[int | None]) -> bool:
    """Whether `told` says these ids wherever it says anything."""
    return len(ids) == len(told) and all(a == b for a, b in zip(ids, told, strict=True) if b is not None)


def whole_completion(profile: Profile, told: Sequence[int | None], ended: bool) -> list[int | None] | None:
    """The entries as a completion: some servers give none for the end of turn (python-sdk#457). None where they hold the content only
    (no marker among them and nothing that could be a whole turn)."""
    if not told:
        return None
    out = list(told)
    if ended and out[-1] != profile.end_id:
        out.append(profile.end_id)
    return out


# ---------------------------------------------------------------------------------------------------- streams
def channels_of(fields: Fields) -> dict[str, list[str]]:
    """channel → its deltas in order."""
    out: dict[str, list[str]] = {}
    for channel, text in fields.deltas:
        out.setdefault(channel, []).append(text)
    return out


def boundaries(profile: Profile, parts: Parts, fields: Fields) -> dict[str, Ids] | None:
    """The ids of each channel (`reasoning`, `content`, `tool:<index>`) as the stream's boundaries say them, where the stream gives one delta
    a token; they equal those of `parts` where these are right. None where the stream witnesses nothing. Edges are those of `parts`."""
    streamed = channels_of(fields)
    ours: dict[str, Ids] = {"reasoning": parts.reasoning, "content": parts.content}
    ours |= {f"tool:{k}": call.arguments or () for k, call in enumerate(parts.calls)}
    if sum(map(len, streamed.values())) < FEWEST_DELTAS or any(ids and not streamed.get(name) for name, ids in ours.items()):
        return None
    out, single, total = {}, 0, 0
    for name, ids in ours.items():
        told = _from_deltas(profile, profile.decode(ids), streamed.get(name, []))
        if told is None:
            return None
        out[name] = told[0]
        single, total = single + told[1], total + told[2]
    return out if total and single >= ONE_EACH * total else None


def _from_deltas(profile: Profile, text: str, deltas: Sequence[str]) -> tuple[Ids, int, int] | None:
    """(ids by the deltas' boundaries, deltas that are one token, deltas) of the model's `text`; None where they do not spell it."""
    pieces = _with_edges(text, deltas)
    if pieces is None:
        return None
    ids: list[int] = []
    single = 0
    for piece in pieces:
        found = _lookup(profile, piece.encode("utf-8", "replace"))
        single += found is not None
        ids += [found] if found is not None else profile.encoding.encode_ordinary(piece)
    return tuple(ids), single + _parts_of_characters(profile, ids, len(pieces) - single), len(pieces)


def _with_edges(text: str, deltas: Sequence[str]) -> list[str] | None:
    """The deltas with the edges of `text` in place of the wire's: a server takes whitespace from the first and last, or joins some."""
    joined = "".join(deltas)
    if joined == text:
        return [delta for delta in deltas if delta]
    if joined.strip() != text.strip() or not text.strip():
        return None
    start = len(text) - len(text.lstrip())
    lead, trail = text[:start], text[len(text.rstrip()) :]
    bare = [delta for delta in deltas if delta]
    while bare and not bare[0].strip():
        bare.pop(0)
    while bare and not bare[-1].strip():
        bare.pop()
    if not bare:
        return None
    bare[0] = lead + bare[0].lstrip()
    bare[-1] = bare[-1].rstrip() + trail
    return bare


def _parts_of_characters(profile: Profile, ids: Sequence[int], multiple: int) -> int:
    """How many deltas of several tokens are excused: characters that the vocabulary spells with several ids come as one delta."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    waiting = sum(not decoder.decode(profile.encoding.decode_single_token_bytes(token)) for token in ids)
    return min(multiple, waiting)
