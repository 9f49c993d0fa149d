"""The model's habits: what it writes at the edges of its texts, and how often it spells a text other than the encoder would.

Belongs here: counting them over rows with ids and over providers that show them, tables of shares, the rates of
docs/research/exactness.md#3.5 and #3.6. Does not belong here: providers (`learning.py`). The model is the same at every provider,
so what one shows is known of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.exact.search.canonicality import (
    PRIOR_RATE,
    Canonicality,
    Drawn,
    count_spelled,
    setting_of,
    spelled_texts,
)
from eagle3_assets.exact.search.deviations import PRIOR_CHANGES, shares_of_changes
from eagle3_assets.exact.search.edges import BREAKS, LEADS, PLACES, RUNS, SEAM, place_of
from eagle3_assets.targets.grammar import GrammarError, split
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields

KNOWN_FIELDS = 20
FLOOR = 0.05  # no habit speaks louder than 20:1 in one row
# What a rate weighs that was read from misfits and not from ids, at most, in ids
MISFIT_IDS = 50_000.0


def runs_of(text: str) -> tuple[str, str] | None:
    """(lead, trail) of a text; None of an empty one. All of a blank text is its lead."""
    if not text:
        return None
    core = text.strip()
    start = text.find(core) if core else len(text)
    return text[:start], text[start + len(core) :]


@dataclass
class Habit:
    """How often the model writes each run at an edge."""

    runs: Counter[str] = field(default_factory=Counter)

    def add(self, run: str, weight: float = 1.0) -> None:
        self.runs[run] += weight  # type: ignore[assignment]

    @property
    def fields(self) -> int:
        return round(sum(self.runs.values()))

    @property
    def known(self) -> bool:
        return self.fields >= KNOWN_FIELDS

    def share(self, run: str) -> float:
        """Smoothed, so that it is never 0 or 1."""
        return float((self.runs[run] + 0.25) / (sum(self.runs.values()) + 1))

    def table(self, runs: Sequence[str]) -> tuple[tuple[str, float], ...]:
        """Shares of these runs, summing to one."""
        total = sum(self.share(run) for run in runs)
        return tuple((run, self.share(run) / total) for run in runs)

    def as_json(self, edge: str) -> dict[str, Any]:
        having = sum(count for run, count in self.runs.items() if (run.startswith(" ") if edge in LEADS else run))
        shown = {run: round(count, 1) for run, count in self.runs.most_common(6)}
        return {
            "fields": self.fields,
            "with": round(having),
            "known": self.known,
            "share": round((having + 0.5) / (self.fields + 1), 4),
            "runs": shown,
        }


Habits = dict[str, Habit]
TAKEN = {"strip": RUNS, "trim": BREAKS}


# No model ends its texts in a space (0 of some 1,400 recorded fields of Kimi K2 to K2.6 at endpoints that return texts as they are, 0 of 48
# Qwen3 turns with ids): where nothing is known of a habit, that much is.
ENDS_IN_SPACE = FLOOR
PRIOR_FIELDS = 30.0
# Models whose calls are JSON between two markers see a line break in front of each call in training (Hermes, Qwen 2.5 and 3: their chat
# templates). Qwen3 writes two (`[habits]` of its profile), Qwen3-2507 shows one in 4 of 9 recorded answers and none in the others.
TEMPLATED_SEAM = {"\n\n": 0.45, "\n": 0.4, "": 0.15}
NO_SEAM = 0.97  # a model that leaves nothing there so often has no seam that could be taken away


def prior_habits(profile: Profile) -> Habits:
    """What a profile says of its model's edges (`[habits]` {place: {run: share}}), as if so many fields had been seen; at the seam what
    its grammar of calls suggests."""
    told: dict[str, Mapping[str, float]] = {str(place): runs for place, runs in profile.facts.habits.items()}
    if profile.facts.tools.form == "json":
        told.setdefault(SEAM, TEMPLATED_SEAM)
    return {place: Habit(Counter({run: PRIOR_FIELDS * share for run, share in told.get(place, {}).items()})) for place in PLACES}  # type: ignore[misc]


def seam_table(habits: Mapping[str, Habit]) -> tuple[tuple[str, float], ...]:
    """Shares of what stands between a text and a tool section; () where nothing is known of it, or nothing ever stands there."""
    habit = habits[SEAM]
    return habit.table(RUNS) if habit.known and habit.share("") < NO_SEAM else ()


def seldom(habit: Habit | None, edge: str, runs: Sequence[str]) -> float:
    """How often the model writes one of these at an edge: 1 where nothing is known, and where it was never seen to write anything else (what
    could still be is a matter of smoothing, which hundreds of answers would add up to evidence)."""
    if habit is not None and habit.known:
        if sum(habit.runs[run] for run in runs) >= sum(habit.runs.values()):
            return 1.0
        return min(1.0, max(sum(map(habit.share, runs)), FLOOR))
    return ENDS_IN_SPACE if edge.endswith(("trail", "seam")) and runs and all(run.endswith(" ") for run in runs) else 1.0


def no_habits() -> Habits:
    return {place: Habit() for place in PLACES}


def together(*many: Mapping[str, Habit]) -> Habits:
    """Counts of all."""
    out = no_habits()
    for habits in many:
        for place in PLACES:
            out[place].runs.update(habits[place].runs)
    return out


def known_or(habits: Mapping[str, Habit], prior: Mapping[str, Habit]) -> Habits:
    """The habits that are known, and `prior` at the other places: what a profile says yields to what was counted."""
    return {place: habits[place] if habits[place].known else together(habits, prior)[place] for place in PLACES}


# ---------------------------------------------------------------------------------------------------- rows with ids
@dataclass(frozen=True)
class Spelling:
    """How often a model spells an answer otherwise than the encoder, and by how much its count is another then."""

    canonicality: Canonicality = field(default_factory=Canonicality)
    changes: Mapping[int, float] = field(default_factory=lambda: PRIOR_CHANGES)

    def odd(self, drawn: Drawn, tokens: int) -> float:
        """P(an answer of so many tokens is not canonical)"""
        return self.canonicality.odd(drawn, tokens)

    def misses(self, drawn: Drawn, tokens: int) -> float:
        """P(it is not canonical, and its bill shows that)"""
        return self.odd(drawn, tokens) * (1 - self.changes.get(0, 0.0))

    @classmethod
    def of(cls, sampling: Mapping[str, Any]) -> Spelling:
        """From the JSON of a wire profile's `sampling`; what is believed before any row speaks where it has none. Raises ExactError for
        counts that are none."""
        told, changes = sampling.get("canonicality"), sampling.get("changes") or {}
        known = Canonicality.from_json(told) if told else Canonicality()
        return cls(known, {int(change): float(share) for change, share in changes.items()} or PRIOR_CHANGES)


@dataclass
class Sampling:
    """Rows whose ids are known: how many, their tokens, their regions by settings and kind of text, and by how much the count of those
    that are not canonical is another. `heads`: calls, and how many have the model's own form and the conversation's next number.
    `open_ends`: answers whose reasoning is followed by a tool section, and how many of them are not closed."""

    rows: int = 0
    tokens: int = 0
    changes: Counter[int] = field(default_factory=Counter)
    heads: int = 0
    running: int = 0
    open_ends: int = 0
    unclosed: int = 0
    canonicality: Canonicality = field(default_factory=Canonicality)

    def spelling(self, misfits: Sequence[tuple[int, bool]] = ()) -> tuple[Spelling, str]:
        """How the model spells, and what that rests on. `misfits`: (tokens, whether no reading fits) of rows at decided providers: the
        length slope (docs/research/exactness.md#3.5), used where few rows have ids."""
        changes, known, basis = shares_of_changes(self.changes), self.canonicality, "prior"
        if self.rows >= KNOWN_FIELDS:
            basis = "rows with ids"
        elif len(misfits) >= 5 * KNOWN_FIELDS:
            rate, basis = _slope(misfits) / (1 - changes[0]), "length slope of misfits"
            weight = min(float(sum(tokens for tokens, _ in misfits)), MISFIT_IDS)
            known = Canonicality(dict(known.counts), {"prose": rate, "code": rate}, weight)
        return Spelling(known, changes), basis

    def rates(self, misfits: Sequence[tuple[int, bool]] = ()) -> dict[str, Any]:
        """What a wire profile keeps of it; `lambda_per_token` and `count_neutral` (f0) are for readers."""
        spelling, basis = self.spelling(misfits)
        return {
            "canonicality": spelling.canonicality.as_json(),
            "lambda_per_token": spelling.canonicality.mean_rate(),
            "count_neutral": spelling.changes[0],
            "basis": basis,
            "rows_with_ids": self.rows,
            "tokens": self.tokens,
            "not_canonical": self.changes.total(),
            "same_count": self.changes[0],
            "changes": {str(change): round(share, 5) for change, share in spelling.changes.items()},
            "odd_tool_ids": round((self.heads - self.running + 0.5) / (self.heads + 10), 5),
            "unclosed": round((self.unclosed + 0.5) / (self.open_ends + 10), 5),
        }


def _slope(misfits: Sequence[tuple[int, bool]]) -> float:
    """The rate per token that makes the misfits likeliest beside a constant share m0 of other ones: P(misfit) = 1 - (1 - m0)
    e^(-rate n), with the prior rate for a first row."""
    best, chosen = -math.inf, PRIOR_RATE["prose"]
    for step in range(-24, 1):
        rate = 10 ** (step / 6 - 2.5)
        for m0 in (0.0, 0.005, 0.01, 0.02, 0.05, 0.1):
            total = -abs(math.log(rate / PRIOR_RATE["prose"]))
            for tokens, missed in misfits:
                fits = (1 - m0) * math.exp(-rate * tokens)
                total += math.log(max(1 - fits, 1e-9) if missed else fits)
            if total > best:
                best, chosen = total, rate
    return chosen


def learn_from_ids(
    profile: Profile,
    request: Mapping[str, Any],
    fields: Fields,
    thinking: bool,
    habits: Habits,
    sampling: Sampling,
    prior_calls: int = 0,
) -> None:
    """What a row with ids says of the model, as drawn with the settings of its request. Rows that the grammar refuses say nothing."""
    truncated = fields.finish_reason == "length"
    try:
        parts = split(profile, fields.output_ids or (), thinking=thinking, truncated=truncated)
    except GrammarError:
        return
    texts = {"reasoning": profile.decode(parts.reasoning), "content": profile.decode(parts.content)}
    last = max((name for name, text in texts.items() if text), key=list(texts).index, default="")
    for name, text in texts.items():
        runs = runs_of(text)
        if runs is None:
            continue
        habits[f"{name}_lead"].add(runs[0])
        if text.strip() and not (truncated and name == last and not parts.calls):
            habits[place_of(f"{name}_trail", parts.section is not None)].add(runs[1])
    if parts.section is not None and parts.closed and not texts["content"].strip():
        habits[SEAM].add(texts["content"])
    if parts.section is not None and thinking and not parts.content:
        sampling.open_ends += 1
        sampling.unclosed += not parts.closed
    for k, call in enumerate(parts.calls if profile.numbers_calls else ()):
        sampling.heads += 1
        match = profile.tool_id_pattern.match(profile.decode(call.head))
        sampling.running += bool(match and match["index"] == str(prior_calls + k))
    spelled = spelled_texts(profile, parts)
    sampling.rows += 1
    sampling.tokens += len(fields.output_ids or ())
    sampling.canonicality.add_counts(
        count_spelled(profile, spelled), setting_of(request, "temperature"), setting_of(request, "top_p")
    )
    if any(text.ids != text.canonical for text in spelled):
        sampling.changes[sum(len(text.ids) - len(text.canonical) for text in spelled)] += 1
