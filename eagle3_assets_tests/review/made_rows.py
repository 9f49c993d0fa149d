"""Truthful little inputs for the tests of review, corpus and hand-off: a campaign, rows, token files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.merge import TokenFile
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.store import Store, commit, digest_file

VOCAB = 512
END = 500  # the "end of turn" of these rows


def tiny_campaign(**tables: Any) -> Campaign:
    """A valid campaign over three datasets; keyword arguments replace or extend tables."""
    source = {"kind": "jsonl", "path": "rows.jsonl"}
    datasets = tuple(
        {"name": name, "backend": backend, "source": source, "mapping": {"kind": "prompt"}, "rows": 100, "licence": "MIT"}
        for name, backend in (("b3_magicoder", "openrouter"), ("b8_sweagent", "openrouter"), ("a1_deepswekimi", "import"))
    )
    raw: dict[str, Any] = {
        "campaign": {"name": "tiny", "seed": 7},
        "target": {
            "model": "eagle3/kimi-mini",
            "profile": "kimi-mini",
            "weights": "embedded",
            "num_hidden_layers": 8,
            "hidden_size": 64,
            "vocab_size": VOCAB,
        },
        "server": {"kind": "embedded"},
        "routing": {"max_price_completion": 3.0},
        "budget": {"campaign_usd": 10.0},
        "sampling": {},
        "dataset": datasets,
        "corpus": {"shards": 4},
        "vocab": {"draft_vocab_size": 64},
    }
    for name, table in tables.items():
        raw[name] = {**raw[name], **table} if isinstance(table, dict) and isinstance(raw.get(name), dict) else table
    return Campaign.model_validate(raw)


def sample_id(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()[:32]


def make_row(name: object = 0, *, prompt: int = 5, response: int = 8, **changes: Any) -> SampleRow:
    """A right row: `prompt` + `response` ids drawn from its name, billed exactly, graded B1. Any field can be replaced."""
    chance = random.Random(f"row {name}")
    ids = (*(chance.randrange(1, END) for _ in range(prompt + response - 1)), END)
    fields: dict[str, Any] = {
        "sample_id": sample_id(name),
        "turn": 0,
        "attempt": 1,
        "dataset": "b3_magicoder",
        "shard": "00",
        "source": "openrouter",
        "provider": "Alpha",
        "model": "eagle3/kimi-mini",
        "generation_id": f"gen-{name}",
        "input_ids": ids,
        "prompt_len": prompt,
        "loss_spans": ((prompt, prompt + response),),
        "grade": "B1",
        "survivors": (),
        "p_exact": 0.999,
        "p_basis": "simulated",
        "evidence": evidence(str(changes.get("grade", "B1"))),
        "reasons": (),
        "billed_prompt": prompt,
        "billed_completion": response,
        "billed_reasoning": None,
        "cost_usd": 0.001,
        "finish_reason": "stop",
        "native_finish_reason": "stop",
        "temperature": 1.0,
        "top_p": 0.95,
        "max_tokens": 4096,
        "tokenizer_sha256": "t" * 64,
        "template_sha256": "c" * 64,
        "wire_sha256": hashlib.sha256(f"wire {name}".encode()).hexdigest(),
    }
    return SampleRow(**{**fields, **changes})


def quarantined(name: object, reason: str, **changes: Any) -> SampleRow:
    """A bad row as `exact` leaves it: grade Q with its reason."""
    return make_row(name, **{"grade": "Q", "p_exact": 0.0, "reasons": (reason,), **changes})


_RESTS_ON: dict[str, dict[str, Any]] = {
    "A0": {"basis": "server_ids", "wire_text": True},
    "B1": {"basis": "bill", "provider_decided": True, "hypotheses": {"tried": 12, "surviving": 1, "distinct": 1}},
    "C1": {"basis": "bill", "provider_decided": False, "hypotheses": {"tried": 12, "surviving": 3, "distinct": 3}},
    "I": {"basis": "none"},
}


def evidence(grade: str = "B1", **facts: Any) -> str:
    """What a grade rests on, and `facts` beside it."""
    return orjson.dumps({**_RESTS_ON.get(grade, {}), **facts}).decode()


def write_tokens(store: Store, dataset: str, shard: str, rows: Sequence[SampleRow], **inputs: Any) -> TokenFile:
    """Write and commit one tokens file; returns what the corpus is built from."""
    path = store.tokens(dataset, shard)
    write_rows(path, rows)
    manifest = commit(path, files=[path], inputs=inputs)
    return TokenFile(dataset, shard, path, manifest.digest)


def loose_file(path: Path, rows: Sequence[SampleRow], dataset: str = "b3_magicoder", shard: str = "00") -> TokenFile:
    """A tokens file anywhere, without a manifest."""
    write_rows(path, rows)
    return TokenFile(dataset, shard, path, digest_file(path))
