"""Wire profiles: what was learned about each provider, from its bills and from what the model itself is known to do.

Belongs here: learning, the JSON it is kept in, and reading it. Does not belong here: single rows (`reconstruct.py`), stand-in
profiles (another format, read by other code).

The leading-space question. A wire text may be the model's (verbatim), or have a space joined to it (injected), or have lost one
(stripped); most of the time all three cost the same number of tokens. Two kinds of data decide it, and nothing else does:

1. bills: rows where the readings cost different counts, and rows whose text a reading cannot produce;
2. the model's habit at that edge, known from rows with server ids and from providers that (1) has decided: the model is the
   same everywhere, so a reading under which it would always write what it never writes is unlikely.

Rule. Each row gives each reading a log-likelihood: does it fit the bill (a right reading misses 5 % of the bills: samples that
are not canonical), could it have made this text (0.2 % odd cases), is what the model would have written its habit (share of the
habit, at most 9:1, known from 20 fields on). The reading with the highest sum wins; a rival is ruled out at 20 nats, which is 7
deciding bills without a counter-example. A reading under which most answers would begin a field with two spaces is out: two
spaces mean that one was joined on (contract 4.3 #1); else an end of turn that is not billed could hide the space too many.
A provider is decided when a rival is ruled out, none that matters for 8 rows or a tenth of them is left, the winner fits at
least 80 % of the bills, and no front of a field is hidden (see `edge_statuses`). Undecided stays undecided.

Schema (version 1) of the JSON:
    version, profile, tokenizer_sha256, rule {…}, model {edge: {fields, with, known, share}},
    providers {name: {rows, decided, why, spacing, counts_end, explained, ruled_out [reading…],
                      edges {edge: {status, certainty}}, readings {reading: rows whose bill it fits}, margins {rival: nats},
                      strata {tools|no_tools: {rows, readings {…}, prompt {form, decided, forms {form: rows that fit},
                                                                            ruled_out [form…]}}}}}
A reading is "<spacing>|end" or "<spacing>|no_end" (the bill counts the end of turn or not).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.collect.wire_answer import WireAnswer
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import GrammarError, split
from eagle3_assets.exact.hypotheses import (
    BILLS,
    ENDS_TURN,
    INJECTED_EDGES,
    SPACINGS,
    count_calls,
    enumerate_completions,
    enumerate_prompts,
)
from eagle3_assets.exact.render import wants_thinking
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.wire import parse_fields, storable

VERSION = 1
EDGES = ("reasoning_lead", "reasoning_trail", "content_lead", "content_trail")
LEADS = ("reasoning_lead", "content_lead")
DECIDING_ROWS = 8
MARGIN_NATS = 20.0
MISSES_BILL, ODD_TEXT = 0.05, 0.002
IMPOSSIBLE_NATS = 1e6
EXPLAINS = 0.80
HABIT_FIELDS, HABIT_CAP = 20, 0.90
PROMPT_WINS = 0.95
# exactness.md 2b: 85 % of stripped newlines leave the count as it is, so those rows fit the bill and are wrong
NEUTRAL_NEWLINES, STRIPS_UNSEEN = 0.85, 0.5
MAX_ROWS = 1000  # a provider and stratum; more rows decide nothing that these do not

Reading = tuple[str, bool]  # spacing, the bill counts the end of turn
READINGS: tuple[Reading, ...] = tuple((spacing, counts_end) for counts_end in BILLS for spacing in SPACINGS)


def reading_name(reading: Reading) -> str:
    return f"{reading[0]}|{'end' if reading[1] else 'no_end'}"


# ---------------------------------------------------------------------------------------------------- what one row says
@dataclass(frozen=True, slots=True)
class Observation:
    """What one billed text answer says about its provider.

    `fits` are the readings whose count is the bill; `ids` a fingerprint of the id sequences of each spacing that the wire does
    not contradict; `edges` whether the model's text has whitespace there under each spacing (None: the field is empty).
    """

    provider: str
    tools: bool
    fits: frozenset[Reading]
    ids: Mapping[str, frozenset[int]]
    edges: Mapping[str, Mapping[str, bool | None]]
    forms: Mapping[str, bool]  # prompt form → its count is the bill
    form_ids: Mapping[str, int]


@dataclass
class Habit:
    """How often the model writes whitespace at an edge (a space, at the leads)."""

    fields: int = 0
    having: int = 0

    def add(self, has: bool | None) -> None:
        if has is not None:
            self.fields += 1
            self.having += has

    @property
    def share(self) -> float:
        """Smoothed, so that it is never 0 or 1."""
        return (self.having + 0.5) / (self.fields + 1)

    @property
    def known(self) -> bool:
        return self.fields >= HABIT_FIELDS

    def log_likelihood(self, has: bool | None) -> float:
        if has is None or not self.known:
            return 0.0
        share = min(max(self.share, 1 - HABIT_CAP), HABIT_CAP)
        return math.log(share if has else 1 - share)

    def as_json(self) -> dict[str, Any]:
        return {"fields": self.fields, "with": self.having, "known": self.known, "share": round(self.share, 4)}


Habits = dict[str, Habit]


def edge_flags(reasoning: str, content: str) -> dict[str, bool | None]:
    """Whether each edge shows whitespace (at the leads: a space); None for an empty field."""
    return {
        "reasoning_lead": reasoning.startswith(" ") if reasoning else None,
        "reasoning_trail": reasoning[-1].isspace() if reasoning else None,
        "content_lead": content.startswith(" ") if content else None,
        "content_trail": content[-1].isspace() if content else None,
        "double_lead": reasoning.startswith("  ") or content.startswith("  "),
    }


def provider_of(answer_provider: str | None, fields_provider: str | None, source: str) -> str:
    """The key of a provider in the JSON."""
    return storable(answer_provider or fields_provider) or f"({source})"


# ---------------------------------------------------------------------------------------------------- learning
def learn(profile: Profile, answers: Iterable[WireAnswer], *, thinking: bool = True) -> dict[str, Any]:
    """Learn every provider's wire profile (schema above). `thinking` is the campaign's, where a request says nothing.

    Answers with server ids speak about the model only; failed ones and those without a bill are passed over.
    """
    model: Habits = {edge: Habit() for edge in EDGES}
    rows: dict[str, list[Observation]] = defaultdict(list)
    taken: Counter[tuple[str, bool]] = Counter()
    for answer in answers:
        if answer.outcome != "finished":
            continue
        fields = parse_fields(answer.body, answer.content_type)
        thinks = profile.opened_by != "never" and wants_thinking(answer.request, thinking)
        if fields.output_ids is not None:
            _learn_from_ids(profile, fields, thinks, model)
            continue
        key = (provider_of(answer.provider, fields.provider, answer.source), bool(answer.request.get("tools")))
        if taken[key] >= MAX_ROWS:
            continue
        observation = observe(profile, answer.request, fields, provider=key[0], thinking=thinks)
        if observation is not None:
            taken[key] += 1
            rows[key[0]].append(observation)
    decisions = {name: decide(rows[name], {}) for name in sorted(rows)}
    for name, decision in decisions.items():
        if decision.decided:
            _learn_from_provider(rows[name], decision, model)
    for name, decision in decisions.items():
        if not decision.decided:
            decisions[name] = decide(rows[name], model)
    return {
        "version": VERSION,
        "profile": profile.name,
        "tokenizer_sha256": profile.tokenizer_sha256,
        "rule": {
            "deciding_rows": DECIDING_ROWS,
            "margin_nats": MARGIN_NATS,
            "misses_bill": MISSES_BILL,
            "odd_text": ODD_TEXT,
            "explains": EXPLAINS,
            "habit": {"fields": HABIT_FIELDS, "cap": HABIT_CAP},
        },
        "model": {edge: habit.as_json() for edge, habit in model.items()},
        "providers": {name: _provider_json(rows[name], decision, model) for name, decision in decisions.items()},
    }


def _learn_from_ids(profile: Profile, fields: Fields, thinking: bool, model: Habits) -> None:
    try:
        parts = split(profile, fields.output_ids or (), thinking=thinking, truncated=fields.finish_reason == "length")
    except GrammarError:
        return
    for edge, has in edge_flags(profile.decode(parts.reasoning), profile.decode(parts.content)).items():
        if edge in EDGES:
            model[edge].add(has)


def _learn_from_provider(rows: Sequence[Observation], decision: Decision, model: Habits) -> None:
    """A decided provider shows the model's habit wherever its mechanism does not hide it."""
    spacing = decision.winner[0]
    for edge, status in edge_statuses(rows, decision, {}).items():
        if status["status"] == "visible":
            for row in rows:
                model[edge].add(row.edges[spacing][edge] if spacing in row.edges else None)


def observe(profile: Profile, request: Mapping[str, Any], fields: Fields, *, provider: str, thinking: bool) -> Observation | None:
    """What one answer says, or None when it says nothing (no bill, problems, an unusual end)."""
    billed = fields.billed_completion
    if fields.problems or not billed or fields.finish_reason not in (*ENDS_TURN, "length"):
        return None
    messages = request.get("messages") or []
    try:
        completions = enumerate_completions(profile, fields, thinking=thinking, prior_calls=count_calls(messages))
    except ExactError:
        return None
    ids: dict[str, set[int]] = defaultdict(set)
    edges: dict[str, dict[str, bool | None]] = {}
    fits = set()
    for completion in completions:
        ids[completion.spacing].add(hash(completion.ids))
        edges[completion.spacing] = edge_flags(completion.texts.reasoning, completion.texts.content)
        fits |= {(completion.spacing, end) for end in BILLS if completion.billed(end) == billed}
    forms, form_ids = {}, {}
    if profile.renders and fields.billed_prompt:
        try:
            prompts = enumerate_prompts(profile, request, thinking=thinking)
        except ExactError:
            prompts = []
        for prompt in prompts:
            for form in prompt.forms:
                forms[form] = len(prompt.ids) == fields.billed_prompt
                form_ids[form] = hash(prompt.ids)
    frozen = {spacing: frozenset(found) for spacing, found in ids.items()}
    return Observation(provider, bool(request.get("tools")), frozenset(fits), frozen, edges, forms, form_ids)


# ---------------------------------------------------------------------------------------------------- deciding
@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict about one provider. `fits` counts the rows whose bill a reading fits; `pairs` maps a rival to (rows whose
    bill only the winner fits, rows whose bill only the rival fits); `margins` to its distance in nats."""

    winner: Reading
    rows: int
    fits: Mapping[Reading, int]
    pairs: Mapping[Reading, tuple[int, int]]
    margins: Mapping[Reading, float]
    ruled_out: tuple[Reading, ...]
    decided: bool
    why: str


def decide(rows: Sequence[Observation], habits: Mapping[str, Habit]) -> Decision:
    """Apply the rule above to one provider's rows."""
    sums = {reading: sum(_log_likelihood(row, reading, habits) for row in rows) for reading in READINGS}
    for reading in READINGS:
        if _doubles(rows, reading[0]) >= max(DECIDING_ROWS, len(rows) / 2):
            sums[reading] -= IMPOSSIBLE_NATS
    winner = max(READINGS, key=lambda reading: sums[reading])  # the first of equals: the wire as it stands
    fits = {reading: sum(reading in row.fits for row in rows) for reading in READINGS}
    margins = {rival: sums[winner] - sums[rival] for rival in READINGS if rival != winner}
    pairs = {
        rival: (
            sum(winner in row.fits and rival not in row.fits for row in rows),
            sum(rival in row.fits and winner not in row.fits for row in rows),
        )
        for rival in margins
    }
    ruled_out = [rival for rival, margin in margins.items() if margin >= MARGIN_NATS]
    matters = max(1.0, min(DECIDING_ROWS, len(rows) / 10))
    still_open = [
        rival
        for rival in margins
        if rival[0] != winner[0] and rival not in ruled_out and _differing(rows, winner[0], rival[0]) >= matters
    ]
    decided, why = True, f"{reading_name(winner)} fits {fits[winner]} of {len(rows)} bills"
    if not rows or fits[winner] < EXPLAINS * len(rows):
        decided, why = False, f"no reading fits the bills: the best, {reading_name(winner)}, {fits[winner]} of {len(rows)}"
    elif still_open:
        rival = still_open[0]
        against, for_it = pairs[rival]
        decided = False
        why = f"{reading_name(rival)} is not ruled out: {margins[rival]:.1f} nats, {against} bills against it, {for_it} for it"
    elif not any(rival[0] != winner[0] for rival in ruled_out):
        decided, why = False, f"too few rows that tell the readings apart ({len(rows)} rows)"
    elif any(habit.known for habit in habits.values()):
        why += ", with the model's known habits"
    return Decision(winner, len(rows), fits, pairs, margins, tuple(ruled_out), decided, why)


def _log_likelihood(row: Observation, reading: Reading, habits: Mapping[str, Habit]) -> float:
    if reading[0] not in row.ids:
        return math.log(ODD_TEXT)
    bill = math.log(1 - MISSES_BILL if reading in row.fits else MISSES_BILL)
    edges = row.edges[reading[0]]
    return bill + sum(habits[edge].log_likelihood(edges[edge]) for edge in LEADS if edge in habits)


def _doubles(rows: Sequence[Observation], spacing: str) -> int:
    return sum(1 for row in rows if spacing in row.edges and row.edges[spacing]["double_lead"])


def _differing(rows: Sequence[Observation], one: str, other: str) -> int:
    """Rows where the choice between two spacings changes ids (one that the wire contradicts is no choice there)."""
    return sum(1 for row in rows if one in row.ids and other in row.ids and row.ids[one] != row.ids[other])


def edge_statuses(rows: Sequence[Observation], decision: Decision, model: Mapping[str, Habit]) -> dict[str, dict[str, Any]]:
    """For each edge whether the provider would show the model's whitespace there, and how sure the rebuilt edge is.

    visible: it shows it; habit: the model's known habit, or bills, say what is there; hidden: nothing says it; empty: no such
    field; stripped: the model writes whitespace there at times and this provider never shows it. `certainty` is the
    probability that the edge is right in a row that fits the bill, None where hidden.
    """
    spacing = decision.winner[0]
    out: dict[str, dict[str, Any]] = {}
    for edge in EDGES:
        flags = [row.edges[spacing][edge] for row in rows if spacing in row.edges]
        fields = sum(flag is not None for flag in flags)
        put_back = edge in LEADS and spacing in (f"stripped_{edge.partition('_')[0]}", "stripped_both")
        shown = 0 if put_back else sum(bool(flag) for flag in flags)
        if edge in INJECTED_EDGES.get(spacing, ()):  # a space that was joined on shows that nothing is stripped there
            shown = sum(bool(row.edges["verbatim"][edge]) for row in rows)
        habit = model.get(edge, Habit())
        if shown >= 2:
            out[edge] = {"status": "visible", "certainty": 1.0}
        elif not fields:
            out[edge] = {"status": "empty", "certainty": 1.0}
        elif edge in LEADS:
            certainty = _lead_certainty(edge, put_back, decision, habit)
            out[edge] = {"status": "habit" if certainty is not None else "hidden", "certainty": certainty}
        elif habit.known and fields * habit.share >= 5:  # it would have been seen by now
            out[edge] = {"status": "stripped", "certainty": 1 - NEUTRAL_NEWLINES * habit.share}
        elif habit.known:
            out[edge] = {"status": "habit", "certainty": 1 - STRIPS_UNSEEN * NEUTRAL_NEWLINES * habit.share}
        else:
            out[edge] = {"status": "hidden", "certainty": None}
    return out


def _lead_certainty(edge: str, put_back: bool, decision: Decision, habit: Habit) -> float | None:
    """How sure the rebuilt front of a field is at a provider that never shows it: by the habit, else by the deciding bills."""
    if habit.known:
        return habit.share if put_back else 1 - habit.share
    toggled = {
        ("reasoning_lead", "verbatim"): "stripped_reasoning",
        ("reasoning_lead", "stripped_reasoning"): "verbatim",
        ("reasoning_lead", "stripped_content"): "stripped_both",
        ("reasoning_lead", "stripped_both"): "stripped_content",
        ("content_lead", "verbatim"): "stripped_content",
        ("content_lead", "stripped_content"): "verbatim",
        ("content_lead", "stripped_reasoning"): "stripped_both",
        ("content_lead", "stripped_both"): "stripped_reasoning",
    }.get((edge, decision.winner[0]))
    mine, theirs = decision.pairs.get((toggled or "", decision.winner[1]), (0, 0))
    return (mine + 0.5) / (mine + theirs + 1) if mine + theirs >= DECIDING_ROWS else None


# ---------------------------------------------------------------------------------------------------- as JSON
def _provider_json(rows: Sequence[Observation], decision: Decision, model: Mapping[str, Habit]) -> dict[str, Any]:
    strata = {}
    for name, tools in (("no_tools", False), ("tools", True)):
        part = [row for row in rows if row.tools == tools]
        if part:
            fitting = Counter(reading_name(reading) for row in part for reading in row.fits)
            strata[name] = {"rows": len(part), "readings": dict(sorted(fitting.items())), "prompt": decide_prompt(part)}
    edges = edge_statuses(rows, decision, model)
    unseen = [edge for edge in LEADS if edges[edge]["certainty"] is None]
    return {
        "rows": decision.rows,
        "decided": decision.decided and not unseen,
        "why": decision.why + (f"; {unseen[0]} is never shown and no habit is known" if unseen and decision.decided else ""),
        "spacing": decision.winner[0],
        "counts_end": decision.winner[1],
        "explained": decision.fits[decision.winner],
        "ruled_out": [reading_name(reading) for reading in decision.ruled_out],
        "edges": edges,
        "readings": {reading_name(reading): fitting for reading, fitting in decision.fits.items() if fitting},
        "margins": {reading_name(reading): round(margin, 2) for reading, margin in decision.margins.items()},
        "strata": strata,
    }


def decide_prompt(rows: Sequence[Observation]) -> dict[str, Any]:
    """Which prompt form a provider uses: the same rule, on prompt bills. Forms that never differ in ids are not rivals."""
    fitting = Counter(form for row in rows for form, fits in row.forms.items() if fits)
    if not fitting:
        return {"form": None, "decided": False, "forms": {}, "ruled_out": []}
    order = list(dict.fromkeys(form for row in rows for form in row.forms))
    # a form that changes nothing in a conversation is not listed there: it stands for the form that it is equal to
    winner = max(order, key=lambda form: fitting[form])
    ruled_out, still_open = [], []
    for rival in order:
        both = [row for row in rows if winner in row.forms and rival in row.forms and row.form_ids[winner] != row.form_ids[rival]]
        mine = sum(row.forms[winner] and not row.forms[rival] for row in both)
        theirs = sum(row.forms[rival] and not row.forms[winner] for row in both)
        if mine >= DECIDING_ROWS and mine >= PROMPT_WINS * (mine + theirs):
            ruled_out.append(rival)
        elif both:
            still_open.append(rival)
    return {"form": winner, "decided": not still_open, "forms": dict(fitting.most_common()), "ruled_out": ruled_out}


def entry_of(wire_profiles: Mapping[str, Any] | None, provider: str) -> dict[str, Any] | None:
    """One provider's entry, or None when nothing was learned about it."""
    entry = ((wire_profiles or {}).get("providers") or {}).get(provider)
    return dict(entry) if isinstance(entry, Mapping) else None
