"""`hidden_states`: the target model's states over one corpus part; one model load for any number of partitions."""

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, partition_keys, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN, corpus_partitions
from eagle3_assets.progress import Step, publish
from eagle3_assets.resources.gpu import GpuResource
from eagle3_assets.store import is_current


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    low, mid, high = campaign.layers

    @dg.asset(
        key="hidden_states",
        group_name="hidden_states",
        kinds={"torch", "safetensors"},
        owners=OWNERS,
        partitions_def=corpus_partitions(campaign),
        backfill_policy=SINGLE_RUN,
        deps=["corpus"],
        description=f"E_{low}, E_{mid}, E_{high} (inputs of those decoder layers) and the final state before the norm, for every token of "
        "one corpus part. Streams parts, resumes inside a partition, one lock a device.",
    )
    def hidden_states(context: dg.AssetExecutionContext, gpu: GpuResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets import corpus as corpora
        from eagle3_assets.states.partition import write_partition

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "corpus")
            gate.require(campaign, store, "corpus")
            keys = partition_keys(context)
            wanted = {k: lineage.hidden_states_inputs(campaign, store, k) for k in keys}
            to_do = [k for k in keys if not is_current(store.states(k), wanted[k])]
            if not to_do:
                context.log.info(f"all {len(keys)} partitions are current")
                return dg.MaterializeResult()
            device = campaign.extraction.device
            with store.lock(f"device-{device.replace(':', '-')}", what=f"device {device}"):
                corpus = corpora.open(store.corpus)
                extractor = gpu.extractor(campaign)
                try:
                    rows = {key: corpus.part(key) for key in to_do}  # views of a mapped file
                    total = sum(len(p.input_ids) for packs in rows.values() for p in packs)
                    done = 0
                    for key in to_do:

                        def advance(tokens: int, key: str = key) -> None:
                            nonlocal done
                            done += tokens
                            publish(Step("hidden_states", done, total, f"tokens, partition {key}"))

                        numbers = write_partition(
                            campaign, store, key, rows[key], extractor,
                            corpus_part_digest=lineage.part_digest(store, key), on_tokens=advance,
                        )  # fmt: skip
                        # at once: a later failure must not undo a finished partition
                        metadata = described(numbers, folder=store.states(key))
                        context.log_event(dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata))
                finally:
                    extractor.close()
            return dg.MaterializeResult()

    return [hidden_states]
