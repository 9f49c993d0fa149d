"""A small trainer for a CPU: enough for a tiny target (the demo), and what the drafter's assets are tested with.

Belongs here: the loop, its schedule, stopping and going on from the last step that was kept. Does not belong here: the layer and its loss
(`layer.py`), being started and watched (`trainer.py`). Drafters of real targets are trained by speculators or SpecForge on GPUs.

A run is decided by its settings: weights and row order come from the seed, and one that was stopped ends in the same weights, to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from eagle3_assets.accept.batch import Batch, Row, cut_batches, make_batch
from eagle3_assets.accept.layer import Drafter, Shape
from eagle3_assets.errors import StateError
from eagle3_assets.states.target.target_head import TargetHead

RESUME_FILE = "resume.pt"


@dataclass(frozen=True, slots=True)
class Settings:
    """`ttt_steps`: steps of training-time test (a drafter drafts no further than it was trained). Muon on the matrices, AdamW on the norms;
    warm-up over `warm_up` steps, then the rate falls linearly to 0. `keep_every`: steps between two points from which a stopped run goes on."""

    ttt_steps: int = 3
    epochs: int = 4
    batch_tokens: int = 512
    muon_lr: float = 0.05
    adamw_lr: float = 2e-3
    warm_up: int = 20
    keep_every: int = 20
    heads: int = 4
    widening: int = 2  # width of the feed-forward part in hidden sizes
    seed: int = 0


def fresh_drafter(embedding: torch.Tensor, head: TargetHead, d2t: torch.Tensor, settings: Settings, *, aux: int = 3) -> Drafter:
    """An untrained drafter of a target: its embedding and its rows of the head, both frozen; every other matrix from the seed."""
    vocab, hidden = embedding.shape
    shape = Shape(
        hidden=hidden, intermediate=settings.widening * hidden, heads=settings.heads, kv_heads=settings.heads,
        head_dim=hidden // settings.heads, vocab=vocab, draft_vocab=len(d2t), aux=aux, eps=head.norm.eps,
    )  # fmt: skip
    drafter = Drafter(shape, d2t)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(embedding)
        drafter.lm_head.weight.copy_(head.weight[torch.arange(len(d2t)) + d2t])
    drafter.lm_head.weight.requires_grad = False
    drafter.initialise(settings.seed)
    return drafter


def labels(drafter: Drafter, head: TargetHead, batch: Batch) -> torch.Tensor:
    """[supervised positions, draft vocabulary]: the target's probabilities among the ids that can be drafted."""
    at = batch.supervised.nonzero()[:, 0]
    chosen = torch.arange(drafter.shape.draft_vocab) + drafter.d2t
    normed = head.norm.apply(batch.final[at].float())
    return functional.softmax(normed @ head.weight[chosen].float().T, dim=-1)


def train(
    drafter: Drafter,
    rows: Sequence[Row],
    head: TargetHead,
    settings: Settings,
    *,
    resume: Path | None = None,
    on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> list[float]:
    """Train `drafter` in place; returns the loss of each step. `resume`: a folder for the point to go on from; a run with other settings
    or rows than the one that was stopped there begins anew. Raises StateError for a damaged one."""
    rng = np.random.default_rng(settings.seed)
    lengths = [len(row.ids) for row in rows]
    plan = [batch for _ in range(settings.epochs) for batch in cut_batches(lengths, settings.batch_tokens, rng)]
    learning = [p for p in drafter.parameters() if p.requires_grad]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Muon([p for p in learning if p.dim() == 2], lr=settings.muon_lr, weight_decay=0.0),
        torch.optim.AdamW([p for p in learning if p.dim() != 2], lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = (settings.muon_lr, settings.adamw_lr)
    about = {"settings": asdict(settings), "rows": lengths}
    losses = [] if resume is None else _go_on(resume / RESUME_FILE, about, drafter, optimisers)
    for step in range(len(losses), len(plan)):
        pace = min(1.0, (step + 1) / settings.warm_up) * (1 - step / len(plan))
        for peak, optimiser in zip(peaks, optimisers, strict=True):
            optimiser.param_groups[0]["lr"] = peak * pace
        batch = make_batch([rows[k] for k in plan[step]])
        loss = drafter.loss(batch, settings.ttt_steps, labels(drafter, head, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(float(loss.detach()))
        on_step(step + 1, len(plan), losses[-1])
        if resume is not None and (step + 1) % settings.keep_every == 0:
            _keep(resume / RESUME_FILE, about, drafter, optimisers, losses)
    return losses


def _keep(
    path: Path, about: dict[str, Any], drafter: Drafter, optimisers: list[torch.optim.Optimizer], losses: list[float]
) -> None:
    tmp = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {**about, "model": drafter.state_dict(), "optimisers": [o.state_dict() for o in optimisers], "losses": losses}, tmp
    )
    os.replace(tmp, path)


def _go_on(path: Path, about: dict[str, Any], drafter: Drafter, optimisers: list[torch.optim.Optimizer]) -> list[float]:
    if not path.exists():
        return []
    try:
        kept = torch.load(path, weights_only=True)
        if {name: kept[name] for name in about} != about:
            return []
        drafter.load_state_dict(kept["model"])
        for optimiser, state in zip(optimisers, kept["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        return list(kept["losses"])
    except Exception as error:  # a torn archive: zip, pickle and torch each raise their own
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise StateError(f"{path}: cannot be read ({first}); remove it, and training begins anew") from None
