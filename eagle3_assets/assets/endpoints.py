"""`endpoints`: a snapshot of who serves the model, at what price and precision, and which endpoints our policy takes."""

import json
from dataclasses import asdict

import aiohttp
import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect import routing
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.resources.openrouter import OpenRouterResource
from eagle3_assets.store import commit, write_json


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
            servers = openrouter.servers(campaign, store)
            async with aiohttp.ClientSession() as session:
                snapshot = await routing.fetch_endpoints(session, servers.base_url or "", campaign.target.model)
            if servers.api_key is not None:  # a server that knows the key from other requests may put it anywhere
                snapshot = json.loads(servers.api_key.hide_in(json.dumps(snapshot).encode()))
            resolved = routing.resolve(campaign, snapshot)
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


def endpoint_table(resolved: routing.Routing) -> dg.MetadataValue:  # type: ignore[type-arg]
    """One row an endpoint: what it is, what it costs (USD per million tokens), and whether it is taken."""
    rows = [(e, "taken") for e in resolved.eligible] + list(resolved.refused)
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "provider": e.provider_name,
                    "tag": e.tag,
                    "quantization": e.quantization,
                    "prompt USD/M": e.prompt_price * 1e6,
                    "completion USD/M": e.completion_price * 1e6,
                    "status": e.status,
                    "verdict": why,
                }
            )
            for e, why in rows
        ]
    )
