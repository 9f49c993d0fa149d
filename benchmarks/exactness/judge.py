"""Rows against truth: is every id right, and if not, what is wrong.

Belongs here: the comparison and the naming of errors, by the stand-in's own reading of ids. Does not belong here: figures (`figures`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.exactness.figures import matching_tokens
from benchmarks.exactness.purchase import Truth
from eagle3_assets.exact.sample_row import SampleRow
from openrouter_standin.vocabulary import Ids, Parts, Vocabulary, take_apart

HIGH = ("A0", "A1", "A2", "B1")  # what coverage counts: B1 and better
SURE = ("A0", "A1", "A2", "B1", "B2", "R")  # what training takes by default
LOW = ("C1", "D", "Q", "I")


@dataclass(frozen=True)
class Judged:
    """One row with its verdict. `error`: "" or what is wrong first: prompt, edge, non-canonical, ids of calls, arguments, marker,
    text. `matching`: tokens of the true completion that the row has, in
    order; `off_bill`: the bill is not the true count, by more than a convention about the ends."""

    provider: str
    generation_id: str
    grade: str
    p_exact: float
    exact: bool
    error: str
    completion_exact: bool
    prompt_exact: bool
    tokens: int
    matching: int
    same_count: bool
    off_bill: bool
    has_calls: bool
    truncated: bool
    habits: tuple[str, ...]
    version: int
    reasons: tuple[str, ...]
    cause: str
    distinct: int
    detail: str


def judge(provider: str, rows: Iterable[SampleRow], truths: Mapping[str, Truth], vocabulary: Vocabulary) -> list[Judged]:
    """Rows without a truth (an answer that another server gave) are left out."""
    return [
        _judged(provider, row, truths[row.generation_id], vocabulary)
        for row in rows
        if row.generation_id is not None and row.generation_id in truths
    ]


def _judged(provider: str, row: SampleRow, truth: Truth, v: Vocabulary) -> Judged:
    prompt, completion = row.input_ids[: row.prompt_len], row.input_ids[row.prompt_len :]
    right_prompt, right = prompt == truth.prompt_ids, completion == truth.completion_ids
    thinking = _thinks(truth.prompt_ids, v)
    error = "" if right and right_prompt else "prompt" if right else name_error(completion, truth.completion_ids, thinking, v)
    return Judged(
        provider=provider,
        generation_id=row.generation_id or "",
        grade=row.grade,
        p_exact=row.p_exact,
        exact=right and right_prompt,
        error=error,
        completion_exact=right,
        prompt_exact=right_prompt,
        tokens=len(truth.completion_ids),
        matching=len(completion) if right else matching_tokens(completion, truth.completion_ids),
        same_count=len(completion) == len(truth.completion_ids),
        off_bill=row.billed_completion is not None and abs(row.billed_completion - len(truth.completion_ids)) > 1,
        has_calls=v.section_begin in truth.completion_ids,
        truncated=row.finish_reason == "length",
        habits=truth.habits,
        version=truth.version,
        reasons=row.reasons,
        cause=_cause(row, thinking, v) if row.grade == "C1" else "",
        distinct=int((json.loads(row.evidence).get("hypotheses") or {}).get("distinct", 0)),
        detail="" if right else _difference(completion, truth.completion_ids, v),
    )


# What a reason of a C1 row begins with or says -> what is in doubt there
CAUSES = (
    ("not decided", "open provider"),
    ("below", "not canonical, or changed"),
    ("changed as well", "not canonical, or changed"),
    ("cut by length", "cut by length"),
    ("hardly ever writes", "unheard-of whitespace"),
    ("wire profile does not fit", "profile does not fit"),
    ("prompt", "prompt"),
)


def _cause(row: SampleRow, thinking: bool, v: Vocabulary) -> str:
    """Why a row is C1: where its first rival differs (edge, arguments, ...), else what its reason says; a reason that CAUSES
    does not know stands for itself."""
    said = "; ".join(row.reasons)
    if "id sequences meet the bill" not in said:
        return next((cause for word, cause in CAUSES if word in said), said[:40])
    completion = row.input_ids[row.prompt_len :]
    for rival in row.survivors:
        if rival[: row.prompt_len] != row.input_ids[: row.prompt_len]:
            return "several: prompt"
        return f"several: {name_error(completion, rival[row.prompt_len :], thinking, v)}"
    return "several: more than are kept"


def _difference(ours: Ids, truth: Ids, v: Vocabulary) -> str:
    """The first ids that differ, with their texts."""
    at = next((k for k, (a, b) in enumerate(zip(ours, truth, strict=False)) if a != b), min(len(ours), len(truth)))
    near = [[v.encoding.decode([i]) for i in ids[max(0, at - 1) : at + 3]] for ids in (ours, truth)]
    return f"at {at} of {len(truth)}: ours {near[0]}, true {near[1]}"


def _thinks(prompt: Ids, v: Vocabulary) -> bool:
    """Whether the prompt ends in an open `<think>`."""
    return bool(prompt) and prompt[-1] != v.close_think


def name_error(ours: Sequence[int], truth: Sequence[int], thinking: bool, v: Vocabulary) -> str:
    """What is wrong with a completion, worst first: text (other characters), arguments, ids of calls, marker (other structure),
    edge (whitespace at the ends of a field), non-canonical (the same text in other ids)."""
    a, b = (take_apart(tuple(ids), thinking, v) for ids in (ours, truth))
    if (a.closed, a.section, len(a.calls), a.ended) != (b.closed, b.section, len(b.calls), b.ended):
        return "marker"
    found = [_of_field(x, y, v) for x, y in ((a.reasoning, b.reasoning), (a.content, b.content))]
    found += [_of_call(x, y, v) for x, y in zip(_texts(a), _texts(b), strict=False)]
    if a.stray != b.stray:
        found.append(_of_field(a.stray, b.stray, v))
    order = ("text", "arguments", "ids of calls", "edge", "non-canonical")
    return next((name for name in order if name in found), "marker")


def _of_field(a: Ids, b: Ids, v: Vocabulary) -> str:
    if a == b:
        return ""
    x, y = v.text(a), v.text(b)
    return "non-canonical" if x == y else "edge" if x.strip() == y.strip() else "text"


def _texts(parts: Parts) -> list[tuple[str, Ids]]:
    return [pair for call in parts.calls for pair in (("ids of calls", call.header), ("arguments", call.arguments))]


def _of_call(a: tuple[str, Ids], b: tuple[str, Ids], v: Vocabulary) -> str:
    if a[1] == b[1]:
        return ""
    return "non-canonical" if v.text(a[1]) == v.text(b[1]) else a[0]
