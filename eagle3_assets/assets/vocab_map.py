"""`vocab_map`: the draft vocabulary, d2t offsets and t2d mask, with coverage per dataset."""

import dagster as dg

from eagle3_assets import gate, lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import Campaign
from eagle3_assets.partitions import SINGLE_RUN


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="vocab_map",
        group_name="vocab_map",
        kinds={"numpy"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["corpus"],
        description=f"Draft vocabulary of {campaign.vocab.draft_vocab_size:,} ids: "
        "counts over supervised tokens, ties by id, control tokens forced in.",
    )
    def vocab_map(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.corpus.vocab import build_vocab_map
        from eagle3_assets.targets.tokenizer import load_profile

        with stage(context, campaign) as store:
            gate.require_current(campaign, store, "corpus")
            gate.require(campaign, store, "corpus")
            inputs = lineage.vocab_map_inputs(campaign, store)
            profile = load_profile(campaign.target.profile)
            # control tokens that the model emits must be draftable however rare they are in this corpus
            markers = {profile.end_id, profile.think_open, profile.think_close, *profile.tool_ids.values()} - {None}
            forced = sorted(m for m in markers if m is not None)
            with store.lock("vocab_map", what="vocab_map"):
                manifest = build_vocab_map(campaign, store, forced_ids=forced, commit_inputs=inputs)
            return dg.MaterializeResult(metadata=described(manifest.numbers, folder=store.vocab_map, digest=manifest.digest))

    return [vocab_map]
