"""Canonicity: how often a model samples other ids than the encoder's for the same text, by temperature, top_p and kind of text.

Belongs here: counting regions that are not canonical over rows whose ids are known, and the rates that they support, with a prior. Pure:
no files, no providers. Does not belong here: what stands behind a bill beside them (`deviations.py`), the model's other habits
(`habits.py`), the ways in which arguments leave the path (`offpath.py`).

A region is a stretch of bytes between two cuts that sampled and canonical ids share, and that they cut otherwise. Regions are counted, not
rows, so that long and short answers say the same of a model. Rates are a Gamma posterior for each stratum, shrunk from the coarse to the
fine: kind → kind and temperature → kind, temperature and top_p. A model that is often not canonical is no other tokenizer.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.grammar import Ids, Parts
from eagle3_assets.targets.tokenizer import Profile

VERSION = 1

TextKind = Literal["prose", "code", "arguments"]
TEXT_KINDS: tuple[TextKind, ...] = ("prose", "code", "arguments")

# Regions an id before any row speaks. Prose: exactness.md 0.3 (a small model at T = 0.6, one
# production service); code is taken for prose, it was not measured. Arguments: 60 of 648 fields of
# K2-0905, 27 ids each (recorded-traffic.md, cause 4). For comparison: K2 prose 0 of 12,502 ids; SmolLM2-135M 7.2e-3 at T = 1 and
# top_p = 1, 1.65e-3 at T = 0.7, 1.25e-3 at top_p = 0.7: models differ by 1,000 times, so the prior weighs as little as one answer.
PRIOR_RATE: Mapping[TextKind, float] = {"prose": 4e-5, "code": 4e-5, "arguments": -math.log(1 - 60 / 648) / 27}
PRIOR_IDS = 2_000.0
# What the coarser stratum weighs in a finer one, in ids
COARSER_IDS = 2_000.0
# Upper bounds of the buckets, between settings in use: greedy, 0.6 and 0.7, 1.0, above; 0.7, 0.9 and 0.95, 1.0
TEMPERATURES, TOP_PS = (0.05, 0.45, 0.85, 1.15), (0.8, 0.97)
_FENCED = re.compile(rb"```.*?(?:```|\Z)", re.DOTALL)

Stratum = tuple[int, int, TextKind]  # bucket of the temperature, bucket of top_p, kind


@dataclass(frozen=True, slots=True)
class Count:
    """Sampled ids, and the regions among them that are not canonical."""

    ids: int = 0
    regions: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.ids + other.ids, self.regions + other.regions)


def stratum_of(temperature: float | None, top_p: float | None, kind: TextKind) -> Stratum:
    """None is what servers take then: 1."""
    temperature, top_p = (1.0 if value is None else float(value) for value in (temperature, top_p))
    return sum(temperature > bound for bound in TEMPERATURES), sum(top_p > bound for bound in TOP_PS), kind


@dataclass
class Canonicality:
    """The counts of one model."""

    counts: dict[Stratum, Count] = field(default_factory=dict)

    def add(self, profile: Profile, parts: Parts, temperature: float | None, top_p: float | None) -> None:
        """What one answer with known ids says."""
        self.add_counts(count_regions(profile, parts), temperature, top_p)

    def add_counts(self, counted: Mapping[TextKind, Count], temperature: float | None, top_p: float | None) -> None:
        for kind, count in counted.items():
            if count.ids:
                stratum = stratum_of(temperature, top_p, kind)
                self.counts[stratum] = self.counts.get(stratum, Count()) + count

    # ------------------------------------------------------------------------------------------ rates
    def _posterior(self, stratum: Stratum) -> tuple[float, float]:
        """Shape and rate (in ids) of the Gamma posterior of regions an id."""
        shape, weight = PRIOR_RATE[stratum[2]] * PRIOR_IDS, PRIOR_IDS
        for depth in range(3):
            if depth:  # the coarser stratum is a prior of this weight
                shape, weight = shape / weight * COARSER_IDS, COARSER_IDS
            seen = self._pooled(stratum, depth)
            shape, weight = shape + seen.regions, weight + seen.ids
        return shape, weight

    def _pooled(self, stratum: Stratum, depth: int) -> Count:
        """All counts of the kind, of the kind and temperature, of the stratum alone."""
        total = Count()
        for other, count in self.counts.items():
            if other[2] == stratum[2] and other[:depth] == stratum[:depth]:
                total += count
        return total

    def rate(self, temperature: float | None, top_p: float | None, kind: TextKind) -> float:
        """Regions an id."""
        shape, weight = self._posterior(stratum_of(temperature, top_p, kind))
        return shape / weight

    def odd_share(self, lengths: Mapping[TextKind, int], temperature: float | None, top_p: float | None) -> float:
        """P(an answer of so many ids of each kind is not canonical), with what is not known of the rate in it."""
        canonical = 1.0
        for kind, ids in lengths.items():
            shape, weight = self._posterior(stratum_of(temperature, top_p, kind))
            canonical *= (weight / (weight + ids)) ** shape
        return 1.0 - canonical

    # ------------------------------------------------------------------------------------------ JSON
    def as_json(self) -> dict[str, Any]:
        strata = [
            {"temperature": t, "top_p": p, "kind": kind, "ids": count.ids, "regions": count.regions}
            for (t, p, kind), count in sorted(self.counts.items())
        ]
        return {"version": VERSION, "strata": strata}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Canonicality:
        """Raises ExactError for what `as_json` did not write."""
        try:
            if value["version"] != VERSION:
                raise ExactError(f"canonicality: expected version {VERSION}, found {value['version']!r}; learn it again")
            counts = {}
            for s in value["strata"]:
                kind = next(kind for kind in TEXT_KINDS if kind == s["kind"])
                counts[int(s["temperature"]), int(s["top_p"]), kind] = Count(int(s["ids"]), int(s["regions"]))
            return cls(counts)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise ExactError(f"canonicality: this is no count of regions ({error!r}); learn it again") from None


# ---------------------------------------------------------------------------------------------------- one answer
def count_regions(profile: Profile, parts: Parts) -> dict[TextKind, Count]:
    """Ids and regions of an answer by kind of text. Ids of calls' heads are no text of the model's own; code is what stands between
    fences."""
    out: Counter[tuple[TextKind, str]] = Counter()
    for ids, is_arguments in _texts(parts):
        starts = [0, *accumulate(len(profile.encoding.decode_single_token_bytes(token)) for token in ids)]
        code = [] if is_arguments else _fenced(profile.decode_bytes(ids))
        for places, what in ((starts[:-1], "ids"), (regions_of(profile, ids), "regions")):
            for at in places:
                out["arguments" if is_arguments else "code" if _is_inside(at, code) else "prose", what] += 1
    return {kind: Count(out[kind, "ids"], out[kind, "regions"]) for kind in TEXT_KINDS}


def lengths_of(profile: Profile, parts: Parts) -> dict[TextKind, int]:
    """Ids by kind of text: what `odd_share` asks for. Nothing is encoded."""
    out: Counter[TextKind] = Counter()
    for ids, is_arguments in _texts(parts):
        code = [] if is_arguments else _fenced(profile.decode_bytes(ids))
        if not code:
            out["arguments" if is_arguments else "prose"] += len(ids)
            continue
        at = 0
        for token in ids:
            out["code" if _is_inside(at, code) else "prose"] += 1
            at += len(profile.encoding.decode_single_token_bytes(token))
    return {kind: out[kind] for kind in TEXT_KINDS}


def _texts(parts: Parts) -> list[tuple[Ids, bool]]:
    """(ids, whether they are arguments) of each text."""
    texts = [(parts.reasoning, False), (parts.content, False), *((call.arguments or (), True) for call in parts.calls)]
    return [(ids, is_arguments) for ids, is_arguments in texts if ids]


def _fenced(data: bytes) -> list[int]:
    """Begin and end of each fenced block, in bytes; one that never ends is code to the end of the text."""
    return [at for match in _FENCED.finditer(data) for at in match.span()] if b"```" in data else []


def _is_inside(at: int, bounds: Sequence[int]) -> bool:
    return bisect_right(bounds, at) % 2 == 1


def noncanonical_regions(profile: Profile, parts: Parts) -> int:
    """Places where the sampled ids of a field cut its bytes otherwise than its canonical encoding does."""
    fields = [parts.reasoning, parts.content, *(ids for call in parts.calls for ids in (call.head, call.arguments or ()))]
    return sum(len(regions_of(profile, tuple(ids))) for ids in fields if ids)


def regions_of(profile: Profile, ids: Ids) -> list[int]:
    """The byte at which each region begins. A text that was cut inside a character has no canonical encoding, and no regions."""
    try:
        canonical = tuple(profile.encode(profile.decode_bytes(ids).decode("utf-8")))
    except (ExactError, UnicodeDecodeError):
        return []
    if canonical == ids:
        return []
    ours, theirs = _cuts(profile, ids), _cuts(profile, canonical)
    common = sorted(ours.keys() & theirs.keys())
    return [a for a, b in pairwise(common) if ids[ours[a] : ours[b]] != canonical[theirs[a] : theirs[b]]]


def _cuts(profile: Profile, ids: Ids) -> dict[int, int]:
    """Byte offset of each token's front, and of the end → its place in `ids`."""
    at, out = 0, {0: 0}
    for k, token in enumerate(ids, start=1):
        at += len(profile.encoding.decode_single_token_bytes(token))
        out[at] = k
    return out
