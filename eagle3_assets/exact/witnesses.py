"""Witnesses of segmentation: log-probability entries (each id's bytes) and streams (one delta for each id).

Belongs here: entries → ids, deltas → boundaries, and holding them against a candidate. Does not belong here: grades
(`reconstruct.py`).

Byte strings are unique in the Kimi vocabulary (exactness.md 2c), so bytes → id is a lookup; bytes of U+FFFD stand for a part of a
character on some servers (standardcompletions/rfcs#2) and are a hole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import Ids, Parts
from eagle3_assets.exact.tokenizer import Profile

_TOKEN_ID = re.compile(r"token_id:(\d+)")
_REPLACED = "\ufffd".encode()
# Fewer deltas may be one token each by chance
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
    """The entries as a completion: some servers give none for the end of turn (python-sdk#457). None where they hold the content
    only (no marker among them and nothing that could be a whole turn)."""
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
    """The ids of each channel (`reasoning`, `content`, `tool:<index>`) as the stream's boundaries say them, where the stream
    gives one delta a token; they equal those of `parts` where these are right. None where the stream witnesses nothing: several
    tokens in a delta, or characters that the vocabulary can cut in several ways behind the same deltas. Edges are those of
    `parts`."""
    streamed = channels_of(fields)
    ours: dict[str, Ids] = {"reasoning": parts.reasoning, "content": parts.content}
    ours |= {f"tool:{k}": call.arguments or () for k, call in enumerate(parts.calls)}
    if all(len(deltas) == 1 for deltas in streamed.values()):  # a whole answer, or next to it
        return None
    if sum(map(len, streamed.values())) < FEWEST_DELTAS or any(ids and not streamed.get(name) for name, ids in ours.items()):
        return None
    out = {}
    for name, ids in ours.items():
        told = _from_deltas(profile, profile.decode(ids), streamed.get(name, []))
        if told is None:
            return None
        out[name] = told
    return out


def _from_deltas(profile: Profile, text: str, deltas: Sequence[str]) -> Ids | None:
    """The ids of the model's `text` by the deltas' boundaries; None where they do not spell it, or not in one way."""
    pieces = _with_edges(text, deltas)
    if pieces is None:
        return None
    found = [_lookup(profile, piece.encode("utf-8", "replace")) for piece in pieces]
    ids = tuple(token for token in found if token is not None)
    if len(ids) < len(found) or any(_cuts_otherwise(profile, a, b) for a, b in pairwise(pieces)):
        return None
    return ids


def _cuts_otherwise(profile: Profile, piece: str, behind: str) -> bool:
    """Whether the first character behind a boundary could have begun in the token before it: the stream would look the same."""
    first = behind[0].encode("utf-8", "replace")
    if len(first) == 1:
        return False
    whole, rest = piece.encode("utf-8", "replace"), behind.encode("utf-8", "replace")
    return any(
        _lookup(profile, whole + first[:k]) is not None and _lookup(profile, rest[k:]) is not None for k in range(1, len(first))
    )


def _with_edges(text: str, deltas: Sequence[str]) -> list[str] | None:
    """The deltas with the edges of `text` in place of the wire's: a server takes whitespace from the first and last, or joins
    some."""
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
