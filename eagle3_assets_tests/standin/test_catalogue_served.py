"""The built-in catalogue over HTTP: every endpoint of it serves, whole and streamed, with and without tools, and bills what truth says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import KEY, TOOL, TRUTH_TOKEN, connected
from openrouter_standin.answers.load import load_source
from openrouter_standin.profiles import Profiles, load_profiles
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger


def quick(profiles: Profiles) -> Profiles:
    """Without waiting, and with a bank that is made in a moment."""
    server = profiles.server.model_copy(update={"time_scale": 0.0, "generation_delay_s": 0.0, "credit_usd": 1000.0})
    replay = profiles.source.replay.model_copy(update={"answers": 60, "mean_tokens": 120, "max_tokens": 600, "tool_answers": 0.5})
    return profiles.model_copy(update={"server": server, "source": profiles.source.model_copy(update={"replay": replay})})


@pytest.fixture(scope="module")
def catalogue() -> Profiles:
    return quick(load_profiles(Path("catalogue")))


@pytest.mark.slow
def test_every_endpoint_of_the_catalogue_serves_and_bills_what_truth_says(catalogue: Profiles, tmp_path: Path) -> None:
    source, vocabulary = load_source(catalogue.source)
    standin = Standin(Generator(catalogue, vocabulary, source, "0"), Ledger(tmp_path), KEY, TRUTH_TOKEN)
    slug = catalogue.model.slug

    async def one(client: Any, tag: str, k: int) -> None:
        body = {
            "model": slug,
            "max_tokens": 4000,
            "messages": [{"role": "user", "content": f"{tag} {k}"}],
            "provider": {"only": [tag], "allow_fallbacks": False},
            "stream": k % 2 == 1,
            **({"tools": [TOOL]} if k % 4 >= 2 else {}),
        }
        status, headers, raw = await client.post(body)
        assert status == 200, (tag, raw)
        events = (
            [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")] if k % 2 else [json.loads(raw)]
        )
        truth = standin.ledger.truth_of(headers["x-generation-id"])
        assert truth is not None and truth["profile"].partition("#")[0] == tag
        assert round(events[-1]["usage"]["cost"] * 1e12) == truth["cost_pico"]
        assert events[-1]["choices"][0]["finish_reason"] in ("stop", "tool_calls", "length")

    async def run() -> None:
        async with connected(standin) as client:
            for provider in catalogue.provider:
                await asyncio.gather(*(one(client, provider.tag, k) for k in range(12)))
            status, listed = await client.get(f"/api/v1/models/{slug}/endpoints")
            assert status == 200 and len(listed["data"]["endpoints"]) == len(catalogue.provider) >= 12

    asyncio.run(run())
    truths = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    assert len(truths) == 12 * len(catalogue.provider)
    assert standin.ledger.spent_pico == sum(truth["cost_pico"] for truth in truths)
    assert any(truth["habits"] for truth in truths)
    edits = {edit for truth in truths for edit in truth["edits"]}
    assert len(edits) >= 12, edits


def test_the_catalogue_has_the_profiles_of_the_contract_and_the_endpoint_to_refuse(catalogue: Profiles) -> None:
    names = [provider.name for provider in catalogue.provider]
    assert all(any(name.startswith(f"P{number} ") for name in names) for number in range(11)), names
    baseten = next(provider for provider in catalogue.provider if provider.name == "BaseTen")
    assert (baseten.status, baseten.quantization) == (-5, "fp4")
    assert any(provider.change for provider in catalogue.provider)
