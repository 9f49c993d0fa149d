"""`plan`: tokens, dollars, minutes, hours, terabytes. `answers` spends only what a person approved on seeing it."""

import dagster as dg

from eagle3_assets import lineage
from eagle3_assets import plan as planning
from eagle3_assets.assets.answers import resolved_routing
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import Store, commit, read_committed, write_json


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="plan",
        group_name="plan",
        kinds={"json"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["pilot", "endpoints", *(dg.AssetKey(["prompts", d.name]) for d in campaign.dataset)],
        description="What the campaign will cost: tokens, dollars, minutes, hours, terabytes, each with its assumptions. "
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
                dataset_facts(campaign, store),
                pilot,
                prices,
                planning.free_bytes(store.root),
                listed=[(e.prompt_price * 1e6, e.completion_price * 1e6) for e in routing.eligible],
            )
            write_json(store.plan, found)
            manifest = commit(store.plan, files=[store.plan], inputs=inputs)
            return dg.MaterializeResult(
                metadata=described(
                    {
                        "usd_expected": found["usd"]["expected"],
                        "usd_low": found["usd"]["low"],
                        "usd_high": found["usd"]["high"],
                        "in_flight_that_money_allows": found["in_flight"]["by_money_left"][0][1],
                        "tokens": found["tokens"]["total"],
                        "answer_minutes": found["minutes"]["answers"],
                        "extraction_hours": found["hours"]["extraction"],
                        "state_terabytes": found["states"]["terabytes"],
                        "datasets": dg.MetadataValue.table([dg.TableRecord(_cells(row)) for row in found["datasets"]]),
                        "assumptions": found["assumptions"],
                    },
                    file=store.plan,
                    digest=manifest.digest,
                )
            )

    return [plan]


def _cells(row: dict[str, object]) -> dict[str, str | int | float | bool | None]:
    return {k: v if isinstance(v, str | int | float) else ("" if v is None else str(v)) for k, v in row.items()}


def dataset_facts(campaign: Campaign, store: Store) -> list[planning.DatasetFacts]:
    """Rows, prompt characters and expected output tokens of each dataset's selected prompts."""
    from eagle3_assets.prompts.file import read_prompts

    facts = []
    for dataset in campaign.dataset:
        prompts = read_prompts(store.prompts(dataset.name))
        chars = sum(len(str(m.get("content") or "")) for p in prompts for m in p.messages) + sum(
            len(str(p.tools)) for p in prompts if p.tools
        )
        facts.append(planning.DatasetFacts(dataset, len(prompts), chars, sum(p.expected_tokens for p in prompts)))
    return facts
