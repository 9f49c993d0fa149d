"""The readings that are tried for a provider, as a grid, and what each costs before any answer speaks.

Belongs here: mechanisms that a provider's texts do not contradict, what the model may have written where nothing is known, costs. Does not
belong here: scores and decisions (`learning.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from eagle3_assets.exact.search.edges import BREAKS, EDGES, JOIN, KEEP, RUNS, Mechanism
from eagle3_assets.exact.search.habits import Habit, seam_table
from eagle3_assets.exact.search.observations import ARGUMENTS, Arguments, Floats, Observation
from eagle3_assets.exact.search.readings import RULES, UNKNOWN_TRAIL, Billing, Reading, Rule

DECIDING_ROWS = 8
# Nats that a reading costs before any answer speaks: of equal ones the simplest is taken
COSTS = {"keep": 0.0, "join": 0.5, "strip": 1.0, "trim": 2.0, "seam": 1.0}
RULE_COSTS: Mapping[Rule, float] = dict(zip(RULES, (0.0, 1.0, 2.0, 2.5, 4.0, 4.0), strict=True))
SPLIT_COST = 1.5  # texts and calls are billed by two rules: 4 of some 16 recorded endpoints
ANEW_COST, OFF_PATH_COST = 3.0, 2.5
NEVER = 1e3
CONTRADICTED = 0.9  # a mechanism that this share of the texts contradicts is not tried
# Where no habit is known and whitespace is taken away, what the model may always write there
SPACE = ((" ", 0.997), ("", 0.001), ("\n", 0.001), ("\n\n", 0.001))
BREAK = (("\n", 0.6), ("\n\n", 0.397), ("", 0.002), (" ", 0.001))
MIXED = ((" ", 0.45), ("", 0.45), ("\n", 0.05), ("\n\n", 0.05))
TRIMMED = (("\n", 0.6), ("\n\n", 0.39), ("", 0.01))
TRIMMED_TRAIL = (("", 0.97), ("\n", 0.02), ("\n\n", 0.01))
# An always written line break that nobody shows: so far from what was recorded that bills must say it against this many nats
UNHEARD_OF = 25.0


Possible = tuple[bool, bool]  # whether arguments may have been written anew; whether they may be off the encoder's path


@dataclass(frozen=True)
class Space:
    """The readings of one provider as a grid: `mechanisms` at each edge, pairs of them for each field, what happens to
    arguments, and a rule of billing. Answers are scored on `shape`, where the rule is that of their own kind (text or calls); readings are
    points of `joint`, which has a rule for each kind."""

    mechanisms: tuple[tuple[Mechanism, ...], ...]

    @property
    def pairs(self) -> tuple[list[tuple[Mechanism, Mechanism]], list[tuple[Mechanism, Mechanism]]]:
        a, b, c, d = self.mechanisms
        return list(product(a, b)), list(product(c, d))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        left, right = self.pairs
        return len(left), len(right), len(ARGUMENTS), len(RULES)

    @property
    def joint(self) -> tuple[int, int, int, int, int]:
        return (*self.shape, len(RULES))

    def place(self, flat: int) -> tuple[int, int]:
        """Where a reading of the joint grid stands on the grid of texts and on that of calls."""
        i, j, s, text, calls = np.unravel_index(flat, self.joint)
        return int(np.ravel_multi_index((i, j, s, text), self.shape)), int(np.ravel_multi_index((i, j, s, calls), self.shape))

    def reading(self, flat: int) -> tuple[Reading, Arguments]:
        """(the reading, what happens to arguments) at an index of the flattened joint grid."""
        i, j, s, text, calls = map(int, np.unravel_index(flat, self.joint))
        left, right = self.pairs
        return Reading((*left[i], *right[j]), Billing(RULES[text], RULES[calls])), ARGUMENTS[s]

    def together(self, texts: Floats, calls: Floats) -> Floats:
        """[joint]: the sum of what texts and calls say, each [shape] flattened."""
        return np.asarray(texts.reshape(self.shape)[..., :, None] + calls.reshape(self.shape)[..., None, :])

    def edge_costs(self, may: Possible) -> Floats:
        """[left, right, arguments]"""
        left, right = self.pairs
        one, other = (np.array([sum(map(_cost, pair)) for pair in pairs]) for pairs in (left, right))
        arguments = np.array([0.0, ANEW_COST if may[0] else NEVER, OFF_PATH_COST if may[1] else NEVER])
        # a detokenizer that joins a space to <think> joins one to </think> as well (vllm#33457); only the other way round is met
        alone = np.array([[UNHEARD_OF * (a[0].kind == "join" != b[0].kind) for b in right] for a in left])
        fields = one[:, None] + other[None, :] + alone
        return np.asarray(fields[:, :, None] + arguments[None, None, :], dtype=np.float32)

    def costs(self, may: Possible) -> Floats:
        """[joint]"""
        one = np.array([RULE_COSTS[rule] for rule in RULES])
        rules = np.where(np.eye(len(RULES), dtype=bool), one[:, None], one[:, None] + one[None, :] + SPLIT_COST)
        return np.asarray(self.edge_costs(may)[..., None, None] + rules, dtype=np.float32)


def _cost(mechanism: Mechanism) -> float:
    return COSTS[mechanism.kind] + UNHEARD_OF * (mechanism.model in (BREAK, TRIMMED))


def space_of(rows: Sequence[Observation], habits: Mapping[str, Habit], *, one_provider: bool = True) -> Space:
    """The mechanisms that these answers do not contradict. `one_provider` False: it may have changed among them."""
    seam = seam_table(habits)
    at = {edge: seam if edge == "content_trail" else () for edge in EDGES}
    return Space(tuple(tuple(_mechanisms(rows, edge, habits[edge], at[edge], one_provider)) for edge in EDGES))


def _mechanisms(
    rows: Sequence[Observation], edge: str, habit: Habit, seam: tuple[tuple[str, float], ...], one_provider: bool
) -> list[Mechanism]:
    lead = edge.endswith("lead")
    tried = [KEEP, JOIN]
    if habit.known:
        tried += [Mechanism("strip", habit.table(RUNS)), Mechanism("trim", habit.table(BREAKS))]
    else:
        tried += [Mechanism("strip", model) for model in ((SPACE, MIXED, BREAK) if lead else (UNKNOWN_TRAIL, BREAK))]
        tried.append(Mechanism("trim", TRIMMED if lead else TRIMMED_TRAIL))
    if seam:
        tried = [replace(m, seam=seam) if m.model else m for m in tried] + [Mechanism("seam", seam=seam)]
    shown = [(run, joins_at(row, edge)) for row in rows if (run := run_of(row, edge)) is not None]
    # two spaces in front, or one behind, in most answers: one was joined on (docs/research/openrouter-contract.md#4.3-1); no
    # model ends its texts in a space
    marked = [run for run, joins in shown if joins]
    joined = sum(run.startswith("  ") if lead else run.endswith(" ") for run in marked)
    if one_provider and joined >= max(DECIDING_ROWS, len(marked) / 2):
        return [JOIN]
    most = CONTRADICTED * len(shown) if one_provider else len(shown) - 1
    return [
        m
        for m in tried
        if m.kind == "keep" or (shown and sum(not m.runs(r, lead=lead, joins=joins) for r, joins in shown) <= most)
    ]


def joins_at(row: Observation, edge: str) -> bool:
    """Whether a marker stands at an edge, to which a server could join a space."""
    if edge.endswith("lead"):
        return True
    return row.section or (edge.startswith("reasoning") and row.closed)


def run_of(row: Observation, edge: str) -> str | None:
    """The wire's run at an edge, None where there is none."""
    name, _, side = edge.partition("_")
    counted = row.reasoning if name == "reasoning" else row.content
    if not counted.text or (side == "trail" and not counted.core):
        return None
    return counted.lead if side == "lead" else counted.trail
