"""A model of kimi-mini's shape with random weights: harder on a forward pass than a trained one (norms far from 1, busy router biases)."""

from __future__ import annotations

import math
from typing import Any


def random_model(seed: int) -> Any:
    """float32, eval mode. Norm weights in 0.5 .. 1.5, router biases in ±0.05, matrices of unit gain."""
    import torch

    from kimi_mini.model import fresh_model

    model, generator = fresh_model(seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            centre, reach = 0.0, math.sqrt(3.0 / tensor.shape[-1])
            if name.endswith("e_score_correction_bias"):
                reach = 0.05
            elif tensor.ndim == 1:
                centre, reach = 1.0, 0.5
            elif name.endswith("embed_tokens.weight"):
                reach = 1.0
            elif name == "lm_head.weight":
                reach *= 2.0
            tensor.copy_(centre + reach * (2.0 * torch.rand(tensor.shape, generator=generator) - 1.0))
    return model.eval()
