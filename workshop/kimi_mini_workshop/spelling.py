"""Spelling: a turn's text becomes ids as the encoder splits it, and ids are compared with that.

Belongs here: the completion grammar with markers put in by id, the test for canonical ids.
Does not belong here: text (`families`), which answers are kept (`bank.py`), reading ids back into fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kimi_mini.tokenizer import N_BASE, special_tokens
from kimi_mini_workshop.episode import Turn

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
    (the index in `functions.NAME:IDX` counts over all of it; docs/research/tokenizers.md#4).
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
