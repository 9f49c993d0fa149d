"""`tokens/<ds>`: exact ids, loss spans, grade and evidence of each answer; recomputed freely, costs nothing."""

from collections import Counter
from typing import Any

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, partition_keys, stage
from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.partitions import SHARD_PARTITIONS, SINGLE_RUN
from eagle3_assets.progress import Step, publish
from eagle3_assets.store import Store, commit, read_committed
from eagle3_assets.wire import journal


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    return [_tokens(campaign, dataset) for dataset in campaign.dataset]


def _tokens(campaign: Campaign, dataset: Dataset) -> dg.AssetsDefinition:
    @dg.asset(
        key=["tokens", dataset.name],
        group_name="tokens",
        kinds={"parquet"},
        owners=OWNERS,
        partitions_def=SHARD_PARTITIONS,
        backfill_policy=SINGLE_RUN,
        deps=[dg.AssetKey(["answers", dataset.name]), "wire_profiles", "tokenizer_probe"],
        description=f"Exact token ids of {dataset.name}: prompt as the server saw it, response as the model sampled it, loss spans, "
        "grade by evidence, survivors. One row an assistant turn.",
    )
    def tokens(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with stage(context, campaign) as store:
            keys = partition_keys(context)
            for key in keys:  # refuse before any work
                gate.require_current(campaign, store, "answers", dataset.name, key)
                gate.require(campaign, store, "answers", dataset.name, key)
            grades: Counter[str] = Counter()
            for done, key in enumerate(keys, 1):
                numbers = _write_shard(campaign, store, dataset, key)
                grades.update(numbers["grades"])
                context.add_asset_metadata(described(numbers), partition_key=key)
                publish(Step("tokens", done, len(keys), f"{dataset.name} shard {key}"))
            return dg.MaterializeResult(metadata=described({"grades_of_run": dict(grades)}))

    return tokens


def _write_shard(campaign: Campaign, store: Store, dataset: Dataset, shard: str) -> dict[str, Any]:
    from eagle3_assets.exact.rows import build_rows
    from eagle3_assets.exact.sample_row import write_table
    from eagle3_assets.exact.second_opinion import audit
    from eagle3_assets.exact.second_opinion.checker import Checker
    from eagle3_assets.review.rows.quarantine import rules_of
    from eagle3_assets.review.rows.shard_rows import judge_rows
    from eagle3_assets.targets.tokenizer import load_profile

    path = store.tokens(dataset.name, shard)
    inputs = lineage.tokens_inputs(campaign, store, dataset.name, shard)
    profile = load_profile(campaign.target.profile)
    answers = journal.best(journal.read(store.answers(dataset.name, shard))).values()
    made = build_rows(
        profile,
        campaign,
        dataset,
        answers,
        read_committed(store.wire_profiles, made_by="wire_profiles"),
        audit.read(store.audit),
    )
    checker = Checker(profile, answers, thinking=campaign.target.thinking)
    rows, table, verdicts = judge_rows(made, answers, rules_of(campaign, dataset, profile), checker, profile.n_vocab)
    write_table(path, table)
    numbers = {
        "rows": len(rows),
        "tokens": sum(len(r.input_ids) for r in rows),
        "response_tokens": sum(len(r.input_ids) - r.prompt_len for r in rows),
        "grades": dict(sorted(Counter(r.grade for r in rows).items())),
        "cost_usd": sum(r.cost_usd or 0.0 for r in rows),
        "expected_exact": sum(r.p_exact for r in rows),
    }
    commit(path, files=[path], inputs=inputs, numbers=numbers)
    gate.file_verdicts(campaign, store, "tokens", dataset.name, shard, verdicts)
    return {**numbers, "dagster/row_count": len(rows)}
