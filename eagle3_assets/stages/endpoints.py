"""`endpoints`: a snapshot of who serves the model, at what price and precision, and which endpoints our policy takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers import routing
from eagle3_assets.collect.signals import run
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Made, Markdown, Per, Records, Stage, one_by_one
from eagle3_assets.store import commit, read_json, write_json


@dataclass(frozen=True, slots=True)
class Inputs:
    """Nothing but settings: a snapshot is made from the world, at a time."""


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {"model": campaign.target.model, "server": campaign.server.model_dump(mode="json"), "address": campaign.server_address}


def make(a: Artifact, face: Face) -> Made:
    rents = a.campaign.rents
    snapshot = run(_listing(a, face)) if rents else routing.NOBODY_ASKED
    resolved = routing.resolve(a.campaign, snapshot)
    if rents:
        routing.require_eligible(resolved)
    write_json(
        a.path,
        {
            "eligible": [asdict(e) for e in resolved.eligible],
            "refused": [{**asdict(e), "reason": why} for e, why in resolved.refused],
            "provider_object": resolved.provider_object,
            "snapshot": snapshot,
        },
    )
    numbers = {"server": a.campaign.server_address, "eligible": len(resolved.eligible), "refused": len(resolved.refused)}
    manifest = commit(a.path, files=[a.path], inputs=a.inputs(), numbers=numbers)
    return Made(a, manifest, {**numbers, "endpoints": endpoint_table(resolved), "file": a.path})


async def _listing(a: Artifact, face: Face) -> dict[str, Any]:
    servers = face.servers(a.campaign, a.store, rented=True)
    async with aiohttp.ClientSession() as session:
        snapshot = await routing.fetch_endpoints(session, servers.base_url or "", a.campaign.target.model)
    if servers.api_key is None:
        return snapshot
    # a server that knows the key from other requests may put it anywhere
    return dict(json.loads(servers.api_key.hide_in(json.dumps(snapshot).encode())))


def endpoint_table(resolved: routing.Routing, pilot: Mapping[str, Any] | None = None) -> Records | Markdown:
    """One row an endpoint: what it is, what it costs (USD per million tokens), whether it is taken, what the pilot saw."""
    rows = Records(routing.routing_table(resolved, pilot))
    return rows or Markdown("no endpoint was listed: no dataset is answered through OpenRouter")


def judge(a: Artifact) -> list[Verdict]:
    found = read_json(a.path)
    return invariants.judge_endpoints(found["eligible"], found["refused"], needed=a.campaign.rents)


STAGE = Stage(
    name="endpoints",
    per=Per.CAMPAIGN,
    version=1,
    path=lambda a: a.store.endpoints,
    settings=settings,
    inputs=lambda a: Inputs(),
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["endpoints"],
    resources=frozenset({"openrouter"}),
    card=lambda campaign, dataset: Card(
        frozenset({"openrouter"}),
        "Snapshot of the model's OpenRouter endpoints: provider, tag, quantization, price, status, parameters; "
        "which are eligible under the campaign's routing policy, and why the others are not.",
    ),
)
