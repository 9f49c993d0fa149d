"""Spelling: a turn's text becomes ids, the way a sampling model may have chosen them.

Belongs here: the completion grammar with markers put in by id, non-canonical splits, the test for canonical ids.
Does not belong here: text (`world.py`), which answers are kept (`bank.py`), reading ids back into fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from eagle3_assets.kimi_mini.tokenizer import N_BASE, load_ranks, special_tokens
from eagle3_assets.kimi_mini.world import Turn

if TYPE_CHECKING:
    import tiktoken


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


def is_canonical(encoding: tiktoken.Encoding, ids: Sequence[int]) -> bool:
    """Whether every text field is split as the encoder would split its text (bytes that are not UTF-8 count as not canonical)."""
    for start, end in _fields(ids):
        try:
            text = encoding.decode_bytes(list(ids[start:end])).decode("utf-8")
        except UnicodeDecodeError:
            return False
        if encoding.encode_ordinary(text) != list(ids[start:end]):
            return False
    return True


@cache
def _tokens() -> tuple[tuple[bytes, ...], dict[bytes, int]]:
    ranks = load_ranks()
    return tuple(sorted(ranks, key=ranks.__getitem__)), ranks


def _other_splits(first: int, second: int | None) -> list[list[int]]:
    """Other ways to spell one or two neighbouring ids with at most two ids, same bytes."""
    words, ranks = _tokens()
    joined = words[first] + (words[second] if second is not None else b"")
    old = [first] if second is None else [first, second]
    pairs = ((joined[:cut], joined[cut:]) for cut in range(1, len(joined)))
    ways = [[ranks[left], ranks[right]] for left, right in pairs if left in ranks and right in ranks]
    if joined in ranks:
        ways.append([ranks[joined]])
    return [way for way in ways if way != old]


def respell(rng: Random, encoding: tiktoken.Encoding, ids: Sequence[int], edits: int) -> list[int]:
    """The same bytes with up to `edits` places spelled differently.

    Half of the places split one id into two (longer), the rest respell a neighbouring pair (mostly the same count; shorter where
    the pair joins to one id that the split regex forbids, such as `'` + `data` for `'d` + `ata`). Control ids are never touched.
    """
    changed = list(ids)
    for _ in range(edits):
        for _ in range(40):  # most single ids have another split; pairs often have none
            start, end = rng.choice(_fields(changed))
            position = rng.randrange(start, end)
            pair = rng.random() < 0.5 and position + 1 < end
            ways = _other_splits(changed[position], changed[position + 1] if pair else None)
            if ways:
                candidate = [*changed[:position], *rng.choice(ways), *changed[position + (2 if pair else 1) :]]
                if not is_canonical(encoding, candidate):
                    changed = candidate
                    break
    return changed
