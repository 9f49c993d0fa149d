"""`pilot`: a few paid answers per eligible endpoint under its own small cap: lengths, prices, speed, habits of the wire."""

import asyncio

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.answers import open_ledger, pilot_limit, resolved_routing, stopping_on_signals
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.resources.openrouter import OpenRouterResource
from eagle3_assets.store import commit, write_json


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    paid = [d.name for d in campaign.dataset if d.backend == "openrouter"]

    @dg.asset(
        key="pilot",
        group_name="pilot",
        kinds={"openrouter"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["endpoints", "tokenizer_probe", *(dg.AssetKey(["prompts", name]) for name in paid)],
        description=f"A few paid answers per eligible endpoint, at most {campaign.budget.pilot_usd:g} USD: length distribution, "
        "prices, speed, and the wire's habits. Resumes; never buys an answer twice.",
    )
    async def pilot(context: dg.AssetExecutionContext, openrouter: OpenRouterResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.collect.pilot import run_pilot
        from eagle3_assets.prompts.file import read_prompts

        with stage(context, campaign) as store:
            gate.require_probe(campaign, store)
            servers = openrouter.servers(campaign, store)
            inputs = lineage.pilot_inputs(campaign, store)
            stop = asyncio.Event()
            with stopping_on_signals(stop), open_ledger(campaign, store, pilot_limit(campaign, store)) as ledger:
                found = await run_pilot(
                    campaign,
                    {name: read_prompts(store.prompts(name), with_reserve=True) for name in paid},
                    servers=servers,
                    ledger=ledger,
                    routing=resolved_routing(campaign, store),
                    folder=store.pilot_dir,
                    stop=stop,
                )
            if stop.is_set():
                raise dg.DagsterExecutionInterruptedError()
            write_json(store.pilot, found)
            files = [store.pilot, *store.pilot_dir.glob("segment-*")]
            manifest = commit(store.pilot, files=files, inputs=inputs, numbers={"spent_usd": found["spent_usd"]})
            return dg.MaterializeResult(metadata=described(found, file=store.pilot, digest=manifest.digest))

    return [pilot]
