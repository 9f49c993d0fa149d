"""EAGLE-3's drafter: one decoder layer over three states of the target and the next id's embedding. Forward, drafts, loss.

Belongs here: the layer as speculators, SpecForge and vLLM compute it, in float32 on any device. Does not belong here: files
(`checkpoint.py`), trees (`drafts.py`), the training loop (`training.py`).

Parameters carry the names of speculators' checkpoints, so a state dict is loaded as it is. Draft k > 0 reads the drafter's own state in place
of the target's: it attends to the positions fed by the target up to its start, and to its own since (training-time test; what a server does
after each verification). A test compares ids, loss and gradient with speculators' Eagle3DraftModel where that package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from eagle3_assets.accept.batch import Batch

INIT_STD = 0.02  # of every fresh matrix, as transformers initialises
STEP_DECAY = 0.8  # weight of the loss of draft k: 0.8 ** k, as EAGLE's and SpecForge's training-time test


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and switches of a drafter. `rope`: transformers' rope_parameters; `window`: keys that a query sees, itself included."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int
    aux: int = 3
    target_hidden: int | None = None
    eps: float = 1e-5
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0})
    max_positions: int = 4096
    norm_before_residual: bool = False
    norm_before_fc: bool = False  # one norm over all states side by side (gpt-oss)
    fc_norm: bool = False  # one norm a state (EAGLE 3.1)
    norm_output: bool = False  # what is fed back is normed (EAGLE 3.1)
    query_norm: bool = False  # norms of queries and keys (a Qwen3 layer)
    window: int | None = None


class _Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        if s.query_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(s.head_dim, eps=s.eps) for _ in range(2))


class _Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(s.hidden, s.intermediate, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(s.intermediate, s.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(s), _Mlp(s)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.RMSNorm(s.hidden, eps=s.eps) for _ in range(3)
        )


@dataclass(frozen=True, slots=True)
class Prefix:
    """A batch as the drafter sees it: `fed` [T, H] states out of `fc`; `keys`, `values` [T, kv heads, dim] of all positions."""

    batch: Batch
    fed: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Own:
    """Keys and values of a start's own drafts so far, [starts, width, drafts, kv heads, dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def of(self, parents: torch.Tensor) -> Own:
        """`parents` int64 [starts, width]: which node of the level before each node continues."""
        at = torch.arange(len(parents), device=parents.device)[:, None]
        return Own(self.keys[at, parents], self.values[at, parents])


class Drafter(nn.Module):
    """`d2t` int64 [draft vocabulary]: offsets, target id = i + d2t[i]. `embed_tokens` is frozen (the target's)."""

    d2t: torch.Tensor
    inverse: torch.Tensor

    def __init__(self, shape: Shape, d2t: torch.Tensor) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        super().__init__()
        self.shape = s = shape
        wide = s.aux * (s.target_hidden or s.hidden)
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.embed_tokens.weight.requires_grad = False
        self.fc = nn.Linear(wide, s.hidden, bias=False)
        self.layers = nn.ModuleList([_Layer(s)])
        self.norm = nn.RMSNorm(s.hidden, eps=s.eps)
        self.lm_head = nn.Linear(s.hidden, s.draft_vocab, bias=False)
        self.input_norm = nn.RMSNorm(wide, eps=s.eps) if s.norm_before_fc else None
        self.fc_norm = nn.ModuleList(nn.RMSNorm(wide // s.aux, eps=s.eps) for _ in range(s.aux)) if s.fc_norm else None
        self.register_buffer("d2t", d2t.to(torch.int64))
        chosen = torch.arange(s.draft_vocab) + self.d2t
        # target id -> draft id; one behind the last where the drafter cannot propose it
        inverse = torch.full((s.vocab,), s.draft_vocab).index_put_((chosen,), torch.arange(s.draft_vocab))
        self.register_buffer("inverse", inverse, persistent=False)
        self._rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=s.hidden, num_attention_heads=s.heads, head_dim=s.head_dim, rope_parameters=dict(s.rope),
                max_position_embeddings=s.max_positions,
            )
        )  # fmt: skip

    @property
    def _layer(self) -> _Layer:
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        return layer

    def initialise(self, seed: int) -> None:
        """Fresh weights: every matrix normal with INIT_STD, every norm 1. Embedding and head are left as they are."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name in ("embed_tokens.weight", "lm_head.weight"):
                continue
            with torch.no_grad():
                if parameter.dim() == 2:
                    parameter.copy_(torch.empty(parameter.shape).normal_(std=INIT_STD, generator=generator))
                else:
                    parameter.fill_(1.0)

    # ------------------------------------------------------------------------------------------------ forward
    def open(self, batch: Batch) -> Prefix:
        """Fuse the target's states, keys and values of all positions."""
        states = batch.features
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            pieces = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(piece) for norm, piece in zip(self.fc_norm, pieces, strict=True)], dim=-1)
        fed = self.fc(states)
        keys, values = self._keys_and_values(self._beside(batch.ids, fed)[0], batch.positions)
        return Prefix(batch, fed, keys, values)

    def first(self, prefix: Prefix, starts: torch.Tensor) -> torch.Tensor:
        """[starts, 1, H]: what draft 0 of each start is made from."""
        return self._attend_and_feed(prefix, starts, 0, prefix.batch.ids[starts][:, None], prefix.fed[starts][:, None], None)[0]

    def follow(
        self, prefix: Prefix, starts: torch.Tensor, depth: int, ids: torch.Tensor, states: torch.Tensor, own: Own | None
    ) -> tuple[torch.Tensor, Own]:
        """Draft `depth` >= 1 behind `ids` int64 [starts, width] (target ids, the draft before) from `states` [starts, width, H] of that
        draft; `own`: what the nodes before have, None at depth 1."""
        state, made = self._attend_and_feed(prefix, starts, depth, ids, states, own)
        assert made is not None
        return state, made

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary]."""
        out: torch.Tensor = self.lm_head(state if self.shape.norm_output else self.norm(state))
        return out

    def target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        return draft_ids + self.d2t[draft_ids]

    def _attend_and_feed(
        self, prefix: Prefix, starts: torch.Tensor, depth: int, ids: torch.Tensor, states: torch.Tensor, own: Own | None
    ) -> tuple[torch.Tensor, Own | None]:
        layer, s = self._layer, self.shape
        both, residual = self._beside(ids, states)
        positions = (prefix.batch.positions[starts] + depth)[:, None].expand(ids.shape)
        if depth:
            keys, values = (x[:, :, None] for x in self._keys_and_values(both, positions))
            own = Own(keys, values) if own is None else Own(torch.cat([own.keys, keys], 2), torch.cat([own.values, values], 2))
        query = layer.self_attn.q_proj(both).unflatten(-1, (s.heads, s.head_dim))
        if s.query_norm:
            query = layer.self_attn.q_norm(query)
        query = self._rotate(query, positions) * s.head_dim**-0.5
        state = residual + layer.self_attn.o_proj(self._read(prefix, starts, depth, query, own))
        state = state + layer.mlp(layer.post_attention_layernorm(state))
        return (self.norm(state) if s.norm_output else state), own

    def _beside(self, ids: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., 2 H] normed embedding and normed state, and the residual [..., H]."""
        layer = self._layer
        normed = layer.hidden_norm(states)
        both = torch.cat([layer.input_layernorm(self.embed_tokens(ids)), normed], dim=-1)
        return both, normed if self.shape.norm_before_residual else states

    def _keys_and_values(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attention, s = self._layer.self_attn, self.shape
        keys = attention.k_proj(both).unflatten(-1, (s.kv_heads, s.head_dim))
        if s.query_norm:
            keys = attention.k_norm(keys)
        return self._rotate(keys, positions), attention.v_proj(both).unflatten(-1, (s.kv_heads, s.head_dim))

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary positions on [..., heads, dim], halves as in Llama; `positions` as the axes before the heads."""
        cos, sin = (t.view(*positions.shape, 1, -1) for t in self._rotary(x, positions.reshape(1, -1)))
        first, second = x.chunk(2, dim=-1)
        turned: torch.Tensor = x * cos + torch.cat([-second, first], dim=-1) * sin
        return turned

    def _read(self, prefix: Prefix, starts: torch.Tensor, depth: int, query: torch.Tensor, own: Own | None) -> torch.Tensor:
        """Attention of `query` [starts, width, heads, dim] over the target-fed positions up to each start and a node's own drafts."""
        b, s = prefix.batch, self.shape
        (n, width), groups = query.shape[:2], s.heads // s.kv_heads
        order = torch.arange(len(b.ids), device=starts.device)
        seen = (starts[:, None] >= order) & (b.documents[starts, None] == b.documents)
        if s.window is not None:
            seen &= order > starts[:, None] + depth - s.window
        mask = torch.zeros(seen.shape, device=starts.device).masked_fill(~seen, -torch.inf)
        # [kv heads, groups, starts, width, dim] against [kv heads, positions, dim]
        asked = query.unflatten(2, (s.kv_heads, groups)).permute(2, 3, 0, 1, 4)  # type: ignore[no-untyped-call]
        keys, values = prefix.keys.transpose(0, 1), prefix.values.transpose(0, 1)
        flat = asked.reshape(s.kv_heads, -1, s.head_dim)
        scores = (flat @ keys.mT).view(s.kv_heads, groups, n, width, -1) + mask[:, None]
        size = scores.shape[-1]
        if own is not None:
            mine = torch.einsum("kgnwd,nwckd->kgnwc", asked, own.keys)
            if s.window is not None and depth >= s.window:
                mine[..., : depth - s.window + 1] = -torch.inf
            scores = torch.cat([scores, mine], dim=-1)
        share = scores.softmax(-1)
        read = (share[..., :size].reshape(s.kv_heads, -1, size) @ values).view(s.kv_heads, groups, n, width, -1)
        if own is not None:
            read = read + torch.einsum("kgnwc,nwckd->kgnwd", share[..., size:], own.values)
        out: torch.Tensor = read.permute(2, 3, 0, 1, 4).flatten(2)
        return out

    # ------------------------------------------------------------------------------------------------ a chain along the text
    def chain(self, batch: Batch, steps: int, starts: torch.Tensor) -> Iterator[torch.Tensor]:
        """Logits [starts, draft vocabulary] of each draft of a chain that is fed the true ids: a chain goes on only while it is right."""
        for state in self._chain_states(self.open(batch), steps, starts):
            yield self.logits(state)

    def _chain_states(self, prefix: Prefix, steps: int, starts: torch.Tensor) -> Iterator[torch.Tensor]:
        state, own = self.first(prefix, starts), None
        yield state[:, 0]
        last = len(prefix.batch.ids) - 1
        for k in range(1, steps):
            ids = prefix.batch.ids[(starts + k).clamp(max=last)][:, None]
            state, own = self.follow(prefix, starts, k, ids, state, own)
            yield state[:, 0]

    def loss(self, batch: Batch, steps: int, labels: torch.Tensor) -> torch.Tensor:
        """Scalar: sum over drafts k of 0.8 ** k x mean KL(label, draft). `labels` [supervised positions, draft vocabulary]: softmax of the
        target's head."""
        at = batch.supervised.nonzero()[:, 0]
        # draft k of position p started at p - k
        starts, where = (at[:, None] - torch.arange(steps, device=at.device)).clamp(min=0).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        total = torch.zeros((), device=at.device)
        for k, state in enumerate(self._chain_states(self.open(batch), steps, starts)):
            inside = at >= k
            drafted = functional.log_softmax(self.logits(state[where[inside, k]]), dim=-1)
            mean = functional.kl_div(drafted, labels[inside], reduction="sum") / max(1, int(inside.sum()))
            total = total + STEP_DECAY**k * mean
        return total
