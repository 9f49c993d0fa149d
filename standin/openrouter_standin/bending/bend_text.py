"""Reasoning and content as a server returns them, in two steps: its detokenizer joins text and markers, then its parsers cut and strip.

Belongs here: `[provider.text]` as far as it concerns these two fields. Does not belong here: calls (`bend_calls`).
An edit is named by what is left of it in the end: a space that the detokenizer put there and the parser took away again is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openrouter_standin.bending.bend_pieces import (
    Pieces,
    add_space,
    first_shown,
    is_blank,
    raw_pieces,
    section_at,
    strip,
    stripped_characters,
)
from openrouter_standin.schema.bending import Side, TextRules
from openrouter_standin.vocabulary import Ids, Parts, Vocabulary


@dataclass
class _Run:
    """Text of a run of ids between two markers, as the detokenizer gives it; `left`, `right`: a space was put there."""

    name: str
    pieces: list[str]
    left: bool = False
    right: bool = False

    @property
    def edits(self) -> list[str]:
        return [f"inject_leading:{self.name}"] * self.left + [f"inject_trailing:{self.name}"] * self.right


@dataclass
class Field:
    """One field of the answer. `at`: where its first id stands in the completion; `instead`: what stands for no text (None = null)."""

    pieces: Pieces
    at: int
    edits: list[str] = field(default_factory=list)
    instead: str | None = None


def bend_fields(
    ids: Ids, parts: Parts, rules: TextRules, vocabulary: Vocabulary, *, thinking: bool, leaks: bool
) -> tuple[Field, Field]:
    """(reasoning, content). `thinking`: the prompt ends in `<think>`; `leaks`: no parser finds the tool section."""
    reasoning, content, tail = _detokenize(ids, parts, rules, vocabulary, thinking=thinking, leaks=leaks)
    told = ["leaked:tool_section"] * leaks
    if thinking and not rules.reasoning_parser and parts.content_at:  # nobody cuts at </think>
        mark = [_Run("</think>", [vocabulary.encoding.decode([vocabulary.close_think])])] if parts.closed else []
        everything = _content([reasoning, *mark, content, *tail], 0, parts, rules, leaks, ["unparsed:reasoning", *told])
        return Field((), 0), everything
    if thinking and not parts.closed:  # what is left of the section, if anything, belongs to the reasoning
        thought = _parse("reasoning", [reasoning, *tail], 0, rules.strip_reasoning, rules, told)
        return thought, _content([content], parts.content_at, parts, rules, leaks, [])
    thought = _parse("reasoning", [reasoning], 0, rules.strip_reasoning, rules, [])
    return thought, _content([content, *tail], parts.content_at, parts, rules, leaks, told)


def _detokenize(
    ids: Ids, parts: Parts, rules: TextRules, vocabulary: Vocabulary, *, thinking: bool, leaks: bool
) -> tuple[_Run, _Run, list[_Run]]:
    """Reasoning, content, and the tool section where it stays text."""
    reasoning = _Run("reasoning", list(vocabulary.pieces(parts.reasoning)))
    reasoning.left, reasoning.right = add_space(
        reasoning.pieces,
        leading=rules.inject_reasoning_leading,
        trailing=rules.inject_reasoning_trailing and (parts.closed or parts.section),
    )
    content = _Run("content", list(vocabulary.pieces(parts.content)))
    content.left, content.right = add_space(
        content.pieces, leading=rules.inject_content_leading, trailing=rules.inject_content_trailing and parts.section
    )
    if not leaks:
        return reasoning, content, []
    raw = raw_pieces(ids[section_at(parts) : len(ids) - parts.ended], vocabulary, spaced=rules.inject_between_markers)
    section = _Run("section", raw)
    open_end = thinking and not parts.closed
    if first_shown((reasoning if open_end else content).pieces) is None:  # the section stands right behind the marker before
        leading = rules.inject_reasoning_leading if open_end else rules.inject_content_leading
        section.left, _ = add_space(section.pieces, leading=leading)
    return reasoning, content, [section]


def _parse(name: str, runs: list[_Run], at: int, side: Side, rules: TextRules, told: list[str]) -> Field:
    """One field of these runs, its outer whitespace taken away. The spaces that are left are edits."""
    pieces = [piece for run in runs for piece in run.pieces] if len(runs) > 1 else runs[0].pieces
    shown = [run for run in runs if first_shown(run.pieces) is not None]
    if not shown:
        return Field(tuple(pieces), at, told)
    left, right = strip(pieces, side, stripped_characters(rules))
    if first_shown(pieces) is None:
        return Field(tuple(pieces), at, [*told, f"strip:{name}"])
    first, last = shown[0], shown[-1]
    stripped = [f"strip:{name}"] * (left > first.left or right > last.right)
    first.left, last.right = first.left and not left, last.right and not right
    return Field(tuple(pieces), at, [*told, *stripped, *(edit for run in shown for edit in run.edits)])


def _content(runs: list[_Run], at: int, parts: Parts, rules: TextRules, leaks: bool, told: list[str]) -> Field:
    """The content: of a tool answer, what stands for none."""
    out = _parse("content", runs, at, rules.strip_content, rules, told)
    if not parts.section or leaks:
        return out
    if rules.drop_blank_content and first_shown(out.pieces) is not None and is_blank(out.pieces):
        out.pieces, out.edits = ("",) * len(out.pieces), [*told, "dropped:blank_content"]
    if rules.empty_content != "null" and first_shown(out.pieces) is None:
        out.instead, out.edits = rules.empty_content, [*out.edits, "empty_content"]
    return out
