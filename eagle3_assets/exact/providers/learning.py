"""Learning how one provider bends and bills, from the bills of its answers and the model's known habits.

Belongs here: the score of every reading, deciding between them, change points. Does not belong here: the JSON of profiles and the
order of providers (`wire_profiles.py`), prompts (`prompt_learning.py`), single rows (`selection.py`).

Score. Under a reading each answer has a probability: that its bill is met (a right reading misses 1 %, and one that is not
canonical shows it besides), that the reading could have made this text (0.2 % odd cases), and, where a habit is known, that the
model would have written what the reading says it wrote (at most 20:1). Readings are ranked by the sum of the logs.

Decision. A rival is ruled out when it is MARGIN_NATS behind *without the answer that speaks loudest against it*: so no answer's
grade rests on itself. A provider is decided when some rival with other ids is ruled out and every rival that is left gives the
same ids.

Change. Answers are in order of time. Where two readings, one before and one behind a moment, explain CHANGE_NATS more than the
best one, the provider changed at that moment; each part is learned by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from eagle3_assets.exact.providers.predictive import by_length, clears, contradiction, strange_run
from eagle3_assets.exact.providers.reading_space import DECIDING_ROWS, MIXED, RULE_COSTS, Possible, Space, joins_at, run_of
from eagle3_assets.exact.search.edges import EDGES, PLACES, SEAM, Mechanism, place_of
from eagle3_assets.exact.search.habits import Habit, Habits, Spelling, no_habits, seldom
from eagle3_assets.exact.search.observations import ARGUMENTS, LOW, SPAN, Arguments, Floats, Observation, field_table, size_table
from eagle3_assets.exact.search.readings import RULED_OUT, RULES, Reading, Rule, field_runs

MARGIN_NATS, CHANGE_NATS = 20.0, 30.0
MISSES_BILL, ODD_TEXT, STRAY_BILL = 0.01, 0.002, 0.1
KNOWN_IDS = 20_000  # ids that say how often a model is not canonical
EXPLAINS = 0.80  # of the bills that canonical answers would meet
SPLIT_NATS = 12.0
INVENTED = 0.02
ALWAYS = 0.9
FEW_OF_A_KIND = 3
SHORTEST_WINDOW = 8
Ints = npt.NDArray[np.int64]
HELD_OUT_READINGS = 4
KEPT_NATS, KEPT_READINGS, KEPT_SHARE = (
    12.0,
    12,
    1e-3,
)  # readings that a profile keeps for its rows: those not further behind than this


Turn = Literal["text", "calls"]
TURNS: tuple[Turn, Turn] = ("text", "calls")


@dataclass(frozen=True)
class Verdict:
    """What was learned of one kind of turns in a window. `best` first of `readings` (weights sum to 1); `fits`: rows whose bill is met by
    the readings that the other half of the rows chose; `arguments_p`: the posterior of each of `ARGUMENTS`."""

    readings: tuple[Reading, ...]
    arguments: Arguments
    arguments_p: tuple[float, ...]
    rows: int
    fits: int
    decided: bool
    why: str
    margins: Mapping[str, float]
    ruled_out: tuple[str, ...]

    @property
    def best(self) -> Reading:
        return self.readings[0]


@dataclass(frozen=True)
class Decision:
    """What was learned of one window: a verdict for each kind of turn that it has, and for each answer how many tokens its bill has more
    than the readings say {tokens: probability}."""

    verdicts: Mapping[Turn, Verdict]
    differences: tuple[Mapping[int, float], ...]

    @property
    def missed(self) -> tuple[bool, ...]:
        """Per row, whether hardly any way to read it meets its bill."""
        return tuple(map(missed_one, self.differences))

    @property
    def decided(self) -> bool:
        return all(verdict.decided for verdict in self.verdicts.values())


def missed_one(difference: Mapping[int, float]) -> bool:
    """Whether hardly any way to read an answer meets its bill."""
    return difference.get(0, 0.0) < RULED_OUT


def turn_of(row: Observation) -> Turn:
    return "calls" if row.section else "text"


# ---------------------------------------------------------------------------------------------------- scores
def scores(rows: Sequence[Observation], space: Space, habits: Mapping[str, Habit], spelling: Spelling, rho: int | None) -> Floats:
    """Log-probabilities [rows, readings]. `spelling`: how often the model is not canonical; `rho` the convention of reasoning counts, if known."""
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
    for b, rule in enumerate(RULES):
        target = billed - stands - rule.extra + (0 if rule.counts_end else 1) * ended
        # what is left for frame sizes once the two fields have d1 and d2 more
        rest = target[:, None, None] - (where + LOW)[None, :, None] - (where + LOW)[None, None, :] - LOW
        inside = (rest >= 0) & (rest < SPAN)
        rest = np.clip(rest, 0, SPAN - 1)
        for s in range(len(ARGUMENTS)):
            share = np.where(
                inside,
                np.take_along_axis(sizes[:, s][:, None, :], rest.reshape(len(rows), 1, -1), axis=2).reshape(rest.shape),
                0.0,
            )
            fits[:, :, :, s, b] = np.einsum("npd,nde,nqe->npq", one, share.astype(np.float32), other, optimize=True)
    odd = np.array([spelling.odd(row.drawn, row.billed) for row in rows], dtype=np.float32)[:, None, None, None, None]
    same, more, two = (float(spelling.changes.get(change, 0.0)) for change in (0, 1, 2))
    one_more = _one_more(fits, ended)
    met = (1 - odd * (1 - same)) * fits + odd * (more * one_more + two * _one_more(one_more, ended))
    chance = (1 - MISSES_BILL) * (met + odd * (1 - same - more - two) * STRAY_BILL) + MISSES_BILL * STRAY_BILL
    chance = np.where(could[:, :, :, None, None], chance, ODD_TEXT * STRAY_BILL)
    out = np.log(np.maximum(chance, 1e-9))
    out += (_habit_nats(rows, left, "reasoning", habits)[:, :, None] + _habit_nats(rows, right, "content", habits)[:, None, :])[
        :, :, :, None, None
    ]
    return np.asarray(out.reshape(len(rows), -1), dtype=np.float32)


def _one_more(fits: Floats, ended: Ints) -> Floats:
    """[rows, …, RULES]: the probability that a bill is one more than what is counted, as most of those are that are not canonical: what the
    rule that counts one more says of it."""
    out = np.zeros_like(fits)
    for b, rule in enumerate(RULES):
        for end in (False, True):
            after = Rule(True, rule.constant(end) + 1)
            if after in RULES:
                out[ended == end, ..., b] = fits[ended == end, ..., RULES.index(after)]
    return out


def expected_miss(row: Observation, spelling: Spelling) -> float:
    """How often a right reading misses the bill of such an answer."""
    return MISSES_BILL + (1 - MISSES_BILL) * spelling.misses(row.drawn, row.billed)


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
        memory: dict[tuple[str, Mechanism, bool], float] = {}
        for i, row in enumerate(rows):
            run = run_of(row, edge)
            if run is None or (side and row.truncated):
                continue
            joins, place = joins_at(row, edge), place_of(edge, row.section)
            for j, pair in enumerate(pairs):
                mechanism = pair[side]
                if mechanism.kind == "trim" or not mechanism.hides(joins):  # else its table holds every run that the model writes
                    key = (run, mechanism, joins)
                    if key not in memory:
                        runs = mechanism.runs(run, lead=not side, joins=joins)
                        memory[key] = math.log(seldom(habits[place], place, [found for found, _ in runs])) if runs else 0.0
                    out[i, j] += memory[key]
    return out


# ---------------------------------------------------------------------------------------------------- deciding
def one_style(rows: Sequence[Observation]) -> int:
    """The number of calls where all arguments came in one style, 0 where they did not."""
    told = [styles for row in rows for styles in row.styles]
    return len(told) if told and frozenset.intersection(*told) else 0


def possible(rows: Sequence[Observation]) -> Possible:
    """Whether a server may have written arguments anew (who does shows one style, a model shows several), and whether compact ones may be
    off the encoder's path."""
    anew = one_style(rows) > 0 and any(row.sizes[0] != row.sizes[1] for row in rows)
    return anew, any(row.sizes[0] != row.sizes[2] for row in rows)


def decide(
    rows: Sequence[Observation],
    space: Space,
    habits: Mapping[str, Habit],
    table: Floats,
    spelling: Spelling,
    *,
    seen: Mapping[str, Collection[str]] | None = None,
) -> Decision:
    """The decision about answers whose scores are `table` (at least one). `seen` {edge: runs that other
    providers' texts show there}.

    Texts and calls share what is done at the edges, as far as they agree: where two explanations are SPLIT_NATS better than one, each
    kind is judged by itself."""
    turns = np.array([row.section for row in rows], dtype=bool)
    may = possible(rows)
    if 0 < turns.sum() < len(rows) and _disagree(space, table, turns, may):
        return _apart(rows, space, habits, table, spelling, turns, seen=seen)
    totals = _totals(space, table, turns, may)
    top = int(totals.argmax())
    winner, arguments = space.reading(top)
    differences = _held_out(rows, space, table, turns)
    margins = totals[top] - totals - np.maximum(_loudest(space, table, turns, top), 0.0)
    order = np.argsort(-totals, kind="stable")
    kept = _kept(rows, space, habits, totals, order, arguments)
    by_arguments = totals.reshape(space.joint).max(axis=(0, 1, 3, 4))
    likely = np.exp(by_arguments - by_arguments.max())
    arguments_p = tuple(round(float(p), 6) for p in likely / likely.sum())
    verdicts: dict[Turn, Verdict] = {}
    parts = {turn: [k for k, row in enumerate(rows) if turn_of(row) == turn] for turn in TURNS}
    missed = {turn: [missed_one(differences[k]) for k in part] for turn, part in parts.items()}
    expected = {turn: [expected_miss(rows[k], spelling) for k in part] for turn, part in parts.items()}
    if sum(count.ids for count in spelling.canonicality.counts.values()) < KNOWN_IDS:
        usual = by_length(
            rows, [missed_one(difference) for difference in differences], [expected_miss(row, spelling) for row in rows]
        )
        expected = {turn: [usual[k] for k in part] for turn, part in parts.items()}
    against = {turn: contradiction([rows[k] for k in parts[turn]], missed[turn], expected[turn]) for turn in TURNS}
    for turn, other in (TURNS, TURNS[::-1]):
        mine = [rows[k] for k in parts[turn]]
        if not mine:
            continue
        differing, open_one = _rivals(mine, space, winner, margins)
        fits = len(mine) - sum(missed[turn])
        # few of a kind say enough where all agree with what the many of the other kind say
        few = winner.billing.text == winner.billing.calls and fits == len(mine) and len(parts[other]) >= DECIDING_ROWS
        why = _objection(mine, winner, fits, expected[turn], habits, seen or {}, FEW_OF_A_KIND if few else DECIDING_ROWS)
        if why is None and open_one is not None:
            why = f"{open_one} is not ruled out: {differing[open_one]:.1f} nats without the answer that speaks loudest"
        if why is None and against[turn]:
            why = f"{winner.name} does not explain all: {against[turn]}"
        if why is None and against[other] and not clears(missed[turn]):
            why = f"{winner.name} does not explain all: among answers with {'text only' if turn == 'calls' else 'calls'}, {against[other]}"
        decided = why is None
        if why is None:
            known = ", with the model's known habits" if any(habit.known for habit in habits.values()) else ""
            why = f"{winner.name} fits {fits} of {len(mine)} bills{known}"
        ruled_out = tuple(name for name, margin in differing.items() if margin >= MARGIN_NATS)
        verdicts[turn] = Verdict(kept, arguments, arguments_p, len(mine), fits, decided, why, differing, ruled_out)
    return Decision(verdicts, differences)


def _objection(
    rows: Sequence[Observation],
    winner: Reading,
    fits: int,
    expected: Sequence[float],
    habits: Mapping[str, Habit],
    seen: Mapping[str, Collection[str]],
    fewest: int,
) -> str | None:
    """Why the winner decides nothing whatever its rivals say, or None."""
    if len(rows) < fewest:
        return f"too few answers of this kind ({len(rows)}, at least {fewest})"
    if fits < EXPLAINS * (len(rows) - sum(expected)):
        return f"no reading fits the bills: the best, {winner.name}, {fits} of {len(rows)}"
    return _invention(rows, winner, expected, habits, seen) or _strangeness(rows, winner, habits)


def _strangeness(rows: Sequence[Observation], winner: Reading, habits: Mapping[str, Habit]) -> str | None:
    """An edge where the winner says that the model wrote what, by its known habit, it hardly ever writes."""
    for place, shown in model_runs_at(rows, winner).items():
        if habits[place].known:
            found = strange_run(place, shown, habits[place])
            if found is not None:
                return f"{winner.name}: {found}"
    return None


def model_runs_at(rows: Sequence[Observation], reading: Reading) -> dict[str, list[str]]:
    """{place: what a reading says the model wrote there, where it does not hide it}"""
    out: dict[str, list[str]] = {}
    for edge, mechanism in zip(EDGES, reading.edges, strict=True):
        for calls in (False, True):
            part = [row for row in rows if row.section == calls]
            if not any(mechanism.hides(joins_at(row, edge)) for row in part):
                out.setdefault(place_of(edge, calls), []).extend(_shown_runs(part, edge, mechanism))
    return out


def _shown_runs(rows: Sequence[Observation], edge: str, mechanism: Mechanism) -> list[str]:
    """The model's run in each text at an edge whose mechanism does not hide it. What a length limit cut off has no habit."""
    out = []
    for row in rows:
        run = run_of(row, edge)
        if run is None or (row.truncated and edge.endswith("trail")):
            continue
        runs = mechanism.runs(run, lead=edge.endswith("lead"), joins=joins_at(row, edge))
        out += [runs[0][0]] if runs else []
    return out


def _invention(
    rows: Sequence[Observation],
    winner: Reading,
    expected: Sequence[float],
    habits: Mapping[str, Habit],
    seen: Mapping[str, Collection[str]],
) -> str | None:
    """Whitespace that the winner says was taken away, where nothing shows that the model ever writes it: neither a known habit nor another
    provider's text. A bill that is likelier missed (`expected`: how often) than met so puts in nothing."""
    ways = [_ways_to_bill(row, winner) for row in rows]
    runs = [
        max(found, key=lambda item: item[1])[0] if sum(weight for _, weight in found) > miss else None
        for found, miss in zip(ways, expected, strict=True)
    ]
    for place in PLACES:
        edge = "content_trail" if place == SEAM else place
        k = EDGES.index(edge)
        here = [(row, found) for row, found in zip(rows, runs, strict=True) if place_of(edge, row.section) == place]
        if not any(winner.edges[k].hides(joins_at(row, edge)) for row, _ in here):
            continue
        habit = habits[place]
        told = Counter(run for _, found in here if found and (run := found[k]))
        if not told or (not habit.known and dict(winner.edges[k].model).get(" ", 0.0) >= ALWAYS):
            continue  # one space: what it costs depends on the text behind it, and no constant in a bill does
        run, count = told.most_common(1)[0]
        usual = habit.share(run) * len(here) if habit.known else 0.0
        if count > INVENTED * len(rows) and count > FEW_OF_A_KIND + 4 * usual and (habit.known or run not in seen.get(edge, ())):
            return f"{winner.name} puts {run!r} at the {place.replace('_', ' ')} of {count} of {len(rows)} answers, and nobody shows such a one"
    return None


def _totals(space: Space, table: Floats, turns: npt.NDArray[np.bool_], may: Possible) -> Floats:
    """[joint, flattened] scores of the readings over all answers, less what they cost. `turns`: which answers have calls."""
    totals = space.together(table[~turns].sum(axis=0), table[turns].sum(axis=0)) - space.costs(may)
    return np.asarray(totals, dtype=np.float32).reshape(-1)


def _loudest(space: Space, table: Floats, turns: npt.NDArray[np.bool_], top: int) -> Floats:
    """[joint, flattened]: how much the answer that speaks loudest for the reading `top` speaks against each."""
    out = []
    for place, part in zip(space.place(top), (table[~turns], table[turns]), strict=True):
        nothing = np.zeros(table.shape[1], dtype=np.float32)
        out.append((part[:, [place]] - part).max(axis=0) if len(part) else nothing)
    texts, calls = (one.reshape(space.shape) for one in out)
    return np.asarray(np.maximum(texts[..., :, None], calls[..., None, :])).reshape(-1)


def _disagree(space: Space, table: Floats, turns: npt.NDArray[np.bool_], may: Possible) -> bool:
    """Whether texts and calls are explained so much better by readings of their own that the edges are not one thing."""
    if min(turns.sum(), (~turns).sum()) < DECIDING_ROWS:
        return False
    costs = space.costs(may).reshape(*space.joint)
    rule = np.diagonal(costs, axis1=3, axis2=4).reshape(space.shape)
    alone = sum(float((part.sum(axis=0).reshape(space.shape) - rule).max()) for part in (table[~turns], table[turns]))
    return alone - float(_totals(space, table, turns, may).max()) > SPLIT_NATS


def _apart(
    rows: Sequence[Observation],
    space: Space,
    habits: Mapping[str, Habit],
    table: Floats,
    spelling: Spelling,
    turns: npt.NDArray[np.bool_],
    *,
    seen: Mapping[str, Collection[str]] | None,
) -> Decision:
    verdicts: dict[Turn, Verdict] = {}
    differences: list[Mapping[int, float]] = [{}] * len(rows)
    for part in (np.flatnonzero(~turns), np.flatnonzero(turns)):
        mine = [rows[k] for k in part.tolist()]
        found = decide(mine, space, habits, table[part], spelling, seen=seen)
        verdicts |= found.verdicts
        for k, difference in zip(part.tolist(), found.differences, strict=True):
            differences[k] = difference
    return Decision(verdicts, tuple(differences))


def _kept(
    rows: Sequence[Observation], space: Space, habits: Mapping[str, Habit], totals: Floats, order: Ints, arguments: Arguments
) -> tuple[Reading, ...]:
    """The readings that rows are read with: the best, and those near to it, their shares of taken whitespace fitted to the
    answers."""
    near = [int(k) for k in order[: 40 * KEPT_READINGS] if totals[int(order[0])] - totals[int(k)] <= KEPT_NATS]
    out: list[Reading] = []
    best = float(totals[int(order[0])])
    for k in near:
        reading, told = space.reading(k)
        if told == arguments and len(out) < KEPT_READINGS:
            out.append(replace(reading, weight=math.exp(float(totals[k]) - best)))
    whole = sum(reading.weight for reading in out)
    out = [replace(reading, weight=reading.weight / whole) for reading in out if reading.weight >= KEPT_SHARE * whole]
    return tuple(_fitted(rows, reading, habits) for reading in out)


def _fitted(rows: Sequence[Observation], reading: Reading, habits: Mapping[str, Habit]) -> Reading:
    """The reading with its shares of taken whitespace as the answers' bills have them, where the model's habit is not known."""
    if all(not mechanism.model or habits[edge].known for edge, mechanism in zip(EDGES, reading.edges, strict=True)):
        return reading
    for _ in range(3):
        counts: list[dict[str, float]] = [{}, {}, {}, {}]
        for row in rows:
            for runs, weight in explanations(row, reading):
                for edge, run in enumerate(runs):
                    if row.section and reading.edges[edge].seam:
                        continue  # its table is another one, and known
                    counts[edge][run] = counts[edge].get(run, 0.0) + weight
        edges = []
        for edge, mechanism in enumerate(reading.edges):
            if not mechanism.model or habits[EDGES[edge]].known:
                edges.append(mechanism)
                continue
            weights = {run: counts[edge].get(run, 0.0) + 0.1 for run, _ in mechanism.model}
            total = sum(weights.values())
            edges.append(replace(mechanism, model=tuple((run, weight / total) for run, weight in weights.items())))
        a, b, c, d = edges
        reading = replace(reading, edges=(a, b, c, d))
    return reading


def explanations(row: Observation, reading: Reading) -> list[tuple[tuple[str, str, str, str], float]]:
    """The runs at the four edges that meet the bill, with their probabilities; nothing where none does, or where nothing was
    taken."""
    found = _ways_to_bill(row, reading)
    total = sum(weight for _, weight in found)
    return [(runs, weight / total) for runs, weight in found] if total else []


def _ways_to_bill(row: Observation, reading: Reading) -> list[tuple[tuple[str, str, str, str], float]]:
    """The same with the weight that each has before the bill is looked at."""
    a, b, c, d = reading.edges
    rest = row.billed - reading.billing.rule(row.section).constant(row.ended) - next(iter(row.sizes[0]))
    cut = row.truncated and not row.section
    return [
        ((*r, *t), p * q)
        for r, p in field_runs(row.reasoning, a, b, joins_trail=row.closed or row.section, cut=cut and not row.content.text)
        for t, q in field_runs(row.content, c, d, joins_trail=row.section, cut=cut, behind_marker=row.closed)
        if row.reasoning.count(*r) + row.content.count(*t) == rest
    ]


def _held_out(
    rows: Sequence[Observation], space: Space, table: Floats, turns: npt.NDArray[np.bool_]
) -> tuple[Mapping[int, float], ...]:
    """Per answer, how many tokens its bill has more than the readings which the *other half* of the answers chose say, with
    probabilities: a right one says 0. What the wire contradicts is left out, so they may sum to less than one."""
    may = possible(rows)
    shuffled = np.random.default_rng(len(rows)).permutation(len(rows))
    halves = [(shuffled[::2], shuffled[1::2]), (shuffled[1::2], shuffled[::2])]
    if len(rows) < 4 * DECIDING_ROWS:
        halves = [(shuffled, shuffled)]
    out: list[Mapping[int, float]] = [{}] * len(rows)
    for mine, others in halves:
        chosen = _nearest(space, _totals(space, table[others], turns[others], may))
        for k in mine.tolist():
            out[k] = _differences(rows[k], chosen)
    return tuple(out)


def _nearest(space: Space, totals: Floats) -> list[tuple[Reading, Arguments, float]]:
    """The few readings that are nearest to the best, what happens to arguments, and their weights."""
    order = np.argsort(-totals, kind="stable")[:HELD_OUT_READINGS]
    weights = np.exp((totals[order] - totals[order[0]]).astype(np.float64))
    return [(*space.reading(int(k)), float(w)) for k, w in zip(order, weights / weights.sum(), strict=True) if w >= 0.01]


def _differences(row: Observation, chosen: Sequence[tuple[Reading, Arguments, float]]) -> dict[int, float]:
    out: dict[int, float] = {}
    cut = row.truncated and not row.section
    for reading, arguments, weight in chosen:
        a, b, c, d = reading.edges
        rest = row.billed - reading.billing.rule(row.section).constant(row.ended)
        for r, p in field_runs(row.reasoning, a, b, joins_trail=row.closed or row.section, cut=cut and not row.content.text):
            for t, q in field_runs(row.content, c, d, joins_trail=row.section, cut=cut, behind_marker=row.closed):
                left = rest - row.reasoning.count(*r) - row.content.count(*t)
                for size, share in row.sizes[ARGUMENTS.index(arguments)].items():
                    out[left - size] = out.get(left - size, 0.0) + weight * p * q * share
    return out


def _rivals(rows: Sequence[Observation], space: Space, winner: Reading, margins: Floats) -> tuple[dict[str, float], str | None]:
    """(the smallest margin of each kind of rival that gives other ids, the one that is still open). A rival gives
    other ids where at some edge it says another run in enough answers."""
    matters = max(1.0, min(DECIDING_ROWS, len(rows) / 10))
    others = _other_edges(rows, space, winner)
    shaped = margins.reshape(space.joint)
    left, right = space.pairs
    nearest: dict[str, float] = {}
    differ_left = np.array([max(others[0][lead], others[1][trail]) for lead, trail in left])
    differ_right = np.array([max(others[2][lead], others[3][trail]) for lead, trail in right])
    changed = np.maximum(differ_left[:, None], differ_right[None, :]) >= matters
    behind = shaped.reshape(*shaped.shape[:2], -1)
    smallest, where = behind.min(axis=2), behind.argmin(axis=2)
    for i, j in zip(*np.nonzero(changed), strict=True):
        flat = int(np.ravel_multi_index((int(i), int(j), *np.unravel_index(int(where[i, j]), shaped.shape[2:])), shaped.shape))
        name = space.reading(flat)[0].name
        nearest[name] = min(nearest.get(name, math.inf), float(smallest[i, j]))
    ordered = dict(sorted(nearest.items(), key=lambda item: item[1]))
    open_one = next((name for name, margin in ordered.items() if margin < MARGIN_NATS), None)
    return ordered, open_one


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
def change_point(rows: Sequence[Observation], space: Space, table: Floats) -> int | None:
    """Where the provider changed: the number of answers before, or None. `rows` in order of time, `table` their scores."""
    n = len(rows)
    if n < 2 * SHORTEST_WINDOW:
        return None
    costs = space.edge_costs(possible(rows))[..., None] / 2 + np.array([RULE_COSTS[rule] for rule in RULES]) / 2
    scored = table.reshape(n, *space.shape)

    def best(sums: npt.NDArray[np.float64]) -> float:
        """Of one side, texts and calls with a rule each."""
        return float((sums - costs).max(axis=-1).sum(axis=0).max())

    whole = np.zeros((2, *space.shape))
    for row, score in zip(rows, scored, strict=True):
        whole[int(row.section)] += score
    before, gains = np.zeros_like(whole), np.full(n, -np.inf)
    for k in range(n - SHORTEST_WINDOW):
        before[int(rows[k].section)] += scored[k]
        if k + 1 >= SHORTEST_WINDOW:
            gains[k + 1] = best(before) + best(whole - before)
    at = int(gains.argmax())
    return at if gains[at] - best(whole) >= CHANGE_NATS else None


def model_runs(rows: Sequence[Observation], verdict: Verdict) -> Habits:
    """What decided turns show of the model's habits: the runs at edges that its mechanism does not hide."""
    out = no_habits()
    for place, runs in model_runs_at(rows, verdict.best).items():
        for run in runs:
            out[place].add(run)
    return out
