"""A whole small campaign up to its hidden states: kimi-mini's own answers to held-out prompts, its real weights, the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.parts import part_digest
from eagle3_assets.corpus.vocab import build_vocab_map
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store
from eagle3_assets_tests.review.made_rows import make_row, write_tokens
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, sample_all
from kimi_mini_workshop.evaluate import questions

DATASET = "b1_glaive"


@dataclass(frozen=True, slots=True)
class Place:
    campaign: Campaign
    store: Store


def mini_campaign(**tables: Any) -> Campaign:
    """The demo's target over one dataset; keyword arguments extend tables."""
    raw = load_campaign("demo").model_dump(exclude={"path", "dataset"})
    demo = load_campaign("demo").dataset_named(DATASET).model_dump()
    raw["dataset"] = (demo,)
    raw["corpus"] = {**raw["corpus"], "shards": 3, "validation_share": 0.0}
    raw["vocab"] = {"draft_vocab_size": 512}
    for name, table in tables.items():
        raw[name] = {**raw[name], **table}
    return Campaign.model_validate(raw)


def sampled_rows(conversations: int, temperature: float, *, top_p: float = 0.95, seed: int = 5) -> list[SampleRow]:
    """kimi-mini's answers, one row a turn, ids as its sampler gave them."""
    asked = questions(conversations, seed)
    answers = sample_all(load_model(), [Ask(q.prompt, temperature, top_p, k, 200) for k, q in enumerate(asked)], slots=32)
    return [
        make_row(
            k, grade="A0", source="engine", dataset=DATASET, provider=None, input_ids=(*q.prompt, *a.ids), prompt_len=len(q.prompt),
            loss_spans=((len(q.prompt), len(q.prompt) + len(a.ids)),), billed_prompt=None, billed_completion=None, cost_usd=None,
            temperature=temperature, finish_reason=a.finish_reason,
        )
        for k, (q, a) in enumerate(zip(asked, answers, strict=True))
    ]  # fmt: skip


def with_states(root: Path, campaign: Campaign, rows: Sequence[SampleRow], forced_ids: Sequence[int] = ()) -> Place:
    """Corpus, vocabulary map and hidden states of `rows` under `root`."""
    store = Store(root)
    build_corpus(campaign, store, [write_tokens(store, DATASET, "00", rows)])
    build_vocab_map(campaign, store, forced_ids)
    corpus, extractor = corpora.open(store.corpus), open_extractor(campaign)
    try:
        for key in corpus.parts:
            write_partition(campaign, store, key, corpus.part(key), extractor, corpus_part_digest=part_digest(store, key))
    finally:
        extractor.close()
    return Place(campaign, store)
