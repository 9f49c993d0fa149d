"""A reading: one way in which a provider may bend answers and bill them, and what it says about a single answer.

Belongs here: the type, its words in JSON, the readings to try where nothing was learned, all ways to read one answer with their
weights. Does not belong here: which reading a provider has (`learning.py`), what a row gets from them (`selection.py`).

Readings are factors: a mechanism at each of the four edges x what the bill counts. An answer's frames (`frames.py`) are the third
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_assets.exact.edges import EDGES, JOIN, KEEP, Mechanism, mechanism_of
from eagle3_assets.exact.frames import Frame

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


# What a bill counts (contract 4.3 #13): the end of turn or not, and a constant more or less (+1: the prefilled <think> is
# billed).
Billing = tuple[bool, int]
BILLINGS: tuple[Billing, ...] = ((True, 0), (False, 0), (True, 1), (True, -1), (True, 2), (True, -2))
# Runs that a model is taken to write where nothing is known of its habit and a server takes whitespace away
UNKNOWN_TRAIL = (("", 0.97), ("\n", 0.02), ("\n\n", 0.005), (" ", 0.005))


@dataclass(frozen=True, slots=True)
class Reading:
    """`edges` in the order of `EDGES`; `weight` its probability among the readings of a provider."""

    edges: tuple[Mechanism, Mechanism, Mechanism, Mechanism]
    billing: Billing = (True, 0)
    weight: float = 1.0

    @property
    def name(self) -> str:
        """`keep keep keep keep|end`; a constant in the bill as `|end+1`."""
        return f"{' '.join(edge.kind for edge in self.edges)}|{billing_name(self.billing)}"

    @property
    def spacing(self) -> str:
        """One word for the two fronts, which are what most questions are about."""
        return spacing_of(self.edges[0].kind, self.edges[2].kind)

    def as_json(self) -> dict[str, Any]:
        edges = {edge: mechanism.as_json() for edge, mechanism in zip(EDGES, self.edges, strict=True)}
        return {"name": self.name, "weight": self.weight, "counts_end": self.billing[0], "extra": self.billing[1], "edges": edges}


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


def billing_name(billing: Billing) -> str:
    return ("end" if billing[0] else "no_end") + (f"{billing[1]:+d}" if billing[1] else "")


def reading_of(value: Mapping[str, Any]) -> Reading:
    """From the JSON of a wire profile."""
    edges = value.get("edges") or {}
    a, b, c, d = (mechanism_of(edges.get(edge) or {}) for edge in EDGES)
    return Reading(
        (a, b, c, d), (bool(value.get("counts_end", True)), int(value.get("extra", 0))), float(value.get("weight", 1.0))
    )


def _unlearned() -> tuple[Reading, ...]:
    """Documented priors: shares of providers met in the recorded traffic and in the simulator profiles of the contract (section
    5)."""
    # only what is usual: a bill that nobody knows the convention of fits too much already
    lead, trail = Mechanism("strip", ((" ", 0.58), ("", 0.42))), Mechanism("strip", (("", 1.0),))
    spacings: tuple[tuple[tuple[Mechanism, Mechanism, Mechanism, Mechanism], float], ...] = (
        ((KEEP, KEEP, KEEP, KEEP), 0.35),
        ((JOIN, JOIN, JOIN, JOIN), 0.08),
        ((JOIN, JOIN, JOIN, KEEP), 0.06),
        ((JOIN, trail, JOIN, KEEP), 0.16),
        ((JOIN, KEEP, JOIN, KEEP), 0.04),
        ((KEEP, JOIN, JOIN, JOIN), 0.03),
        ((KEEP, KEEP, JOIN, KEEP), 0.04),
        ((KEEP, trail, JOIN, KEEP), 0.04),
        ((lead, KEEP, KEEP, KEEP), 0.05),
        ((lead, trail, KEEP, KEEP), 0.03),
        ((lead, trail, JOIN, KEEP), 0.02),
        ((lead, trail, lead, trail), 0.08),
        ((KEEP, KEEP, lead, trail), 0.02),
    )
    return tuple(
        Reading(edges, billing, share * part)
        for edges, share in spacings
        for billing, part in (((True, 0), 0.9), ((False, 0), 0.1))
    )


UNLEARNED = _unlearned()


# ---------------------------------------------------------------------------------------------------- one answer
@dataclass(frozen=True, slots=True)
class Way:
    """One way to read an answer: a frame, the model's runs at the edges of both texts, the reading's bill, and its weight."""

    frame: Frame
    reasoning: Runs
    content: Runs
    billed: int
    reasoning_count: int
    weight: float
    reading: Reading

    @property
    def key(self) -> tuple[int, Runs, Runs]:
        """Ways with equal keys are the same ids."""
        return id(self.frame), self.reasoning, self.content


def field_runs(
    text: Edged, lead: Mechanism, trail: Mechanism, *, joins_trail: bool, cut: bool = False
) -> Iterator[tuple[Runs, float]]:
    """((lead run, trail run) of the model, share) for each that can stand behind a field of the wire. A field without text is
    without edges; a blank one has a front only; where the answer was `cut` nothing was taken from the back."""
    if not text.text:
        yield ("", ""), 1.0
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


def ways_of(frames: Sequence[Frame], readings: Sequence[Reading], *, truncated: bool) -> list[Way]:
    """All ways to read an answer. Weights sum to less than one where readings are contradicted by the wire."""
    out = []
    shares = sum(frame.share for frame in frames if not frame.leaked) or 1.0
    for frame in frames:
        parts = frame.parts
        section, has_content = parts.section is not None, bool(frame.content.text)
        cut_reasoning = truncated and not has_content and not section
        cut_content = truncated and has_content and not section
        for reading in readings:
            a, b, c, d = reading.edges
            more = (-1 if parts.ended and not reading.billing[0] else 0) + reading.billing[1] + frame.size
            whole = reading.weight * frame.share / shares
            contents = list(field_runs(frame.content, c, d, joins_trail=section, cut=cut_content))
            for reasoning, share in field_runs(frame.reasoning, a, b, joins_trail=parts.closed or section, cut=cut_reasoning):
                thought = frame.reasoning.count(*reasoning)
                for content, other in contents:
                    billed = more + thought + frame.content.count(*content)
                    out.append(
                        Way(frame, reasoning, content, billed, thought + int(parts.closed), whole * share * other, reading)
                    )
    return out
