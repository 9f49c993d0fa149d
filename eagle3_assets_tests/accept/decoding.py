"""Draft and verify, for real: kimi-mini behind its cache and a drafter written a second time, one verification after the other.

Nothing of `eagle3_assets.accept` takes part but the drafter's weights: the layer here is dense, without a cache, in the order of EAGLE-3's paper, and
the walk draws its ids as a server does. What comes out is a text, and how many drafts each verification accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eagle3_assets.accept.layer import Drafter
from eagle3_assets.states.target.target_head import TargetHead


@dataclass
class Walked:
    """`ids`: prompt and answer; `accepted`: of each verification; `chances`: of each accepted or refused drawn draft, min(1, q / p) of the id that
    came out there."""

    ids: list[int]
    accepted: list[int] = field(default_factory=list)
    chances: list[list[float]] = field(default_factory=list)


class CachedTarget:
    """kimi-mini through transformers' own cache: states and logits of new ids behind those that it has."""

    def __init__(self, model: Any, layers: Sequence[int], head: TargetHead) -> None:
        from transformers import DynamicCache

        self.model, self.layers, self.head, self.cache = model, layers, head, DynamicCache()
        self.aux = torch.empty(0, len(layers) * model.config.hidden_size)

    def read(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [n, V] behind each of the new ids."""
        final: list[torch.Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, inputs: final.append(inputs[0][0]))
        with torch.inference_mode():
            out = self.model.model(
                input_ids=torch.tensor([list(ids)]), cache=self.cache, use_cache=True, output_hidden_states=True
            )
        hook.remove()
        new = torch.cat([out.hidden_states[k][0] for k in self.layers], dim=-1)
        self.aux = torch.cat([self.aux, new])
        return self.head.logits(final[0])

    def forget(self, keep: int) -> None:
        """Only the first `keep` ids stay."""
        if len(self.aux) > keep:
            self.cache.crop(keep - len(self.aux))
        self.aux = self.aux[:keep]


class PlainDrafter:
    """EAGLE-3's layer over a whole sequence: (id x[j+1], state of x[j]) for j = 0 .., the states behind the target's its own."""

    def __init__(self, drafter: Drafter) -> None:
        self.w = {name: t.detach() for name, t in drafter.state_dict().items()}
        self.heads, self.eps, self.theta = drafter.shape.heads, drafter.shape.eps, drafter.shape.rope["rope_theta"]
        self.chosen = torch.arange(drafter.shape.draft_vocab) + drafter.d2t

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        return aux @ self.w["fc.weight"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.w[name]

    def last_state(self, ids: Sequence[int], states: torch.Tensor) -> torch.Tensor:
        """[H] of the last position."""
        a = "layers.0.self_attn."
        embedded = self._norm(self.w["embed_tokens.weight"][list(ids)], "layers.0.input_layernorm.weight")
        both = torch.cat([embedded, self._norm(states, "layers.0.hidden_norm.weight")], dim=-1)
        q, k, v = ((both @ self.w[f"{a}{name}_proj.weight"].T).view(len(ids), self.heads, -1).transpose(0, 1) for name in "qkv")
        q, k = self._turn(q), self._turn(k)
        share = (q[:, -1:] @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        state = states[-1] + (share @ v)[:, 0].flatten() @ self.w[f"{a}o_proj.weight"].T
        x = self._norm(state, "layers.0.post_attention_layernorm.weight")
        m = "layers.0.mlp."
        gate, up = (x @ self.w[f"{m}{name}_proj.weight"].T for name in ("gate", "up"))
        return state + (gate * gate.sigmoid() * up) @ self.w[f"{m}down_proj.weight"].T

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions as complex numbers: half of a head's dimensions are real parts, half imaginary."""
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[1])[:, None] * self.theta ** (-torch.arange(half) / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], dim=-1)

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self._norm(state, "norm.weight") @ self.w["lm_head.weight"].T


def nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """[V] float64: what a server samples from; temperature 0: all on the most probable id."""
    if temperature == 0:
        return torch.zeros(len(logits), dtype=torch.float64).index_fill_(0, logits.argmax(), 1.0)
    p = (logits.double() / temperature).softmax(-1)
    order, mass = p.argsort(descending=True), 0.0
    kept = torch.zeros_like(p)
    for i in order.tolist():
        if mass >= top_p:
            break
        kept[i] = p[i]
        mass += float(p[i])
    return kept / kept.sum()


def draw(p: torch.Tensor, rng: np.random.Generator) -> int:
    values = p.numpy()
    return int(rng.choice(len(values), p=values / values.sum()))


def decode_chain(
    target: CachedTarget,
    drafter: PlainDrafter,
    prompt: Sequence[int],
    *,
    chain: int,
    temperature: float,
    top_p: float,
    end: int,
    limit: int,
    drawn: bool,
    rng: np.random.Generator,
) -> Walked:
    """Speculative decoding with a chain: one pass of the target over the last id and the drafts, then accept or draw anew."""
    ids = list(prompt)
    out = Walked(ids)
    ids.append(draw(nucleus(target.read(prompt)[-1], temperature, top_p), rng))
    while ids[-1] != end and len(ids) - len(prompt) < limit:
        drafts, proposed = [], []
        states = drafter.fuse(target.aux)  # of x[0] .. x[n-2]: the last id has none yet
        for _ in range(min(chain, limit - (len(ids) - len(prompt)))):
            state = drafter.last_state([*ids[1:], *drafts], states)
            logits = drafter.logits(state)
            q = torch.zeros(target.head.weight.shape[0], dtype=torch.float64)
            q[drafter.chosen] = nucleus(logits, temperature if drawn else 0, top_p)
            drafts.append(draw(q, rng))
            proposed.append(q)
            states = torch.cat([states, state[None]])
        behind = target.read([ids[-1], *drafts])
        accepted, chances = 0, []
        for k, row in enumerate(behind):
            p = nucleus(row, temperature, top_p)
            if k == len(drafts):
                ids.append(draw(p, rng))
                break
            d, q = drafts[k], proposed[k]
            taken = rng.random() < float(p[d] / q[d])
            ids.append(d if taken else draw((p - q).clamp(min=0), rng))
            chances.append(min(1.0, float(q[ids[-1]] / p[ids[-1]])))
            accepted += taken
            if not taken or ids[-1] == end or len(ids) - len(prompt) == limit:
                break
        out.accepted.append(accepted)
        out.chances.append(chances)
        target.forget(len(ids) - 1)
    return out


def decode_tree(
    target: CachedTarget,
    drafter: PlainDrafter,
    prompt: Sequence[int],
    *,
    topk: int,
    steps: int,
    nodes: int,
    temperature: float,
    top_p: float,
    end: int,
    limit: int,
    rng: np.random.Generator,
) -> Walked:
    """Speculative decoding with EAGLE-2's tree: the target's own id is accepted while it is a child of the node that was reached."""
    ids = list(prompt)
    out = Walked(ids)
    ids.append(draw(nucleus(target.read(prompt)[-1], temperature, top_p), rng))
    while ids[-1] != end and len(ids) - len(prompt) < limit:
        tree = grow_tree(drafter, ids, drafter.fuse(target.aux), topk, steps, nodes)
        path: tuple[int, ...] = ()
        while True:
            new = draw(nucleus(target.read(ids[-1:])[-1], temperature, top_p), rng)
            ids.append(new)
            if (*path, new) not in tree:
                break
            path = (*path, new)
            if new == end or len(ids) - len(prompt) == limit or len(path) == steps:
                if len(path) == steps and new != end and len(ids) - len(prompt) < limit:
                    ids.append(draw(nucleus(target.read(ids[-1:])[-1], temperature, top_p), rng))
                break
        out.accepted.append(len(path))
    return out


def grow_tree(
    drafter: PlainDrafter, ids: Sequence[int], fed: torch.Tensor, topk: int, steps: int, nodes: int
) -> set[tuple[int, ...]]:
    """The paths of the tree: best-first by the product of probabilities, level by level."""
    pool: dict[tuple[int, ...], float] = {}
    level: list[tuple[tuple[int, ...], float, torch.Tensor]] = [((), 0.0, fed)]
    for _ in range(steps):
        grown = []
        for path, score, states in level:
            state = drafter.last_state([*ids[1:], *path], states)
            share = drafter.logits(state).log_softmax(-1)
            for i in share.argsort(descending=True)[:topk].tolist():
                child = (*path, int(drafter.chosen[i]))
                pool[child] = score + float(share[i])
                grown.append((child, pool[child], torch.cat([states, state[None]])))
        level = sorted(grown, key=lambda node: -node[1])[:topk]
    return set(sorted(pool, key=lambda path: -pool[path])[:nodes])
