"""Which of the id sequences that the evidence left open did the model sample? Asked of the model itself.

Belongs here: candidates of a row, the posterior over them, the final grade. Does not belong here: figures of ids (`on_policy.py`),
writing them down (`on_policy_table.py`).

Candidates of a row spell (almost) the same text in other ids, so their likelihoods may be compared: posterior ~ prior x exp(log p). The
prior is what the text stage thought: p_exact for the row's own ids, the rest shared by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.grades import GRADES
from eagle3_assets.states.target.token_figures import RowStatistics

CHOSEN = 0.99  # posterior from which C1 becomes B2 (docs/research/exactness.md#6)
IMPOSSIBLE = 6.0  # log10 E: at most one true row in a million
FLOOR = 1e-6  # of a prior: the text stage is never so sure that the model may not overrule it
TAIL = 4  # ids at the end of a prompt by which a survivor's own prompt is found

REASONS = {
    "open": "graded C1 and not asked about: a survivor whose prompt cannot be found, or an engine that captures nothing here",
    "lone": "graded C1 with one id sequence left: what keeps it from B1 (an open provider, answers that are not canonical or were changed "
    "on the way) is no other sequence that the model could compare it with",
    "undecided": "the model left more than one candidate open",
    "edge_tokens": "an id at an edge that the model would hardly have written",
    "on_policy": "the ids as a whole are not what the model samples with these settings",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """`winner` 0 for the row's own ids, k for survivor k - 1; `posterior` of the winner; `log_probs` natural, one a candidate. `lone`: the
    evidence left one sequence, whose posterior is the text stage's."""

    winner: int
    posterior: float
    log_probs: tuple[float, ...]
    lone: bool = False


def candidates(pack: Pack, survivors: Sequence[Sequence[int]], prompt_len: int) -> list[Pack]:
    """The row itself, then each survivor with its own loss mask. A survivor whose prompt cannot be found is left out.

    A survivor is a whole row (prompt and response); where its prompt differs, it ends with the same TAIL ids as the row's does.
    """
    ids = np.asarray(pack.input_ids)
    tail = ids[max(0, prompt_len - TAIL) : prompt_len]
    found = [pack]
    for survivor in survivors:
        own = np.asarray(survivor, dtype=ids.dtype)
        start = _prompt_end(own, ids[:prompt_len], tail)
        if start is None or start >= len(own):
            continue
        mask = np.zeros(len(own), dtype=np.uint8)
        mask[start:] = 1
        found.append(replace(pack, input_ids=own, loss_mask=mask))
    return found


def _prompt_end(own: npt.NDArray[Any], prompt: npt.NDArray[Any], tail: npt.NDArray[Any]) -> int | None:
    if np.array_equal(own[: len(prompt)], prompt):
        return len(prompt)
    if not len(tail) or len(own) < len(tail):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(own, len(tail))
    places = np.flatnonzero((windows == tail).all(1))
    return int(places[-1]) + len(tail) if len(places) else None


def choose(log_probs: Sequence[float], p_exact: float) -> Choice:
    """The most probable candidate. `log_probs[0]` is the row's own, whose prior is `p_exact`; nan where the model gave nothing finite:
    then nothing is chosen (the row's own ids, posterior 0)."""
    if not np.isfinite(log_probs).all():
        return Choice(0, 0.0, tuple(float(x) for x in log_probs))
    others = len(log_probs) - 1
    own = min(max(p_exact, FLOOR), 1.0 - FLOOR) if others else 1.0
    prior = np.array([own, *[(1.0 - own) / max(1, others)] * others])
    score = np.log(prior) + np.array(log_probs)
    share = np.exp(score - score.max())
    winner = int(score.argmax())
    return Choice(winner, float(share[winner] / share.sum()), tuple(float(x) for x in log_probs))


def final_grade(grade: str, choice: Choice, statistics: RowStatistics) -> tuple[str, tuple[str, ...]]:
    """(grade after the model's verdict, reasons). `statistics` are those of the winner.

    C1 becomes B2 or goes out (Q); a C1 row without candidates stays C1, or goes out on what the model would not have
    sampled. Proven grades stay, whatever surprises the model.
    """
    reasons = []
    if statistics.edges:
        reasons.append("edge_tokens")
    if not statistics.log10_e < IMPOSSIBLE:  # figures that are no numbers prove nothing
        reasons.append("on_policy")
    if GRADES[grade].proven:
        return grade, tuple(reasons)
    if grade != "C1":
        return ("Q" if reasons else grade), tuple(reasons)
    if len(choice.log_probs) < 2:  # none where the row has no survivors, or was not asked about them (ray)
        return ("Q" if reasons else "C1"), (*reasons, "lone" if choice.lone else "open")
    if choice.posterior < CHOSEN:
        return "Q", (*reasons, "undecided")
    return ("Q" if reasons else "B2"), tuple(reasons)
