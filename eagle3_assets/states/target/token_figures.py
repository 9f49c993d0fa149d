"""Was this row sampled by this model, with these settings? Figures of every generated id from the model's own logits.

Belongs here: per-token figures, the row's statistics, what they mean. Does not belong here: running the model (`extractors/`), its
head (`target_head.py`), choosing among hypotheses (`choice.py`), the file (`on_policy_table.py`).

q is the distribution that the sampler drew from: the model's, after temperature and nucleus (top_p) truncation, renormalised. Then for
an id that was drawn from q (docs/research/exactness.md#2e)

* z = sum(-log q - H) / sqrt(sum V) is about standard normal (H entropy, V variance of -log q under q): far below 0 the ids were
  sampled colder (or copied), far above 0 by another model, from another prompt, or they are not the ids that were sampled;
* no id lies outside the nucleus;
* E = mean over tilts a of prod_t q(x_t)^-a / sum_u q(u)^(1-a) is a test martingale: its expectation is 1, so E >= 1 / alpha happens to at
  most a share alpha of true rows, at any length and however skewed their surprise is (Markov's inequality; z needs long rows to be
  normal). Tilt a = 1 - 1/T' is the likelihood ratio against ids sampled at T' times the temperature.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

TILTS = (-3.0, -2 / 3, -0.25, 0.25, 0.5, 0.9)  # colder: T' = 0.25, 0.6, 0.8; hotter or another model: 1.33, 2, 10
NUCLEUS_SLACK = 0.02  # bf16 states move the mass above an id by some 1e-3, another kernel by more
EDGE_ALPHA = (
    0.004  # whole distribution (top_p = 1): share of true rows with an edge id this improbable, over all edges of the row
)
FIRST = 8  # response ids whose surprise shows a wrong prompt or template
_WIDTHS = (64, 1024)  # most probable ids looked at for a nucleus before all are sorted


@dataclass(frozen=True, slots=True)
class Scores:
    """One row's generated ids, in order. All arrays float32 [R] but `positions` int32 [R] and `tilts` float32 [R, len(TILTS)].

    `positions`: place in the row. `logprob`: of the id under the model at the sampling temperature, before truncation (natural
    logarithm). `log_q`: the same, renormalised over the nucleus (q itself has no mass outside). `entropy`, `variance`: of
    -log q under q. `mass_above`: probability ranked strictly above the id, before truncation. `tilts`: log sum_u q(u)^(1-a).
    """

    positions: npt.NDArray[np.int32]
    logprob: Floats
    log_q: Floats
    entropy: Floats
    variance: Floats
    mass_above: Floats
    tilts: Floats


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """What the figures of one row say. `log10_e`: logarithm of E. `z`: nan where the model left no choice at all (V = 0).

    `heat`: sum(-log q - H) and `spread`: sum V, the two sums of z; sources are pooled by adding them. `edges`: places in the row of edge
    ids that the sampler cannot have drawn (outside the nucleus; without one, less probable than EDGE_ALPHA allows). `p_end`:
    probability of the end id where the row ends with one, else None. `first_nll`: mean of -logprob over the first ids.
    """

    tokens: int
    mean_logprob: float
    mean_entropy: float
    heat: float
    spread: float
    z: float
    log10_e: float
    nucleus_violations: int
    edges: tuple[int, ...]
    first_nll: float
    p_end: float | None


def token_scores(logits: torch.Tensor, ids: torch.Tensor, *, temperature: float, top_p: float) -> dict[str, torch.Tensor]:
    """Figures of `ids` int64 [c] under `logits` [c, V] (any float dtype): the float arrays of `Scores` as tensors on the same device.

    temperature 0 (greedy) is judged as temperature 1, whole: there is no distribution to compare with, only ranks.
    """
    import torch

    greedy = temperature == 0.0
    scaled = logits.to(torch.float32) / (1.0 if greedy else temperature)
    log_p = scaled - torch.logsumexp(scaled, dim=-1, keepdim=True)
    mine = log_p.gather(1, ids[:, None])
    above = torch.where(log_p > mine, log_p.exp(), 0.0).sum(-1)
    kept = _nucleus(log_p, 1.0 if greedy or top_p <= 0 else top_p)
    log_z = torch.logsumexp(kept, dim=-1, keepdim=True)
    log_q = kept - log_z
    q = log_q.exp()
    finite = torch.where(torch.isinf(log_q), 0.0, log_q)
    entropy = -(q * finite).sum(-1)
    variance = ((q * finite * finite).sum(-1) - entropy * entropy).clamp_min(0.0)
    tilts = torch.stack([torch.logsumexp(log_q * (1.0 - a), dim=-1) for a in TILTS], dim=-1)
    return {
        "logprob": mine[:, 0],
        "log_q": mine[:, 0] - log_z[:, 0],
        "entropy": entropy,
        "variance": variance,
        "mass_above": above,
        "tilts": tilts,
    }


def _nucleus(log_p: torch.Tensor, top_p: float) -> torch.Tensor:
    """[c, k] log-probabilities, falling; -inf outside the nucleus: an id is inside while the mass above it is below `top_p`."""
    import torch

    if top_p >= 1.0:
        return log_p
    for width in (*_WIDTHS, log_p.shape[-1]):
        width = min(width, log_p.shape[-1])
        ranked = torch.topk(log_p, width, dim=-1).values
        mass = ranked.exp().cumsum(-1)
        if width == log_p.shape[-1] or bool((mass[:, -1] >= top_p).all()):
            break
    outside = mass - ranked.exp() >= top_p
    outside[:, 0] = False
    return ranked.masked_fill(outside, float("-inf"))


def row_statistics(
    scores: Scores,
    ids: Sequence[int] | npt.NDArray[np.int64],
    *,
    top_p: float,
    edge: Bools,
    end_id: int,
    greedy: bool = False,
) -> RowStatistics:
    """Statistics of one row. `ids` are all ids of the row, `edge` bool [R] marks generated ids at an edge (`edges_of`).

    `greedy`: at temperature 0 nothing was drawn, so there is no surprise to expect: only ranks and probabilities are told.
    """
    n = len(scores.positions)
    if not n:
        return RowStatistics(0, 0.0, 0.0, 0.0, 0.0, float("nan"), 0.0, 0, (), 0.0, None)
    spread = 0.0 if greedy else float(scores.variance.sum(dtype=np.float64))
    heat = 0.0 if greedy else float((-scores.log_q.astype(np.float64) - scores.entropy).sum())
    ends = int(ids[int(scores.positions[-1])]) == end_id
    truncated = 0 < top_p < 1
    outside = scores.mass_above > top_p + NUCLEUS_SLACK if truncated else np.zeros(n, dtype=bool)
    unlikely = outside if truncated else 1.0 - scores.mass_above < EDGE_ALPHA / max(1, int(edge.sum()))
    return RowStatistics(
        tokens=n,
        mean_logprob=float(scores.logprob.mean(dtype=np.float64)),
        mean_entropy=float(scores.entropy.mean(dtype=np.float64)),
        heat=heat,
        spread=spread,
        # a variance that is only rounding says nothing
        z=heat / spread**0.5 if spread > 1e-6 * n else float("nan"),
        log10_e=0.0 if greedy else log10_mixture(log_martingales(scores)),
        nucleus_violations=int(outside.sum()),
        edges=tuple(int(p) for p in scores.positions[edge & unlikely]),
        first_nll=float(-scores.logprob[:FIRST].mean(dtype=np.float64)),
        p_end=float(np.exp(scores.logprob[-1])) if ends else None,
    )


def temperature_of(heat: float, spread: float, sigmas: float = 3.3) -> tuple[float, float, float]:
    """(estimate, low, high): the temperature, in units of the stated one, at which these ids look sampled.

    One Newton step of the likelihood in the tilt a (first derivative `heat`, curvature -`spread`), T' = 1 / (1 - a); the interval is
    +-`sigmas` standard errors (3.3: 99.9 %). Another model or prompt reads as hotter. Infinite where nothing bounds it.
    """
    if spread <= 0:
        return 1.0, 0.0, float("inf")
    tilt, error = heat / spread, sigmas / spread**0.5
    low, mid, high = (1.0 / (1.0 - a) if a < 1 else float("inf") for a in (tilt - error, tilt, tilt + error))
    return mid, low, high


def log_martingales(scores: Scores) -> npt.NDArray[np.float64]:
    """[len(TILTS)] natural logarithm of each tilt's martingale over the row. Rows of one source may be added: their product is one too."""
    tilts = np.array(TILTS)
    gained = -tilts[None, :] * scores.log_q.astype(np.float64)[:, None] - scores.tilts
    return np.asarray(gained.sum(0))


def log10_mixture(log_martingale: npt.NDArray[np.float64]) -> float:
    """log10 of the mean of the martingales: the E of the module's docstring."""
    top = float(log_martingale.max())
    return (top + float(np.log(np.exp(log_martingale - top).mean()))) / float(np.log(10.0))


def edges_of(ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int32], markers: Collection[int]) -> Bools:
    """bool [R]: generated ids where text and markers meet: the first of each span, every marker, and the id behind one.

    Whitespace that a server added or took, and a template that is one newline off, show there and nowhere else.
    """
    marked = np.isin(ids, list(markers))
    starts = np.diff(positions, prepend=-2) != 1
    before = marked[np.maximum(positions - 1, 0)] & (positions > 0)
    return np.asarray(starts | marked[positions] | before)
