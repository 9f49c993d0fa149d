"""Learning how one provider bends and bills, from the bills of its answers and the model's known habits.

Belongs here: the score of every reading, deciding between them, change points. Does not belong here: the JSON of profiles and the
order of providers (`wire_profiles.py`), prompts (`prompt_learning.py`), single rows (`selection.py`).

Score. Under a reading each answer has a probability: that its bill is met (a right reading misses 1 %, and one that is not
canonical: 1 - e^(-lambda n)), that the reading could have made this text (0.2 % odd cases), and, where a habit is known, that the
model would have written what the reading says it wrote (at most 20:1). Readings are ranked by the sum of the logs.

Decision. A rival is ruled out when it is MARGIN_NATS behind *without the answer that speaks loudest against it*: so no answer's
grade rests on itself. A provider is decided when some rival with other ids is ruled out and every rival that is left gives the
same ids.

Change. Answers are in order of time. Where two readings, one before and one behind a moment, explain CHANGE_NATS more than the
best one, the provider changed at that moment; each part is learned by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.edges import EDGES, LEADS, Mechanism
from eagle3_assets.exact.habits import Habit, Habits
from eagle3_assets.exact.observations import LOW, SPAN, Floats, Observation, field_table, size_table
from eagle3_assets.exact.reading_space import DECIDING_ROWS, MIXED, Space, joins_at, run_of
from eagle3_assets.exact.readings import BILLINGS, RULED_OUT, Reading, field_runs

MARGIN_NATS, CHANGE_NATS = 20.0, 30.0
MISSES_BILL, ODD_TEXT, STRAY_BILL = 0.01, 0.002, 0.1
EXPLAINS = 0.80
SHORTEST_WINDOW = 8
Ints = npt.NDArray[np.int64]
SORTING_NATS = 5.0
HELD_OUT_READINGS = 4
KEPT_NATS, KEPT_READINGS, KEPT_SHARE = (
    12.0,
    12,
    1e-3,
)  # readings that a profile keeps for its rows: those not further behind than this


@dataclass(frozen=True)
class Verdict:
    """What was learned of one window. `best` first of `readings` (weights sum to 1); `fits`: rows whose bill is met by the readings
    that the other half of the rows chose, `differences` what their bills have more than those say {tokens: probability}."""

    readings: tuple[Reading, ...]
    anew: bool
    unsure_of_arguments: bool
    rows: int
    fits: int
    decided: bool
    why: str
    margins: Mapping[str, float]
    ruled_out: tuple[str, ...]
    differences: tuple[Mapping[int, float], ...]

    @property
    def missed(self) -> tuple[bool, ...]:
        """Per row, whether hardly any way to read it meets its bill."""
        return tuple(found.get(0, 0.0) < RULED_OUT for found in self.differences)

    @property
    def best(self) -> Reading:
        return self.readings[0]


# ---------------------------------------------------------------------------------------------------- scores
def scores(rows: Sequence[Observation], space: Space, habits: Mapping[str, Habit], rate: float, rho: int | None) -> Floats:
    """Log-probabilities [rows, readings]. `rate` is lambda per token; `rho` the convention of reasoning counts, if known."""
    left, right = space.pairs
    one, other, sizes = field_table(rows, "reasoning", left), field_table(rows, "content", right), size_table(rows)
    could = (one.sum(axis=2) > 0)[:, :, None] & (other.sum(axis=2) > 0)[:, None, :]
    if rho is not None:
        _hold_against_reasoning(rows, one, rho)
    stands = np.array([row.stands for row in rows], dtype=np.int64)
    billed = np.array([row.billed for row in rows], dtype=np.int64)
    ended = np.array([row.ended for row in rows], dtype=np.int64)
    fits = np.zeros((len(rows), *space.shape), dtype=np.float32)
    where = np.arange(SPAN)
    for b, (counts_end, extra) in enumerate(BILLINGS):
        target = billed - stands - extra + (0 if counts_end else 1) * ended
        # what is left for frame sizes once the two fields have d1 and d2 more
        rest = target[:, None, None] - (where + LOW)[None, :, None] - (where + LOW)[None, None, :] - LOW
        inside = (rest >= 0) & (rest < SPAN)
        rest = np.clip(rest, 0, SPAN - 1)
        for s in range(2):
            share = np.where(
                inside,
                np.take_along_axis(sizes[:, s][:, None, :], rest.reshape(len(rows), 1, -1), axis=2).reshape(rest.shape),
                0.0,
            )
            fits[:, :, :, s, b] = np.einsum("npd,nde,nqe->npq", one, share.astype(np.float32), other, optimize=True)
    miss = np.array([MISSES_BILL + (1 - MISSES_BILL) * (1 - math.exp(-rate * row.billed)) for row in rows], dtype=np.float32)
    miss = miss[:, None, None, None, None]
    chance = (1 - miss) * fits + miss * STRAY_BILL
    chance = np.where(could[:, :, :, None, None], chance, ODD_TEXT * STRAY_BILL)
    out = np.log(np.maximum(chance, 1e-9))
    out += (_habit_nats(rows, left, "reasoning", habits)[:, :, None] + _habit_nats(rows, right, "content", habits)[:, None, :])[
        :, :, :, None, None
    ]
    return np.asarray(out.reshape(len(rows), -1), dtype=np.float32)


def _hold_against_reasoning(rows: Sequence[Observation], table: Floats, rho: int) -> None:
    """Weigh the reasoning's counts by the billed ones: those that disagree stay with 3 %."""
    for i, row in enumerate(rows):
        if row.billed_reasoning is not None and row.reasoning.text:
            more = row.billed_reasoning - rho - int(row.closed) - row.reasoning.shown - LOW
            keep = np.full(SPAN, 0.03, dtype=np.float32)
            if 0 <= more < SPAN:
                keep[more] = 1.0
            table[i] *= keep


def _habit_nats(
    rows: Sequence[Observation], pairs: Sequence[tuple[Mechanism, Mechanism]], name: str, habits: Mapping[str, Habit]
) -> Floats:
    """[rows, pairs]: log of how often the model writes what a pair says it wrote. Where whitespace is taken away that is in the
    table."""
    out = np.zeros((len(rows), len(pairs)), dtype=np.float32)
    for side, edge in enumerate((f"{name}_lead", f"{name}_trail")):
        habit = habits[edge]
        if not habit.known:
            continue
        memory: dict[tuple[str, Mechanism, bool], float] = {}
        for i, row in enumerate(rows):
            run = run_of(row, edge)
            if run is None or (side and row.truncated):
                continue
            joins = joins_at(row, edge)
            for j, pair in enumerate(pairs):
                mechanism = pair[side]
                if mechanism.kind != "strip":  # whose table holds every run that the model writes
                    key = (run, mechanism, joins)
                    if key not in memory:
                        runs = mechanism.runs(run, lead=not side, joins=joins)
                        memory[key] = habit.nats([found for found, _ in runs]) if runs else 0.0
                    out[i, j] += memory[key]
    return out


# ---------------------------------------------------------------------------------------------------- deciding
def one_style(rows: Sequence[Observation]) -> int:
    """The number of calls where all arguments came in one style, 0 where they did not."""
    told = [styles for row in rows for styles in row.styles]
    return len(told) if told and frozenset.intersection(*told) else 0


def all_sorted(rows: Sequence[Observation]) -> int:
    """The number of calls with two keys and more where all of them came with sorted keys, 0 where one did not."""
    told = [ordered for row in rows for ordered in row.ordered]
    return len(told) if all(told) else 0


def sorts_keys(rows: Sequence[Observation], natural: float) -> bool:
    """Whether a server sorts the keys of arguments: all are sorted, and by itself the model does so in `natural` of its calls only."""
    told = all_sorted(rows)
    return told >= DECIDING_ROWS and told * math.log(natural) < -SORTING_NATS


def may_write_anew(rows: Sequence[Observation]) -> bool:
    """Whether a server may have written arguments anew: who does shows one style, a model shows several."""
    return one_style(rows) > 0 and any(row.sizes[0] != row.sizes[1] for row in rows)


def decide(rows: Sequence[Observation], space: Space, habits: Mapping[str, Habit], table: Floats) -> Verdict:
    """The verdict about answers whose scores are `table`."""
    written_anew = may_write_anew(rows)
    totals = table.sum(axis=0) - space.costs(written_anew)
    order = np.argsort(-totals, kind="stable")
    top = int(order[0])
    winner, anew = space.reading(top)
    differences = _held_out(rows, space, table)
    fits = sum(found.get(0, 0.0) >= RULED_OUT for found in differences)
    ahead = table[:, [top]] - table
    loudest = ahead.max(axis=0) if len(rows) else np.zeros(table.shape[1])
    margins = totals[top] - totals - np.maximum(loudest, 0.0)
    differing, open_one, any_out = _rivals(rows, space, winner, margins)
    ruled_out = [name for name, margin in differing.items() if margin >= MARGIN_NATS]
    decided, why = True, f"{winner.name} fits {fits} of {len(rows)} bills"
    if len(rows) == 0 or fits < EXPLAINS * len(rows):
        decided, why = False, f"no reading fits the bills: the best, {winner.name}, {fits} of {len(rows)}"
    elif open_one is not None:
        decided, why = (
            False,
            f"{open_one} is not ruled out: {differing[open_one]:.1f} nats without the answer that speaks loudest",
        )
    elif not any_out and not all(habits[edge].known for edge in LEADS):
        decided, why = False, f"too few rows that tell the readings apart ({len(rows)} rows)"
    elif any(habit.known for habit in habits.values()):
        why += ", with the model's known habits"
    unsure = written_anew and float(margins.reshape(space.shape)[:, :, int(not anew), :].min()) < MARGIN_NATS
    kept = _kept(rows, space, habits, totals, order, anew)
    return Verdict(kept, anew, unsure, len(rows), fits, decided, why, differing, tuple(ruled_out), differences)


def _kept(
    rows: Sequence[Observation], space: Space, habits: Mapping[str, Habit], totals: Floats, order: Ints, anew: bool
) -> tuple[Reading, ...]:
    """The readings that rows are read with: the best, and those near to it, their shares of taken whitespace fitted to the
    answers."""
    near = [int(k) for k in order[: 40 * KEPT_READINGS] if totals[int(order[0])] - totals[int(k)] <= KEPT_NATS]
    out: list[Reading] = []
    best = float(totals[int(order[0])])
    for k in near:
        reading, written = space.reading(k)
        if written == anew and len(out) < KEPT_READINGS:
            out.append(replace(reading, weight=math.exp(float(totals[k]) - best)))
    whole = sum(reading.weight for reading in out)
    out = [replace(reading, weight=reading.weight / whole) for reading in out if reading.weight >= KEPT_SHARE * whole]
    return tuple(_fitted(rows, reading, habits) for reading in out)


def _fitted(rows: Sequence[Observation], reading: Reading, habits: Mapping[str, Habit]) -> Reading:
    """The reading with its shares of taken whitespace as the answers' bills have them, where the model's habit is not known."""
    if all(
        mechanism.kind in ("keep", "join") or habits[edge].known for edge, mechanism in zip(EDGES, reading.edges, strict=True)
    ):
        return reading
    for _ in range(3):
        counts: list[dict[str, float]] = [{}, {}, {}, {}]
        for row in rows:
            for runs, weight in explanations(row, reading):
                for edge, run in enumerate(runs):
                    counts[edge][run] = counts[edge].get(run, 0.0) + weight
        edges = []
        for edge, mechanism in enumerate(reading.edges):
            if mechanism.kind in ("keep", "join") or habits[EDGES[edge]].known:
                edges.append(mechanism)
                continue
            weights = {run: counts[edge].get(run, 0.0) + 0.1 for run, _ in mechanism.model}
            total = sum(weights.values())
            edges.append(Mechanism(mechanism.kind, tuple((run, weight / total) for run, weight in weights.items())))
        a, b, c, d = edges
        reading = replace(reading, edges=(a, b, c, d))
    return reading


def explanations(row: Observation, reading: Reading) -> list[tuple[tuple[str, str, str, str], float]]:
    """The runs at the four edges that meet the bill, with their probabilities; nothing where none does, or where nothing was
    taken."""
    a, b, c, d = reading.edges
    rest = row.billed - reading.billing[1] + int(row.ended and not reading.billing[0]) - next(iter(row.sizes[0]))
    cut = row.truncated and not row.section
    found = [
        ((*r, *t), p * q)
        for r, p in field_runs(row.reasoning, a, b, joins_trail=row.closed or row.section, cut=cut and not row.content.text)
        for t, q in field_runs(row.content, c, d, joins_trail=row.section, cut=cut)
        if row.reasoning.count(*r) + row.content.count(*t) == rest
    ]
    total = sum(weight for _, weight in found)
    return [(runs, weight / total) for runs, weight in found] if total else []


def _held_out(rows: Sequence[Observation], space: Space, table: Floats) -> tuple[Mapping[int, float], ...]:
    """Per answer, how many tokens its bill has more than the readings which the *other half* of the answers chose say, with
    probabilities: a right one says 0. What the wire contradicts is left out, so they may sum to less than one."""
    costs = space.costs(may_write_anew(rows))
    shuffled = np.random.default_rng(len(rows)).permutation(len(rows))
    halves = [(shuffled[::2], shuffled[1::2]), (shuffled[1::2], shuffled[::2])]
    if len(rows) < 4 * DECIDING_ROWS:
        halves = [(shuffled, shuffled)]
    out: list[Mapping[int, float]] = [{}] * len(rows)
    for mine, others in halves:
        chosen = _nearest(space, table[others].sum(axis=0) - costs)
        for k in mine.tolist():
            out[k] = _differences(rows[k], chosen)
    return tuple(out)


def _nearest(space: Space, totals: Floats) -> list[tuple[Reading, bool, float]]:
    """The few readings that are nearest to the best, whether arguments are written anew, and their weights."""
    order = np.argsort(-totals, kind="stable")[:HELD_OUT_READINGS]
    weights = np.exp((totals[order] - totals[order[0]]).astype(np.float64))
    return [(*space.reading(int(k)), float(w)) for k, w in zip(order, weights / weights.sum(), strict=True) if w >= 0.01]


def _differences(row: Observation, chosen: Sequence[tuple[Reading, bool, float]]) -> dict[int, float]:
    out: dict[int, float] = {}
    cut = row.truncated and not row.section
    for reading, anew, weight in chosen:
        a, b, c, d = reading.edges
        rest = row.billed - reading.billing[1] + int(row.ended and not reading.billing[0])
        for r, p in field_runs(row.reasoning, a, b, joins_trail=row.closed or row.section, cut=cut and not row.content.text):
            for t, q in field_runs(row.content, c, d, joins_trail=row.section, cut=cut):
                left = rest - row.reasoning.count(*r) - row.content.count(*t)
                for size, share in row.sizes[int(anew)].items():
                    out[left - size] = out.get(left - size, 0.0) + weight * p * q * share
    return out


def _rivals(
    rows: Sequence[Observation], space: Space, winner: Reading, margins: Floats
) -> tuple[dict[str, float], str | None, bool]:
    """(the smallest margin of each kind of rival that gives other ids, the one that is still open, whether any is ruled out). A
    rival gives other ids where at some edge it says another run in enough answers."""
    matters = max(1.0, min(DECIDING_ROWS, len(rows) / 10))
    others = _other_edges(rows, space, winner)
    shaped = margins.reshape(space.shape)
    left, right = space.pairs
    nearest: dict[str, float] = {}
    differ_left = np.array([max(others[0][lead], others[1][trail]) for lead, trail in left])
    differ_right = np.array([max(others[2][lead], others[3][trail]) for lead, trail in right])
    changed = np.maximum(differ_left[:, None], differ_right[None, :]) >= matters
    smallest = shaped.min(axis=(2, 3))
    for i, j in zip(*np.nonzero(changed), strict=True):
        reading = Reading((*left[i], *right[j]), BILLINGS[int(np.unravel_index(int(shaped[i, j].argmin()), shaped.shape[2:])[1])])
        nearest[reading.name] = min(nearest.get(reading.name, math.inf), float(smallest[i, j]))
    ordered = dict(sorted(nearest.items(), key=lambda item: item[1]))
    open_one = next((name for name, margin in ordered.items() if margin < MARGIN_NATS), None)
    return ordered, open_one, any(margin >= MARGIN_NATS for margin in ordered.values())


def _other_edges(rows: Sequence[Observation], space: Space, winner: Reading) -> list[dict[Mechanism, int]]:
    """For each edge and mechanism: answers in which it says another likeliest run than the winner."""
    out = []
    for k, edge in enumerate(EDGES):
        shown: dict[tuple[str, bool], int] = {}
        for row in rows:
            run = run_of(row, edge)
            if run is not None and not (row.truncated and k % 2):
                key = run, joins_at(row, edge)
                shown[key] = shown.get(key, 0) + 1
        found = {}
        for mechanism in space.mechanisms[k]:
            differing = (_differ(mechanism, winner.edges[k], *key, lead=k % 2 == 0) for key in shown)
            found[mechanism] = sum(n for n, differs in zip(shown.values(), differing, strict=True) if differs)
        out.append(found)
    return out


def _differ(one: Mechanism, other: Mechanism, run: str, joins: bool, *, lead: bool) -> bool:
    """Whether two mechanisms say other likeliest runs of the model behind the wire's. MIXED says none: it stays among the
    readings that rows are read with for as long as it is near, and makes their ids uncertain there."""
    a, b = (m.runs(run, lead=lead, joins=joins) for m in (one, other))
    if not a or not b or MIXED in (one.model, other.model):  # contradicted there: no choice
        return False
    return max(a, key=lambda item: item[1])[0] != max(b, key=lambda item: item[1])[0]


# ---------------------------------------------------------------------------------------------------- change points
def change_point(table: Floats, costs: Floats) -> int | None:
    """Where the provider changed: the number of answers before, or None. `table` [answers in order of time, readings]."""
    n = len(table)
    if n < 2 * SHORTEST_WINDOW:
        return None
    sums = np.cumsum(table, axis=0, dtype=np.float64)
    whole = (sums[-1] - costs).max()
    gains = np.full(n, -np.inf)
    for k in range(SHORTEST_WINDOW, n - SHORTEST_WINDOW + 1):
        before = sums[k - 1] - costs
        gains[k] = before.max() + (sums[-1] - sums[k - 1] - costs).max() - whole
    at = int(gains.argmax())
    return at if gains[at] >= CHANGE_NATS else None


def model_runs(rows: Sequence[Observation], verdict: Verdict) -> Habits:
    """What a decided provider shows of the model's habits: the runs at edges that its mechanism does not hide."""
    out: Habits = {edge: Habit() for edge in EDGES}
    for k, edge in enumerate(EDGES):
        mechanism = verdict.best.edges[k]
        if mechanism.kind not in ("keep", "join"):
            continue
        for row in rows:
            run = run_of(row, edge)
            if run is None or (row.truncated and k % 2):
                continue
            runs = mechanism.runs(run, lead=k % 2 == 0, joins=joins_at(row, edge))
            if runs:
                out[edge].add(runs[0][0])
    return out
