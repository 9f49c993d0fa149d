"""Kimi-mini's forward pass for sampling: absorbed MLA over a latent cache of fixed size, written for few operations a step.

Belongs here: the decoder's weights as plain float32 tensors, its cache, prefill and decode. Does not belong here: which row sits in
which slot, chance (`sampler`), hidden states (`states` runs transformers' own classes, and is the reference that this must equal).

What is absorbed, and why a step is cheap (x of one token, W as used below; exact algebra, other rounding):
- norm weights, the softmax scale and `kv_b` are folded into the matrices beside them: a query comes out of one matrix already in
  latent space (kv_lora_rank + rope) and the context goes back through one; no key or value is ever expanded;
- rope stays interleaved: pairs are complex numbers and the rotation one multiplication (dot products do not mind the order);
- router, gates and ups of all experts and of the shared one are one matrix, all downs another; an expert that was not chosen has
  weight 0. At this size the dense product is faster than gathering rows.
Cache: [layers, slots, positions, kv_lora_rank + qk_rope_head_dim] float32; positions grow by doubling up to the model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kimi_mini.errors import KimiMiniError

if TYPE_CHECKING:
    import torch
    from transformers import DeepseekV3ForCausalLM

    Tensor = torch.Tensor

_GATHER_FROM = 48  # tokens: from here on gathering an expert's rows costs less than the dense product
PREFILL_CHUNK = 256  # prompt tokens in one forward: bounds the scores at heads x 256 x positions
MIN_ROWS = 8  # rows of a decode step: matrix libraries take other kernels, with other rounding, for fewer
ATTENTION_STEP = 32  # cache positions are read in multiples of this: whole vectors, one order of addition
_FIRST_POSITIONS = 512
_LATENT_EPS = 1e-6  # transformers builds q_a_layernorm and kv_a_layernorm with the class default, not with config.rms_norm_eps


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, from its config."""

    hidden: int
    layers: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int
    experts: int
    chosen: int
    expert_width: int
    shared: int
    dense_layers: int
    vocab: int
    positions: int
    eps: float
    normalise: bool
    factor: float

    @property
    def latent(self) -> int:
        """Numbers that the cache holds per layer, slot and position."""
        return self.kv_lora + self.rope


def shape_of(config: Any) -> Shape:
    """Raises KimiMiniError for a DeepSeek-V3 config that this forward pass does not cover."""
    for field, expected in {
        "n_group": 1, "topk_group": 1, "rope_interleave": True, "attention_bias": False, "hidden_act": "silu",
    }.items():  # fmt: skip
        if getattr(config, field) != expected:
            raise KimiMiniError(f"kimi-mini sampler: config.{field} is {getattr(config, field)!r}, expected {expected!r}")
    if config.rope_parameters.get("rope_type", "default") != "default":
        raise KimiMiniError(f"kimi-mini sampler: rope_type is {config.rope_parameters['rope_type']!r}, expected 'default'")
    if config.q_lora_rank is None:
        raise KimiMiniError("kimi-mini sampler: config.q_lora_rank is None, expected a number")
    return Shape(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        q_lora=config.q_lora_rank,
        kv_lora=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        value=config.v_head_dim,
        experts=config.n_routed_experts,
        chosen=config.num_experts_per_tok,
        expert_width=config.moe_intermediate_size,
        shared=config.n_shared_experts,
        dense_layers=config.first_k_dense_replace,
        vocab=config.vocab_size,
        positions=config.max_position_embeddings,
        eps=config.rms_norm_eps,
        normalise=config.norm_topk_prob,
        factor=config.routed_scaling_factor,
    )


@dataclass(frozen=True)
class _Layer:
    """One layer's matrices, [in, out].

    A dense layer: `first` = gate | up, `second` = down, `bias` None. A routed one: `first` = router, then gate | up of each expert,
    the shared ones in front; `second` = their downs below each other; `bias` = the router's correction.
    """

    down_q_kv: Tensor  # hidden -> q_lora + kv_lora + rope
    query: Tensor  # q_lora -> heads * (kv_lora + rope)
    out: Tensor  # heads * kv_lora -> hidden
    first: Tensor
    second: Tensor  # all downs -> hidden
    bias: Tensor | None


def _f32(parameter: Tensor) -> Tensor:
    import torch

    return parameter.detach().to(torch.float32)


def _attention(module: Any, norm: Tensor, s: Shape) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    q_a = _f32(module.q_a_proj.weight)
    kv_a = _f32(module.kv_a_proj_with_mqa.weight)
    down = torch.cat([q_a, kv_a]) * norm  # norm weight of the layer's input, per input column
    kv_norm = _f32(module.kv_a_layernorm.weight)
    kv_b = _f32(module.kv_b_proj.weight).view(s.heads, s.nope + s.value, s.kv_lora) * kv_norm
    keys, values = kv_b[:, : s.nope], kv_b[:, s.nope :]
    q_b = (_f32(module.q_b_proj.weight) * _f32(module.q_a_layernorm.weight)).view(s.heads, s.nope + s.rope, s.q_lora)
    # q . k = (q_nope . kv_b_k c) + rope part = (kv_b_k^T q_nope) . c + ...: the query moves into latent space
    latent_query = keys.transpose(1, 2).double() @ q_b[:, : s.nope].double()
    query = torch.cat([latent_query, q_b[:, s.nope :].double()], dim=1) * float(module.scaling)
    o = _f32(module.o_proj.weight).view(s.hidden, s.heads, s.value).permute(1, 0, 2)
    out = o.double() @ values.double()  # heads, hidden, kv_lora
    return (
        down.T.contiguous(),
        query.reshape(s.heads * s.latent, s.q_lora).T.float().contiguous(),
        out.permute(0, 2, 1).reshape(s.heads * s.kv_lora, s.hidden).float().contiguous(),
    )


def _feed_forward(mlp: Any, norm: Tensor, s: Shape) -> tuple[Tensor, Tensor, Tensor | None]:
    """(first, second, router bias): see `_Layer`."""
    import torch

    if not hasattr(mlp, "experts"):
        first = torch.cat([_f32(mlp.gate_proj.weight), _f32(mlp.up_proj.weight)]) * norm
        return first.T.contiguous(), _f32(mlp.down_proj.weight).T.contiguous(), None
    own = mlp.shared_experts
    own_gate_up = torch.stack(
        [_f32(own.gate_proj.weight).view(s.shared, -1, s.hidden), _f32(own.up_proj.weight).view(s.shared, -1, s.hidden)], dim=1
    )
    first = torch.cat([_f32(mlp.gate.weight), own_gate_up.flatten(0, 2), _f32(mlp.experts.gate_up_proj).flatten(0, 1)]) * norm
    downs = _f32(mlp.experts.down_proj).transpose(1, 2).flatten(0, 1)
    second = torch.cat([_f32(own.down_proj.weight).T, downs])
    return first.T.contiguous(), second.contiguous(), _f32(mlp.gate.e_score_correction_bias).clone()


class Decoder:
    """The weights of a `DeepseekV3ForCausalLM` (copied, float32) and a cache for `slots` rows of `positions` tokens each.

    Not thread-safe: one thread drives it.
    """

    def __init__(self, model: DeepseekV3ForCausalLM, slots: int, positions: int | None = None) -> None:
        import torch

        self.shape = s = shape_of(model.config)
        self.slots = slots
        self.positions = min(positions or s.positions, s.positions)
        with torch.inference_mode():
            self._embed = _f32(model.model.embed_tokens.weight).clone()
            self._layers = []
            for layer in model.model.layers:
                attention = _attention(layer.self_attn, _f32(layer.input_layernorm.weight), s)
                forward = _feed_forward(layer.mlp, _f32(layer.post_attention_layernorm.weight), s)
                self._layers.append(_Layer(*attention, *forward))
            self._head = (_f32(model.lm_head.weight) * _f32(model.model.norm.weight)).T.contiguous()
            rotary = model.model.rotary_emb
            angles = torch.arange(self.positions).float()[:, None] * _f32(rotary.inv_freq)[None]
            # cos + i sin of every position, scaled as transformers scales both
            self._turn = torch.complex(angles.cos(), angles.sin()) * float(rotary.attention_scaling)
            self._rows, self._places = torch.arange(max(slots, MIN_ROWS)), torch.arange(self.positions)
            self._cache = torch.zeros(s.layers, len(self._rows), 0, s.latent)
            self._reserve(1)

    @property
    def cache_bytes(self) -> int:
        """The bound of the cache: its size once a row has used all positions."""
        return self.shape.layers * len(self._rows) * self.positions * self.shape.latent * 4

    def _reserve(self, positions: int) -> None:
        """Room for so many tokens in every slot, by doubling: short conversations never pay for the longest possible one."""
        import torch

        s, old = self.shape, self._cache
        if (have := old.shape[2]) < positions:
            room = min(max(positions, 2 * have, _FIRST_POSITIONS), self.positions)
            # zeros, not noise: a masked position has weight 0, and 0 times NaN is NaN
            self._cache = torch.zeros(s.layers, len(self._rows), room, s.latent)
            self._cache[:, :, :have] = old

    def prefill(self, slot: int, ids: Sequence[int]) -> Tensor:
        """Run a prompt (1 .. positions ids) through a slot; float32 logits of its last position, [vocab].

        A prompt runs alone, so its numbers depend on nothing beside it.
        """
        import torch

        with torch.inference_mode():
            self._reserve(len(ids))
            tokens = torch.tensor(ids)
            for start in range(0, len(ids), PREFILL_CHUNK):
                x = self._prefill_chunk(slot, tokens[start : start + PREFILL_CHUNK], start)
            return (_rms(x, self.shape.eps) @ self._head)[0]

    def _prefill_chunk(self, slot: int, tokens: Tensor, start: int) -> Tensor:
        """Fills the cache for the chunk; the last layer's output of its last token, [1, hidden]."""
        import torch

        s, n = self.shape, len(tokens)
        end = start + n
        x, turn = self._embed[tokens], self._turn[start:end]
        hidden = torch.full((n, end), -math.inf).triu_(start + 1)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            query, latent = self._latents(layer, x, turn)
            cache[slot, start:end] = latent
            seen = cache[slot, :end]
            if layer is self._layers[-1]:  # nobody reads the others' output
                x, query, hidden, n = x[-1:], query[-1:], hidden[-1:], 1
            # all heads ask the same keys (one latent), so with rows (head, position) the scores are one matrix product
            asked = query.transpose(0, 1).reshape(s.heads * n, s.latent) @ seen.T
            weights = asked.view(s.heads, n, end).add_(hidden).softmax(-1).view(s.heads * n, end)
            context = (weights @ seen[:, : s.kv_lora]).view(s.heads, n, s.kv_lora).transpose(0, 1).reshape(n, -1)
            x = self._feed(layer, torch.addmm(x, context, layer.out), gather=n >= _GATHER_FROM)
        return x

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """One token for each of the first slots: `lengths[k]` tokens of slot k are in the cache, `tokens[k]` goes behind them.
        Float32 logits [len(tokens), vocab].

        A row's numbers do not depend on the other rows, bit for bit where the matrix library keeps to one kernel from MIN_ROWS
        rows on and one order of addition for whole ATTENTION_STEPs (it does where this was tested; else up to rounding).
        """
        import torch

        s, count = self.shape, len(tokens)
        idle = max(0, MIN_ROWS - count)  # idle rows write one entry into a free slot; the next prompt overwrites it
        rows = count + idle
        longest = min(-(-(max(lengths) + 1) // ATTENTION_STEP) * ATTENTION_STEP, self.positions)
        with torch.inference_mode():
            self._reserve(longest)
            at = torch.tensor([*lengths, *[0] * idle])
            x = self._embed[torch.tensor([*tokens, *[0] * idle])]
            turn = self._turn[at]
            hidden = torch.zeros(rows, 1, longest)
            hidden.masked_fill_((self._places[:longest] > at[:, None])[:, None], -math.inf)
            for layer, cache in zip(self._layers, self._cache, strict=True):
                query, latent = self._latents(layer, x, turn)
                cache.index_put_((self._rows[:rows], at), latent)
                seen = cache[:rows, :longest]
                weights = torch.baddbmm(hidden, query, seen.transpose(1, 2)).softmax(-1)
                context = torch.bmm(weights, seen[:, :, : s.kv_lora])
                x = self._feed(layer, torch.addmm(x, context.view(rows, -1), layer.out))
            return (_rms(x, s.eps) @ self._head)[:count]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the `length` tokens of one slot to another."""
        import torch

        with torch.inference_mode():
            self._cache[:, target, :length] = self._cache[:, source, :length]

    def _latents(self, layer: _Layer, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, hidden], turn [n, rope / 2] -> queries [n, heads, latent] and cache entries [n, latent], both turned."""
        import torch

        s, n = self.shape, len(x)
        down = _rms(x, s.eps) @ layer.down_q_kv
        query = (_rms(down[:, : s.q_lora], _LATENT_EPS) @ layer.query).view(n, s.heads, s.latent)
        latent = down[:, s.q_lora :]
        content = latent[:, : s.kv_lora]
        content.copy_(_rms(content, _LATENT_EPS))
        torch.view_as_complex(query[:, :, s.kv_lora :].unflatten(-1, (-1, 2))).mul_(turn[:, None])  # type: ignore[no-untyped-call]
        torch.view_as_complex(latent[:, s.kv_lora :].unflatten(-1, (-1, 2))).mul_(turn)  # type: ignore[no-untyped-call]
        return query, latent

    def _feed(self, layer: _Layer, x: Tensor, *, gather: bool = False) -> Tensor:
        """x [n, hidden] plus its feed-forward. `gather`: run each expert over its own rows only."""
        import torch

        s, n = self.shape, len(x)
        normed = _rms(x, s.eps)
        if layer.bias is None:
            gate, up = (normed @ layer.first).chunk(2, dim=-1)
            return torch.addmm(x, torch.nn.functional.silu(gate).mul_(up), layer.second)
        width = 2 * s.expert_width
        own = s.experts + s.shared * width  # columns of the router and the shared experts
        wide = normed @ (layer.first[:, :own] if gather else layer.first)
        scores = wide[:, : s.experts].sigmoid()
        chosen = torch.topk(scores + layer.bias, s.chosen, dim=-1, sorted=False)[1]
        share = scores.gather(1, chosen)
        if s.normalise:
            share /= share.sum(-1, keepdim=True) + 1e-20
        share *= s.factor
        active = _gated(wide[:, s.experts :].view(n, -1, 2, s.expert_width))  # [n, shared (+ experts), expert_width]
        if not gather:
            shares = torch.ones(n, s.shared + s.experts)
            shares[:, s.shared :] = 0.0
            active *= shares.scatter_(1, chosen + s.shared, share)[:, :, None]
            return torch.addmm(x, active.view(n, -1), layer.second)
        x = torch.addmm(x, active.view(n, -1), layer.second[: s.shared * s.expert_width])
        order = chosen.flatten().argsort(stable=True)
        tokens = order // s.chosen
        rows = normed[tokens]
        wide, out = torch.empty(len(rows), width), torch.empty_like(rows)
        ends = torch.bincount(chosen.flatten(), minlength=s.experts).cumsum(0).tolist()
        spans = [(k, slice(a, b)) for k, (a, b) in enumerate(pairwise([0, *ends])) if b > a]
        for k, span in spans:
            torch.mm(rows[span], layer.first[:, own + k * width :][:, :width], out=wide[span])
        active = _gated(wide.view(-1, 2, s.expert_width)).mul_(share.flatten()[order][:, None])
        for k, span in spans:
            torch.mm(active[span], layer.second[(s.shared + k) * s.expert_width :][: s.expert_width], out=out[span])
        return x.index_add_(0, tokens, out)


def _gated(gate_up: Tensor) -> Tensor:
    """[..., 2, width] -> silu(gate) * up, [..., width]."""
    import torch

    return torch.nn.functional.silu(gate_up[..., 0, :]).mul_(gate_up[..., 1, :])


def _rms(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square (last axis), without weight."""
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps)
