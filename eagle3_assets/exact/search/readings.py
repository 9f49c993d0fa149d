"""A reading: one way in which a provider may bend answers and bill them, and what it says about a single answer.

Belongs here: the type, its words in JSON, the readings to try where nothing was learned, all ways to read one answer with their
weights. Does not belong here: which reading a provider has (`learning.py`), what a row gets from them (`selection.py`).

Readings are factors: a mechanism at each of the four edges x what the bill counts. An answer's frames (`frames.py`) are the third
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from eagle3_assets.exact.search.edges import EDGES, JOIN, KEEP, RUNS, FieldText, Mechanism, mechanism_of, place_of
from eagle3_assets.exact.search.frames import Frame
from eagle3_assets.exact.search.habits import Habit, Habits, seam_table, seldom

Runs = tuple[str, str]


class Edged(Protocol):
    """A field with its edges and the number of its ids between any runs: `FieldText`, `observations.FieldCounts`."""

    @property
    def text(self) -> str: ...
    @property
    def lead(self) -> str: ...
    @property
    def trail(self) -> str: ...
    @property
    def core(self) -> str: ...


class Rule(NamedTuple):
    """What a bill counts of one kind of turn (docs/research/openrouter-contract.md#4.3-13): the end of turn or not, and a
    constant more or less (+1: the prefilled <think> is billed as output)."""

    counts_end: bool = True
    extra: int = 0

    @property
    def name(self) -> str:
        return ("end" if self.counts_end else "no_end") + (f"{self.extra:+d}" if self.extra else "")

    def constant(self, ended: bool) -> int:
        """Tokens that the bill has more than the ids of a turn; `ended`: it has an end of turn."""
        return self.extra - int(ended and not self.counts_end)


RULES = (Rule(True, 0), Rule(False, 0), Rule(True, 1), Rule(True, -1), Rule(True, 2), Rule(True, -2))


@dataclass(frozen=True, slots=True)
class Billing:
    """What a provider's bills count, by kind of turn: servers that count the end of a text do not count that of a turn with calls
    (recorded: Moonshot AI 193 of 193 and 0 of 209, Novita, AtlasCloud)."""

    text: Rule = RULES[0]
    calls: Rule = RULES[0]

    @property
    def name(self) -> str:
        return self.text.name if self.text == self.calls else f"{self.text.name} calls_{self.calls.name}"

    def rule(self, calls: bool) -> Rule:
        return self.calls if calls else self.text


# Runs that a model is taken to write where nothing is known of its habit and a server takes whitespace away
UNKNOWN_TRAIL = (("", 0.97), ("\n", 0.02), ("\n\n", 0.005), (" ", 0.005))
# What a decided provider's profile and the model's habits give less than this is ruled out: hundreds of answers have not shown it, and
# an answer that is not canonical meets a given bill more often. A bill that only such ways meet is met by nothing.
RULED_OUT = 0.003
AGAINST_REASONING_COUNT = 0.03  # how often a count of reasoning tokens is off where the provider's convention is known


@dataclass(frozen=True, slots=True)
class Reading:
    """`edges` in the order of `EDGES`; `weight` its probability among the readings of a provider."""

    edges: tuple[Mechanism, Mechanism, Mechanism, Mechanism]
    billing: Billing = Billing()
    weight: float = 1.0

    @property
    def name(self) -> str:
        """`keep keep keep keep|end`; a constant in the bill as `|end+1`."""
        return f"{' '.join(edge.kind for edge in self.edges)}|{self.billing.name}"

    @property
    def spacing(self) -> str:
        """One word for the two fronts, which are what most questions are about."""
        return spacing_of(self.edges[0].kind, self.edges[2].kind)

    def as_json(self) -> dict[str, Any]:
        edges = {edge: mechanism.as_json() for edge, mechanism in zip(EDGES, self.edges, strict=True)}
        text, calls = self.billing.text._asdict(), self.billing.calls._asdict()
        return {"name": self.name, "weight": self.weight, **text, "calls": calls, "edges": edges}


def spacing_of(reasoning: str, content: str) -> str:
    """verbatim, injected, injected_inner (nothing joined in front of the reasoning: <think> stands in the prompt), stripped_*,
    mixed."""
    taken = ("strip", "trim")
    words = {("keep", "keep"): "verbatim", ("join", "join"): "injected", ("keep", "join"): "injected_inner"}
    if reasoning in taken and content in taken:
        return "stripped_both"
    if reasoning in taken and content == "keep":
        return "stripped_reasoning"
    if reasoning == "keep" and content in taken:
        return "stripped_content"
    return words.get((reasoning, content), "mixed")


def reading_of(value: Mapping[str, Any]) -> Reading:
    """From the JSON of a wire profile."""
    edges = value.get("edges") or {}
    a, b, c, d = (mechanism_of(edges.get(edge) or {}) for edge in EDGES)
    text = _rule_of(value)
    billing = Billing(text, _rule_of(value["calls"]) if isinstance(value.get("calls"), Mapping) else text)
    return Reading((a, b, c, d), billing, float(value.get("weight", 1.0)))


def _rule_of(value: Mapping[str, Any]) -> Rule:
    return Rule(bool(value.get("counts_end", True)), int(value.get("extra", 0)))


# What is believed of a provider that nothing was learned of: shares of the endpoints in the recorded traffic (some 20) and in the
# simulator profiles of docs/research/openrouter-contract.md#5. Joined spaces are one property of all boundaries (vllm#33457;
# Avian, Azure), so they come before "the end is not billed"; whitespace that nobody shows comes last.
BILLING_SHARES: tuple[tuple[Billing, float], ...] = (
    (Billing(), 0.84),
    (Billing(Rule(False), Rule(False)), 0.08),
    (Billing(Rule(True), Rule(False)), 0.06),
    (Billing(Rule(True, 1), Rule(True, 1)), 0.02),
)


def _unlearned() -> tuple[Reading, ...]:
    lead, trail = Mechanism("strip", ((" ", 0.58), ("", 0.42))), Mechanism("strip", (("", 1.0),))
    spacings: tuple[tuple[tuple[Mechanism, Mechanism, Mechanism, Mechanism], float], ...] = (
        ((KEEP, KEEP, KEEP, KEEP), 0.32),
        ((JOIN, JOIN, JOIN, JOIN), 0.08),
        ((KEEP, JOIN, KEEP, JOIN), 0.08),
        ((JOIN, JOIN, JOIN, KEEP), 0.06),
        ((JOIN, trail, JOIN, KEEP), 0.15),
        ((JOIN, KEEP, JOIN, KEEP), 0.04),
        ((KEEP, JOIN, JOIN, JOIN), 0.03),
        ((KEEP, KEEP, JOIN, KEEP), 0.04),
        ((KEEP, trail, JOIN, KEEP), 0.04),
        ((lead, KEEP, KEEP, KEEP), 0.03),
        ((lead, trail, KEEP, KEEP), 0.02),
        ((lead, trail, JOIN, KEEP), 0.01),
        ((lead, trail, lead, trail), 0.05),
        ((KEEP, KEEP, lead, trail), 0.06),
    )
    return tuple(Reading(edges, billing, share * part) for edges, share in spacings for billing, part in BILLING_SHARES)


UNLEARNED = _unlearned()
# How likely a server of which nothing is known takes away what stands between a text and its calls, where models write something there:
# all 6 such answers of 48 recorded Qwen3 rows, from one software; parsers that return it as it was are as common (public sources)
CUTS_SEAM = 0.5


def unlearned_readings(habits: Habits) -> tuple[Reading, ...]:
    """The readings to try where nothing was learned of a provider, for a model with these habits: what was taken away is what the model
    writes there."""
    seam = seam_table(habits)
    if not seam and not any(habit.known for habit in habits.values()):
        return UNLEARNED
    out: list[Reading] = []
    for reading in UNLEARNED:
        a, b, c, trail = (
            replace(edge, model=habits[name].table(RUNS)) if edge.kind == "strip" and habits[name].known else edge
            for name, edge in zip(EDGES, reading.edges, strict=True)
        )
        if not seam or trail.kind == "join":
            out.append(replace(reading, edges=(a, b, c, trail)))
        elif trail.kind == "strip":
            out.append(replace(reading, edges=(a, b, c, replace(trail, seam=seam))))
        else:
            out.append(replace(reading, edges=(a, b, c, trail), weight=reading.weight * (1 - CUTS_SEAM)))
            out.append(replace(reading, edges=(a, b, c, Mechanism("seam", seam=seam)), weight=reading.weight * CUTS_SEAM))
    return tuple(out)


# ---------------------------------------------------------------------------------------------------- one answer
@dataclass(frozen=True, slots=True)
class Way:
    """One way to read an answer: a frame, the model's runs at the edges of both texts, the reading's bill, and its weight. `against`:
    the billed reasoning tokens speak against it (which its weight knows)."""

    frame: Frame
    reasoning: Runs
    content: Runs
    billed: int
    reasoning_count: int
    weight: float
    reading: Reading
    against: bool = False

    @property
    def constant(self) -> int:
        """Tokens that the bill has more than these ids."""
        return self.reading.billing.rule(self.frame.parts.section is not None).constant(self.frame.parts.ended)

    @property
    def key(self) -> tuple[int, Runs, Runs]:
        """Ways with equal keys are the same ids."""
        return id(self.frame), self.reasoning, self.content


def field_runs(
    text: Edged, lead: Mechanism, trail: Mechanism, *, joins_trail: bool, cut: bool = False, behind_marker: bool = False
) -> Iterator[tuple[Runs, float]]:
    """((lead run, trail run) of the model, share) for each that can stand behind a field of the wire. A field without text is
    without edges, but between two markers (`behind_marker`: content behind closed reasoning, in front of calls) all of it may have been
    taken away; a blank one has a front only; where the answer was `cut` nothing was taken from the back."""
    if not text.text:
        for blank, share in (trail.blanks if behind_marker and joins_trail else ()) or (("", 1.0),):
            yield (blank, ""), share
        return
    if cut and trail.kind != "keep":
        trail = KEEP
    for front, a in lead.runs(text.lead, lead=True, joins=True):
        if not text.core:  # of a blank content before a tool section both markers may have joined a space
            both = trail.kind == "join" and joins_trail and front.endswith(" ")
            yield (front[:-1] if both else front, ""), a
            continue
        for back, b in trail.runs(text.trail, lead=False, joins=joins_trail):
            yield (front, back), a * b


def ways_of(
    frames: Sequence[Frame],
    readings: Sequence[Reading],
    *,
    truncated: bool,
    reasoning_told: int | None = None,
    least: float = 0.0,
    habits: Mapping[str, Habit] | None = None,
) -> list[Way]:
    """All ways to read an answer, each once with the likeliest of the readings that lead to it. Weights sum to less than one where
    readings are contradicted by the wire. `reasoning_told`: what R + the closing marker should be by the bill, None where it says
    nothing that can be relied on. Ways with less than `least` are left out. `habits`: how often the model writes each run at an edge, where
    the readings do not know it (None: they do)."""
    out: list[Way] = []
    shares = sum(frame.share for frame in frames if not frame.leaked) or 1.0
    for frame in frames:
        calls = frame.parts.section is not None
        found: dict[tuple[Rule, Runs, Runs], tuple[float, float, Reading]] = {}
        whole = frame.share / shares
        left, right = _counted_runs(frame, readings, habits, truncated=truncated)
        for reading, reasonings, contents in zip(readings, left, right, strict=True):
            for thought, share, _ in reasonings:
                for content, other, _ in contents:
                    key, weight = (reading.billing.rule(calls), thought, content), whole * reading.weight * share * other
                    if weight < least:
                        continue
                    total, best, likeliest = found.get(key, (0.0, -1.0, reading))
                    found[key] = (total + weight, weight, reading) if weight > best else (total + weight, best, likeliest)
        out += _as_ways(frame, found, reasoning_told)
    return out


Counted = list[tuple[Runs, float, int]]


def _counted_runs(
    frame: Frame, readings: Sequence[Reading], habits: Mapping[str, Habit] | None, *, truncated: bool
) -> tuple[list[Counted], list[Counted]]:
    """For each reading (runs, share, ids) of the reasoning and of the content."""
    parts = frame.parts
    section, has_content = parts.section is not None, bool(frame.content.text)
    seen: dict[tuple[bool, Mechanism, Mechanism], Counted] = {}

    def counted(text: FieldText, lead: Mechanism, trail: Mechanism, *, joins: bool, cut: bool, behind: bool = False) -> Counted:
        key = (text is frame.content, lead, trail)
        if key not in seen:
            name = "content" if text is frame.content else "reasoning"
            seen[key] = [
                (runs, share * _habitual(habits, name, text, runs, (lead, trail), joins=joins, cut=cut), text.count(*runs))
                for runs, share in field_runs(text, lead, trail, joins_trail=joins, cut=cut, behind_marker=behind)
            ]
        return seen[key]

    cut_reasoning, cut_content = truncated and not has_content and not section, truncated and has_content and not section
    left = [counted(frame.reasoning, r.edges[0], r.edges[1], joins=parts.closed or section, cut=cut_reasoning) for r in readings]
    right = [
        counted(frame.content, r.edges[2], r.edges[3], joins=section, cut=cut_content, behind=parts.closed) for r in readings
    ]
    return left, right


def _habitual(
    habits: Mapping[str, Habit] | None,
    name: str,
    text: Edged,
    runs: Runs,
    mechanisms: tuple[Mechanism, Mechanism],
    *,
    joins: bool,
    cut: bool,
) -> float:
    """How often the model writes these runs, where a mechanism shows them (one that takes them away knows it by itself)."""
    share = 1.0
    if habits is None:
        return share
    for side, run, mechanism in zip(("lead", "trail"), runs, mechanisms, strict=True):
        place = place_of(f"{name}_{side}", joins)
        if text.core and not mechanism.hides(joins) and not (cut and side == "trail"):
            share *= seldom(habits.get(place), place, [run])
    return share


def _as_ways(
    frame: Frame, found: Mapping[tuple[Rule, Runs, Runs], tuple[float, float, Reading]], reasoning_told: int | None
) -> Iterator[Way]:
    closed, has_reasoning = int(frame.parts.closed), bool(frame.reasoning.text)
    for (rule, reasoning, content), (weight, _, reading) in found.items():
        thought = frame.reasoning.count(*reasoning)
        billed = frame.size + thought + frame.content.count(*content) + rule.constant(frame.parts.ended)
        against = has_reasoning and reasoning_told is not None and thought + closed != reasoning_told
        yield Way(
            frame,
            reasoning,
            content,
            billed,
            thought + closed,
            weight * (AGAINST_REASONING_COUNT if against else 1.0),
            reading,
            against,
        )
