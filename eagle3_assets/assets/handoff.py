"""`handoff/tokens`: pre-tokenised rows that both trainers read for online training; no GPU needed."""

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key=["handoff", "tokens"],
        group_name="handoff",
        kinds={"jsonl"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["corpus"],
        description="Pre-tokenised JSONL (input_ids, loss_mask) under the final grade policy, as speculators and SpecForge read it, "
        "with a dataset card.",
    )
    def handoff_tokens(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.handoff.tokens import export_tokens

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "corpus")
            gate.require(campaign, store, "corpus")
            inputs = lineage.handoff_tokens_inputs(campaign, store)
            manifest = export_tokens(campaign, store, commit_inputs=inputs)
            return dg.MaterializeResult(
                metadata=described(
                    manifest.numbers,
                    **{"dagster/row_count": manifest.numbers["rows"]},
                    folder=store.handoff_tokens,
                    digest=manifest.digest,
                )
            )

    return [handoff_tokens]
