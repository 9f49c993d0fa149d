"""What exactness is worth: acceptance of drafters that were trained on true ids, and on what goes wrong without them. Paired seeds.

    python benchmarks/effect/study.py --json effect.json        # kimi-mini, 5 seeds x 8 arms: 15 minutes of one core

Every arm has the same prompts, seeds (weights, row order) and test: held-out prompts with true sampled answers and right states. Only
what a drafter was trained on differs. Figures and reading: docs/effect.md.

| arm            | trained on                                                                             |
| -------------- | -------------------------------------------------------------------------------------- |
| true           | the ids that were sampled                                                              |
| reencoded      | the answer's text encoded again (markers kept): canonical ids                          |
| stripped       | the same with each piece of text stripped, as providers return it                      |
| no_reasoning   | the answer without its reasoning, as a template renders history                        |
| wrong_end      | [EOS] in place of <|im_end|> (what config.json names as the end)                       |
| hot            | answers of the same model at temperature 1.5: another policy                           |
| layer_late     | states of the layers one further up                                                    |
| position_early | states one position early                                                              |
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle3_assets.accept.acceptance import Decoding, figures, measure
from eagle3_assets.accept.batch import Row
from eagle3_assets.accept.stored_rows import StoredRow
from eagle3_assets.accept.training import Settings, fresh_drafter, train
from eagle3_assets.corpus.vocab import choose_ids, to_offsets
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.target_head import TargetHead
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, sample_all
from kimi_mini.tokenizer import load_encoding, special_tokens
from kimi_mini_workshop.evaluate import questions

LAYERS = (2, 4, 5)
TEMPERATURE, TOP_P, LIMIT = 1.0, 0.95, 160
DRAFT_VOCABULARY = 1024
WAYS = ("sampled_chain", "greedy_chain")
T_975 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # Student's t by degrees of freedom

Ids = tuple[int, ...]


def pieces(ids: Ids) -> list[int | bytes]:
    """Special ids as they are, the bytes between them joined."""
    encoding, special = load_encoding(), set(special_tokens().values())
    out: list[int | bytes] = []
    for i in ids:
        if i in special:
            out.append(i)
        elif out and isinstance(out[-1], bytes):
            out[-1] += encoding.decode_single_token_bytes(i)
        else:
            out.append(encoding.decode_single_token_bytes(i))
    return out


def encoded(parts: Sequence[int | bytes], change: Callable[[str], str] = lambda text: text) -> Ids:
    encoding, ids = load_encoding(), list[int]()
    for part in parts:
        ids += [part] if isinstance(part, int) else encoding.encode_ordinary(change(part.decode("utf-8", "replace")))
    return tuple(ids)


def without_reasoning(ids: Ids) -> Ids:
    end = special_tokens()["</think>"]
    return ids[ids.index(end) + 1 :] if end in ids else ids


def with_eos(ids: Ids) -> Ids:
    return (*ids[:-1], special_tokens()["[EOS]"]) if ids[-1] == special_tokens()["<|im_end|>"] else ids


def position_early(states: torch.Tensor) -> torch.Tensor:
    return torch.cat([states[:1], states[:-1]])


CHANGES: dict[str, Callable[[Ids], Ids]] = {
    "true": lambda ids: ids,
    "reencoded": lambda ids: encoded(pieces(ids)),
    "stripped": lambda ids: encoded(pieces(ids), str.strip),
    "no_reasoning": without_reasoning,
    "wrong_end": with_eos,
    "hot": lambda ids: ids,
    "layer_late": lambda ids: ids,
    "position_early": lambda ids: ids,
}


class Study:
    """The model, its prompts and answers, sampled once for all arms."""

    def __init__(self, train_conversations: int, test_conversations: int) -> None:
        self.model = load_model()
        self.engine = TransformersExtractor(self.model, name="kimi-mini", revision=None, fingerprint="", stored_dtype="bfloat16")
        norm = FinalNorm(self.model.model.norm.weight.detach().float().numpy(), self.model.config.rms_norm_eps)
        self.head = TargetHead(self.model.lm_head.weight.detach().float(), norm)
        self.embedding = self.model.get_input_embeddings().weight.detach().float()
        self.prompts = [q.prompt for q in questions(train_conversations, 21)]
        self.answers = {name: self.sample(self.prompts, heat) for name, heat in (("true", TEMPERATURE), ("hot", 1.5))}
        tests = [q.prompt for q in questions(test_conversations, 22)]
        self.test = self.rows(tests, self.sample(tests, TEMPERATURE), LAYERS)
        counts = np.bincount(np.concatenate(self.answers["true"]), minlength=len(self.embedding))
        self.d2t = torch.from_numpy(to_offsets(choose_ids(counts, DRAFT_VOCABULARY, ())))

    def sample(self, prompts: Sequence[Ids], temperature: float) -> list[Ids]:
        top_p = TOP_P if temperature == TEMPERATURE else 1.0
        asked = [Ask(prompt, temperature, top_p, seed, LIMIT) for seed, prompt in enumerate(prompts)]
        return [tuple(sample.ids) for sample in sample_all(self.model, asked)]

    def rows(self, prompts: Sequence[Ids], answers: Sequence[Ids], layers: tuple[int, ...]) -> list[Row]:
        ids = [(*prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
        captured = self.engine.capture(ids, layers)
        masks = [np.arange(len(row)) >= len(prompt) for row, prompt in zip(ids, prompts, strict=True)]
        return [Row(np.array(i, np.int64), m, c.states.clone()) for i, m, c in zip(ids, masks, captured, strict=True)]

    def arm(self, name: str) -> tuple[list[Row], dict[str, float]]:
        answers = self.answers["hot" if name == "hot" else "true"]
        changed = [CHANGES[name](ids) for ids in answers]
        rows = self.rows(self.prompts, changed, tuple(k + 1 for k in LAYERS) if name == "layer_late" else LAYERS)
        if name == "position_early":
            rows = [replace(row, states=position_early(row.states)) for row in rows]
        other = sum(a != b for a, b in zip(changed, self.answers["true"], strict=True)) / len(changed)
        return [row for row in rows if row.generated.sum() > 2], {"rows_with_other_ids": other}

    def run(self, rows: list[Row], settings: Settings) -> dict[str, float]:
        drafter = fresh_drafter(self.embedding, self.head, self.d2t, settings)
        train(drafter, rows, self.head, settings)
        stored = [StoredRow(f"{k:05d}", 0, "test", "A0", (TEMPERATURE, TOP_P), row) for k, row in enumerate(self.test)]
        found = figures(measure(drafter.eval(), stored, self.head, Decoding(settings.ttt_steps), ways=WAYS))
        return {way: found[way]["all"]["tau"] for way in WAYS}


def paired(arm: Sequence[float], true: Sequence[float]) -> dict[str, float]:
    """Mean difference to the true arm over the same seeds, with Student's 95 % interval."""
    differences = [a - b for a, b in zip(arm, true, strict=True)]
    mean = statistics.fmean(differences)
    half = T_975[len(differences) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))
    return {"difference": mean, "low": mean - half, "high": mean + half}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="5 to 10")
    parser.add_argument("--conversations", type=int, default=80, help="to train on; half as many more to test on")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--arms", nargs="+", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    if not 5 <= chosen.seeds <= 10:
        parser.error("--seeds: 5 to 10")
    torch.set_num_threads(1)
    begun = time.monotonic()
    study = Study(chosen.conversations, chosen.conversations // 2)
    taus: dict[str, list[dict[str, float]]] = {}
    facts: dict[str, Any] = {}
    for name in dict.fromkeys(["true", *chosen.arms]):
        rows, facts[name] = study.arm(name)
        taus[name] = [study.run(rows, Settings(epochs=chosen.epochs, seed=seed)) for seed in range(chosen.seeds)]
        for way in WAYS:
            mine, true = ([run[way] for run in taus[n]] for n in (name, "true"))
            facts[name][way] = {"tau": statistics.fmean(mine), "sd": statistics.stdev(mine), **paired(mine, true)}
        print(f"{name:15} {facts[name]} {time.monotonic() - begun:.0f} s", flush=True)
        if chosen.json:
            about = {
                "seeds": chosen.seeds,
                "conversations": chosen.conversations,
                "epochs": chosen.epochs,
                "test_rows": len(study.test),
            }
            chosen.json.write_text(json.dumps({"about": about, "arms": facts, "runs": taus}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
