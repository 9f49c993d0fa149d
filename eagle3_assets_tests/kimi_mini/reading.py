"""Reads a completion back by the grammar of docs/research/tokenizers.md#4, written apart from the code that made it.

A finite automaton over token names; ids outside it are refused with AssertionError. Only for tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tiktoken

CALL_ID = re.compile(r"functions\.([A-Za-z_][\w-]*):(\d+)")
N_BASE = 2_048
# offsets of Kimi's control ids from the first special id (163,584 there)
END, CLOSE_THINK = N_BASE + 2, N_BASE + 23
SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END = (N_BASE + k for k in range(11, 16))


@dataclass(frozen=True)
class Read:
    """What a completion says; None where the mode has no such part."""

    reasoning: str | None
    content: str | None
    calls: tuple[tuple[str, int, str], ...]  # name, index, arguments
    implicit_end: bool
    ended: bool


def segments(ids: Sequence[int]) -> list[tuple[int | None, list[int]]]:
    """(marker in front or None, ordinary ids behind it), in order."""
    parts: list[tuple[int | None, list[int]]] = [(None, [])]
    for token in ids:
        if token < N_BASE:
            parts[-1][1].append(token)
        else:
            parts.append((token, []))
    return parts


def read_completion(encoding: tiktoken.Encoding, ids: Sequence[int], *, thinking: bool) -> Read:
    def text(part: list[int]) -> str:
        return encoding.decode_bytes(part).decode("utf-8")  # strict

    state, parts = "open", segments(ids)
    first = text(parts[0][1])
    reasoning, content = (first, None) if thinking else (None, first)
    calls: list[tuple[str, int, str]] = []
    implicit = False
    for marker, part in parts[1:]:
        if marker == CLOSE_THINK:
            assert thinking and state == "open", "</think> out of place"
            state, content = "content", text(part)
        elif marker == SECTION_BEGIN:
            assert state in ("open", "content") and not part, "tool section out of place"
            implicit = thinking and state == "open"
            state = "section"
        elif marker == CALL_BEGIN:
            assert state in ("section", "called"), "call outside a section"
            match = CALL_ID.fullmatch(text(part))
            assert match, f"call id {text(part)!r}"
            state, name, index = "header", match[1], int(match[2])
        elif marker == ARGUMENT_BEGIN:
            assert state == "header"
            state = "arguments"
            calls.append((name, index, text(part)))
        elif marker == CALL_END:
            assert state == "arguments" and not part, "text between calls"
            state = "called"
        elif marker == SECTION_END:
            assert state == "called" and not part, "text behind the section, or an empty section"
            state = "sectioned"
        elif marker == END:
            # reasoning without </think> and without a tool section may not end the turn
            assert state in ("content", "sectioned") or (state == "open" and not thinking), "the turn ends out of place"
            assert not part, "text behind the end"
            state = "ended"
        else:
            raise AssertionError(f"control id {marker} has no place in a completion")
    return Read(reasoning, content, tuple(calls), implicit, state == "ended")
