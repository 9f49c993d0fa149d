"""What is asked of the platform beyond "rebuild everything": a wrong bill, few answers, a change in mid-run.

Belongs here: experiments over one purchase. Does not belong here: the leading-space worlds (`worlds`), printing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.exactness import rebuild
from benchmarks.exactness.judge import HIGH, judge
from benchmarks.exactness.purchase import Purchase
from eagle3_assets.campaign import Corpus
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

FITTED = ("A0", "A1", "A2", "B1", "C1", "R")
ADMITTED = float(Corpus.model_fields["min_p_exact"].default)
SHIFTS = tuple(shift for shift in range(-5, 6) if shift)


# ---------------------------------------------------------------------------------------------------- placebo
@dataclass
class Placebo:
    """Wrong bills tried and fitted by shift, of the completion and of the prompt. `fitted`: admitted, B1 or better or C1 with a p_exact
    that a corpus admits (ADMITTED); `likely`: C1 or better with half or more; `any_fit`: C1 or better with whatever p_exact; `claimed`:
    the sum of all p_exact; `grades` of all."""

    tried: Counter[int] = field(default_factory=Counter)
    fitted: Counter[int] = field(default_factory=Counter)
    likely: Counter[int] = field(default_factory=Counter)
    any_fit: Counter[int] = field(default_factory=Counter)
    claimed: float = 0.0
    prompt_tried: Counter[int] = field(default_factory=Counter)
    prompt_fitted: Counter[int] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return sum(self.fitted.values()) / max(1, sum(self.tried.values()))

    @property
    def any_share(self) -> float:
        return sum(self.any_fit.values()) / max(1, sum(self.tried.values()))

    @property
    def mean_claim(self) -> float:
        """The mean probability that the platform gives to a reconstruction that is wrong by construction."""
        return self.claimed / max(1, sum(self.tried.values()))

    @property
    def prompt_share(self) -> float:
        return sum(self.prompt_fitted.values()) / max(1, sum(self.prompt_tried.values()))


def placebo(stage: rebuild.TextStage, answers: Sequence[WireAnswer], rows: int) -> Placebo:
    """Every bill of the first `rows` answers that the stage fits as they are, moved by each of ±1 … ±5."""
    out, done = Placebo(), 0
    for answer in answers:
        fields = parse_fields(answer.body, answer.content_type)
        if not fields.billed_completion or not fields.billed_prompt or stage.rebuild(answer).grade not in FITTED:
            continue
        for shift in SHIFTS:
            if fields.billed_completion + shift < 1:
                continue
            found = stage.rebuild(answer, billed_completion=fields.billed_completion + shift)
            fits = found.grade in FITTED
            out.tried[shift] += 1
            out.fitted[shift] += fits and found.p_exact >= ADMITTED
            out.likely[shift] += fits and found.p_exact >= 0.5
            out.any_fit[shift] += fits
            out.claimed += found.p_exact if fits else 0.0
            out.grades[found.grade] += 1
        shift = SHIFTS[done % len(SHIFTS)]
        out.prompt_tried[shift] += 1
        moved = stage.rebuild(answer, billed_prompt=fields.billed_prompt + shift)
        out.prompt_fitted[shift] += moved.grade in FITTED and moved.p_exact >= ADMITTED
        done += 1
        if done == rows:
            break
    return out


# ---------------------------------------------------------------------------------------------------- few answers
@dataclass(frozen=True)
class Learned:
    """What a profile learned from `seen` answers makes of other answers of the same provider: rows, share that is exact, share
    that is exact and B1 or better, wrong rows among the B1 or better."""

    seen: int
    rows: int
    exact: float
    covered: float
    wrong_high: int
    decided: bool


def identify(profile: Profile, purchase: Purchase, steps: Sequence[int], *, held_out: int) -> dict[str, list[Learned]]:
    """For each provider and each step: every provider has given so many answers (engines all of theirs); the last `held_out`
    answers are rebuilt with what was learned."""
    out: dict[str, list[Learned]] = {name: [] for name, provider in purchase.providers.items() if provider is not None}
    bought = {name: purchase.answers(name) for name in purchase.folders}
    for step in steps:
        known = [a for name, answers in bought.items() for a in (answers[:step] if name in out else answers)]
        wire_profiles = rebuild.learn(profile, known)
        for name, found in out.items():
            rest = bought[name][max(step, len(bought[name]) - held_out) :]
            if len(bought[name]) < step or not rest:
                continue
            rows = judge(name, rebuild.rows_of(profile, rest, wire_profiles), purchase.truths, purchase.vocabulary)
            high = [row for row in rows if row.grade in HIGH]
            entry = (wire_profiles.get("providers") or {}).get(name) or {}
            found.append(
                Learned(
                    step,
                    len(rows),
                    sum(row.exact for row in rows) / max(1, len(rows)),
                    sum(row.exact for row in high) / max(1, len(rows)),
                    sum(not row.exact for row in high),
                    bool(entry.get("decided")),
                )
            )
    return out


def needed(learned: Sequence[Learned]) -> int | None:
    """The fewest answers after which no more of them make the rows of others any better: exact share within 2 points of the best,
    share of B1 and right within 5."""
    exact, covered = (max((getattr(one, name) for one in learned), default=0.0) for name in ("exact", "covered"))
    enough = [one.seen for one in learned if one.exact >= exact - 0.02 and one.covered >= covered - 0.05]
    return min(enough, default=None)


# ---------------------------------------------------------------------------------------------------- a change in mid-run
@dataclass(frozen=True)
class Change:
    """A provider's change and when it was seen. `delay`: answers behind the change until the learned profile says so (None: never
    within what was tried); `off_by`: answers between the true change and where the profile, learned from everything, puts it."""

    provider: str
    at: int
    delay: int | None
    off_by: int | None
    wrong_high: int
    rows: int


def watch(profile: Profile, purchase: Purchase, name: str, known: Mapping[str, Any], *, most: int = 150) -> Change:
    """Learn again after every tenth answer behind the change (all other providers' answers are there), until it is seen."""
    answers = purchase.answers(name)
    versions = [purchase.truths[a.generation_id].version for a in answers if a.generation_id in purchase.truths]
    at = next((k for k, version in enumerate(versions) if version), len(versions))
    others = list(rebuild.known_answers(purchase, names=[other for other in purchase.folders if other != name]))
    Random(0).shuffle(others)
    delay = None
    for behind in range(10, min(most, len(answers) - at) + 1, 10):
        # the habits of the model are what matters of the others: a tenth of them says the same in a tenth of the time
        if rebuild.changes(rebuild.learn(profile, [*others[: len(others) // 10], *answers[: at + behind]]), name):
            delay = behind
            break
    rows = judge(name, rebuild.rows_of(profile, answers, known), purchase.truths, purchase.vocabulary)
    moments = rebuild.changes(known, name)
    off_by = None
    if moments:
        learned_at = next((k for k, a in enumerate(answers) if a.finished_at >= moments[0]), len(answers))
        off_by = learned_at - at
    high = [row for row in rows if row.grade in HIGH]
    return Change(name, at, delay, off_by, sum(not row.exact for row in high), len(rows))
