"""The smallest truthful inputs of this room: a campaign, prompts, answers. Test code only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.collect.run.collector import Pace
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.wire_answer import WireAnswer

MODEL = "moonshotai/kimi-k2.5"
KEY = "sk-or-v1-canary-4f1c9b2d7e"
QUICK = Pace(
    backoff_first=0.001,
    backoff_most=0.002,
    retry_after_most=0.01,
    sync=0.01,
    progress=0.02,
    look_up=0.0,
    money_poll=0.01,
    reconcile=0.005,
    provider_pause=0.02,
    key_trust=0.005,
    outage_most=0.5,
    row_wait_most=5.0,
)


def a_dataset(name: str = "b3_magicoder", backend: str = "openrouter", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "backend": backend,
        "source": {"kind": "jsonl", "path": "rows.jsonl"},
        "mapping": {"kind": "prompt"},
        "rows": 10,
        **more,
    }


def a_campaign(*datasets: dict[str, Any], **tables: Any) -> Campaign:
    """Three USD per million completion tokens at most, 1,000 max_tokens: a reservation is about 0.003 USD."""
    raw: dict[str, Any] = {
        "campaign": {"name": "test", "seed": 1},
        "target": {
            "model": MODEL,
            "profile": "kimi-k2.5",
            "weights": "none",
            "num_hidden_layers": 8,
            "hidden_size": 64,
            "vocab_size": 100,
        },
        "server": {"kind": "openrouter"},
        "routing": {"max_price_completion": 3.0, "ignore": ("BaseTen",), "quantizations": ("int4", "fp8")},
        "budget": {"campaign_usd": 10.0, "pilot_usd": 1.0},
        "collect": {"in_flight": 16, "attempts": 3, "timeout_s": 20.0, "stop_grace_s": 0.05},
        "sampling": {"max_tokens": 1000},
        "dataset": datasets or (a_dataset(),),
        "vocab": {"draft_vocab_size": 10},
    }
    for name, table in tables.items():
        raw[name] = {**raw[name], **table} if isinstance(raw.get(name), dict) else table
    return Campaign.model_validate(raw)


def first_dataset(campaign: Campaign) -> Dataset:
    return campaign.dataset[0]


def a_prompt(text: str = "Say hi", number: int = 0, dataset: str = "b3_magicoder", **more: Any) -> Prompt:
    return Prompt(
        sample_id=f"{number:032x}",
        dataset=dataset,
        turn=more.pop("turn", 0),
        shard=f"{number % 16:02d}",
        rank=number,
        messages=more.pop("messages", ({"role": "user", "content": text},)),
        tools=more.pop("tools", None),
        expected_tokens=more.pop("expected_tokens", 100),
        **more,
    )


def an_answer(number: int = 0, body: bytes = b'{"choices":[]}', **more: Any) -> WireAnswer:
    facts: dict[str, Any] = {
        "request_id": f"r{number}",
        "sample_id": f"{number:032x}",
        "turn": 0,
        "attempt": 1,
        "dataset": "b3_magicoder",
        "shard": "00",
        "source": "openrouter",
        "request": {"model": MODEL},
        "status": 200,
        "body": body,
        "outcome": "finished",
        "cost_usd": 0.001,
    }
    return WireAnswer(**{**facts, **more})


def an_endpoint(provider: str = "Chutes", tag: str = "chutes/int4", **more: Any) -> dict[str, Any]:
    """As the endpoints route lists it (docs/research/openrouter-contract.md#1.7)."""
    return {
        "name": f"{provider} | {MODEL}",
        "provider_name": provider,
        "tag": tag,
        "quantization": "int4",
        "status": 0,
        "uptime_last_30m": 99.5,
        "context_length": 262144,
        "max_completion_tokens": None,
        "supported_parameters": ["temperature", "top_p", "max_tokens", "reasoning", "tools"],
        "pricing": {"prompt": "0.00000044", "completion": "0.000002", "request": "0", "discount": 0},
        **more,
    }


def a_snapshot(*endpoints: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"id": MODEL, "endpoints": list(endpoints) or [an_endpoint()]}}


def everything_written(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file())
