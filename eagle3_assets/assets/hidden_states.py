"""`hidden_states`: the target model's states over one corpus part; one model load for any number of partitions. And the job that
removes old ones."""

import contextlib
from pathlib import Path

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, partition_keys, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN, corpus_partitions
from eagle3_assets.progress import Step, publish
from eagle3_assets.resources.gpu import GpuResource
from eagle3_assets.states.care.prune import partition_lock
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
        from eagle3_assets.states.verdict.on_policy_checks import sources, summary_markdown
        from eagle3_assets.states.verdict.on_policy_table import is_judged, read_on_policy
        from eagle3_assets.states.verdict.verdict_pass import VerdictPass
        from eagle3_assets.tier.copier import Copier

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "corpus")
            gate.require(campaign, store, "corpus")
            keys = partition_keys(context)
            wanted = {k: lineage.hidden_states_inputs(campaign, store, k) for k in keys}
            to_do = [k for k in keys if not (is_current(store.states(k), wanted[k]) and is_judged(campaign, store, k))]
            if not to_do:
                context.log.info(f"all {len(keys)} partitions are current")
                return dg.MaterializeResult()
            with contextlib.ExitStack() as locks:
                for device in held_devices(campaign):
                    locks.enter_context(store.lock(f"device-{device.replace(':', '-')}", what=f"device {device}"))
                for key in to_do:
                    locks.enter_context(partition_lock(store, key))
                corpus = corpora.open(store.corpus)
                copier = locks.enter_context(Copier(campaign, store))
                extractor = gpu.extractor(campaign)
                try:
                    judged = VerdictPass.of(campaign, extractor)
                    rows = {key: corpus.part(key) for key in to_do}  # views of a mapped file
                    total = sum(len(p.input_ids) for packs in rows.values() for p in packs)
                    done = 0
                    for key in to_do:

                        def advance(tokens: int, key: str = key) -> None:
                            nonlocal done
                            done += tokens
                            publish(Step("hidden_states", done, total, f"tokens, partition {key}"))

                        copier.make_way(store.root, state_bytes(campaign, sum(len(p.input_ids) for p in rows[key])))
                        numbers = judged.write(
                            store,
                            key,
                            rows[key],
                            corpus.archive(key),
                            corpus_part_digest=lineage.part_digest(store, key),
                            on_tokens=advance,
                        )
                        # at once: a later failure must not undo a finished partition
                        metadata = described(numbers, folder=store.states(key))
                        if (verdicts := read_on_policy(store.states(key))) is not None:
                            metadata["on_policy"] = dg.MetadataValue.md(summary_markdown(sources([verdicts])))
                        context.log_event(dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata))
                        copier.add(store.states(key))
                finally:
                    extractor.close()
            return dg.MaterializeResult()

    return [hidden_states]


def state_bytes(campaign: Campaign, tokens: int) -> int:
    """About the bytes of states of so many tokens: N auxiliary layers and the final one."""
    width = 2 if campaign.extraction.dtype == "bfloat16" else 4
    return tokens * campaign.target.hidden_size * (len(campaign.layers) + 1) * width


def held_devices(campaign: Campaign) -> tuple[str, ...]:
    """Devices of this machine that extraction fills, so that two runs never share one. Servers and Ray mind their own."""
    x = campaign.extraction
    return () if x.engine == "ray" or x.urls else tuple(sorted(x.all_devices))


class PruneConfig(dg.Config):
    """`remove` false: only shown. `archive`: a folder to move to instead of deleting. `partitions`: these too, current or not."""

    remove: bool = False
    archive: str = ""
    partitions: list[str] = []  # noqa: RUF012 (pydantic copies it)
    unfinished: bool = False


def prune_job(campaign: Campaign) -> dg.JobDefinition:
    """The job `prune_hidden_states`: what `eagle3 prune` does, in the UI; a dry run unless `remove` is set in the launchpad."""

    @dg.op(description="Old hidden states: shown with their bytes; removed or archived only when `remove` is true.")
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        from eagle3_assets.old_states import find_old_states
        from eagle3_assets.states.care.prune import remove

        with stage(context, campaign) as store:
            candidates = find_old_states(campaign, store, asked=config.partitions, unfinished=config.unfinished)
            for c in candidates:
                context.log.info(f"{c.bytes / 1e9:.3f} GB  {c.path}: {c.why}")
            if config.remove:
                remove(store, candidates, archive=Path(config.archive) if config.archive else None)
            done = (
                (f"moved to {config.archive}" if config.archive else "deleted")
                if config.remove
                else "may go; nothing was touched"
            )
            context.log.info(f"{sum(c.bytes for c in candidates) / 1e9:.3f} GB in {len(candidates)} places {done}")

    @dg.job(
        name="prune_hidden_states",
        description="Delete or archive hidden states that the corpus has no more or that are outdated. A dry run by default.",
    )
    def prune_hidden_states() -> None:
        prune()

    return prune_hidden_states
