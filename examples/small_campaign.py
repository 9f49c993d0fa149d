"""A campaign in miniature: a few answers of Kimi-mini, their corpus, their hidden states. Seconds on a CPU.

Belongs here: what the notebooks read. Does not belong here: how a real campaign is made (`eagle3 run`): there rows are rebuilt from bought
answers, here the sampler's own ids are written as a server with ids would give them (grade A0).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from eagle3_assets import corpus
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.corpus.lines import TokenFile
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.parts import part_digest
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store, commit
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, Sample, sample_all
from kimi_mini_workshop.evaluate import Question, questions

DATASET = "b1_glaive"


def small_campaign() -> Campaign:
    """The demo's campaign over one dataset and two corpus parts."""
    demo = load_campaign("demo")
    parts = demo.corpus.model_copy(update={"shards": 2, "validation_share": 0.2})
    return demo.model_copy(update={"dataset": (demo.dataset_named(DATASET),), "corpus": parts})


def make(root: Path, conversations: int = 6) -> Store:
    """Greedy answers to `conversations` held-out conversations under `root`: tokens, corpus, hidden states. Returns the store."""
    campaign, store = small_campaign(), Store(root)
    asked = questions(conversations, seed=1)
    answers = sample_all(load_model(), [Ask(q.prompt, temperature=0.0, max_tokens=200) for q in asked])
    path = store.tokens(DATASET, "00")
    write_rows(path, [_row(campaign, q, a) for q, a in zip(asked, answers, strict=True)])
    tokens = TokenFile(DATASET, "00", path, commit(path, files=[path], inputs={}).digest)
    build_corpus(campaign, store, [tokens])
    made, engine = corpus.open(store.corpus), open_extractor(campaign)
    try:
        for part in made.parts:
            digest = part_digest(store, part)
            write_partition(campaign, store, part, made.part(part), engine, corpus_part_digest=digest)
    finally:
        engine.close()
    return store


def _row(campaign: Campaign, asked: Question, answer: Sample) -> SampleRow:
    ids = (*asked.prompt, *answer.ids)
    start, name = len(asked.prompt), hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    return SampleRow(
        sample_id=name[:32], turn=0, attempt=1, dataset=DATASET, shard="00", source="engine", provider=None,
        model=campaign.target.model, generation_id=None, input_ids=ids, prompt_len=start, loss_spans=((start, len(ids)),),
        grade="A0", survivors=(), p_exact=1.0, p_basis="simulated", evidence=json.dumps({"basis": "server_ids"}), reasons=(),
        billed_prompt=None, billed_completion=None, billed_reasoning=None, cost_usd=None, finish_reason=answer.finish_reason,
        native_finish_reason=answer.finish_reason, temperature=0.0, top_p=1.0, max_tokens=200, tokenizer_sha256="-",
        template_sha256="-", wire_sha256=name,
    )  # fmt: skip
