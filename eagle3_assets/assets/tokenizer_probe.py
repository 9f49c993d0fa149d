"""`tokenizer_probe`: the target tokenizer, verified. Gates everything: a wrong end of turn corrupts every row."""

import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import commit, write_json


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="tokenizer_probe",
        group_name="tokenizer_probe",
        kinds={"tiktoken"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        description="The target tokenizer, verified: special ids by name, boundaries, merges across joins, round trips. Gates everything.",
    )
    def tokenizer_probe(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.exact.probe import probe
        from eagle3_assets.targets.tokenizer import load_profile

        with stage(context, campaign) as store:
            found = probe(campaign, load_profile(campaign.target.profile))
            write_json(store.probe, found)
            manifest = commit(store.probe, files=[store.probe], inputs=lineage.probe_inputs(campaign, store))
            return dg.MaterializeResult(metadata=described(found["facts"], file=store.probe, digest=manifest.digest))

    return [tokenizer_probe]
