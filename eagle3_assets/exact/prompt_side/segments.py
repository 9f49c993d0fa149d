"""Encoded turns of prompts: what is encoded once is never encoded again, in whatever prompt it stands.

Belongs here: cutting prompts where ids are independent, the bounded cache of encoded pieces, joining. Does not belong here: what a
prompt says (`render.py`), which prompts there are (`hypotheses.py`).

Control tokens are looked for before anything is merged, and each turn begins and ends with one: the ids of a prompt are those of its
turns, one behind the other. The exception is the chunk rule (`Profile.encode_prompt`): a text longer than `chunk_chars`, or with a run
of `chunk_run` characters, is cut before control tokens are looked for. `joins` says whether it would be.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_assets.targets.tokenizer import Profile, refuse_endless_blanks, refuse_surrogates

Piece = tuple[str, bool]  # a text, and whether the template wrote it (only then do its control tokens count as such everywhere)
Turn = tuple[Piece, ...]
CACHED_CHARS = 24_000_000  # of text in the cache, with about a quarter as many ids of four bytes
LONG_TEXT = 3000
MANY_PIECES = 160  # characters from which on a turn's pieces are worth finding again: its reasoning, its text, its arguments


@dataclass(frozen=True, slots=True)
class Segment:
    """The ids of one turn. `digest` tells ids apart; `controls`: how many are control tokens; `chars`, and the runs of characters that
    are no whitespace at its front, at its back and anywhere (0 where the text is shorter than the chunk rule's; the whole text: `solid`)."""

    ids: array[int]
    digest: int
    controls: int
    chars: int
    lead: int
    trail: int
    longest: int
    solid: bool

    @property
    def count(self) -> int:
        return len(self.ids)


EMPTY = Segment(array("I"), 0, 0, 0, 0, 0, 0, True)


Key = tuple[str, str, str]  # tokenizer, text, kind of piece


class _Cache:
    """Least recently used pieces go first when the texts are longer than `CACHED_CHARS` together."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Segment] = OrderedDict()
        self._chars = 0

    def get(self, key: Key) -> Segment | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Key, segment: Segment) -> Segment:
        if key not in self._kept:
            self._kept[key] = segment
            self._chars += len(key[1]) + 64
            while self._chars > CACHED_CHARS and len(self._kept) > 1:
                (_, text, _), _ = self._kept.popitem(last=False)
                self._chars -= len(text) + 64
        return segment


_CACHE = _Cache()


def encode_turn(profile: Profile, turn: Turn, *, control_text: bool = False, lines: bool = False) -> Segment:
    """One turn as ids. `control_text`: the names of control tokens in what users and the model wrote stay text. `lines`: a text whose
    lines stand in other turns too (tool declarations differ in little)."""
    text = "".join([piece for piece, _ in turn])
    key = (profile.tokenizer_sha256, text, "turn")
    if control_text:
        key = (profile.tokenizer_sha256, "\0".join(piece for piece, _ in turn), "text")
    found = _CACHE.get(key)
    if found is not None:
        return found
    if control_text:
        ids = _with_control_text(profile, turn, text)
    elif lines and len(text) > LONG_TEXT:
        ids = _by_lines(profile, text)
    elif len(text) > MANY_PIECES and profile.cuts_at_controls:
        ids = _by_pieces(profile, turn)
    else:
        ids = array("I", profile.encode_prompt(text))
    return _CACHE.put(key, _segment(profile, text, ids))


def encode_whole(profile: Profile, text: str) -> Segment:
    """A whole prompt as one segment, by the tokenizer's own rules."""
    key = (profile.tokenizer_sha256, text, "whole")
    return _CACHE.get(key) or _CACHE.put(key, _segment(profile, text, array("I", profile.encode_prompt(text))))


def _segment(profile: Profile, text: str, ids: array[int]) -> Segment:
    run = profile.facts.tokenizer.chunk_run
    if run is not None and len(text) > run:
        words = text.split() or [""]
        blanks = len(text) - sum(map(len, words))  # all whitespace together: no run of it is longer
        longest = max(blanks, *map(len, words))
    else:  # no run of it can be too long
        words = [*(text.split(None, 1)[:1] or [""]), *text.rsplit(None, 1)[-1:]]
        longest = 0
    return Segment(
        ids=ids,
        digest=int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "big") if ids else 0,
        controls=profile.count_controls(ids),
        chars=len(text),
        lead=len(words[0]),
        trail=len(words[-1]),
        longest=longest,
        solid=len(words[0]) == len(text),
    )


def _with_control_text(profile: Profile, turn: Turn, text: str) -> array[int]:
    """Between two markers of the template all is one ordinary text."""
    refuse_surrogates(text)
    refuse_endless_blanks(text)
    ids: array[int] = array("I")
    ordinary = ""
    for piece, marker in turn:
        if not marker:
            ordinary += piece
            continue
        ids.extend(profile.encoding.encode_ordinary(ordinary))
        ids.extend(profile.encoding.encode(piece, allowed_special="all"))
        ordinary = ""
    ids.extend(profile.encoding.encode_ordinary(ordinary))
    return ids


def _by_pieces(profile: Profile, turn: Turn) -> array[int]:
    """The same ids from what stands between the template's markers, each text encoded once: the forms of a turn share most of theirs."""
    ids: array[int] = array("I")
    text = ""
    for piece, marker in (*turn, ("", True)):
        token = profile.control_ids.get(piece) if marker else None
        if token is None and piece:
            text += piece
            continue
        if text:
            key = (profile.tokenizer_sha256, text, "piece")
            found = _CACHE.get(key) or _CACHE.put(key, _line(array("I", profile.encode_prompt(text))))
            ids.extend(found.ids)
            text = ""
        if token is not None:
            ids.append(token)
    return ids


# A word ends where a letter meets a line break, a full stop in front of one, or the backslash of an escaped one: no rule of the Kimi
# pattern has a token across (its words go on only with letters, marks and apostrophes), so that text may be encoded from there.
_LINE_END = re.compile(r"(?<=[a-z])(?=\.?(?:\n|\\n))")


def _by_lines(profile: Profile, text: str) -> array[int]:
    ids: array[int] = array("I")
    for line in _LINE_END.split(text):
        key = (profile.tokenizer_sha256, line, "line")
        found = _CACHE.get(key) or _CACHE.put(key, _line(array("I", profile.encode_prompt(line))))
        ids.extend(found.ids)
    return ids


def _line(ids: array[int]) -> Segment:
    return Segment(ids, 0, 0, 0, 0, 0, 0, False)


def joins(profile: Profile, segments: Sequence[Segment]) -> bool:
    """Whether the ids of the whole prompt are those of its segments: always, but for texts that the chunk rule cuts."""
    facts = profile.facts.tokenizer
    if facts.chunk_chars is None or facts.chunk_run is None:
        return True
    if sum(segment.chars for segment in segments) > facts.chunk_chars:
        return False
    most, run = facts.chunk_run, 0
    for segment in segments:
        if max(segment.longest, run + segment.lead) > most:
            return False
        run = run + segment.chars if segment.solid else segment.trail
    return True


def digest_of(segments: Sequence[Segment]) -> int:
    """Equal for equal prompts: forms of one request are cut at the same turns."""
    return hash(tuple(segment.digest for segment in segments if segment.ids))
