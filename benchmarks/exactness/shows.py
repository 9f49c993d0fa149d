"""The claims of the issue against what was measured, and examples of what went wrong.

Belongs here: targets, beside the measure that each is held against. Does not belong here: measuring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from benchmarks.exactness import figures
from benchmarks.exactness.experiments import ADMITTED, Change, Learned, Placebo
from benchmarks.exactness.judge import HIGH, LOW, SURE, Judged
from benchmarks.exactness.plain import Tally
from benchmarks.exactness.purchase import Purchase
from benchmarks.exactness.rebuild import Clock
from benchmarks.exactness.tables import Claim, bounded
from benchmarks.exactness.worlds import World
from openrouter_standin.schema.provider import Provider

_KEPT_SPACES = ("inject_reasoning_leading", "inject_reasoning_trailing", "inject_content_leading", "inject_content_trailing")


@dataclass(frozen=True)
class Measured:
    """Everything of one run; the last four are empty in a quick one."""

    rows: Mapping[str, Sequence[Judged]]
    clocks: Mapping[str, Clock]
    learned: Mapping[str, Any]
    hopeless: Sequence[str]
    plain: Mapping[str, Tally]
    seeds: Mapping[str, Tally]
    placebo: Mapping[str, Placebo] = field(default_factory=dict)
    identified: Mapping[str, Sequence[Learned]] = field(default_factory=dict)
    watched: Sequence[Change] = ()
    worlds: Sequence[World] = ()

    @property
    def all_rows(self) -> list[Judged]:
        return [row for found in self.rows.values() for row in found]

    def as_json(self, claims: Sequence[Claim]) -> dict[str, Any]:
        providers = {}
        for name, found in self.rows.items():
            exact = [row for row in found if row.exact]
            providers[name] = {
                "rows": len(found),
                "exact": len(exact),
                "exact_b1_or_better": sum(row.grade in HIGH for row in exact),
                "grades": {
                    g: [sum(r.exact for r in found if r.grade == g), n] for g, n in Counter(r.grade for r in found).items()
                },
                "errors": dict(Counter(row.error for row in found if row.error)),
                "ms": 1000 * self.clocks[name].seconds / max(1, self.clocks[name].answers),
            }
        rest = {name: getattr(self, name) for name in ("plain", "seeds", "placebo", "identified", "watched", "worlds")}
        return {"claims": list(claims), "providers": providers, **rest}


def class_of(provider: Provider | None) -> str:
    """verbatim: text, prompt and bill can be told without loss; injecting: the same with spaces joined on; joined and cut: what was
    joined behind the reasoning is taken off again with all whitespace there (as recorded:
    docs/research/openrouter-contract.md#4.1); else other."""
    if provider is None:
        return "engine"
    rules, plain = provider.text.rules(streamed=False), type(provider.text)()
    injects = any(getattr(rules, name) for name in _KEPT_SPACES)
    touched = {name for name in type(rules).model_fields if getattr(rules, name) != getattr(plain, name)}
    allowed = {*_KEPT_SPACES, "inject_between_markers", "tokens_per_delta", "stream", "tool_ids"}
    if injects and rules.strip_reasoning == "right" and rules.inject_reasoning_trailing:
        allowed.add("strip_reasoning")
    lossless = touched <= allowed and rules.tool_ids in ("native", "renumbered") and not provider.change
    counted = provider.billing.counts_by == "ids" and not provider.billing.count_noise and provider.tag != "lossy"
    streams = (
        not provider.text.stream.drop_delta_rate and not provider.prompt.injected_system and not provider.prompt.injected_line
    )
    if not (lossless and counted and streams):
        return "other"
    return "verbatim" if not injects else "joined and cut" if "strip_reasoning" in touched else "injecting"


# ---------------------------------------------------------------------------------------------------- claims
def claims(m: Measured, purchase: Purchase) -> list[Claim]:
    out = [*_of_grades(m), *_of_coverage(m, purchase), *_of_hopeless(m)]
    if m.watched:
        slowest = max((999 if one.delay is None else one.delay) for one in m.watched)
        told = ", ".join(f"{one.provider} {'never' if one.delay is None else one.delay}" for one in m.watched)
        out.append(Claim("a change at half time is detected", "within 100 answers", told, slowest <= 100))
    else:
        out.append(Claim("a change at half time is detected", "within 100 answers", "", None))
    if m.placebo:
        tried, fitted, likely, any_fit = (
            sum(getattr(p, name).total() for p in m.placebo.values()) for name in ("tried", "fitted", "likely", "any_fit")
        )
        n, claimed = max(1, tried), sum(p.claimed for p in m.placebo.values())
        worst, worst_any = (max(getattr(p, name) for p in m.placebo.values()) for name in ("share", "any_share"))
        measured = f"{fitted / n:.2%} of {tried}, per provider at most {worst:.1%}; p_exact >= 0.5 {likely / n:.2%}"
        out.append(Claim(f"placebo: wrong bills fitted, p_exact >= {ADMITTED}", "<= 5 %", measured, fitted <= 0.05 * tried))
        measured = f"{any_fit / n:.2%}, per provider at most {worst_any:.1%}; mean p_exact of all wrong bills {claimed / n:.4f}"
        out.append(Claim("placebo: wrong bills fitted, whatever p_exact", "<= 5 %", measured, any_fit <= 0.05 * tried))
    else:
        out.append(Claim("placebo: wrong bills that the text stage fits", "<= 5 %", "", None))
    held = sum(world.holds for world in m.worlds)
    out.append(
        Claim("the leading space, every world and condition", "no B1 undecided; B1 and right decided", f"{held} of {len(m.worlds)}",
              held == len(m.worlds) if m.worlds else None)
    )  # fmt: skip
    return out


def _of_grades(m: Measured) -> list[Claim]:
    rows = m.all_rows
    a = [row for row in rows if row.grade.startswith("A")]
    b = [row for row in rows if row.grade == "B1"]
    c = [row for row in rows if row.grade == "C1"]
    wrong = [row for row in rows if not row.exact]
    a_right, b_right = sum(row.exact for row in a), sum(row.exact for row in b)
    c_gap = abs(sum(row.p_exact for row in c) - sum(row.exact for row in c)) / max(1, len(c))
    p, right = [row.p_exact for row in c], [row.exact for row in c]
    low = sum(row.grade in LOW for row in wrong)
    sure = [row for row in rows if row.grade in SURE]
    gap = abs(sum(row.p_exact for row in sure) - sum(row.exact for row in sure)) / max(1, len(sure))
    return [
        Claim("A rows are exact", ">= 99.9 %", bounded(a_right, len(a)), a_right >= 0.999 * len(a) if a else None),
        Claim("no wrong row among many A rows", "0 of >= 3,000", f"{len(a) - a_right} of {len(a)}",
              a_right == len(a) if len(a) >= 3000 else (False if a_right < len(a) else None)),
        Claim("B1 rows are exact (all providers)", ">= 99 %", bounded(b_right, len(b)), b_right >= 0.99 * len(b) if b else None),
        Claim("C1: mean p_exact is the exact share", "<= 1 % off", f"{c_gap:.2%}; ECE {figures.calibration_error(figures.reliability(p, right)):.2%} "
              f"(chance {figures.chance_error(p):.2%}), {len(c)} rows", c_gap <= 0.01 if c else None),
        Claim("A, B1, B2, R: mean p_exact is the exact share", "<= 1 % off", f"{gap:.2%}", gap <= 0.01 if sure else None),
        Claim("wrong reconstructions lie in C1, D, Q", ">= 95 %", bounded(low, len(wrong)), low >= 0.95 * len(wrong) if wrong else None),
    ]  # fmt: skip


def _of_coverage(m: Measured, purchase: Purchase) -> list[Claim]:
    out = []
    for kind in ("verbatim", "injecting", "joined and cut"):
        names = [name for name, provider in purchase.providers.items() if class_of(provider) == kind]
        exact = [row for name in names for row in m.rows[name] if row.exact]
        high = sum(row.grade in HIGH for row in exact)
        by_name = {n: (sum(r.grade in HIGH for r in m.rows[n] if r.exact), sum(r.exact for r in m.rows[n])) for n in names}
        worst = sorted(by_name, key=lambda name: by_name[name][0] / max(1, by_name[name][1]))[:3]
        told = ", ".join(f"{name} {by_name[name][0] / max(1, by_name[name][1]):.3f}" for name in worst)
        out.append(
            Claim(f"exact rows of {len(names)} {kind} providers reach B1", ">= 95 %", f"{bounded(high, len(exact))}; lowest: {told}",
                  high >= 0.95 * len(exact) if exact else None)
        )  # fmt: skip
    return out


def _of_hopeless(m: Measured) -> list[Claim]:
    entries = m.learned.get("providers") or {}
    out = []
    for name in m.hopeless:
        found = m.rows[name]
        if max(sum(row.off_bill for row in found), sum(not row.exact for row in found)) < 0.2 * len(found):
            continue  # of short answers hardly any is touched: an estimate of 2 % is no error there
        high = sum(row.grade in HIGH for row in found)
        held = sum(row.grade == "Q" for row in found)
        high_wrong = sum(row.grade in HIGH and not row.exact for row in found)
        entry = entries.get(name) or {}
        decided, reason = bool(entry.get("decided")), str(entry.get("cannot_be_exact") or "")
        said = reason or ("decided" if decided else "not decided")
        measured = f"{said}; Q {held} of {len(found)}, B1 or better {high}, {high_wrong} wrong"
        met = (bool(reason) or not decided) and not high_wrong
        out.append(Claim(f"{name}: named and quarantined", "named or not decided, no wrong B1", measured, met))
    return out


# ---------------------------------------------------------------------------------------------------- examples
def examples(console: Console, rows: Mapping[str, Sequence[Judged]], most: int) -> None:
    """For each provider: wrong rows of high grade, exact rows of low grade, each kind counted, some with their reasons."""
    for name, found in rows.items():
        wrong = [row for row in found if row.grade in SURE and not row.exact]
        low = [row for row in found if row.grade in LOW and row.exact]
        kinds = Counter((row.grade, row.distinct, row.reasons[0][:70] if row.reasons else "") for row in low)
        if not wrong and not low:
            continue
        console.print(f"\n{name}: {len(wrong)} wrong in A, B, R; {len(low)} exact in C1, D, Q, I", markup=False, style="bold")
        for (grade, distinct, reason), n in kinds.most_common(most):
            console.print(f"  {n:4d} exact {grade}, {distinct} sequences survive; {reason}", markup=False)
        for row in wrong[:most]:
            console.print(
                f"  WRONG {row.grade} p={row.p_exact:.4f} {row.generation_id}: {row.error}, same count {row.same_count}, habits {row.habits}, "
                f"{row.detail}", markup=False,
            )  # fmt: skip
