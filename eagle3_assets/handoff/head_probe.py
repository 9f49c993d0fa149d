"""Do the exported states predict? `head(norm(final))` of every position against the id that the target wrote next.

Belongs here: the measure, the readings it is compared with, when an export is refused. Does not belong here: reading an export
(the caller hands over what a trainer would feed its head), the layer self-test of extraction (`states.self_test`).

A trainer's labels are the softmax of this head. Three mistakes leave every shape right: the final norm twice or not at all, the
layer before the last, states one position off. On answers at temperature 0 the most probable id is the next one; on sampled answers it is
so in the share that the distribution itself states (after temperature and top_p), which is as sharp a test: an export whose logits
are too sure or too flat misses its own forecast. So the same rule holds for both, and the greedy share is the case where the forecast is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.states.format.final_norm import FinalNorm, normed_share

if TYPE_CHECKING:
    import torch

POSITIONS, POSITIONS_A_ROW = 2048, 64
CHUNK = 128  # positions whose logits are held at once: 84 MB for 163,840 ids
CLEAR = 0.1  # the two best logits differ by more: rounding to bf16 cannot change which is best
MIN_SHARE, MIN_CLEAR_SHARE = 0.99, 0.999  # of greedy answers
MAX_GAP = 0.02  # between forecast and outcome of sampled answers; five standard deviations of chance come on top
MIN_NORMED = 0.9  # share of states that must look as if they went through the norm once
# Another reading is better when chance would do as much for it this seldom. Greedy answers leave chance to rounding alone.
LUCK, LUCK_GREEDY = 1e-3, 1e-2


@dataclass(frozen=True, slots=True)
class Positions:
    """Where to look in one row: `at` [n] are positions t whose next id is supervised; `final` [T, H] is what the trainer's head would
    get; `temperature` and `top_p` are those of the answer (None: not known, an import's)."""

    final: torch.Tensor
    input_ids: npt.NDArray[np.int32]
    at: npt.NDArray[np.int64]
    temperature: float | None
    top_p: float


@dataclass(slots=True)
class Reading:
    """How often one reading of the states predicts: counts over `positions`."""

    positions: int = 0
    right: int = 0
    clear: int = 0
    clear_right: int = 0
    forecast_of: int = 0  # positions whose temperature is known
    forecast_right: int = 0
    forecast: float = 0.0
    variance: float = 0.0
    better: int = 0  # positions where this reading is right and the exported one is not
    worse: int = 0

    @property
    def share(self) -> float:
        return self.right / self.positions if self.positions else 0.0

    @property
    def clear_share(self) -> float:
        return self.clear_right / self.clear if self.clear else 1.0


@dataclass(slots=True)
class Measured:
    """`exported`, and the other readings by name; `normed`: share of states that look post-norm; `greedy`: all answers at temperature 0."""

    exported: Reading = field(default_factory=Reading)
    others: dict[str, Reading] = field(default_factory=dict)
    normed: float = 0.0
    greedy: bool = True

    def numbers(self) -> dict[str, Any]:
        e = self.exported
        return {
            "positions": e.positions, "predicted": e.share, "predicted_where_clear": e.clear_share,
            "forecast": e.forecast / e.forecast_of if e.forecast_of else None, "normed": self.normed,
            **{f"predicted_{name}": reading.share for name, reading in self.others.items()},
        }  # fmt: skip


def measure(rows: Sequence[Positions], head: torch.Tensor, norm: FinalNorm) -> Measured:
    """Run the head over the chosen positions of `rows`, as exported and under the readings that a mistake would need to be undone."""
    found = Measured(greedy=all(row.temperature == 0 for row in rows))
    normed: list[float] = []
    for row in rows:
        found.exported.positions += len(row.at)
        states = row.final[row.at].float()
        normed += [normed_share(states.numpy(), norm)] * len(row.at)
        for cut in range(0, len(row.at), CHUNK):
            _add(found, row, row.at[cut : cut + CHUNK], head, norm)
    found.normed = float(np.mean(normed)) if normed else 0.0
    return found


def _readings(final: torch.Tensor, at: npt.NDArray[np.int64], norm: FinalNorm) -> Iterator[tuple[str, torch.Tensor]]:
    """The states at `at` [n, H] fp32 as they are, and as they would be right after each mistake."""
    import torch

    here = final[at].float()
    yield "exported", here
    yield "with_a_norm_more", norm.apply(here)
    yield "with_a_norm_less", here / torch.from_numpy(norm.weight)  # up to its length, which does not move the best id
    yield "a_position_later", final[np.minimum(at + 1, len(final) - 1)].float()
    yield "a_position_earlier", final[np.maximum(at - 1, 0)].float()


def _add(found: Measured, row: Positions, at: npt.NDArray[np.int64], head: torch.Tensor, norm: FinalNorm) -> None:
    import torch

    wanted = torch.from_numpy(row.input_ids[at + 1].astype(np.int64))
    hits: torch.Tensor | None = None
    for name, states in _readings(row.final, at, norm):
        logits = _logits(states, head)
        right = logits.argmax(-1) == wanted
        if name == "exported":
            hits = right
            top = logits.topk(2, dim=-1).values
            clear = top[:, 0] - top[:, 1] > CLEAR
            found.exported.clear += int(clear.sum())
            found.exported.clear_right += int((right & clear).sum())
            found.exported.right += int(right.sum())
            if row.temperature is not None:
                _add_forecast(found.exported, _forecast(logits, row.temperature, row.top_p), right)
            continue
        assert hits is not None
        other = found.others.setdefault(name, Reading())
        other.positions += len(at)
        other.right += int(right.sum())
        other.better += int((right & ~hits).sum())
        other.worse += int((hits & ~right).sum())


def _add_forecast(reading: Reading, forecast: torch.Tensor, right: torch.Tensor) -> None:
    reading.forecast_of += len(right)
    reading.forecast_right += int(right.sum())
    reading.forecast += float(forecast.sum())
    reading.variance += float((forecast * (1 - forecast)).sum())


def _logits(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """fp32 [n, V]; a head in bf16 is widened in blocks, so that it is never held twice."""
    import torch

    blocks = [states @ head[k : k + 16384].float().T for k in range(0, head.shape[0], 16384)]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)


def _forecast(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Probability [n] that an answer sampled from these logits takes the most probable id: its share of the nucleus of top_p."""
    import torch

    if temperature == 0:
        return torch.ones(len(logits))
    falling = (logits / temperature).softmax(-1).sort(-1, descending=True).values
    before = falling.cumsum(-1) - falling
    return falling[:, 0] / (falling * (before < top_p)).sum(-1)


def refusal_of(found: Measured) -> str | None:
    """Why an export with these figures must not go on (the sharpest reason first), or None."""
    e = found.exported
    if not e.positions:
        return "there is no supervised position to look at"
    if found.normed < MIN_NORMED:
        return f"only {found.normed:.1%} of the final states look as if they went through the final norm once"
    for name, other in found.others.items():
        if other.better > other.worse and _luck(other.better, other.worse) < (LUCK_GREEDY if found.greedy else LUCK):
            return (
                f"read {name.replace('_', ' ')} they predict better: {other.better} positions more are right and {other.worse} fewer "
                f"({other.share:.2%} against {e.share:.2%})"
            )
    if found.greedy and (e.share < MIN_SHARE or e.clear_share < MIN_CLEAR_SHARE):
        return (
            f"{e.share:.2%} of the next ids are predicted, {e.clear_share:.2%} where the best two differ by more than {CLEAR}; expected "
            f"{MIN_SHARE:.0%} and {MIN_CLEAR_SHARE:.1%} of greedy answers"
        )
    if e.forecast_of:
        share, expected = e.forecast_right / e.forecast_of, e.forecast / e.forecast_of
        if abs(share - expected) > MAX_GAP + 5 * math.sqrt(e.variance) / e.forecast_of:
            return f"{share:.2%} of the next ids are predicted, and the states themselves forecast {expected:.2%}"
    return None


def _luck(better: int, worse: int) -> float:
    """Probability that a fair coin gives `better` or more of better + worse."""
    n = better + worse
    return float(sum(math.comb(n, k) for k in range(better, n + 1)) / 2**n)
