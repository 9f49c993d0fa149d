"""The two drafters of `drafter.py`: an EAGLE-3 layer of our own, and the one of the package `speculators`.

Belongs here: what a drafter is given (`Target`, `Batch`), its forward pass and its loss. Does not belong here: reading states, the
training loop, acceptance (`drafter`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from eagle3_assets.states.format.final_norm import FinalNorm

HEADS, WIDENING, ROPE_THETA = 4, 2, 10_000.0  # WIDENING: the feed-forward part's width in hidden sizes
STEP_DECAY = 0.8  # weight of the loss of draft k: 0.8 ** k (docs/research/kimi-mini.md#5: 1, 0.8, 0.64)
INIT_STD = 0.02  # of every fresh matrix, as transformers initialises


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter takes from its target. `chosen` int64 [N]: the target id of each draft id, ascending. float32 `embedding` [V, H]
    and `head` [N, H] (the rows of `chosen`)."""

    embedding: npt.NDArray[np.float32]
    head: npt.NDArray[np.float32]
    chosen: npt.NDArray[np.int64]
    final_norm: FinalNorm


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows end to end, [positions] each; the first token of a row is dropped (speculators' `shift_batch`).

    Position j holds id x[j+1] beside the state of x[j]: what a server has when it drafts x[j+2]. `final` at j is the state of x[j+1]
    before the norm, whose softmax is the label. `supervised`: x[j+1] and x[j+2] are both the target's own.
    """

    ids: torch.Tensor
    features: torch.Tensor
    final: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    supervised: torch.Tensor


class Drafter(Protocol):
    """`parameters` with a gradient are what is trained."""

    def parameters(self) -> Iterable[nn.Parameter]: ...

    def loss(self, batch: Batch, steps: int) -> torch.Tensor:
        """Scalar: sum over drafts k of 0.8 ** k x mean KL(label, draft) over the supervised positions."""

    def drafts(self, batch: Batch, steps: int) -> torch.Tensor:
        """int64 [steps, positions]: the target id proposed for x[j+2+k], given the true ids up to x[j+1+k]; anything where position j
        is not supervised."""


class OwnDrafter(nn.Module):
    """EAGLE-3's one layer: three states through `fc`; normed embedding beside normed state into attention, residual on the state.

    Draft k > 0 reads the drafter's own state in place of the target's: it attends to the target-fed positions up to its start and to
    its own since (training-time test). Norms, residuals and rotary positions are those of speculators' Eagle3DraftModel with a Llama
    layer; a test compares the two number by number where the package is installed.
    """

    def __init__(self, target: Target, seed: int) -> None:
        super().__init__()
        hidden = target.embedding.shape[1]
        self.final_norm, self.chosen = target.final_norm, torch.from_numpy(target.chosen)
        self.embed = nn.Embedding.from_pretrained(torch.from_numpy(target.embedding), freeze=True)
        self.head = torch.from_numpy(target.head)
        sizes = {"fc": (3, 1), "q": (2, 1), "k": (2, 1), "v": (2, 1), "o": (1, 1)}
        sizes |= {"gate": (1, WIDENING), "up": (1, WIDENING), "down": (WIDENING, 1)}
        self.linear = nn.ModuleDict({name: nn.Linear(i * hidden, o * hidden, bias=False) for name, (i, o) in sizes.items()})
        names = ("embedding", "state", "mlp", "out")
        self.norm = nn.ModuleDict({name: nn.RMSNorm(hidden, eps=target.final_norm.eps) for name in names})
        generator = torch.Generator().manual_seed(seed)
        for linear in self.linear.values():
            nn.init.normal_(linear.weight, std=INIT_STD, generator=generator)

    def loss(self, batch: Batch, steps: int) -> torch.Tensor:
        at = batch.supervised.nonzero()[:, 0]
        labels = functional.softmax(self.final_norm.apply(batch.final[at]) @ self.head.T, dim=-1)
        # draft k of position p started at p - k
        starts, where = (at[:, None] - torch.arange(steps)).clamp(min=0).unique(return_inverse=True)
        total = torch.zeros(())
        for k, state in enumerate(self._states(batch, steps, starts)):
            inside = at >= k
            drafted = functional.log_softmax(state[where[inside, k]] @ self.head.T, dim=-1)
            mean = functional.kl_div(drafted, labels[inside], reduction="sum") / max(1, int(inside.sum()))
            total = total + STEP_DECAY**k * mean
        return total

    @torch.no_grad()
    def drafts(self, batch: Batch, steps: int) -> torch.Tensor:
        starts = batch.supervised.nonzero()[:, 0]
        drafts = torch.full((steps, len(batch.ids)), -1)
        for k, state in enumerate(self._states(batch, steps, starts)):
            drafts[k, starts] = self.chosen[(state @ self.head.T).argmax(-1)]
        return drafts

    def _states(self, batch: Batch, steps: int, starts: torch.Tensor) -> Iterator[torch.Tensor]:
        """Normed states [starts, H] of each draft: what the head reads. Positions where no draft starts only give keys and values."""
        order = torch.arange(len(batch.ids))
        seen = (starts[:, None] >= order) & (batch.documents[starts, None] == batch.documents)
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        state = self.linear["fc"](batch.features)
        both = self._beside(batch.ids, state)
        cache = [self._keys_and_values(both, batch.positions)]
        state, both = state[starts], both[starts]
        for k in range(steps):
            if k:
                # the true id: a chain is fed on only while its drafts are right
                both = self._beside(batch.ids[(starts + k).clamp(max=len(batch.ids) - 1)], state)
                cache.append(self._keys_and_values(both, batch.positions[starts] + k))
            state = state + self.linear["o"](self._attend(both, batch.positions[starts] + k, mask, cache))
            normed = self.norm["mlp"](state)
            state = state + self.linear["down"](functional.silu(self.linear["gate"](normed)) * self.linear["up"](normed))
            yield self.norm["out"](state)

    def _beside(self, ids: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm["embedding"](self.embed(ids)), self.norm["state"](state)], dim=-1)

    def _heads(self, name: str, both: torch.Tensor) -> torch.Tensor:
        """[heads, n, dim]."""
        return self.linear[name](both).unflatten(-1, (HEADS, -1)).transpose(0, 1)

    def _keys_and_values(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rotated(self._heads("k", both), positions), self._heads("v", both)

    def _attend(
        self, both: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """[starts, H]. `cache`: keys and values of all positions, then of each draft so far, of which a start sees its own."""
        q = self._heads("q", both)
        q = rotated(q, positions) * q.shape[-1] ** -0.5
        (keys, values), *own = cache
        scores = torch.cat([q @ keys.mT + mask, *((q * own_k).sum(-1, keepdim=True) for own_k, _ in own)], dim=-1)
        share = functional.softmax(scores, dim=-1)
        size = mask.shape[1]
        read = share[..., :size] @ values
        for i, (_, own_v) in enumerate(own):
            read = read + share[..., size + i, None] * own_v
        return read.transpose(0, 1).flatten(1)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions on [heads, positions, dim], halves as in Llama."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * ROPE_THETA ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


class SpeculatorsDrafter:
    """The package's Eagle3DraftModel on the same batches. Its trainer asks for an accelerator, the model does not; its fused losses need
    Triton, its eager ones do not."""

    def __init__(self, target: Target, seed: int) -> None:
        from speculators import SpeculatorsConfig, VerifierConfig
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from speculators.proposals.greedy import GreedyTokenProposalConfig
        from transformers import LlamaConfig

        vocab, hidden = target.embedding.shape
        layer = LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=WIDENING * hidden,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            rms_norm_eps=target.final_norm.eps,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            initializer_range=INIT_STD,
            attn_implementation="sdpa",
        )
        about = SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig()],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),  # its weights are copied below, not read from a folder
        )
        config = Eagle3SpeculatorConfig(
            transformer_layer_config=layer, draft_vocab_size=len(target.chosen), speculators_config=about
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = Eagle3DraftModel(config)
        self.chosen = torch.from_numpy(target.chosen)
        in_draft = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, self.chosen, True)
        self.model.load_vocab_mappings(in_draft, self.chosen - torch.arange(len(self.chosen)))
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(torch.from_numpy(target.embedding))
            self.model.verifier_norm.weight.copy_(torch.from_numpy(target.final_norm.weight))
            for head in (self.model.lm_head, self.model.verifier_lm_head):
                head.weight.copy_(torch.from_numpy(target.head))
        self._losses = resolve_loss_config("kl_div", "eager")

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def loss(self, batch: Batch, steps: int) -> torch.Tensor:
        loss: torch.Tensor = self._forward(batch, steps, verifier_last_hidden_states=batch.final[None])[1]
        return loss

    @torch.no_grad()
    def drafts(self, batch: Batch, steps: int) -> torch.Tensor:
        return self.chosen[torch.cat(self._forward(batch, steps))]

    def _forward(self, batch: Batch, steps: int, **labels: torch.Tensor) -> Any:
        return self.model(
            hidden_states=batch.features[None],
            input_ids=batch.ids[None],
            document_ids=batch.documents[None],
            position_ids=batch.positions[None],
            loss_mask=batch.supervised.float()[None],
            ttt_steps=steps,
            ttt_step_loss_decay=STEP_DECAY,
            loss_config=self._losses,
            **labels,
        )


DRAFTERS: dict[str, type[OwnDrafter] | type[SpeculatorsDrafter]] = {"own": OwnDrafter, "speculators": SpeculatorsDrafter}
