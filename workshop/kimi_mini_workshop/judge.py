"""What an answer is worth: does it keep the grammar, is it right, is it split as the encoder would split it.

Belongs here: reading ids of an answer strictly, and comparing with what its task wanted. Does not belong here: sampling, the
tolerant reading of a server (`standin.vocabulary`), rebuilding ids from text (`exact`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from kimi_mini.tokenizer import N_BASE, load_encoding
from kimi_mini_workshop import toolset
from kimi_mini_workshop.episode import Call, Step, Turn
from kimi_mini_workshop.spelling import markers

_HEADER = re.compile(r"functions\.(\w+):(\d+)")


def _text(ids: Sequence[int]) -> str | None:
    if any(token >= N_BASE for token in ids):
        return None  # a control id where text has to be
    try:
        return load_encoding().decode_bytes(list(ids)).decode("utf-8")
    except UnicodeDecodeError:
        return None


def read_turn(ids: Sequence[int], *, thinking: bool, first_call: int = 0) -> Turn | None:
    """The answer taken apart, None where it breaks K2.5's grammar: `[reasoning [</think>]] content [section] <|im_end|>`, calls
    numbered on from `first_call`, every field whole UTF-8, no control id out of place."""
    mark = markers()
    if not ids or ids[-1] != mark.end:
        return None
    body, reasoning, implicit = list(ids[:-1]), None, False
    if thinking:
        edge = next((k for k, token in enumerate(body) if token in (mark.close_think, mark.section_begin)), None)
        if edge is None or (reasoning := _text(body[:edge])) is None:
            return None
        implicit = body[edge] == mark.section_begin
        body = body[edge if implicit else edge + 1 :]
    edge = body.index(mark.section_begin) if mark.section_begin in body else len(body)
    content = _text(body[:edge])
    calls = _calls(body[edge:], first_call)
    if content is None or calls is None or (not content.strip() and not calls):
        return None
    return Turn(reasoning, content, calls, implicit)


def _calls(section: list[int], first_call: int) -> tuple[Call, ...] | None:
    """() without a section, None for a broken one."""
    mark = markers()
    if not section:
        return ()
    if section[-1] != mark.section_end:
        return None
    calls, at = list[Call](), 1
    while at < len(section) - 1:
        try:
            middle, end = section.index(mark.argument_begin, at), section.index(mark.call_end, at)
        except ValueError:
            return None
        header, arguments = _text(section[at + 1 : middle]), _text(section[middle + 1 : end])
        found = _HEADER.fullmatch(header) if header is not None and section[at] == mark.call_begin else None
        if found is None or arguments is None or int(found[2]) != first_call + len(calls):
            return None
        calls.append(Call(found[1], arguments))
        at = end + 1
    return tuple(calls) or None


def grammar_accepted(ids: Sequence[int], *, thinking: bool, declared: Sequence[str], first_call: int = 0) -> bool:
    """Whether a strict client takes the answer: K2.5's grammar, and calls of declared tools with arguments that fit their schema."""
    turn = read_turn(ids, thinking=thinking, first_call=first_call)
    return turn is not None and all(toolset.accepts(call.name, call.arguments, frozenset(declared)) for call in turn.calls)


def is_right(turn: Turn | None, step: Step) -> bool:
    """Whether the answer does what its task wanted: the same calls in the same order, or the wanted texts in the content."""
    if turn is None:
        return False
    if step.turn.calls:
        return [_meaning(call) for call in turn.calls] == [_meaning(call) for call in step.turn.calls]
    if turn.calls or not all(text in turn.content for text in step.wanted):
        return False
    return not step.one_of or turn.content.strip() in step.one_of


def _meaning(call: Call) -> tuple[str, object]:
    try:
        return call.name, json.loads(call.arguments)
    except ValueError:
        return call.name, None
