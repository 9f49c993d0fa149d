"""A campaign of full size on disk, made once for measurements of what comes behind it: journals, token files, manifests.

    python -m benchmarks.full_size FOLDER [--samples 40000] [--tokens 3460] [--profile kimi-k2.5 --tokenizers DIR] [--jobs 2]

Shaped like the real corpus: nine datasets of sixteen shards; 7 % of the samples are imported trajectories of 16 K ids with the server's own
ids, two datasets come from an engine that returns ids, six are rented. Text is a seeded walk over the words of the vocabulary, encoded by
the profile; prompts are rendered, bodies are what a provider or an engine sends. Rows are written as `exact` would grade them.
What lies in FOLDER is used again: a second call makes only what is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import answers as answers_stage
from eagle3_assets.stages import tokens as tokens_stage
from eagle3_assets.store import Store, commit, is_current, read_manifest, write_bytes, write_json
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer

# name, backend, share of the samples, length of its answers beside the mean of all
DATASETS = (
    ("a1_deepswekimi", "import", 0.07, 16_000 / 3_460),
    ("b1_glaive", "engine", 0.11625, 0.726),
    ("b2_opencodeinstruct", "engine", 0.11625, 0.726),
    *((name, "openrouter", 0.11625, 0.726) for name in (
        "b3_magicoder", "b4_mixtureofthoughts", "b5_openthoughts", "b6_ultrachat", "b7_sharegpt", "b8_sweagent",
    )),
)  # fmt: skip
PROVIDERS = ("Alpha", "Beta", "Gamma", "Delta")
EVIDENCE = {
    "B1": {"basis": "bill", "provider_decided": True, "hypotheses": {"tried": 4, "surviving": 1, "distinct": 1}},
    "A0": {"basis": "server_ids", "prompt_basis": "server_ids", "wire_text": True},
}


def campaign_of(profile: str, samples: int, only: Sequence[str] = ()) -> Campaign:
    """The campaign of `samples` samples over all datasets, or over those named in `only`."""
    source = {"kind": "jsonl", "path": "rows.jsonl"}
    return Campaign.model_validate(
        {
            "campaign": {"name": "full-size", "seed": 7},
            "target": {
                "model": "moonshotai/kimi-k2.5", "profile": profile, "weights": "moonshotai/Kimi-K2.5", "num_hidden_layers": 61,
                "hidden_size": 7168, "vocab_size": 163840,
            },
            "server": {"kind": "openrouter"},
            "routing": {"max_price_completion": 2.6},
            "budget": {"campaign_usd": 100.0},
            "sampling": {"max_tokens": 131072},
            "engine": ({"kind": "sglang", "base_url": "http://127.0.0.1:1/v1"},),
            "dataset": tuple(
                {"name": name, "backend": backend, "source": source, "mapping": {"kind": "prompt"}, "licence": "MIT",
                 "rows": max(1, round(samples * share))}
                for name, backend, share, _ in DATASETS if not only or name in only
            ),
            "corpus": {"shards": 64},
            "vocab": {"draft_vocab_size": 32000},
        }
    )  # fmt: skip


@lru_cache(maxsize=2)
def _words(name: str) -> list[str]:
    """Texts of single ids: mostly whole words, beside them numbers, brackets, ends of lines."""
    profile = load_profile(name)
    texts = [profile.encoding.decode_single_token_bytes(token) for token in range(300, profile.n_base)]
    known = [raw.decode() for raw in texts if raw.isascii()]
    words = [text for text in known if text[0] == " " and text[1:].isalpha()]
    return words * (1 + 4 * len(known) // max(1, len(words))) + known


def _text(profile: Profile, n: int, chance: random.Random) -> str:
    return "".join(chance.choices(_words(profile.name), k=n)).strip()


def _sample(
    profile: Profile, campaign: Campaign, dataset: str, backend: str, shard: str, k: int, mean: float
) -> tuple[WireAnswer, SampleRow]:
    """One answer and its row, the same for the same names."""
    chance = random.Random(f"{dataset} {shard} {k}")
    name = hashlib.sha256(f"{dataset} {shard} {k}".encode()).hexdigest()[:32]
    messages = [{"role": "user", "content": f"Question {k} of {dataset}, {shard}: " + _text(profile, int(mean * 0.08), chance)}]
    size = max(3, int(mean * 0.9 * chance.uniform(0.5, 1.5)))
    reasoning, content = _text(profile, size * 2 // 3, chance), _text(profile, size // 3, chance)
    prompt = render_prompt(profile, messages, None)
    ids = (*profile.encode(reasoning), profile.special("</think>"), *profile.encode(content), profile.end_id)
    rented, billed = backend == "openrouter", backend != "import"
    provider = chance.choice(PROVIDERS) if rented else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    choice["message"]["reasoning" if rented else "reasoning_content"] = reasoning
    body: dict[str, Any] = {"id": f"gen-{name}", "model": campaign.target.model, "choices": [choice]}
    if billed:
        body["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    if rented:
        body["provider"] = provider
    else:
        choice["token_ids"], body["prompt_token_ids"] = ids, prompt
    raw = orjson.dumps(body)
    began = 1.8e9 + chance.uniform(0, 2000)
    answer = WireAnswer(
        name, name, 0, 1, dataset, shard, backend,  # type: ignore[arg-type]
        {"model": campaign.target.model, "messages": messages, "temperature": 1.0, "top_p": 0.95}, 200, raw, "finished",
        provider=provider, model=campaign.target.model, generation_id=f"gen-{name}", started_at=began,
        finished_at=began + 20 + len(ids) / 60, cost_usd=len(ids) * 2.2e-6 if rented else 0.0, completion_tokens=len(ids),
    )  # fmt: skip
    grade = "B1" if rented else "A0"
    evidence = dict(EVIDENCE[grade])
    if rented:
        evidence["prompt_forms"] = ["typescript/reasoning_kept/arguments_as_sent"]
    row = SampleRow(
        name, 0, 1, dataset, shard, backend, provider, campaign.target.model, f"gen-{name}", (*prompt, *ids), len(prompt),
        ((len(prompt), len(prompt) + len(ids)),), grade, (), 0.99, "simulated", orjson.dumps(evidence).decode(), (),
        len(prompt) if billed else None, len(ids) if billed else None, None, answer.cost_usd, "stop", "stop", 1.0, 0.95, 131072,
        profile.tokenizer_sha256, profile.template_sha256, hashlib.sha256(raw).hexdigest(),
    )  # fmt: skip
    return answer, row


def write_shard(campaign: Campaign, store: Store, dataset: str, shard: str, tokens: int) -> str:
    """Journal, then rows, each with its manifest. The rows' manifest names what they should be made from, so they are current."""
    profile, d = load_profile(campaign.target.profile), campaign.dataset_named(dataset)
    length = next(relative for name, _, _, relative in DATASETS if name == dataset)
    mine = range(SHARDS.index(shard), d.n_rows, len(SHARDS))
    made = [_sample(profile, campaign, dataset, d.backend, shard, k, tokens * length) for k in mine]
    folder, path = store.answers(dataset, shard), store.tokens(dataset, shard)
    with Journal.open(folder) as journal:
        for answer, _ in made:
            journal.append(answer)
    counts = {"selected": len(made), "finished": len(made), "failed": 0, "ambiguous": 0}
    made_from = Artifact(answers_stage.STAGE, campaign, store, dataset, shard).inputs()
    commit(folder, files=sorted(folder.glob("segment-*.jsonl")), inputs=made_from, numbers=counts)
    write_rows(path, [row for _, row in made])
    ids = sum(len(row.input_ids) for _, row in made)
    made_from = Artifact(tokens_stage.STAGE, campaign, store, dataset, shard).inputs()
    commit(path, files=[path], inputs=made_from, numbers={"rows": len(made), "tokens": ids})
    return f"{dataset} {shard}: {len(made):,} rows, {ids:,} ids"


def write_beginning(campaign: Campaign, store: Store) -> None:
    """What tokens rest on besides answers: the tokenizer's verdict, wire profiles, prompts. Their content is not looked at here."""
    profiles = {"providers": {name: {"decided": True} for name in PROVIDERS}}
    for path, content in ((store.probe, {"checks": {}}), (store.wire_profiles, profiles)):
        if read_manifest(path) is None:
            write_json(path, content)
            commit(path, files=[path], inputs={})
    for d in campaign.dataset:
        if read_manifest(store.prompts(d.name)) is None:
            write_bytes(store.prompts(d.name), d.name.encode())
            numbers = {"source_rows": d.n_rows, "selected": d.n_rows}
            commit(store.prompts(d.name), files=[store.prompts(d.name)], inputs={}, numbers=numbers)


def _job(job: tuple[Path, str, int, int, str, str]) -> str:
    root, profile, samples, tokens, dataset, shard = job
    return write_shard(campaign_of(profile, samples), Store(root), dataset, shard, tokens)


def prepare(root: Path, profile: str, samples: int, tokens: int, jobs: int) -> tuple[Campaign, Store]:
    """The campaign in `root`; makes what is missing. Tokenizer files are found as always (EAGLE3_DATA)."""
    store, campaign = Store(root), campaign_of(profile, samples)
    write_beginning(campaign, store)
    missing = [
        (root, profile, samples, tokens, d.name, s)
        for d in campaign.dataset
        for s in SHARDS
        if read_manifest(store.tokens(d.name, s)) is None
    ]
    if missing:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for done in pool.imap_unordered(_job, missing):
                print(done, flush=True)
    for d in campaign.dataset:
        for s in SHARDS:
            _stay_current(campaign, store, d.name, s)
    return campaign, store


def _stay_current(campaign: Campaign, store: Store, dataset: str, shard: str) -> None:
    """Rows made by an earlier version of the code are as good as new ones here: their manifest says so."""
    artifact = Artifact(tokens_stage.STAGE, campaign, store, dataset, shard)
    path, inputs, manifest = artifact.path, artifact.inputs(), artifact.manifest()
    if manifest is not None and is_current(path, inputs) is None:
        commit(path, files=[path], inputs=inputs, numbers=manifest.numbers)


def options(doc: str | None) -> argparse.ArgumentParser:
    given = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    given.add_argument("folder", type=Path)
    given.add_argument("--samples", type=int, default=40_000)
    given.add_argument("--tokens", type=int, default=3_460, help="mean ids of a sample, prompt included")
    given.add_argument("--profile", default="kimi-mini")
    given.add_argument("--tokenizers", type=Path, help="folder with the profile's tokenizer files")
    given.add_argument("--jobs", type=int, default=2, help="processes that make what is missing")
    return given


def prepared(given: argparse.Namespace) -> tuple[Campaign, Store]:
    """`prepare` as the options say."""
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ["EAGLE3_DATA"] = str(given.folder.resolve())
    if given.tokenizers and not (given.folder / "tokenizers").exists():
        (given.folder / "tokenizers").symlink_to(given.tokenizers.resolve())
    return prepare(given.folder.resolve() / "full-size", given.profile, given.samples, given.tokens, given.jobs)


if __name__ == "__main__":
    _, made = prepared(options(__doc__).parse_args())
    print(made.root)
