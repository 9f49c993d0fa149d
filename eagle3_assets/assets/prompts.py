"""`prompts/<ds>`: the pinned prompt set: seeded sample, stable ids, reserve, shard of each id."""

import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import commit


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    return [_prompts(campaign, dataset) for dataset in campaign.dataset]


def _prompts(campaign: Campaign, dataset: Dataset) -> dg.AssetsDefinition:
    @dg.asset(
        key=["prompts", dataset.name],
        group_name="prompts",
        kinds={"parquet", dataset.source.kind if dataset.source.kind != "hf" else "huggingface"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        description=f"Prompts of {dataset.name}: a seeded sample of {dataset.n_rows:,} rows of {dataset.source.path} "
        f"({dataset.source.revision or 'local'}), stable ids, reserve, shard of each id. Bad rows are set aside with a reason.",
    )
    def prompts(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.prompts.file import build_prompts, set_aside_path
        from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts

        with stage(context, campaign) as store:
            path = store.prompts(dataset.name)
            inputs = lineage.prompts_inputs(campaign, store, dataset.name)
            numbers = build_prompts(campaign, dataset, path, markers=marker_pattern(profile_facts(campaign.target.profile)))
            manifest = commit(path, files=[path, set_aside_path(path)], inputs=inputs, numbers=numbers)
            return dg.MaterializeResult(
                metadata=described(numbers, **{"dagster/row_count": numbers["selected"]}, file=path, digest=manifest.digest)
            )

    return prompts
