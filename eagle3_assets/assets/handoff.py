"""`handoff/*`: what the trainers read. `tokens` needs no GPU; `speculators` and `specforge` read the hidden states in place."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import Manifest, Store


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key=["handoff", "tokens"],
        group_name="handoff",
        kinds={"jsonl"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["corpus"],
        description="Pre-tokenised JSONL (input_ids, loss_mask) under the final grade policy, as speculators and SpecForge read it, "
        "with a dataset card. Reads the model's verdict on rows that wait for one, where there is one.",
    )
    def handoff_tokens(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.handoff.tokens import export_tokens

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "corpus")
            gate.require(campaign, store, "corpus")
            inputs = lineage.handoff_tokens_inputs(campaign, store)
            with store.lock("handoff-tokens", what="handoff/tokens"):
                return _made(store, "tokens", export_tokens(campaign, store, commit_inputs=inputs))

    @dg.asset(
        key=["handoff", "speculators"],
        group_name="handoff",
        kinds={"arrow", "torch"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["hidden_states", "vocab_map"],
        description="speculators' Arrow dataset and vocabulary files; its trainer reads the states in place through a registered backend. "
        "Its own hs_{i}.safetensors only where [handoff] files asks.",
    )
    def handoff_speculators(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.handoff.speculators_export import export_speculators

        return _export(context, campaign, "speculators", export_speculators)

    @dg.asset(
        key=["handoff", "specforge"],
        group_name="handoff",
        kinds={"torch"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["hidden_states", "vocab_map"],
        description="SpecForge's vocabulary map, configuration and feature files that refer to the states in place, with the final norm "
        "applied when a row is read. Self-contained files only where [handoff] files asks.",
    )
    def handoff_specforge(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.handoff.specforge_export import export_specforge

        return _export(context, campaign, "specforge", export_specforge)

    return [handoff_tokens, handoff_speculators, handoff_specforge]


def _export(
    context: dg.AssetExecutionContext,
    campaign: Campaign,
    trainer: Literal["speculators", "specforge"],
    export: Callable[..., Manifest],
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """The gates of corpus, vocabulary map and every part of the states, then the export."""
    with stage(context, campaign) as store:
        for name in ("corpus", "vocab_map"):
            gate.require_current(campaign, store, name)
            gate.require(campaign, store, name)
        for shard in lineage.corpus_shards(store):
            gate.require_current(campaign, store, "hidden_states", gate.ALL, shard)
            gate.require(campaign, store, "hidden_states", gate.ALL, shard, verify=False)
        inputs = lineage.handoff_states_inputs(campaign, store, trainer)
        with store.lock(f"handoff-{trainer}", what=f"handoff/{trainer}"):
            return _made(store, trainer, export(campaign, store, commit_inputs=inputs))


def _made(store: Store, name: str, manifest: Manifest) -> dg.MaterializeResult:  # type: ignore[type-arg]
    numbers: Mapping[str, Any] = manifest.numbers
    return dg.MaterializeResult(
        metadata=described(numbers, **{"dagster/row_count": numbers["rows"]}, folder=store.handoff(name), digest=manifest.digest)
    )
