"""What the bills leave: the ways to read one answer, their weights, and how likely the best of them is right.

Belongs here: the posterior over distinct id sequences and P(exact). Does not belong here: the ways themselves (`frames.py`,
`readings.py`), what is known of a provider (`wire_profiles.py`), grades and reasons (`reconstruct.py`).

P(exact). The weights of all ways sum to one before the bill is looked at. Those that meet it stand against "none of these": an answer
that is not canonical, or whose text was changed on the way, and that meets the bill all the same (`deviations.py`). So a way that is
seldom a priori is not believed because it fits, a long answer is believed less than a short one (docs/research/exactness.md#3.5,
#3.6), and a bill that nothing likely meets has a small p_exact. What a decided profile has ruled out (`RULED_OUT`) does not fit
at all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from eagle3_assets.exact.search.canonicality import Drawn, drawn_of, share_inside_characters
from eagle3_assets.exact.search.deviations import CUT_INSIDE, PRIOR_DAMAGE, SAME_COUNT_LOCAL, Deviations, same_count
from eagle3_assets.exact.search.frames import (
    LEAVES_PATH,
    ODD_TOOL_ID,
    OFF_PATH,
    SELDOM_LEAVES_PATH,
    UNCLOSED,
    WRITES_ANEW,
    CallHabits,
    Frame,
    count_calls,
    enumerate_frames,
)
from eagle3_assets.exact.search.habits import Habits, Spelling, prior_habits
from eagle3_assets.exact.search.key_order import kind_of, orders_of, schemas_of, sorted_anew
from eagle3_assets.exact.search.leaks import bare_fields
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.observations import OFTEN
from eagle3_assets.exact.search.readings import (
    AGAINST_REASONING_COUNT,
    RULED_OUT,
    Reading,
    Way,
    reading_of,
    unlearned_readings,
    ways_of,
)
from eagle3_assets.exact.search.wire_facts import WORD, facts_of, words_of
from eagle3_assets.targets.grammar import Ids, Parts, assemble
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields

# Sequences that share no more than this among them are ruled out: at decided providers, where only the back of one text is in doubt; where
# more is; and at the others
NEGLIGIBLE, NEGLIGIBLE_SEVERAL, NEGLIGIBLE_UNDECIDED = 0.035, 0.02, 1e-3
# How often an answer that is not canonical, or damaged, is so in its reasoning, whose count is then off
REASONING_COUNT_OF_ODD = 0.3
IN_DOUBT = 0.0045  # a run at an edge with a smaller share is no doubt: one that sixty fields have not shown has 0.0041


@dataclass(frozen=True)
class Case:
    """One answer with everything that is known about it; `wire` is its provider's entry of the wire profiles, `at` the time of
    the answer (unix seconds, None: now)."""

    profile: Profile
    request: Mapping[str, Any]
    fields: Fields
    wire: Mapping[str, Any] | None
    source: str
    mode: Mode
    at: float | None = None

    @property
    def thinking(self) -> bool:
        """Whether the completion holds reasoning."""
        return self.mode.turn

    @property
    def billed_prompt(self) -> int | None:
        """The prompt's bill, with what of it was billed as output."""
        billed = self.fields.billed_prompt
        return billed + self.mode.prefill - self.not_prefilled if billed else billed

    @property
    def not_prefilled(self) -> int:
        """Ids that this answer's bill has less of output, and more of the prompt, than its provider's usual ones: those are billed for their
        prefilled <think>, and this one does not think."""
        return int(bool(self.window.get("prefill_billed")) and not self.mode.turn)

    @property
    def truncated(self) -> bool:
        return self.fields.finish_reason == "length"

    @cached_property
    def window(self) -> Mapping[str, Any]:
        """What was learned of the provider for answers of this form at this time, and of this kind of turn; {} without anything. An
        answer between two windows belongs to the later one."""
        if not self.wire:
            return {}
        windows = [
            w for w in self.wire.get("windows") or [self.wire] if w.get("stream", False) == bool(self.request.get("stream"))
        ]
        if self.at is not None:
            windows = [w for w in windows if float(w.get("to", math.inf)) >= self.at] or windows[-1:]
        elif windows:
            windows = windows[-1:]
        if not windows:
            return {}
        calls = bool(self.fields.tool_calls)
        if not calls and "calls" in (windows[0].get("turns") or {}):
            calls = bool(bare_fields(self.profile, self.fields, self.mode.turn).tool_calls)
        return _of_turn(windows[0], "calls" if calls else "text")

    @property
    def is_of_window(self) -> bool:
        """Whether the answer came between the first and the last of those that its window was learned from: a change would show there."""
        window = self.window
        return self.at is not None and "from" in window and float(window["from"]) <= self.at <= float(window["to"])

    @property
    def billed(self) -> int | None:
        """The completion's bill, with the reasoning where the provider bills it apart (maple#824)."""
        billed = self.fields.billed_completion
        apart = self.mode.apart or self.window.get("reasoning_apart")
        more = (self.fields.billed_reasoning or 0) * bool(apart) - self.mode.prefill + self.not_prefilled
        return billed + more if billed else billed

    @property
    def hopeless(self) -> str | None:
        """Why no answer like this one can be exact at its provider, or None."""
        return self.window.get("cannot_be_exact") or self.learned_prompt.get("cannot_be_exact")

    @property
    def decided(self) -> bool:
        return bool(self.window.get("decided"))

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        learned = self.window.get("parsed") or tuple(reading_of(value) for value in self.window.get("readings") or ())
        return learned or self.unlearned

    @cached_property
    def prior_habits(self) -> Habits:
        return prior_habits(self.profile)

    @cached_property
    def unlearned(self) -> tuple[Reading, ...]:
        """The readings of a provider of which nothing is known."""
        return unlearned_readings(self.prior_habits)

    @property
    def stratum(self) -> Mapping[str, Any]:
        strata = self.window.get("strata") or {}
        return dict(strata.get("tools" if self.request.get("tools") else "no_tools") or {})

    @cached_property
    def learned_prompt(self) -> Mapping[str, Any]:
        return dict(self.stratum.get("prompt") or {})

    def habit_share(self, edge: str, run: str) -> float:
        """How often the model writes `run` at an edge, as others than this provider show it; 1 where fewer than hundreds of fields say
        it."""
        if run in (self.window.get("unheard_of") or {}).get(edge, ()):
            return 0.0
        habit = ((self.wire or {}).get("model") or {}).get(edge) or {}
        fields, runs = int(habit.get("fields", 0)), habit.get("runs") or {}
        return (float(runs.get(run, 0.0)) + 0.25) / (fields + 1) if fields >= 1 / RULED_OUT else 1.0

    def times_unheard_of(self, edge: str, run: str) -> int:
        """How often the window that the answer belongs to shows a run that nobody else shows."""
        return int(((self.window.get("unheard_of") or {}).get(edge) or {}).get(run, 0))

    @cached_property
    def sampling(self) -> Mapping[str, Any]:
        return dict(((self.wire or {}).get("model") or {}).get("sampling") or {})

    @cached_property
    def spelling(self) -> Spelling:
        """How often the model is not canonical, by what was learned of it."""
        told = (self.wire or {}).get("spelling")
        return told if isinstance(told, Spelling) else Spelling.of(self.sampling)

    @cached_property
    def local_damage(self) -> float:
        """P(changed on the way), by what the provider misses in answers that show what this one shows."""
        parts = self.window.get("damage_parts")
        facts = facts_of(self.request, self.fields) if parts else frozenset()
        if any(str(part["fact"]).startswith(WORD) for part in parts or ()):
            facts |= {WORD + word for word in words_of(self.fields)}
        meant = (part for part in parts or () if (part["fact"] in facts) != bool(part.get("absent")))
        return min(sum(float(part["weight"]) * float(part["share"]) for part in meant), 1.0)

    @cached_property
    def drawn(self) -> Drawn:
        """The answer's own settings and kinds of text; how many ids are arguments is a matter of the way to read it."""
        return drawn_of(self.request, (self.fields.reasoning, self.fields.content), 0)


def _of_turn(window: Mapping[str, Any], turn: str) -> Mapping[str, Any]:
    """A window as it is for one kind of turn. Of a kind that was never seen there only the readings of the other are believed, and nothing
    is decided."""
    turns = window.get("turns") or {}
    if turn in turns:
        return {**window, **turns[turn]}
    if not turns:
        return dict(window)
    other, told = next(iter(turns.items()))
    return {
        **window,
        **told,
        "cannot_be_exact": None,
        "decided": False,
        "why": f"no answer of this kind ({turn}) was seen, only {other}",
    }


@dataclass(frozen=True, slots=True)
class Chosen:
    """One id sequence of a completion that survives, with the likeliest way to it and its share of the posterior."""

    way: Way
    share: float

    @property
    def parts(self) -> Parts:
        return self.way.frame.filled(self.way.reasoning, self.way.content)

    def ids(self, profile: Profile) -> Ids:
        return assemble(profile, self.parts)


@dataclass(frozen=True, slots=True)
class Selection:
    """What equals the bill, best first. `tried`, `fitting`: ways; `contradicted`: only readings that the provider's profile rules
    out fit; `p`: P(exact) of the best completion; `usual`: the likeliest way before the bill is looked at (None: all are contradicted);
    `mass`: P(the bill) by all ways that meet it."""

    completions: tuple[Chosen, ...]
    tried: int
    fitting: int
    contradicted: bool
    p: float
    usual: Way | None
    mass: float = 0.0


NOTHING = Selection((), 0, 0, False, 0.0, None)


def frames_of(case: Case) -> list[Frame]:
    """The frames of the answer, by what is known of the provider. Raises ExactError for text that has no ids."""
    told: Mapping[str, float] = case.window.get("arguments_p") or {}
    return enumerate_frames(
        case.profile,
        case.fields,
        thinking=case.thinking,
        prior_calls=count_calls(case.request.get("messages") or []),
        numbering=str(case.window.get("tool_ids") or "unknown"),
        anew=told.get("written anew", WRITES_ANEW),
        off=OFTEN * told[OFF_PATH] + SELDOM_LEAVES_PATH * (1 - told[OFF_PATH]) if told else LEAVES_PATH,
        habits=CallHabits(float(case.sampling.get("unclosed", UNCLOSED)), float(case.sampling.get("odd_tool_ids", ODD_TOOL_ID))),
    )


def select(case: Case, frames: Sequence[Frame]) -> Selection:
    """Keep what equals the bill; what the provider's profile rules out stays only when nothing else fits."""
    billed = case.billed
    ways = _ways(case, frames, case.readings)
    usual = max(ways, key=lambda way: way.weight, default=None)
    fitting = [way for way in ways if way.billed == billed]
    contradicted = False
    if not fitting and case.window and not case.decided:
        other = _ways(case, frames, case.unlearned)
        fitting = [way for way in other if way.billed == billed]
        contradicted = bool(fitting)
        ways += other
    groups: dict[Any, list[Way]] = defaultdict(list)
    for way in fitting:
        groups[way.key].append(way)
    floor = RULED_OUT * sum(way.weight for way in ways) if case.decided else 0.0
    groups = {key: group for key, group in groups.items() if sum(way.weight for way in group) >= floor}
    ranked = sorted(groups.values(), key=lambda group: -sum(way.weight for way in group))
    best = [(max(group, key=lambda way: way.weight), sum(way.weight for way in group)) for group in ranked]
    whole = sum(weight for _, weight in best)
    chosen: list[Chosen] = []
    sure = case.decided and _one_doubt(best, whole)
    negligible = whole * (NEGLIGIBLE if sure else NEGLIGIBLE_SEVERAL if case.decided else NEGLIGIBLE_UNDECIDED)
    left = whole
    for way, weight in best:
        if chosen and left <= negligible:
            break
        chosen.append(Chosen(way, weight / whole if whole else 0.0))
        left -= weight
    p = _p_exact(case, ways, best[0], whole) if best and whole else 0.0
    return Selection(tuple(chosen), len(ways), len(fitting), contradicted, p, usual, whole)


def _one_doubt(ranked: Sequence[tuple[Way, float]], whole: float) -> bool:
    """Whether the sequences with a share worth speaking of differ from the likeliest one at the back of one text only, and in nothing
    else: what stands in front of a text is not for a habit to decide."""
    likeliest = ranked[0][0] if ranked else None
    edges: set[int] = set()
    for way, weight in ranked[1:]:
        if likeliest is not None and weight >= IN_DOUBT * whole:
            runs, others = (*way.reasoning, *way.content), (*likeliest.reasoning, *likeliest.content)
            edges |= {k for k, (a, b) in enumerate(zip(runs, others, strict=True)) if a != b}
    return len(edges) <= 1 and not edges & {0, 2}


def _ways(case: Case, frames: Sequence[Frame], readings: Sequence[Reading]) -> list[Way]:
    """The ways with the billed reasoning tokens, where their convention is known."""
    rho, told = case.window.get("reasoning_count"), case.fields.billed_reasoning
    return ways_of(
        frames,
        readings,
        truncated=case.truncated,
        reasoning_told=told - rho if rho is not None and told else None,
        least=RULED_OUT / 50 if case.decided else 0.0,
        habits=None if case.window else case.prior_habits,
    )


def _p_exact(case: Case, ways: Sequence[Way], best: tuple[Way, float], whole: float) -> float:
    """The share of the best sequence among all that meets this bill: the other ways, and answers that no way reads right because they
    are not canonical or were damaged."""
    way, weight = best
    deviations = deviations_of(case, way.billed, arguments_of(way.frame.parts))
    if case.truncated and way.frame.parts.section is None:
        deviations = replace(deviations, cut=cut_share(case, way))
    billed = case.billed or 0
    rival = 0.0
    for other in ways:
        kept = other.weight / AGAINST_REASONING_COUNT * REASONING_COUNT_OF_ODD if other.against else other.weight
        rival += kept * deviations.met(billed - other.billed)
    return weight * deviations.neither / (whole * deviations.neither + rival)


def arguments_of(parts: Parts) -> int:
    """Ids of arguments."""
    return sum(len(call.arguments or ()) for call in parts.calls)


def cut_share(case: Case, way: Way) -> float:
    """P(an answer that the length limit cut was cut inside a character, which the text then lacks)"""
    last, runs = (way.frame.content, way.content) if way.frame.content.text else (way.frame.reasoning, way.reasoning)
    return CUT_INSIDE + share_inside_characters(case.profile, last.ids(*runs))


def deviations_of(case: Case, tokens: int, arguments: int = 0) -> Deviations:
    """How likely an answer of so many tokens, some of them arguments, is none of what its text says."""
    calls, schemas, sorts = case.fields.tool_calls, schemas_of(case.request), bool(case.window.get("sorts_keys"))
    kind = kind_of(calls, schemas)
    damaged = float((case.window.get("damage") or {}).get(kind, PRIOR_DAMAGE))
    if sorts and kind in ("keys", "listed"):
        damaged = max(sorted_anew(orders_of(calls, schemas), case.sampling.get("sorted_keys") or {}), PRIOR_DAMAGE)
    same, local = same_count(kind, sorts=sorts), case.local_damage
    return Deviations(
        odd=case.spelling.odd(replace(case.drawn, arguments=arguments), tokens),
        damaged=1 - (1 - damaged) * (1 - local),
        same=(damaged * same + local * SAME_COUNT_LOCAL) / (damaged + local) if local else same,
        changes=case.spelling.changes,
    )
