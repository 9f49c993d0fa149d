"""`corpus`: merged, admitted, deduplicated, shuffled, cut; registers the partitions of `hidden_states`."""

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.partitions import SINGLE_RUN, corpus_partitions
from eagle3_assets.store import require


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    partitions = corpus_partitions(campaign)

    @dg.asset(
        key="corpus",
        group_name="corpus",
        kinds={"duckdb", "parquet"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=[dg.AssetKey(["report", d.name]) for d in campaign.dataset],
        description="All datasets merged: admitted by grade policy, without copies and near copies, split, shuffled with the campaign's seed, "
        "dealt into parts by token budget. Says what it changes of an older corpus and why. Refuses over a failed, outdated or incomplete "
        "predecessor.",
    )
    def corpus(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.corpus.merge import TokenFile, build_corpus

        with stage(context, campaign) as store:
            for d in campaign.dataset:
                for s in SHARDS:
                    gate.require_current(campaign, store, "tokens", d.name, s)
                    gate.require(campaign, store, "tokens", d.name, s)
                gate.require_current(campaign, store, "report", d.name)
                gate.require(campaign, store, "report", d.name)
            inputs = lineage.corpus_inputs(campaign, store)
            files = [
                TokenFile(d.name, s, store.tokens(d.name, s), require(store.tokens(d.name, s), made_by=f"tokens/{d.name}").digest)
                for d in campaign.dataset
                for s in SHARDS
            ]
            with store.lock("corpus", what="the corpus"):
                manifest = build_corpus(campaign, store, files, commit_inputs=inputs, waived=gate.waivers_in_use(campaign, store))
            context.log.info(manifest.numbers["change"]["message"])
            register_partitions(context.instance, partitions, [str(k) for k in manifest.numbers["partitions"]])
            return dg.MaterializeResult(
                metadata=described(
                    {k: v for k, v in manifest.numbers.items() if k != "content"},  # digests: not for people
                    what_changed=manifest.numbers["change"]["message"],
                    **{"dagster/row_count": manifest.numbers["rows"]},
                    folder=store.corpus,
                    digest=manifest.digest,
                )
            )

    return [corpus]


def register_partitions(instance: dg.DagsterInstance, partitions: dg.DynamicPartitionsDefinition, keys: list[str]) -> None:
    """Make the set hold exactly `keys`: stale parts of an earlier corpus go."""
    name = partitions.name
    assert name is not None
    known = set(instance.get_dynamic_partitions(name))
    for stale in known - set(keys):
        instance.delete_dynamic_partition(name, stale)
    instance.add_dynamic_partitions(name, [k for k in keys if k not in known])
