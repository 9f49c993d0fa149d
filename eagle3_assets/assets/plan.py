"""`plan`: tokens, dollars, minutes, hours, terabytes. `answers` spends only what a person approved on seeing it."""

import base64
from collections.abc import Mapping
from typing import Any

import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.answers import resolved_routing
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.estimate import plan as planning
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import commit, read_committed, write_json


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="plan",
        group_name="plan",
        kinds={"json"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["pilot", "endpoints", *(dg.AssetKey(["prompts", d.name]) for d in campaign.dataset)],
        description="What the campaign will cost: tokens, dollars, minutes, hours, terabytes, what-ifs, each with its assumptions. "
        "`eagle3 plan --approve USD` lets answers spend.",
    )
    def plan(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with stage(context, campaign) as store:
            inputs = lineage.plan_inputs(campaign, store)
            pilot = read_committed(store.pilot, made_by="pilot")
            routing = resolved_routing(campaign, store)
            prices = (routing.max_prompt_price * 1e6, routing.max_completion_price * 1e6)
            found = planning.make_plan(
                campaign,
                planning.facts_of(campaign, store),
                pilot,
                prices,
                planning.free_bytes(store.root),
                listed=[(e.prompt_price * 1e6, e.completion_price * 1e6) for e in routing.eligible],
            )
            write_json(store.plan, found)
            manifest = commit(store.plan, files=[store.plan], inputs=inputs)
            return dg.MaterializeResult(metadata=described(metadata_of(found), file=store.plan, digest=manifest.digest))

    return [plan]


def metadata_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as numbers, so that the UI plots them over time; tables and picture as `eagle3 plan` shows them."""
    from eagle3_assets.estimate.page import as_markdown
    from eagle3_assets.estimate.picture import draw_plan

    picture = base64.b64encode(draw_plan(plan)).decode()
    return {
        "usd_expected": plan["usd"]["expected"],
        "usd_output": plan["usd"]["output"],
        "usd_prompt": plan["usd"]["prompt"],
        "usd_low": plan["usd"]["low"],
        "usd_high": plan["usd"]["high"],
        "in_flight_that_money_allows": plan["in_flight"]["by_money_left"][0][1],
        "tokens": plan["tokens"]["total"],
        "tokens_kept": plan["kept"]["tokens"],
        "rows_kept": plan["kept"]["rows"],
        "answer_minutes": plan["minutes"]["answers"],
        "extraction_hours": plan["hours"]["extraction"],
        "state_terabytes": plan["states"]["terabytes"],
        "state_tebibytes": plan["states"]["tebibytes"],
        "disk_needed_bytes": plan["disk"]["needed"],
        "disk_free_bytes": plan["disk"]["free"],
        "plan": dg.MetadataValue.md(as_markdown(plan)),
        "picture": dg.MetadataValue.md(f"![states against the cap, dollars against the budget](data:image/png;base64,{picture})"),
    }
