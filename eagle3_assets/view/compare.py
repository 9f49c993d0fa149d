"""Two campaigns, or two providers, on the prompts that both were asked.

Belongs here: pairing rows and calls by what was asked, and the figures of both sides. Does not belong here: one row (`one_row.py`).

A side is a root and, if wanted, one provider of it. Equal means: the same messages and tools (`calls.asked`); the pilot asks every provider
the same prompts, so two providers of one campaign meet there at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.exact.show import visible
from eagle3_assets.view.calls import record_at
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.edits import edits
from eagle3_assets.view.one_row import cut
from eagle3_assets.wire.parse import parse_fields

MOST_PAIRS = 200
MOST_TEXT = 1500

_SIDE = """SELECT c.asked, c.sample_id, c.turn, c.dataset, c.provider, c.finished - c.started AS seconds, c.tokens, c.cost_usd, c.pilot,
  c.file, c.place, c.bytes, r.key, r.grade, r.p_exact, r.residual_completion, r.finish_reason, r.generated
  FROM calls c LEFT JOIN rows r ON NOT c.pilot AND r.sample_id = c.sample_id AND r.turn = c.turn AND r.dataset = c.dataset AND r.attempt = c.attempt
  WHERE c.outcome = 'finished' {where} QUALIFY row_number() OVER (PARTITION BY c.asked ORDER BY c.pilot, c.finished) = 1"""
_TOTALS = """SELECT count(*) AS rows, avg(p_exact) AS expected_exact, count(*) FILTER (failing = 'yes') AS failing,
  count(residual_completion) AS billed, count(*) FILTER (residual_completion = 0) AS equal, median(generated) AS generated,
  avg(CASE WHEN finish_reason = 'length' THEN 1.0 ELSE 0.0 END) AS cut, sum(cost_usd) AS usd, sum(generated) AS generated_sum,
  avg(mean_logprob) AS mean_logprob FROM rows {where}"""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison; `provider` "" means everybody."""

    name: str
    catalogue: Catalogue
    provider: str = ""


def compare(left: Side, right: Side) -> dict[str, Any]:
    """{totals [left, right], pairs, differ, lines [...], grades [[left, right, n]], figures}: at most MOST_PAIRS lines, those that differ most
    first."""
    sides = [_asked(side) for side in (left, right)]
    both = sorted(set(sides[0]) & set(sides[1]))
    pairs = [(sides[0][asked], sides[1][asked]) for asked in both]
    pairs = [
        (a, b) for a, b in pairs if left.catalogue is not right.catalogue or (a["file"], a["place"]) != (b["file"], b["place"])
    ]
    grades: dict[tuple[str, str], int] = {}
    for a, b in pairs:
        key = (a["grade"] or "pilot", b["grade"] or "pilot")
        grades[key] = grades.get(key, 0) + 1
    ordered = sorted(pairs, key=lambda pair: (-_unlike(*pair), pair[0]["asked"]))
    return {
        "sides": [{"name": visible(s.name), "provider": visible(s.provider)} for s in (left, right)],
        "totals": [_totals(side) for side in (left, right)],
        "pairs": len(pairs),
        "grades": [[*key, n] for key, n in sorted(grades.items())],
        "figures": [_figures([pair[k] for pair in pairs]) for k in (0, 1)],
        "lines": [[_line(a), _line(b)] for a, b in ordered[:MOST_PAIRS]],
    }


def _asked(side: Side, only: str = "") -> dict[str, dict[str, Any]]:
    where, values = ("AND c.provider = ?", [side.provider]) if side.provider else ("", [])
    if only:
        where, values = f"{where} AND c.asked = ?", [*values, only]
    return {line["asked"]: line for line in side.catalogue.records(_SIDE.format(where=where), values)}


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """How far two answers are apart, for the order only: another grade weighs most, then the lengths."""
    tokens = [float(line["tokens"] or 1) for line in (a, b)]
    return 10.0 * bool(a["grade"] != b["grade"]) + abs(math.log(max(1.0, tokens[0]) / max(1.0, tokens[1])))


def _totals(side: Side) -> dict[str, Any]:
    where, values = ("WHERE provider = ?", [side.provider]) if side.provider else ("", [])
    return side.catalogue.records(_TOTALS.format(where=where), values)[0]


def _figures(lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        known = [line[name] for line in lines if line[name] is not None]
        return sum(known) / len(known) if known else None

    return {name: mean(name) for name in ("tokens", "seconds", "cost_usd", "p_exact")}


def _line(line: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "key",
        "dataset",
        "grade",
        "p_exact",
        "residual_completion",
        "finish_reason",
        "tokens",
        "seconds",
        "cost_usd",
        "pilot",
        "turn",
    )
    return {**{name: line[name] for name in names}, "sample_id": visible(line["sample_id"]), "provider": visible(line["provider"]),
            "asked": line["asked"]}  # fmt: skip


def pair_of(left: Side, right: Side, asked: str) -> dict[str, Any]:
    """Both answers to one prompt as text, and what the second has in place of the first: {texts [left, right], spans}."""
    answers = []
    for side in (left, right):
        found = _asked(side, asked).get(asked)
        answers.append(None if found is None else _text(found))
    a, b = (answer or "" for answer in answers)
    spans = []
    for edit in edits(a.split(" "), b.split(" ")):
        words = a.split(" ")[edit.a_start : edit.a_end] if edit.op != "new" else b.split(" ")[edit.b_start : edit.b_end]
        spans += cut(" ".join(words) + " ", MOST_TEXT, edit.op)
    return {
        "found": [answer is not None for answer in answers],
        "texts": [cut(a, MOST_TEXT * 4), cut(b, MOST_TEXT * 4)],
        "spans": spans,
    }


def _text(found: Mapping[str, Any]) -> str:
    answer = record_at(found["file"], found["place"], found["bytes"])
    fields = parse_fields(answer.body, answer.content_type)
    calls = "".join(f"\n[{call.name}] {call.arguments}" for call in fields.tool_calls)
    return f"{fields.reasoning or ''}\n\n{fields.content or ''}{calls}".strip()
