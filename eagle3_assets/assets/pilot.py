"""`pilot`: a few dozen paid answers per eligible endpoint under its own small cap: lengths, prices, speed, habits of the wire."""

import asyncio
from typing import Any

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.answers import open_ledger, pilot_limit, stopping_on_signals
from eagle3_assets.assets.endpoints import endpoint_table
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers import routing as routes
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.resources.openrouter import OpenRouterResource
from eagle3_assets.store import Store, commit, read_committed, write_json
from eagle3_assets.wire import journal

# pilot.json of a campaign that rents no answer: there is nobody to try
NOBODY_ASKED: dict[str, Any] = {"endpoints": {}, "answers": 0, "lengths": {}, "spent_usd": 0.0}


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    paid = [d.name for d in campaign.dataset if d.backend == "openrouter"]

    @dg.asset(
        key="pilot",
        group_name="pilot",
        kinds={"openrouter"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["endpoints", "tokenizer_probe", *(dg.AssetKey(["prompts", name]) for name in paid)],
        description=f"A few dozen paid answers per eligible endpoint, at most {campaign.budget.pilot_usd:g} USD: length "
        "distribution, prices, speed; probes of streams, log-probabilities, history replay and leading spaces; first wire "
        "profiles. Resumes; never buys an answer twice.",
    )
    async def pilot(context: dg.AssetExecutionContext, openrouter: OpenRouterResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with stage(context, campaign) as store:
            gate.require_probe(campaign, store)
            inputs = lineage.pilot_inputs(campaign, store)
            snapshot = read_committed(store.endpoints, made_by="endpoints")["snapshot"]
            found = await _ask(campaign, store, openrouter, snapshot) if paid else dict(NOBODY_ASKED)
            found["wire_profiles"] = first_wire_profiles(campaign, store)
            resolved = routes.resolve(campaign, snapshot, pilot=found, wire_profiles=found["wire_profiles"])
            found["routing"] = routes.routing_table(resolved, found)
            write_json(store.pilot, found)
            files = [store.pilot, *store.pilot_dir.glob("segment-*")]
            manifest = commit(store.pilot, files=files, inputs=inputs, numbers={"spent_usd": found["spent_usd"]})
            shown = {name: value for name, value in found.items() if name not in ("wire_profiles", "routing")}
            table = endpoint_table(resolved, found)
            return dg.MaterializeResult(metadata=described(shown, routing=table, file=store.pilot, digest=manifest.digest))

    return [pilot]


async def _ask(campaign: Campaign, store: Store, openrouter: OpenRouterResource, snapshot: dict[str, Any]) -> dict[str, Any]:
    from eagle3_assets.collect.pilot.pilot import run_pilot
    from eagle3_assets.prompts.file import read_prompts
    from eagle3_assets.targets.tokenizer import load_profile

    paid = [d.name for d in campaign.dataset if d.backend == "openrouter"]
    profile = load_profile(campaign.target.profile)
    servers = openrouter.servers(campaign, store)
    stop = asyncio.Event()
    with stopping_on_signals(stop), open_ledger(campaign, store, pilot_limit(campaign, store)) as ledger:
        found = await run_pilot(
            campaign,
            {name: read_prompts(store.prompts(name), with_reserve=True) for name in paid},
            servers=servers,
            ledger=ledger,
            # the policy alone: whom an earlier pilot spoke against is asked again
            routing=routes.resolve(campaign, snapshot),
            folder=store.pilot_dir,
            stop=stop,
            count_tokens=lambda text: len(profile.encoding.encode_ordinary(text)),
        )
    if stop.is_set():
        raise dg.DagsterExecutionInterruptedError()
    return found


def first_wire_profiles(campaign: Campaign, store: Store) -> dict[str, Any]:
    """What the pilot's answers alone say of each provider's wire; `wire_profiles` learns more when there are more answers."""
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets.targets.tokenizer import load_profile

    best = journal.best(journal.read(store.pilot_dir))
    return learn(load_profile(campaign.target.profile), (best[key] for key in sorted(best)), thinking=campaign.target.thinking)
