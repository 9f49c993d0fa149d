"""`endpoints`: a snapshot of who serves the model, at what price and precision, and which endpoints our policy takes."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import aiohttp
import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers import routing
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.resources.openrouter import OpenRouterResource
from eagle3_assets.store import Store, commit, write_json


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="endpoints",
        group_name="endpoints",
        kinds={"openrouter"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        description="Snapshot of the model's OpenRouter endpoints: provider, tag, quantization, price, status, parameters; "
        "which are eligible under the campaign's routing policy, and why the others are not.",
    )
    async def endpoints(context: dg.AssetExecutionContext, openrouter: OpenRouterResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with stage(context, campaign) as store:
            snapshot = await _listing(campaign, store, openrouter) if campaign.rents else routing.NOBODY_ASKED
            resolved = routing.resolve(campaign, snapshot)
            if campaign.rents:
                routing.require_eligible(resolved)
            write_json(
                store.endpoints,
                {
                    "eligible": [asdict(e) for e in resolved.eligible],
                    "refused": [{**asdict(e), "reason": why} for e, why in resolved.refused],
                    "provider_object": resolved.provider_object,
                    "snapshot": snapshot,
                },
            )
            manifest = commit(
                store.endpoints,
                files=[store.endpoints],
                inputs=lineage.endpoints_inputs(campaign, store),
                numbers={"eligible": len(resolved.eligible), "refused": len(resolved.refused)},
            )
            return dg.MaterializeResult(
                metadata=described(
                    manifest.numbers, endpoints=endpoint_table(resolved), file=store.endpoints, digest=manifest.digest
                )
            )

    return [endpoints]


async def _listing(campaign: Campaign, store: Store, openrouter: OpenRouterResource) -> dict[str, Any]:
    servers = openrouter.servers(campaign, store)
    async with aiohttp.ClientSession() as session:
        snapshot = await routing.fetch_endpoints(session, servers.base_url or "", campaign.target.model)
    if servers.api_key is None:
        return snapshot
    # a server that knows the key from other requests may put it anywhere
    return dict(json.loads(servers.api_key.hide_in(json.dumps(snapshot).encode())))


def endpoint_table(resolved: routing.Routing, pilot: Mapping[str, Any] | None = None) -> dg.MetadataValue:
    """One row an endpoint: what it is, what it costs (USD per million tokens), whether it is taken, what the pilot saw."""
    rows = routing.routing_table(resolved, pilot)
    if not rows:  # Dagster has no table without rows
        return dg.MetadataValue.text("no endpoint was listed: no dataset is answered through OpenRouter")
    return dg.MetadataValue.table([dg.TableRecord({k: "" if v is None else v for k, v in row.items()}) for row in rows])
