"""Attention over conversations laid end to end in one row: no padding, every batch a fair mixture of lengths.

Belongs here: the attention function that transformers calls. Does not belong here: what is packed (`train`).
Inputs [1, heads, tokens, dim]; `lengths` says how many tokens each conversation has, in order; each attends to itself only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface

NAME = "eagle3_packed"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    lengths: Sequence[int],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each of the `lengths`; returns [1, tokens, heads, dim]."""
    ends = torch.tensor(lengths).cumsum(0)[:-1]
    parts = [
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
        for q, k, v in zip(*(torch.tensor_split(tensor, ends, dim=2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(NAME, packed_attention)
