"""Spelling: a turn's text becomes ids, the way a sampling model may have chosen them.

Belongs here: the completion grammar with markers put in by id, non-canonical splits, the test for canonical ids.
Does not belong here: text (`families`), which answers are kept (`bank.py`), reading ids back into fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from eagle3_assets.kimi_mini.episode import Turn
from eagle3_assets.kimi_mini.tokenizer import N_BASE, load_ranks, special_tokens

if TYPE_CHECKING:
    import tiktoken


# How often one, two or three ids are respelled as two: one id more (`th`+`at`), the same count (`'`+`data` for `'d`+`ata`), one
# less (`'`+`summary` for `'s`+`um`+`mary`). About the shape measured on a small model at T = 1 (research note exactness 4(i):
# of 22 places 16 longer, 5 equal, 1 shorter).
RESPELL_WEIGHTS = (66, 26, 8)


@dataclass(frozen=True, slots=True)
class Markers:
    """Ids of the control tokens that a completion may hold."""

    end: int
    close_think: int
    section_begin: int
    section_end: int
    call_begin: int
    argument_begin: int
    call_end: int


@cache
def markers() -> Markers:
    ids = special_tokens()
    return Markers(
        end=ids["<|im_end|>"],
        close_think=ids["</think>"],
        section_begin=ids["<|tool_calls_section_begin|>"],
        section_end=ids["<|tool_calls_section_end|>"],
        call_begin=ids["<|tool_call_begin|>"],
        argument_begin=ids["<|tool_call_argument_begin|>"],
        call_end=ids["<|tool_call_end|>"],
    )


def spell_turn(encoding: tiktoken.Encoding, turn: Turn, *, first_call: int = 0) -> list[int]:
    """Canonical ids of a whole completion: reasoning `</think>` content [tool section] `<|im_end|>`.

    Each text field is encoded alone with specials off. `first_call` is the number of calls made earlier in the conversation
    (the index in `functions.NAME:IDX` counts over all of it; research note tokenizers 4).
    """
    mark = markers()
    ids: list[int] = []
    if turn.reasoning is not None:
        ids += encoding.encode_ordinary(turn.reasoning)
        if not turn.implicit_end:
            ids.append(mark.close_think)
    ids += encoding.encode_ordinary(turn.content)
    if turn.calls:
        ids.append(mark.section_begin)
        for index, call in enumerate(turn.calls, first_call):
            ids += [mark.call_begin, *encoding.encode_ordinary(f"functions.{call.name}:{index}"), mark.argument_begin]
            ids += [*encoding.encode_ordinary(call.arguments), mark.call_end]
        ids.append(mark.section_end)
    return [*ids, mark.end]


def _fields(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open spans of ordinary ids between control ids."""
    spans, start = [], 0
    for position, token in enumerate([*ids, N_BASE]):
        if token >= N_BASE:
            if position > start:
                spans.append((start, position))
            start = position + 1
    return spans


def canonical(encoding: tiktoken.Encoding, ids: Sequence[int]) -> list[int]:
    """The same text split as the encoder splits it, field by field, control ids where they are. Raises UnicodeDecodeError where a
    field is not UTF-8."""
    again, done = list[int](), 0
    for start, end in _fields(ids):
        text = encoding.decode_bytes(list(ids[start:end])).decode("utf-8")
        again += [*ids[done:start], *encoding.encode_ordinary(text)]
        done = end
    return [*again, *ids[done:]]


def is_canonical(encoding: tiktoken.Encoding, ids: Sequence[int]) -> bool:
    """Whether every text field is split as the encoder would split its text (bytes that are not UTF-8 count as not canonical)."""
    try:
        return canonical(encoding, ids) == list(ids)
    except UnicodeDecodeError:
        return False


@cache
def _tokens() -> tuple[tuple[bytes, ...], dict[bytes, int]]:
    ranks = load_ranks()
    return tuple(sorted(ranks, key=ranks.__getitem__)), ranks


def _two_ids(window: Sequence[int]) -> list[list[int]]:
    """All ways to spell the bytes of `window` with exactly two ids, the window itself left out."""
    words, ranks = _tokens()
    joined = b"".join(words[token] for token in window)
    pairs = ((joined[:cut], joined[cut:]) for cut in range(1, len(joined)))
    ways = [[ranks[left], ranks[right]] for left, right in pairs if left in ranks and right in ranks]
    return [way for way in ways if way != list(window)]


def _respell_once(rng: Random, encoding: tiktoken.Encoding, ids: list[int]) -> list[int]:
    """One place spelled differently; `ids` as they are where no place is found."""
    width = rng.choices((1, 2, 3), weights=RESPELL_WEIGHTS)[0]
    places = [place for start, end in _fields(ids) for place in range(start, end - width + 1)]
    rng.shuffle(places)
    for place in places:
        for way in rng.sample(ways := _two_ids(ids[place : place + width]), len(ways)):
            changed = [*ids[:place], *way, *ids[place + width :]]
            if not is_canonical(encoding, changed):
                return changed
    return ids


def respell(rng: Random, encoding: tiktoken.Encoding, ids: Sequence[int], edits: int) -> list[int]:
    """The same bytes with up to `edits` places spelled with two ids in place of one, two or three (see RESPELL_WEIGHTS).

    Control ids are never touched, so every field keeps its text.
    """
    changed = list(ids)
    for _ in range(edits):
        changed = _respell_once(rng, encoding, changed)
    return changed
