"""Canonicity: how often a model samples other ids than the encoder's for the same text, by temperature, top_p and kind of text.

Belongs here: counting regions that are not canonical over rows whose ids are known, and the rates that they support, with a prior. Pure:
no files, no providers. Does not belong here: what stands behind a bill beside them (`deviations.py`), the model's other habits
(`habits.py`), the ways in which arguments leave the path (`offpath.py`).

A region is a stretch of bytes between two cuts that sampled and canonical ids share, and that they cut otherwise. What is asked of a model
is how likely an answer has none, so ids are counted up to the first region of each text, and that region: long and short answers say the
same, and a text that is full of regions (they come in clusters) says no more than it knows. Spellings of arguments that are tried for
every answer (`offpath.py`) are no regions. Rates are a Gamma posterior for each stratum, shrunk from the coarse to the fine: kind → kind
and temperature → kind, temperature and top_p. A model that is often not canonical is no other tokenizer.
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
from eagle3_assets.exact.search.offpath import offpath_arguments
from eagle3_assets.targets.grammar import Ids, Parts
from eagle3_assets.targets.tokenizer import Profile

VERSION = 2

TextKind = Literal["prose", "code", "arguments"]
TEXT_KINDS: tuple[TextKind, ...] = ("prose", "code", "arguments")

# Regions an id before any row speaks. Prose: docs/research/exactness.md#0.3 (a small model at T = 0.6, one
# production service); code is taken for prose, it was not measured. Arguments: of 7,233 recorded edges beside the joints of compact JSON
# (whose spellings are tried: 55 of 648 fields) 7, which gateways cut; at most one was sampled. For comparison: K2 prose 0 of 12,502 ids;
# SmolLM2-135M 7.2e-3 at T = 1 and top_p = 1, 1.65e-3 at T = 0.7, 1.25e-3 at top_p = 0.7: models differ by 1,000 times, so the prior
# weighs as little as one answer.
PRIOR_RATE: Mapping[TextKind, float] = {"prose": 4e-5, "code": 4e-5, "arguments": 1e-4}
PRIOR_IDS = 2_000.0
# What the coarser stratum weighs in a finer one, in ids
COARSER_IDS = 2_000.0
# Upper bounds of the buckets, between settings in use: greedy, 0.6 and 0.7, 1.0, above; 0.7, 0.9 and 0.95, 1.0
TEMPERATURES, TOP_PS = (0.05, 0.45, 0.85, 1.15), (0.8, 0.97)
_FENCED, _FENCED_TEXT = re.compile(rb"```.*?(?:```|\Z)", re.DOTALL), re.compile(r"```.*?(?:```|\Z)", re.DOTALL)

Stratum = tuple[int, int, TextKind]  # bucket of the temperature, bucket of top_p, kind


@dataclass(frozen=True, slots=True)
class Drawn:
    """How an answer was drawn, as far as that is known without its ids: settings (None: the server's own), the share of its text that is code,
    and how many of its ids are arguments."""

    temperature: float | None = None
    top_p: float | None = None
    code: float = 0.0
    arguments: int = 0

    def lengths(self, tokens: int) -> dict[TextKind, int]:
        """Ids by kind of an answer of so many."""
        arguments = min(self.arguments, tokens)
        code = round(self.code * (tokens - arguments))
        return {"prose": tokens - arguments - code, "code": code, "arguments": arguments}


def drawn_of(request: Mapping[str, Any], texts: Sequence[str | None], arguments: int) -> Drawn:
    """`texts`: reasoning and content as they came."""
    blocks = [block for text in texts if text and "```" in text for block in _FENCED_TEXT.findall(text)]
    code = sum(map(len, blocks)) / sum(len(text) for text in texts if text) if blocks else 0.0
    return Drawn(setting_of(request, "temperature"), setting_of(request, "top_p"), code, arguments)


def setting_of(request: Mapping[str, Any], name: str) -> float | None:
    """A sampling setting of a request; None where it says none, or nothing that is a number."""
    value = request.get(name)
    return float(value) if isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Count:
    """Sampled ids of texts up to their first region, and how many texts have one."""

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
    """The counts of one model, and what is believed where they say little: `prior` regions an id of the kinds that it names (others:
    PRIOR_RATE), which weighs `prior_ids` ids."""

    counts: dict[Stratum, Count] = field(default_factory=dict)
    prior: dict[TextKind, float] = field(default_factory=dict)
    prior_ids: float = PRIOR_IDS
    _known: dict[Stratum, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    def add(self, profile: Profile, parts: Parts, temperature: float | None, top_p: float | None) -> None:
        """What one answer with known ids says."""
        self.add_counts(count_regions(profile, parts), temperature, top_p)

    def add_counts(self, counted: Mapping[TextKind, Count], temperature: float | None, top_p: float | None) -> None:
        self._known.clear()
        for kind, count in counted.items():
            if count.ids:
                stratum = stratum_of(temperature, top_p, kind)
                self.counts[stratum] = self.counts.get(stratum, Count()) + count

    # ------------------------------------------------------------------------------------------ rates
    def _posterior(self, stratum: Stratum) -> tuple[float, float]:
        """Shape and rate (in ids) of the Gamma posterior of regions an id."""
        if stratum in self._known:
            return self._known[stratum]
        shape, weight = self.prior.get(stratum[2], PRIOR_RATE[stratum[2]]) * self.prior_ids, self.prior_ids
        for depth in range(3):
            if depth:  # the coarser stratum is a prior of this weight
                shape, weight = shape / weight * COARSER_IDS, COARSER_IDS
            seen = self._pooled(stratum, depth)
            shape, weight = shape + seen.regions, weight + seen.ids
        self._known[stratum] = shape, weight
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

    def odd(self, drawn: Drawn, tokens: int) -> float:
        """The same of an answer whose ids are not known."""
        return self.odd_share(drawn.lengths(tokens), drawn.temperature, drawn.top_p)

    def mean_rate(self) -> float:
        """Regions an id over all that was counted: one number for a reader."""
        seen = sum(self.counts.values(), Count())
        return (seen.regions + self.prior.get("prose", PRIOR_RATE["prose"]) * self.prior_ids) / (seen.ids + self.prior_ids)

    # ------------------------------------------------------------------------------------------ JSON
    def as_json(self) -> dict[str, Any]:
        strata = [
            {"temperature": t, "top_p": p, "kind": kind, "ids": count.ids, "regions": count.regions}
            for (t, p, kind), count in sorted(self.counts.items())
        ]
        return {"version": VERSION, "strata": strata, "prior": dict(self.prior), "prior_ids": self.prior_ids}

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
            prior = {kind: float(value["prior"][kind]) for kind in TEXT_KINDS if kind in value["prior"]}
            return cls(counts, prior, float(value["prior_ids"]))
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise ExactError(f"canonicality: this is no count of regions ({error!r}); learn it again") from None


def share_inside_characters(profile: Profile, ids: Ids) -> float:
    """Of the places behind an id of a text, the share that lies inside a character: where a length limit leaves a piece of one."""
    data = profile.decode_bytes(ids)
    if not ids or data.isascii():
        return 0.0
    ends = accumulate(len(profile.encoding.decode_single_token_bytes(token)) for token in ids)
    return sum(end < len(data) and data[end] & 0xC0 == 0x80 for end in ends) / len(ids)


# ---------------------------------------------------------------------------------------------------- one answer
@dataclass(frozen=True, slots=True)
class Spelled:
    """A text of an answer in the ids that were sampled, and in those that would be taken for it if nobody knew them."""

    ids: Ids
    canonical: Ids
    is_arguments: bool


def spelled_texts(profile: Profile, parts: Parts) -> list[Spelled]:
    """The texts of an answer with ids. One that was cut inside a character has no canonical encoding, and is left out."""
    out = []
    for ids, is_arguments in _texts(parts):
        try:
            text = profile.decode_bytes(ids).decode("utf-8")
            canonical = tuple(profile.encode(text))
        except (ExactError, UnicodeDecodeError):
            continue
        if canonical != ids and is_arguments and profile.writes_call_ids:
            canonical = next((other.ids for other in offpath_arguments(profile, text) if other.ids == ids), canonical)
        out.append(Spelled(ids, canonical, is_arguments))
    return out


def count_regions(profile: Profile, parts: Parts) -> dict[TextKind, Count]:
    """Ids up to the first region of each text, and first regions, by kind of text. Ids of calls' heads are no text of the model's own; code
    is what stands between fences."""
    return count_spelled(profile, spelled_texts(profile, parts))


def count_spelled(profile: Profile, texts: Sequence[Spelled]) -> dict[TextKind, Count]:
    """The same of texts that are encoded already."""
    out: Counter[tuple[TextKind, str]] = Counter()
    for text in texts:
        starts = [0, *accumulate(len(profile.encoding.decode_single_token_bytes(token)) for token in text.ids)][:-1]
        code = [] if text.is_arguments else _fenced(profile.decode_bytes(text.ids))
        first = _regions(profile, text.ids, text.canonical)[:1]
        for places, what in (([at for at in starts if not first or at <= first[0]], "ids"), (first, "regions")):
            for at in places:
                out["arguments" if text.is_arguments else "code" if _is_inside(at, code) else "prose", what] += 1
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
    return _regions(profile, ids, canonical)


def _regions(profile: Profile, ids: Ids, canonical: Ids) -> list[int]:
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
