"""`wire_profiles`: per provider, how its prompt, text and bill differ from the model's ids, learned from pilot and answers."""

from collections.abc import Iterator

import dagster as dg

from eagle3_assets import lineage
from eagle3_assets.assets.stage import OWNERS, described, stage
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.partitions import SINGLE_RUN
from eagle3_assets.store import Store, commit, manifest_path, require, write_json
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer


def build(campaign: Campaign) -> list[dg.AssetsDefinition]:
    @dg.asset(
        key="wire_profiles",
        group_name="wire_profiles",
        kinds={"json"},
        owners=OWNERS,
        backfill_policy=SINGLE_RUN,
        deps=["pilot", "tokenizer_probe", *(dg.AssetKey(["answers", d.name]) for d in campaign.dataset)],
        description="Per provider: how its prompt, text and bill differ from the model's ids, learned from data. "
        "While data has not decided a provider's leading-space question, no row of it is better than C1.",
    )
    def wire_profiles(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from eagle3_assets.exact.providers.profile_pictures import as_markdown
        from eagle3_assets.exact.providers.wire_profiles import learn
        from eagle3_assets.targets.tokenizer import load_profile

        with stage(context, campaign) as store:
            require(store.pilot, made_by="pilot")
            inputs = lineage.wire_profiles_inputs(campaign, store)
            found = learn(
                load_profile(campaign.target.profile), known_answers(campaign, store), thinking=campaign.target.thinking
            )
            write_json(store.wire_profiles, found)
            manifest = commit(store.wire_profiles, files=[store.wire_profiles], inputs=inputs)
            shown = dg.MetadataValue.md(as_markdown(found))
            named = {name: entry["cannot_be_exact"] for name, entry in found["providers"].items() if entry["cannot_be_exact"]}
            numbers = {"providers": len(found["providers"]), "decided": sum(e["decided"] for e in found["providers"].values())}
            return dg.MaterializeResult(
                metadata=described(
                    numbers, cannot_be_exact=named, profiles=shown, file=store.wire_profiles, digest=manifest.digest
                )
            )

    return [wire_profiles]


def known_answers(campaign: Campaign, store: Store) -> Iterator[WireAnswer]:
    """Every finished answer of the pilot and of complete shards, each once, in a fixed order."""
    folders = [store.pilot_dir]
    folders += [
        store.answers(d.name, s) for d in campaign.dataset for s in SHARDS if manifest_path(store.answers(d.name, s)).exists()
    ]
    for folder in folders:
        best = journal.best(journal.read(folder))
        yield from (best[key] for key in sorted(best))
