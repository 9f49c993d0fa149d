"""A run of text in pieces (one string per id, empty where an id shows nothing), changed at its ends.

Belongs here: what a detokenizer or a parser does to the edges of any run. Does not belong here: which run, which edge (`bend_text`,
`bend_calls`).
Everything looks at the ends only and works in place on a list: a run of 3,500 pieces costs what its edges cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from openrouter_standin.schema.bending import Side, TextRules
from openrouter_standin.vocabulary import Ids, Parts, Vocabulary

Pieces = tuple[str, ...]
_STRIPPED = {"whitespace": None, "newlines": "\r\n"}


def stripped_characters(rules: TextRules) -> str | None:
    """The argument of `str.strip`."""
    return _STRIPPED[rules.strip_what]


def strip_left(pieces: list[str], characters: str | None = None) -> int:
    """`str.lstrip` over the joined text; how many characters went."""
    removed = 0
    for k, piece in enumerate(pieces):
        pieces[k] = piece.lstrip(characters)
        removed += len(piece) - len(pieces[k])
        if pieces[k]:
            break
    return removed


def strip_right(pieces: list[str], characters: str | None = None) -> int:
    """`str.rstrip` over the joined text; how many characters went."""
    removed = 0
    for k in range(len(pieces) - 1, -1, -1):
        piece = pieces[k]
        pieces[k] = piece.rstrip(characters)
        removed += len(piece) - len(pieces[k])
        if pieces[k]:
            break
    return removed


def strip(pieces: list[str], side: Side, characters: str | None = None) -> tuple[int, int]:
    """Characters taken from the left and from the right."""
    left = strip_left(pieces, characters) if side in ("left", "both") else 0
    right = strip_right(pieces, characters) if side in ("right", "both") else 0
    return left, right


def add_space(pieces: list[str], *, leading: bool = False, trailing: bool = False) -> tuple[bool, bool]:
    """One space in front of the first text, one behind the last; a run without text stays so (there is nothing to join). What was added."""
    shown = first_shown(pieces)
    if shown is None:
        return False, False
    if leading:
        pieces[shown] = " " + pieces[shown]
    if trailing:
        last = next(k for k in range(len(pieces) - 1, -1, -1) if pieces[k])
        pieces[last] += " "
    return leading, trailing


def first_shown(pieces: Sequence[str]) -> int | None:
    """Where the first text is; None without any."""
    return next((k for k, piece in enumerate(pieces) if piece), None)


def is_blank(pieces: Iterable[str]) -> bool:
    """Nothing but whitespace, or nothing."""
    return not any(piece.strip() for piece in pieces)


def raw_pieces(ids: Ids, vocabulary: Vocabulary, *, spaced: bool) -> list[str]:
    """A tool section (it begins with a marker) as text: markers spelt out, text between them decoded by itself. `spaced`: one space
    between neighbours, as a slow tokenizer's detokenizer joins text and added tokens (vllm#33457)."""
    v = vocabulary
    markers = {v.section_begin, v.section_end, v.call_begin, v.argument_begin, v.call_end, v.close_think}
    out: list[str] = []
    start = 0
    for k in [*(k for k, i in enumerate(ids) if i in markers), len(ids)]:
        run = list(v.pieces(ids[start:k]))
        add_space(run, leading=spaced)
        out += run
        if k < len(ids):
            out.append(" " * (spaced and bool(out)) + v.encoding.decode([ids[k]]))
        start = k + 1
    return out


def section_at(parts: Parts) -> int:
    """Where the tool section begins in the completion (its end where there is none)."""
    return parts.content_at + len(parts.content)
