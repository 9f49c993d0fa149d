"""Muon: momentum whose matrix step is made orthogonal (five Newton-Schulz rounds), for every matrix inside the layers.

Belongs here: the optimiser. Does not belong here: which parameters it gets (`train`). torch's own Muon takes 2-D parameters only;
experts are stored as one 3-D tensor a layer, whose slices are the matrices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, "Muon": a quintic whose slope at zero is steep


def orthogonalised(matrices: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The nearest semi-orthogonal matrices, roughly (singular values in about 0.7 .. 1.2). Shape [batch, m, n], float32."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: torch.Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised over equal shapes at once. Parameters: 2-D, or 3-D as a stack of matrices."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[tuple[torch.nn.Parameter, torch.Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(state["momentum"], group["momentum"])
                shapes[tuple(parameter.shape[-2:])].append((parameter, update.reshape(-1, *parameter.shape[-2:])))
            for (rows, columns), entries in shapes.items():
                steps = orthogonalised(torch.cat([update for _, update in entries]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                ends = torch.tensor([len(update) for _, update in entries]).cumsum(0)[:-1]
                for (parameter, _), step in zip(entries, steps.tensor_split(ends), strict=True):
                    parameter.sub_(step.reshape(parameter.shape), alpha=scale)
