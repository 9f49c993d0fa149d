"""Witnesses of segmentation: log-probability entries (each id's bytes) and the deltas of a stream (each one or more whole ids).

Belongs here: entries → ids, deltas → ids, and holding both against a candidate. Does not belong here: what they prove together
with the bill (`proofs.py`), grades (`reconstruct.py`), other spellings of arguments (`offpath.py`).

Byte strings are unique in the Kimi vocabulary (docs/research/exactness.md#2c), so bytes → id is a lookup. An entry that is no
byte string of the vocabulary is a hole, and a hole is no evidence: nothing may be concluded from what an entry does not say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.search.wire_text import matching_spacing
from eagle3_assets.targets.grammar import GrammarError, Ids, Parts, assemble, split
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields

Told = Sequence[int | None]

_TOKEN_ID = re.compile(r"token_id:(\d{1,9})")
_REPLACED = "\ufffd".encode()
# Where arguments may be cut otherwise than the encoder cuts them, at an equal count (`offpath.py`): a hole there is filled by nobody
# What codecs and filters put in the place of what they take out: where an entry is a hole and the text has one of these, both were redacted
_STAND_INS = (b"?", b"*", "█".encode())
_OFF_PATH = re.compile(rb'[:,{}\[\]]\s*"|"\s*[:,{}\[\]]')


# ---------------------------------------------------------------------------------------------------- log-probabilities
def entry_ids(profile: Profile, entries: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """The id of each entry; None is a hole: empty, null, replaced by U+FFFD (vllm#9463), in the vocabulary's own spelling
    (vllm#19177), redacted, out of range, or with bytes that are not its text."""
    ids = [_entry_id(profile, entry) for entry in entries]
    alone = [_is_text_alone(entry) for entry in entries]
    read = [_text_of(entry) for entry, by_text, token in zip(entries, alone, ids, strict=True) if by_text and token is not None]
    if any(text[:1].isspace() for text in read):
        return ids
    # No text shows whitespace in front, so the server may take it from each of them: "Great" may be " Great"
    return [
        None if by_text and token is not None and profile.is_ordinary(token) else token
        for by_text, token in zip(alone, ids, strict=True)
    ]


def _text_of(entry: Mapping[str, Any]) -> str:
    token = entry.get("token")
    return token if isinstance(token, str) else ""


def _is_text_alone(entry: Mapping[str, Any]) -> bool:
    """Whether nothing but the token's text says which id it is."""
    return entry.get("bytes") is None and type(entry.get("token_id")) is not int and not _TOKEN_ID.fullmatch(_text_of(entry))


def _entry_id(profile: Profile, entry: Mapping[str, Any]) -> int | None:
    text, raw, told = _text_of(entry), entry.get("bytes"), entry.get("token_id")
    named = _TOKEN_ID.fullmatch(text)
    if type(told) is not int:
        told = int(named[1]) if named else None
    data = _bytes_of(raw)
    if told is not None:
        return told if _is_told(profile, told, "" if named else text, data, text) else None
    if raw is None:
        data = _utf8(text)
    elif data is not None and entry.get("token") is not None and not _spells(text, data):
        return None
    return None if not data or _REPLACED in data else _lookup(profile, data)


def _bytes_of(raw: Any) -> bytes | None:
    """The bytes of an entry; None where it gives none that could be some."""
    if isinstance(raw, list) and raw and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw)
    return None


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


def _spells(text: str, data: bytes) -> bool:
    """Whether `text` is how a server may write the token of these bytes: decoded, escaped (`bytes:\\xf0`), nothing for a part of a
    character."""
    shown = data.decode("utf-8", "replace")
    return text == shown or text.startswith("bytes:") or (not text and "\ufffd" in shown)


def _is_told(profile: Profile, told: int, text: str, data: bytes | None, name: str) -> bool:
    """Whether the id that an entry names is one of the vocabulary, and its bytes and text do not say another one."""
    if not 0 <= told < profile.n_vocab:
        return False
    try:
        own = profile.encoding.decode_single_token_bytes(told)
    except KeyError:
        return False
    shown = own.decode("utf-8", "replace")
    # vLLM gives the bytes of the words `token_id:17` beside them
    return (not text or text == shown) and data in (None, own, shown.encode(), name.encode("utf-8", "replace"))


def _lookup(profile: Profile, data: bytes) -> int | None:
    try:
        found = int(profile.encoding.encode_single_token(data))
    except KeyError:
        return None
    return found if found < profile.n_vocab else None


def agree(ids: Sequence[int], told: Told) -> bool:
    """Whether `told` says these ids wherever it says anything."""
    return len(ids) == len(told) and all(a == b for a, b in zip(ids, told, strict=True) if b is not None)


def whole_completions(profile: Profile, told: Told, *, ended: bool) -> list[tuple[int | None, ...]]:
    """The entries as whole completions: some servers give none for the end of turn (python-sdk#457). A last entry that is a hole may
    be the end or stand before it."""
    if not told:
        return []
    with_end = (*told, profile.end_id)
    if not ended or told[-1] in profile.end_ids:
        return [tuple(told)]
    return [with_end] if told[-1] is not None else [tuple(told), with_end]


def spelled_ids(profile: Profile, fields: Fields, told: Told, *, thinking: bool, truncated: bool) -> Ids | None:
    """The ids of a completion that `told` spells without a hole: the grammar accepts them and they decode to the returned text. What
    has a hole spells nothing: filling it would put the encoder's opinion in the place of the truth."""
    known = tuple(token for token in told if token is not None)
    if len(known) != len(told) or not known:
        return None
    try:
        parts = split(profile, known, thinking=thinking, truncated=truncated)
    except GrammarError:
        return None
    return known if matching_spacing(profile, parts, fields)[0] is not None else None


def witnessed_share(ids: Sequence[int], told: Told) -> float:
    """The share of `ids` that an entry names."""
    if len(ids) != len(told) or not ids:
        return 0.0
    return sum(a == b for a, b in zip(ids, told, strict=True)) / len(ids)


# ---------------------------------------------------------------------------------------------------- holes
def mute_edges(profile: Profile, fields: Fields, parts: Parts) -> bool:
    """Whether entries for the whole completion are holes where its texts begin: the very ids that the bill cannot tell (` 🌟` and `🌟` have
    one count) were lost or taken out, so such an answer is not like the others of its provider."""
    if not fields.logprobs:
        return False
    ids = assemble(profile, parts)
    begins = {int(parts.opened)} if parts.reasoning else set()
    if parts.content:
        begins.add(int(parts.opened) + len(parts.reasoning) + int(parts.closed))
    told = whole_completions(profile, entry_ids(profile, fields.logprobs), ended=parts.ended)
    whole = [one for one in told if len(one) == len(ids)]
    return bool(whole) and any(all(one[k] is None for one in whole) for k in begins)


def open_holes(profile: Profile, ids: Ids, told: Told) -> list[int]:
    """The positions that `told` neither names nor pins, for a completion that agrees with it.

    Pinned are holes inside a text whose first and last visible characters are named: the wire gives all bytes between them, and the
    number of holes is that of the encoder's ids there. Never pinned: the edges of a text (a space that the server took or added is
    just there), the id of a call (servers write it anew), the joints of JSON (`offpath.py`), and what stands for something that was taken out
    (`?`, `*`). A marker is pinned where only it
    can stand.
    """
    out: list[int] = []
    for start, stop in _runs(profile, ids):
        if all(token is not None for token in told[start:stop]):
            continue
        if not profile.is_ordinary(ids[start]):
            out += _open_markers(profile, ids, told, start, stop)
        else:
            opened_by = ids[start - 1] if start else None
            out += _open_texts(profile, ids, told, start, stop, opened_by)
    return out


def _runs(profile: Profile, ids: Ids) -> list[tuple[int, int]]:
    """[start, stop) of each run of ordinary ids and of each run of control ids."""
    cuts = [k for k in range(1, len(ids)) if profile.is_ordinary(ids[k]) != profile.is_ordinary(ids[k - 1])]
    return list(pairwise([0, *cuts, len(ids)])) if ids else []


def _open_markers(profile: Profile, ids: Ids, told: Told, start: int, stop: int) -> list[int]:
    """Markers between two named neighbours can only be they, where the grammar needs as many. It does not need a closing marker in
    front of a tool section (vllm#32216): a line break of the reasoning may stand in its place. Nor is the last entry the end of turn
    because it says nothing: some servers leave that one out, and whitespace that another took away may stand there."""
    holes = [k for k in range(start, stop) if told[k] is None]
    named = (start == 0 or told[start - 1] is not None) and (stop == len(ids) or told[stop] is not None)
    if not named:
        return holes
    return [k for k in holes if ids[k] in profile.end_ids or (ids[k] == profile.think_close and stop - start > 1)]


def _open_texts(profile: Profile, ids: Ids, told: Told, start: int, stop: int, opened_by: int | None) -> list[int]:
    holes = [k for k in range(start, stop) if told[k] is None]
    tool = profile.tool_ids
    if profile.writes_call_ids and opened_by == tool["call_begin"]:
        return holes
    pieces = [profile.encoding.decode_single_token_bytes(token) for token in ids[start:stop]]
    data = b"".join(pieces)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # a text that was cut inside a character
        return holes
    core = text.strip()
    if not core:
        return holes
    at = text.find(core)
    front = len(text[: at + 1].encode())
    back = len(text[at + len(core) - 1 :].encode())
    first, last = holes[0] - start, holes[-1] - start
    if sum(map(len, pieces[:first])) < front or sum(map(len, pieces[last + 1 :])) < back:
        return holes
    stand_in = [k for k in holes if any(sign in pieces[k - start] for sign in _STAND_INS)]
    if opened_by is None or opened_by not in (tool.get("argument_begin"), tool.get("call_begin")):
        return stand_in
    offsets = [0, *accumulate(map(len, pieces))]
    off_path = [k for k in holes if _OFF_PATH.search(data[max(0, offsets[k - start] - 1) : offsets[k - start + 1] + 1])]
    return sorted({*stand_in, *off_path})


# ---------------------------------------------------------------------------------------------------- streams
@dataclass(frozen=True, slots=True)
class Edges:
    """What the deltas of one text say of their alignment, without ids: the counts of a `Channel`."""

    in_arguments: bool
    edges: int
    off: int
    joints: int
    chance: float


@dataclass(frozen=True, slots=True)
class Channel:
    """The deltas of one text against the candidate's ids of it.

    `ids`: each delta's own encoding; `canonical`: the candidate's; `edges`: delta edges that could be told from none, `off` those inside
    a canonical id, `joints` those of them at a joint of JSON where models do sample so; `chance`: the share of token edges among the
    text's character positions; `single`: one delta, one id, cut in no other way.
    """

    name: str
    ids: Ids
    canonical: Ids
    edges: int
    off: int
    joints: int
    chance: float
    single: bool

    @property
    def in_arguments(self) -> bool:
        return self.name.startswith("tool:")

    @property
    def refutes(self) -> bool:
        return self.ids != self.canonical

    @property
    def counts(self) -> Edges:
        return Edges(self.in_arguments, self.edges, self.off, self.joints, self.chance)


# How often an edge between two ids that were sampled is no edge of the encoder. Of the recorded streams
# (docs/research/recorded-traffic.md#3-4): texts 0 of 6,545; arguments 31 of 330 fields at their first `":` + `"`, and 7 of 7,233
# edges elsewhere, which gateways cut
OFF_IN_TEXT, OFF_AT_JOINT, OFF_IN_ARGUMENTS = 1e-4, 0.1, 1e-3


def channels_of(fields: Fields) -> dict[str, list[str]]:
    """channel → its deltas in order, a pair of surrogates that was cut joined again."""
    out: dict[str, list[str]] = {}
    for channel, text in fields.deltas:
        deltas = out.setdefault(channel, [])
        if deltas and _is_cut_pair(deltas[-1], text):
            deltas[-1] = _joined_pair(deltas[-1] + text)
        else:
            deltas.append(text)
    return out


def _is_cut_pair(before: str, behind: str) -> bool:
    return "\ud800" <= before[-1:] <= "\udbff" and "\udc00" <= behind[:1] <= "\udfff"


def _joined_pair(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def own_channels(parts: Parts, streamed: Iterable[str]) -> dict[str, Ids]:
    """channel → the ids of `parts` that stand in it. Calls are taken in the order of their indices on the wire."""
    indices = sorted((name for name in streamed if name.startswith("tool:")), key=lambda name: int(name[5:]))
    names = indices if len(indices) == len(parts.calls) else [f"tool:{k}" for k in range(len(parts.calls))]
    ours: dict[str, Ids] = {"reasoning": parts.reasoning, "content": parts.content}
    return ours | {name: call.arguments or () for name, call in zip(names, parts.calls, strict=True)}


def stream_channels(profile: Profile, parts: Parts, fields: Fields) -> list[Channel] | None:
    """The texts of `parts` as the stream cuts them; None where it says nothing: whole texts, or deltas that do not spell them. Edges of
    texts are those of `parts`."""
    streamed = channels_of(fields)
    if all(len(deltas) == 1 for deltas in streamed.values()):  # a whole answer, or next to it
        return None
    out = []
    for name, ids in own_channels(parts, streamed).items():
        if not ids:
            continue
        try:
            text = profile.decode(ids)
            pieces = _with_edges(text, streamed.get(name, []))
            channel = _channel(profile, name, ids, text, pieces) if pieces else None
        except ExactError:
            channel = None
        if channel is None:
            return None
        out.append(channel)
    return out


def _channel(profile: Profile, name: str, canonical: Ids, text: str, pieces: Sequence[str]) -> Channel:
    data = text.encode("utf-8")
    ends = list(accumulate(map(len, map(profile.encoding.decode_single_token_bytes, canonical))))
    edges = list(accumulate(len(piece) if piece.isascii() else len(piece.encode("utf-8")) for piece in pieces))[:-1]
    if edges == ends[:-1]:
        seen, off, found, single = edges, [], canonical, True
    else:
        place = {0: 0} | {end: k for k, end in enumerate(ends, start=1)}
        seen = [edge for edge in edges if edge in place or not _is_in_character(data, edge, place)]
        off = [edge for edge in seen if edge not in place]
        spans = [
            _ids_of_span(profile, data[a:b], canonical, place.get(a), place.get(b)) for a, b in pairwise([0, *seen, len(data)])
        ]
        found = tuple(token for ids in spans for token in ids)
        single = len(seen) == len(edges) and len(found) == len(spans)
    if single:
        single = not any(behind[0] > "\x7f" and _cuts_otherwise(profile, piece, behind) for piece, behind in pairwise(pieces))
    positions = len(text) - 1
    return Channel(
        name,
        found,
        canonical,
        len(seen),
        len(off),
        sum(is_joint(data, edge) for edge in off) if name.startswith("tool:") else 0,
        min(max((len(canonical) - 1) / positions, 0.01), 0.99) if positions > 0 else 0.99,
        single,
    )


def _ids_of_span(profile: Profile, piece: bytes, canonical: Ids, start: int | None, stop: int | None) -> Sequence[int]:
    """The ids of what stands between two edges: the candidate's where both are edges of its ids, unless it is one id of the vocabulary;
    else its own encoding."""
    inside = canonical[start:stop] if start is not None and stop is not None else None
    if inside is not None and len(inside) == 1:
        return inside
    one = _lookup(profile, piece)
    if one is not None:
        return (one,)
    return inside if inside is not None else profile.encode(piece.decode("utf-8"))


def _is_in_character(data: bytes, edge: int, cuts: Container[int]) -> bool:
    """Whether the token across this edge ends inside the character behind it: a server holds that part back, so the edge is none."""
    size = 1
    while edge + size < len(data) and data[edge + size] & 0xC0 == 0x80:
        size += 1
    return any(edge + k in cuts for k in range(1, size))


def is_joint(data: bytes, edge: int) -> bool:
    """Whether an edge in compact JSON is one at which models leave the encoder's path: `":` | `"` or `",` | `"`."""
    return data[edge - 2 : edge] in (b'":', b'",') and data[edge : edge + 1] == b'"'


def alignment_nats(channels: Iterable[Edges | Channel], off_in_text: float = OFF_IN_TEXT) -> float:
    """Log of how much likelier these deltas are as whole ids than as pieces cut between any two characters. `off_in_text`: how often the
    model leaves the encoder's path in texts, an id."""
    total = 0.0
    for channel in channels:
        total += (channel.edges - channel.off) * -math.log(channel.chance)
        rare = OFF_IN_ARGUMENTS if channel.in_arguments else max(OFF_IN_TEXT, min(off_in_text, 0.5))
        total += channel.joints * math.log(OFF_AT_JOINT / (1 - channel.chance))
        total += (channel.off - channel.joints) * math.log(rare / (1 - channel.chance))
    return total


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
