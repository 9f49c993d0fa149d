"""Attention over rows laid end to end in one row [1, tokens]: each row attends to itself only, no padding, no mask.

Belongs here: the attention function that transformers calls, and asking whether a model can be run with it.
Does not belong here: what is packed with what (`batches.py`), hooks (`transformers.py`).

Projections, norms and experts see one long row; only attention knows where rows end. Against one row at a time: bit-equal in bf16,
4e-7 (fp32) on Llama, Qwen3 and DeepSeek-V3 here. A dense block-diagonal mask costs O(pack^2) instead
(docs/research/hidden-states.md#2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eagle3_assets.errors import StateError

if TYPE_CHECKING:
    import torch

NAME = "eagle3_states_packed"
# What some architectures add to attention and this function does not compute (gpt-oss: sinks; Gemma 2: soft capping).
UNKNOWN_TERMS = ("s_aux", "softcap")


class CannotPackError(StateError):
    """The model's attention has a term that is not computed here; it is run right-padded with its own attention instead."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    row_lengths: Sequence[int],
    sliding_window: int | None = None,
    **terms: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each of `row_lengths`. [1, heads, tokens, dim] in, [1, tokens, heads, dim of value] out."""
    import torch

    for name in UNKNOWN_TERMS:
        if terms.get(name) is not None:
            raise CannotPackError(f"attention with {name} cannot be packed")
    grouped = query.shape[1] // key.shape[1]
    if grouped > 1:
        key, value = key.repeat_interleave(grouped, dim=1), value.repeat_interleave(grouped, dim=1)
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    start = 0
    for length in row_lengths:
        cut = slice(start, start + length)
        mask = _band(length, sliding_window, query) if sliding_window is not None and length > sliding_window else None
        out[:, cut] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, cut], key[:, :, cut], value[:, :, cut], attn_mask=mask, is_causal=mask is None, scale=scaling
        ).transpose(1, 2)
        start += length
    return out, None


def _band(length: int, window: int, like: torch.Tensor) -> torch.Tensor:
    """[T, T] bool: a token sees itself and the window - 1 tokens before it (as transformers' sliding_window)."""
    import torch

    at = torch.arange(length, device=like.device)
    behind = at[:, None] - at[None]
    return (behind >= 0) & (behind < window)


@contextlib.contextmanager
def packing(model: Any) -> Iterator[None]:
    """The model attends through `packed_attention` inside; its own attention is put back behind."""
    from transformers import AttentionInterface

    own = model.config._attn_implementation
    AttentionInterface.register(NAME, packed_attention)  # not among transformers' mask functions: so no mask is made
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        model.set_attn_implementation(own)


def can_pack(model: Any) -> bool:
    """Whether `model` (a base model) runs packed: two tiny rows go through it."""
    import torch

    device = model.get_input_embeddings().weight.device
    ids = torch.zeros(1, 3, dtype=torch.int64, device=device)
    try:
        with packing(model), torch.inference_mode():
            model(input_ids=ids, position_ids=torch.tensor([[0, 1, 0]], device=device), use_cache=False, row_lengths=(2, 1))
    except (CannotPackError, ValueError, TypeError, AttributeError):  # not through transformers' attention interface
        return False
    return True
