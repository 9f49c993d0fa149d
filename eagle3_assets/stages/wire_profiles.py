"""`wire_profiles`: per provider, how its prompt, text and bill differ from the model's ids, learned from pilot and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Made, Markdown, Per, Stage, one_by_one
from eagle3_assets.stages import answers, pilot, tokenizer_probe
from eagle3_assets.store import Store, commit, manifest_path, read_json, write_json
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what it is learned from: the pilot, and every shard (`dataset/shard`) that is complete at the moment."""

    pilot: str
    answers: Mapping[str, str]
    probe: str


def inputs(a: Artifact) -> Inputs:
    complete = {f"{s.dataset}/{s.partition}": m.digest for s in a.all_of(answers.STAGE) if (m := s.manifest()) is not None}
    return Inputs(a.of(pilot.STAGE).digest(), complete, a.of(tokenizer_probe.STAGE).digest())


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.exact.providers.drift import changes
    from eagle3_assets.exact.providers.profile_pictures import as_markdown
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets.targets.tokenizer import load_profile

    target, made_from = a.campaign.target, a.inputs()
    found = learn(load_profile(target.profile), known_answers(a.campaign, a.store), thinking=target.thinking)
    write_json(a.path, found)
    manifest = commit(a.path, files=[a.path], inputs=made_from)
    providers = found["providers"]
    shown = {
        "providers": len(providers),
        "decided": sum(entry["decided"] for entry in providers.values()),
        "cannot_be_exact": {name: entry["cannot_be_exact"] for name, entry in providers.items() if entry["cannot_be_exact"]},
        "changes": [change.words for change in changes(found)],
        "profiles": Markdown(as_markdown(found)),
        "file": a.path,
    }
    return Made(a, manifest, shown)


def known_answers(campaign: Campaign, store: Store) -> Iterator[WireAnswer]:
    """Every finished answer of the pilot, of probes that were asked again and of complete shards, each once, in a fixed order."""
    folders = [store.pilot_dir, store.probes_again]
    folders += [
        store.answers(d.name, s) for d in campaign.dataset for s in SHARDS if manifest_path(store.answers(d.name, s)).exists()
    ]
    for folder in folders:
        best = journal.best(journal.read(folder))
        yield from (best[key] for key in sorted(best))


def judge(a: Artifact) -> list[Verdict]:
    return invariants.judge_wire_profiles(read_json(a.path))


STAGE = Stage(
    name="wire_profiles",
    per=Per.CAMPAIGN,
    version=6,
    path=lambda a: a.store.wire_profiles,
    after=(pilot.STAGE, tokenizer_probe.STAGE, answers.STAGE),
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["wire_profiles"],
    card=lambda campaign, dataset: Card(
        frozenset({"json"}),
        "Per provider: how its prompt, text and bill differ from the model's ids, learned from data. "
        "While data has not decided a provider's leading-space question, no row of it is better than C1.",
    ),
)
