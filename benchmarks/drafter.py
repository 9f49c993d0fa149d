"""Can a drafter be trained on the states that a campaign stored? Accepted tokens per verification, several seeds an arm.

    make demo                                                     # the states come from the demo campaign
    python benchmarks/drafter.py --jobs 2 --json drafter.json     # 5 seeds x (untrained, trained, off by one): a few minutes
    python benchmarks/drafter.py --drafter speculators            # with the draft model of the package `speculators`

A tiny EAGLE-3 drafter learns from `hidden_states/` (our states reader; the final norm applied as the partition says; labels: softmax of
the target's head) over the campaign's draft vocabulary, one torch thread a process. It is measured on the target's own greedy answers
to held-out prompts of kimi-mini's world. Figures, and what acceptance cannot see: docs/drafter.md.

| arm        | trained on                                              |
| ---------- | ------------------------------------------------------- |
| untrained  | nothing: fresh weights, the target's head and embedding |
| trained    | the states as stored                                    |
| off_by_one | states one position early: state t-1 where t belongs    |
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from drafter_models import DRAFTERS, Batch, Drafter, Target

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.states import reader
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.weights import model_fingerprint, weights_folder
from eagle3_assets.store import Store
from kimi_mini_workshop.muon import Muon

ARMS = ("untrained", "trained", "off_by_one")


@dataclass(frozen=True, slots=True)
class Settings:
    """`chain`: drafts a verification, and steps of training-time test: a drafter drafts no further than it was trained."""

    chain: int = 3
    epochs: int = 4
    batch_tokens: int = 1024
    muon_lr: float = 0.02
    adamw_lr: float = 2e-3
    warm_up: int = 20


# ---------------------------------------------------------------------------------------------------- data
@dataclass(frozen=True, slots=True)
class Row:
    """`ids` int64 [T], `generated` bool [T] (the loss mask), `states` float32 [T, 4, H]: low, mid, high, final before the norm."""

    ids: npt.NDArray[np.int64]
    generated: npt.NDArray[np.bool_]
    states: npt.NDArray[np.float32]


def off_by_one(row: Row) -> Row:
    """The row with state t-1 where state t belongs, all four slots: what a forgotten shift in an extractor leaves on disk."""
    return replace(row, states=np.concatenate([row.states[:1], row.states[:-1]]))


def make_batch(rows: Sequence[Row]) -> Batch:
    lengths = [len(row.ids) - 1 for row in rows]
    # the label behind the last generated id is no draft of anything
    supervised = [row.generated[1:] & np.append(row.generated[2:], False) for row in rows]
    return Batch(
        ids=torch.from_numpy(np.concatenate([row.ids[1:] for row in rows])),
        features=torch.from_numpy(np.concatenate([row.states[:-1, :3].reshape(len(row.ids) - 1, -1) for row in rows])),
        final=torch.from_numpy(np.concatenate([row.states[1:, 3] for row in rows])),
        positions=torch.from_numpy(np.concatenate([np.arange(1, length + 1) for length in lengths])),
        documents=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)),
        supervised=torch.from_numpy(np.concatenate(supervised)),
    )


def make_batches(rows: Sequence[Row], batch_tokens: int, rng: np.random.Generator | None = None) -> Iterator[list[Row]]:
    """Every row once, in a random order (as given without `rng`), up to `batch_tokens` at once; a longer row comes alone."""
    batch: list[Row] = []
    for k in range(len(rows)) if rng is None else rng.permutation(len(rows)):
        if batch and sum(len(row.ids) for row in batch) + len(rows[k].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(rows[k])
    if batch:
        yield batch


# ---------------------------------------------------------------------------------------------------- training
def train(drafter: Drafter, rows: Sequence[Row], settings: Settings, seed: int) -> None:
    """Muon on the matrices, AdamW on the norms; warm-up, then the rate falls linearly to 0. `seed` orders the rows."""
    rng = np.random.default_rng(seed)
    plan = [batch for _ in range(settings.epochs) for batch in make_batches(rows, settings.batch_tokens, rng)]
    learning = [p for p in drafter.parameters() if p.requires_grad]
    optimisers: list[torch.optim.Optimizer] = [
        Muon([p for p in learning if p.dim() == 2], lr=settings.muon_lr),
        torch.optim.AdamW([p for p in learning if p.dim() != 2], lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [group["lr"] for optimiser in optimisers for group in optimiser.param_groups]
    for step, chosen in enumerate(plan):
        pace = min(1.0, (step + 1) / settings.warm_up) * (1 - step / len(plan))
        for peak, group in zip(peaks, (group for optimiser in optimisers for group in optimiser.param_groups), strict=True):
            group["lr"] = peak * pace
        drafter.loss(make_batch(chosen), settings.chain).backward()  # type: ignore[no-untyped-call]
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()


# ---------------------------------------------------------------------------------------------------- acceptance
@dataclass(frozen=True, slots=True)
class Walk:
    """`tokens` of answers behind their first (which prefill gives), the `verifications` that they took, `first_hits` of these."""

    tokens: int = 0
    verifications: int = 0
    first_hits: int = 0

    def __add__(self, other: Walk) -> Walk:
        return Walk(self.tokens + other.tokens, self.verifications + other.verifications, self.first_hits + other.first_hits)


def walk(drafts: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], prompt: int) -> Walk:
    """Greedy chain decoding of an answer that is known, `ids[prompt:]`; `drafts[k, j]` proposes ids[j+2+k], given the true ids before.

    A verification accepts drafts up to the first miss and adds the target's own next id. Equal to running the decoder, as a draft is
    fed on only while it is right.
    """
    at, end, verifications, first_hits = prompt, len(ids) - 1, 0, 0
    while at < end:
        accepted = 0
        while accepted < len(drafts) and at + 1 + accepted <= end and drafts[accepted, at - 1] == ids[at + 1 + accepted]:
            accepted += 1
        verifications += 1
        first_hits += accepted > 0
        at += accepted + 1
    return Walk(max(0, end - prompt), verifications, first_hits)


def accept(drafter: Drafter, rows: Sequence[Row], settings: Settings) -> Walk:
    """All test rows; the ids that the target generated are the end of each."""
    total = Walk()
    for batch in make_batches(rows, settings.batch_tokens):
        drafts = drafter.drafts(make_batch(batch), settings.chain).numpy()
        starts = np.cumsum([0, *(len(row.ids) - 1 for row in batch)])
        for row, start in zip(batch, starts[:-1], strict=True):
            total += walk(drafts[:, start : start + len(row.ids) - 1], row.ids, int(row.generated.argmax()))
    return total


# ---------------------------------------------------------------------------------------------------- the campaign and its target
def read_rows(campaign: Campaign, store: Store) -> tuple[list[Row], FinalNorm]:
    """Every stored row of the campaign. Raises StateError for states that are missing or not of today's target."""
    rows, norm, wanted = list[Row](), None, model_fingerprint(campaign)
    folders = sorted(folder for folder in store.hidden_states.glob("*") if folder.is_dir())
    for folder in folders:
        states = reader.open(folder)
        if states.manifest.raw["model"]["fingerprint"] != wanted:
            raise StateError(f"{folder}: states of another model than {weights_folder(campaign)}; run the campaign again")
        norm = states.final_norm
        for row in states:
            rows.append(Row(row.input_ids.astype(np.int64), row.loss_mask == 1, row.hidden_states.float().numpy().copy()))
    if norm is None:
        raise StateError(f"{store.hidden_states}: holds no states; run the campaign first (make demo)")
    return [row for row in rows if len(row.ids) > 2], norm


def count_tokens(rows: Sequence[Row]) -> dict[str, int]:
    return {"tokens": sum(len(row.ids) for row in rows), "generated": sum(int(row.generated.sum()) for row in rows)}


def read_target(store: Store, model: Any, norm: FinalNorm) -> Target:
    """The target's embedding and head, cut to the campaign's draft vocabulary (`d2t` holds offsets)."""
    d2t: npt.NDArray[np.int64] = np.load(store.vocab_map / "d2t.npy", allow_pickle=False)
    chosen = np.arange(len(d2t)) + d2t
    embedding, head = (layer.weight.detach().float().numpy() for layer in (model.get_input_embeddings(), model.lm_head))
    return Target(embedding.copy(), head[chosen].copy(), chosen, norm)


def answered_rows(campaign: Campaign, model: Any, conversations: int) -> list[Row]:
    """Held-out prompts with the target's greedy answers, and their states as the campaign's own engine takes them."""
    from eagle3_assets.states.extractors.transformers import TransformersExtractor
    from kimi_mini.sampler import Ask, sample_all
    from kimi_mini_workshop import evaluate

    prompts = [question.prompt for question in evaluate.questions(conversations)]
    samples = sample_all(model, [Ask(prompt, temperature=0.0, max_tokens=evaluate.MAX_TOKENS) for prompt in prompts])
    rows = [(*prompt, *sample.ids) for prompt, sample in zip(prompts, samples, strict=True)]
    engine = TransformersExtractor(
        model, name=campaign.target.model, revision=None, fingerprint="", stored_dtype=campaign.extraction.dtype
    )
    captured = engine.capture(rows, campaign.layers)
    masks = [np.arange(len(ids)) >= len(prompt) for ids, prompt in zip(rows, prompts, strict=True)]
    return [
        Row(np.asarray(ids, dtype=np.int64), mask, one.states.float().numpy())
        for ids, mask, one in zip(rows, masks, captured, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------- arms
@dataclass(frozen=True, slots=True)
class Bench:
    """What every run of every arm is given."""

    drafter: str
    target: Target
    rows: list[Row]
    test: list[Row]
    settings: Settings


def run_arm(bench: Bench, arm: str, seed: int) -> dict[str, Any]:
    """Train (or not) and measure. A seed gives all arms the same fresh weights and the same order of rows."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    drafter: Drafter = DRAFTERS[bench.drafter](bench.target, seed)
    if arm != "untrained":
        train(drafter, bench.rows if arm == "trained" else [off_by_one(row) for row in bench.rows], bench.settings, seed)
    seconds = time.perf_counter() - begun
    done = accept(drafter, bench.test, bench.settings)
    return {
        "arm": arm,
        "seed": seed,
        "tokens_per_verification": done.tokens / done.verifications,
        "first_draft_hits": done.first_hits / done.verifications,
        "train_seconds": round(seconds, 1),
        **asdict(done),
    }


_bench: Bench | None = None  # of a worker process


def _prepare(bench: Bench) -> None:
    global _bench
    _bench = bench


def _run(task: tuple[str, int]) -> dict[str, Any]:
    assert _bench is not None
    return run_arm(_bench, *task)


def run_all(bench: Bench, seeds: Sequence[int], jobs: int) -> Iterator[dict[str, Any]]:
    """Every (arm, seed), `jobs` at a time, one torch thread each."""
    tasks = [(arm, seed) for arm in ARMS for seed in seeds]
    if jobs == 1:
        yield from (run_arm(bench, *task) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (bench,)) as pool:
        yield from pool.map(_run, tasks)


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """arm -> mean and standard deviation (n - 1) over its seeds, of tokens per verification and of the first draft's hit rate."""
    arms = {}
    for arm in ARMS:
        mine = [run for run in runs if run["arm"] == arm]
        arms[arm] = {
            f"{name}_{kind}": figure([run[name] for run in mine])
            for name in ("tokens_per_verification", "first_draft_hits")
            for kind, figure in (("mean", statistics.fmean), ("sd", statistics.stdev))
        }
    return arms


def report(arms: dict[str, dict[str, float]]) -> str:
    lines = [f"{'arm':10}  tokens per verification (sd)   first draft hits (sd)"]
    for arm, a in arms.items():
        lines.append(
            f"{arm:10}  {a['tokens_per_verification_mean']:.3f} ({a['tokens_per_verification_sd']:.3f})"
            f"{a['first_draft_hits_mean']:25.3f} ({a['first_draft_hits_sd']:.3f})"
        )
    return "\n".join(lines)


def installed(name: str) -> bool:
    """Whether the package behind a drafter can be found (it may still lack what it needs itself)."""
    return name == "own" or importlib.util.find_spec(name) is not None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "speculators" if installed("speculators") else "own"
    parser.add_argument("--campaign", default="demo")
    parser.add_argument("--data", type=Path, help="data root (default: EAGLE3_DATA, else ./data)")
    parser.add_argument("--drafter", choices=tuple(DRAFTERS), default=default, help=f"default here: {default}")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 .. n-1 for each arm, at least 2")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one torch thread each")
    parser.add_argument("--epochs", type=int, default=Settings().epochs)
    parser.add_argument("--chain", type=int, default=Settings().chain, help="drafts a verification")
    parser.add_argument("--conversations", type=int, default=120, help="held-out conversations of the test")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 2 or min(chosen.jobs, chosen.chain, chosen.conversations) < 1 or chosen.epochs < 1:
        parser.error("--seeds must be 2 or more; --jobs, --chain, --epochs, --conversations 1 or more")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    from kimi_mini.model import load_model, weights_sha256
    from kimi_mini_workshop.__main__ import quiet

    chosen = parse(arguments)
    quiet()
    torch.set_num_threads(1)
    begun = time.monotonic()
    campaign = load_campaign(chosen.campaign)
    store = Store(chosen.data / campaign.name) if chosen.data else Store.of(campaign)
    rows, norm = read_rows(campaign, store)
    model = load_model(weights_folder(campaign))
    settings = Settings(chain=chosen.chain, epochs=chosen.epochs)
    target, test = read_target(store, model, norm), answered_rows(campaign, model, chosen.conversations)
    bench = Bench(chosen.drafter, target, rows, test, settings)
    packages = ("torch", "transformers", *(["speculators"] if chosen.drafter == "speculators" else []))
    about: dict[str, Any] = {
        "campaign": campaign.name,
        "model_sha256": weights_sha256(weights_folder(campaign)),
        "drafter": chosen.drafter,
        "versions": {name: version(name) for name in packages},
        "settings": asdict(settings),
        "train": {"rows": len(rows)} | count_tokens(rows),
        "test": {"answers": len(test)} | count_tokens(test),
        "layers": list(campaign.layers),
        "draft_vocabulary": len(target.chosen),
    }
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; made ready in {time.monotonic() - begun:.0f} s", flush=True)
    runs = []
    for run in run_all(bench, range(chosen.seeds), chosen.jobs):
        runs.append(run)
        print(
            f"{run['arm']:10} seed {run['seed']}: {run['tokens_per_verification']:.3f} tokens per verification, "
            f"first draft {run['first_draft_hits']:.3f}, {run['train_seconds']:.0f} s",
            flush=True,
        )
    seeds, arms, seconds = [*range(chosen.seeds)], summarise(runs), round(time.monotonic() - begun, 1)
    print(f"{report(arms)}\nseeds {seeds}, {seconds} s in all")
    if chosen.json:
        figures = {**about, "seeds": seeds, "arms": arms, "runs": runs, "seconds": seconds}
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (Eagle3Error, ImportError) as error:
        sys.exit(f"drafter: {error}")
