"""Campaigns over small source files, written the way a person writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign, load_campaign

HEAD = """\
[campaign]
name = "tiny"
seed = {seed}
[target]
model = "eagle3/kimi-mini"
profile = "kimi-mini"
weights = "embedded"
num_hidden_layers = 8
hidden_size = 8
vocab_size = 2304
[server]
kind = "embedded"
[routing]
max_price_completion = 2.5
[budget]
campaign_usd = 1.0
pilot_usd = 0.1
[sampling]
max_tokens = 1024
[vocab]
draft_vocab_size = 2048
[[dataset]]
name = "b3_magicoder"
"""

MakeCampaign = Callable[..., Campaign]


@pytest.fixture
def make_campaign(tmp_path: Path) -> MakeCampaign:
    """`make_campaign('rows = 4 …', seed=1)`: a campaign with one dataset, its TOML in tmp_path."""

    def make(dataset: str, *, seed: int = 1, name: str = "c.toml") -> Campaign:
        path = tmp_path / name
        path.write_text(HEAD.format(seed=seed) + dataset)
        return load_campaign(str(path))

    return make


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
