"""`report/<ds>`: the validation report of a dataset: verdict first, then figures and a picture."""

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import SHARDS, Campaign, Dataset
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import commit


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    return [_report(campaign, dataset) for dataset in campaign.dataset]


def _report(campaign: Campaign, dataset: Dataset) -> dg.AssetsDefinition:
    @dg.asset(
        key=["report", dataset.name],
        group_name="report",
        kinds={"html", "duckdb"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=[dg.AssetKey(["tokens", dataset.name])],
        description=f"Validation report of {dataset.name}: verdict, grades, billing per provider, residuals, lengths, funnel, worst samples.",
    )
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.review.report.campaign_page import write_campaign_page
        from eagle3_assets.review.report.report import build_report, report_files
        from eagle3_assets.view.links import report_url, rows_url

        with stage(context, campaign) as store:
            for shard in SHARDS:
                gate.require_current(campaign, store, "tokens", dataset.name, shard)
            inputs = lineage.report_inputs(campaign, store, dataset.name)
            verdicts = [v for s in SHARDS for v in gate.judge(campaign, store, "tokens", dataset.name, s)]
            built = build_report(campaign, store, dataset, verdicts)
            base = store.report(dataset.name)
            manifest = commit(base, files=report_files(store, dataset.name), inputs=inputs, numbers=built.numbers)
            write_campaign_page(campaign, store)
            return dg.MaterializeResult(
                metadata=described(
                    built.numbers,
                    report=dg.MetadataValue.md(built.markdown),
                    page=dg.MetadataValue.url(report_url(dataset.name)),
                    look_at_rows=dg.MetadataValue.url(rows_url(dataset=dataset.name)),
                    digest=manifest.digest,
                )
            )

    return report
