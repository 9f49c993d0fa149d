"""Which answers decided how a provider is read: those that its reading explains and a rival reading does not.

Belongs here: asking the learner's own functions answer by answer. Does not belong here: deciding (`exact/providers/learning.py`).

A profile keeps sums (margins in nats), not rows. Here a sample of a window's answers is observed again, and each bill is held against the
window's reading and its nearest rivals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from eagle3_assets.exact.providers.learning import explanations, turn_of
from eagle3_assets.exact.search.edges import BREAKS, MECHANISMS, RUNS, Mechanism
from eagle3_assets.exact.search.modes import likeliest_mode
from eagle3_assets.exact.search.observations import Observation, observe
from eagle3_assets.exact.search.readings import Billing, Reading, Rule, reading_of
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

_RULE = re.compile(r"(end|no_end)([+-]\d+)?")
# Where a rival takes whitespace away any run that it takes may have stood
TAKEN = {"strip": tuple((run, 1 / len(RUNS)) for run in RUNS), "trim": tuple((run, 1 / len(BREAKS)) for run in BREAKS)}


def reading_named(name: str) -> Reading | None:
    """The reading that a name in `margins` means, with every run possible where whitespace is taken away; None for another text."""
    kinds, _, rules = name.partition("|")
    edges = [Mechanism(kind, TAKEN.get(kind, ())) for kind in kinds.split() if kind in MECHANISMS]
    words = rules.split(" calls_")
    parsed = [_rule(word) for word in words]
    if len(edges) != 4 or not 1 <= len(parsed) <= 2 or None in parsed:
        return None
    text, calls = parsed[0] or Rule(), parsed[-1] or Rule()
    return Reading((edges[0], edges[1], edges[2], edges[3]), Billing(text, calls))


def _rule(word: str) -> Rule | None:
    found = _RULE.fullmatch(word)
    return Rule(found[1] == "end", int(found[2] or 0)) if found else None


def deciding_answers(
    profile: Profile, window: Mapping[str, Any], answers: Iterable[WireAnswer], *, thinking: bool
) -> dict[str, Any]:
    """{looked_at, met, rivals [{name, margin, against}], rows [{sample_id, turn, dataset, shard, bill, rivals}]}: how many bills the window's reading
    meets, how many of those each rival does not, and the answers that speak against most rivals, loudest first."""
    margins = _margins(window)
    rivals = {name: reading for name in margins if (reading := reading_named(name)) is not None}
    readings = {turn: _best(told) for turn, told in (window.get("turns") or {}).items()}
    against = dict.fromkeys(rivals, 0)
    rows: list[dict[str, Any]] = []
    looked_at = met = 0
    for answer in answers:
        row = _observed(profile, answer, thinking)
        best = readings.get(turn_of(row)) if row is not None else None
        if row is None or best is None:
            continue
        looked_at += 1
        if not explanations(row, best):
            continue
        met += 1
        missed = [name for name, rival in rivals.items() if not explanations(row, rival)]
        for name in missed:
            against[name] += 1
        if missed:
            rows.append({"sample_id": answer.sample_id, "turn": answer.turn, "dataset": answer.dataset, "shard": answer.shard, "bill": row.billed,
                         "rivals": len(missed)})  # fmt: skip
    rows.sort(key=lambda line: (-line["rivals"], line["sample_id"]))
    told = [{"name": name, "margin": margins[name], "against": against[name]} for name in rivals]
    return {"looked_at": looked_at, "met": met, "rivals": sorted(told, key=lambda line: line["margin"]), "rows": rows[:50]}


def _margins(window: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for told in (window.get("turns") or {"": window}).values():
        for name, margin in (told.get("margins") or {}).items():
            found[str(name)] = min(found.get(str(name), float(margin)), float(margin))
    return found


def _best(told: Mapping[str, Any]) -> Reading | None:
    readings = [reading_of(value) for value in told.get("readings") or ()]
    return max(readings, key=lambda reading: reading.weight) if readings else reading_named(str(told.get("reading")))


def _observed(profile: Profile, answer: WireAnswer, thinking: bool) -> Observation | None:
    if answer.outcome != "finished":
        return None
    fields = parse_fields(answer.body, answer.content_type)
    mode = likeliest_mode(profile, answer.request, fields, thinking)
    return observe(profile, answer.request, fields, mode=mode, at=answer.finished_at)
