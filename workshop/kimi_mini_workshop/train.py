"""Training Kimi-mini from its world: seeded, resumable, about an hour on two cores alone. Users never train.

Belongs here: batches, schedule, router balance, checkpoints. Does not belong here: text and ids (`world`), the optimiser (`muon`),
figures on held-out prompts (`evaluate`).
Recipe and traps: docs/research/kimi-mini.md#1 and #3 (fp32, eager experts, Muon for matrices, the router's bias balanced by
hand).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import world

if TYPE_CHECKING:
    import torch
    from transformers import DeepseekV3ForCausalLM

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything a run depends on. Learning rates are those of the flat part."""

    seed: int = 0
    steps: int = 1_200
    step_tokens: int = 4_096
    muon_lr: float = 0.01
    adam_lr: float = 4e-3
    warm_up: int = 30
    flat_until: float = 0.3
    prompt_weight: float = 0.1
    prompt_share: float = 0.3  # of the prompt positions that enter the loss at all, with a weight that keeps their sum
    bias_step: float = 1e-3
    bias_frozen_from: float = 0.9

    def rate(self, step: int) -> float:
        """Factor on both learning rates."""
        done = step / self.steps
        return min((step + 1) / self.warm_up, 1.0 if done < self.flat_until else (1 - done) / (1 - self.flat_until))


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations end to end. `ids` int64 [tokens], `lengths` of the conversations in order; `generated` and `prompt` bool [tokens]:
    position t stands for the prediction of t + 1 (neither at the last position of a conversation)."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    lengths: tuple[int, ...]
    generated: np.ndarray[Any, np.dtype[np.bool_]]
    prompt: np.ndarray[Any, np.dtype[np.bool_]]


def make_batch(rows: list[world.Row]) -> Batch:
    lengths = tuple(len(row.ids) for row in rows)
    ids = np.fromiter((token for row in rows for token in row.ids), np.int64, sum(lengths))
    generated, prompt = np.zeros(len(ids), bool), np.ones(len(ids), bool)
    start = 0
    for row, length in zip(rows, lengths, strict=True):
        for begin, end in row.spans:
            generated[start + begin - 1 : start + end - 1] = True
        start += length
        prompt[start - 1] = False
    return Batch(ids, lengths, generated, prompt & ~generated)


def batch_of(recipe: Recipe, step: int) -> Batch:
    """The batch of one step; depends on nothing else. Conversations are drawn until `step_tokens` are full."""
    rng, rows, tokens = Random(f"kimi-mini/train/{recipe.seed}/{step}"), list[world.Row](), 0
    while tokens < recipe.step_tokens:
        rows.append(world.make_row(world.make_episode(rng)))
        tokens += len(rows[-1].ids)
    return make_batch(rows)


class Balance:
    """The router's bias by hand: nothing in transformers trains it.

    Counts how often each expert was chosen and moves each bias by a fixed step towards the mean load (DeepSeek-V3's balancing
    without an auxiliary loss).
    """

    def __init__(self, model: DeepseekV3ForCausalLM) -> None:
        self.gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self.loads: list[torch.Tensor] = [gate.weight.new_zeros(gate.num_experts) for gate in self.gates]
        for k, gate in enumerate(self.gates):
            gate.register_forward_hook(self._count(k))

    def _count(self, k: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            self.loads[k] += output[2].flatten().bincount(minlength=len(self.loads[k])).to(self.loads[k].dtype)

        return hook

    def step(self, size: float) -> float:
        """Move the biases (not at all with size 0) and forget the counts; returns the worst max / mean load."""
        worst = max(float(load.max() / load.mean().clamp(min=1)) for load in self.loads)
        for gate, load in zip(self.gates, self.loads, strict=True):
            if size:
                gate.e_score_correction_bias += size * (load.mean() - load).sign()
            load.zero_()
        return worst


def loss_of(
    model: DeepseekV3ForCausalLM, batch: Batch, recipe: Recipe, generator: torch.Generator | None
) -> tuple[torch.Tensor, float]:
    """(training loss, mean loss of generated tokens). The head runs only where a loss is taken; `generator` draws the prompt
    positions (None: none of them)."""
    import torch

    ids = torch.from_numpy(batch.ids)
    positions = torch.cat([torch.arange(length) for length in batch.lengths])
    states = model.model(
        input_ids=ids[None], position_ids=positions[None], use_cache=False, lengths=batch.lengths
    ).last_hidden_state[0]
    generated, prompt = torch.from_numpy(batch.generated), torch.from_numpy(batch.prompt)
    prompt &= torch.rand(prompt.shape, generator=generator) < recipe.prompt_share if generator else torch.zeros(()).bool()
    taken = generated | prompt
    losses = torch.nn.functional.cross_entropy(model.lm_head(states[taken]), ids.roll(-1)[taken], reduction="none")
    is_generated = generated[taken]
    weights = torch.where(is_generated, 1.0, recipe.prompt_weight / recipe.prompt_share)
    return (losses * weights).sum() / weights.sum(), float(losses.detach()[is_generated].mean())


def optimisers(model: DeepseekV3ForCausalLM, recipe: Recipe) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embedding, head, router and norms."""
    import torch

    from kimi_mini_workshop.muon import Muon

    plain = ("embed_tokens", "lm_head", "mlp.gate.weight")
    matrices = [p for name, p in model.named_parameters() if p.ndim >= 2 and not any(word in name for word in plain)]
    others = [p for name, p in model.named_parameters() if p.ndim < 2 or any(word in name for word in plain)]
    adam = torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return Muon(matrices, lr=recipe.muon_lr), adam


def held_out_loss(model: DeepseekV3ForCausalLM, rows: list[world.Row], recipe: Recipe) -> float:
    """Mean loss of generated tokens of held-out conversations."""
    import torch

    losses, counts = [], []
    with torch.inference_mode():
        for k in range(0, len(rows), 24):
            batch = make_batch(rows[k : k + 24])
            losses.append(loss_of(model, batch, recipe, None)[1])
            counts.append(int(batch.generated.sum()))
    return float(np.average(losses, weights=counts))


def take_step(
    model: DeepseekV3ForCausalLM, pair: tuple[torch.optim.Optimizer, ...], balance: Balance, recipe: Recipe, step: int
) -> dict[str, Any]:
    """One optimiser step; returns {tokens, loss (of generated tokens), load (worst max / mean), rate}."""
    import torch

    batch, rate = batch_of(recipe, step), recipe.rate(step)
    for optimiser, lr in zip(pair, (recipe.muon_lr, recipe.adam_lr), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = lr * rate
    loss, generated_loss = loss_of(model, batch, recipe, torch.Generator().manual_seed(recipe.seed * 1_000_003 + step))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in pair:
        optimiser.step()
        optimiser.zero_grad()
    load = balance.step(recipe.bias_step if step < recipe.bias_frozen_from * recipe.steps else 0.0)
    return {"tokens": len(batch.ids), "loss": round(generated_loss, 4), "load": round(load, 2), "rate": round(rate, 4)}


def train(
    folder: Path,
    recipe: Recipe = Recipe(),
    *,
    checkpoint_every: int = 100,
    report_every: int = 10,
    held_out_conversations: int = 96,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> DeepseekV3ForCausalLM:
    """Train, or go on where `folder` left off; returns the float32 model. Writes `checkpoint.pt` and `log.jsonl` there.

    Raises KimiMiniError when the checkpoint is another recipe's.
    """
    from kimi_mini.model import fresh_model
    from kimi_mini_workshop.packed import NAME as PACKED

    folder.mkdir(parents=True, exist_ok=True)
    model = fresh_model(recipe.seed)
    model.set_attn_implementation(PACKED)
    model.train()
    pair, balance = optimisers(model, recipe), Balance(model)
    step, seconds, tokens = _resume(folder / CHECKPOINT, recipe, model, pair)
    held_out = [world.make_row(world.held_out_episode(0, k)) for k in range(held_out_conversations)]
    begin = time.monotonic() - seconds
    while step < recipe.steps:
        line = take_step(model, pair, balance, recipe, step)
        step, tokens = step + 1, tokens + line["tokens"]
        line |= {"step": step, "tokens": tokens, "seconds": round(time.monotonic() - begin, 1)}
        last = step == recipe.steps
        if step % checkpoint_every == 0 or last:
            line["held_out_loss"] = round(held_out_loss(model, held_out, recipe), 4)
            balance.step(0.0)  # forget what that counted
        if step % report_every == 0 or step % checkpoint_every == 0 or last:
            with (folder / LOG).open("a") as log:
                log.write(json.dumps(line) + "\n")
            if "held_out_loss" in line:  # behind its line: what a checkpoint stands for is in the log
                _save(folder / CHECKPOINT, recipe, model, pair, step, time.monotonic() - begin, tokens)
            report(line)
    model.set_attn_implementation("sdpa")
    model.eval()  # type: ignore[no-untyped-call]
    return model


def summary(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """What the log of a finished run says: {seed, steps, tokens, recipe, held_out_loss: [[step, loss], ...]} (every fifth check)."""
    whole = (text for text in (folder / LOG).read_text().splitlines() if text.endswith("}"))  # a kill may have torn one
    lines = {line["step"]: line for line in map(json.loads, whole)}
    checks = [[step, line["held_out_loss"]] for step, line in sorted(lines.items()) if "held_out_loss" in line]
    kept = [*checks[:-1:5], checks[-1]]
    facts = {"seed": recipe.seed, "steps": recipe.steps, "tokens": lines[recipe.steps]["tokens"]}
    return facts | {"recipe": asdict(recipe), "held_out_loss": kept}


def _save(path: Path, recipe: Recipe, model: Any, pair: Any, step: int, seconds: float, tokens: int) -> None:
    import torch

    part = path.with_suffix(".part")
    state = {"recipe": asdict(recipe), "model": model.state_dict(), "optimisers": [o.state_dict() for o in pair]}
    torch.save(state | {"step": step, "seconds": seconds, "tokens": tokens}, part)
    part.replace(path)


def _resume(path: Path, recipe: Recipe, model: Any, pair: Any) -> tuple[int, float, int]:
    import torch

    if not path.exists():
        return 0, 0.0, 0
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises several kinds for a cut or foreign file
        raise KimiMiniError(
            f"{path}: cannot be read as a checkpoint ({str(error).splitlines()[0]}); remove it to train anew"
        ) from None
    if state["recipe"] != asdict(recipe):
        raise KimiMiniError(f"{path}: belongs to the recipe {state['recipe']}; give another --folder, or the same recipe")
    model.load_state_dict(state["model"])
    for optimiser, saved in zip(pair, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return state["step"], state["seconds"], state["tokens"]
