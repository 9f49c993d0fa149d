"""`hidden_states`: the target model's states over one corpus part, and its verdict on each row; one model load for any number of parts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.parts import part_digest
from eagle3_assets.errors import StoreError
from eagle3_assets.installed import STATES
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Gate, Job, Made, Markdown, Per, Stage
from eagle3_assets.stages import corpus
from eagle3_assets.states.format.part import SCHEMA_VERSION
from eagle3_assets.states.partition import state_settings
from eagle3_assets.states.verdict.verdicts_manifest import verdicts_path
from eagle3_assets.store import Manifest


@dataclass(frozen=True, slots=True)
class Inputs:
    """By part, not by corpus: a corpus that grew without touching this part leaves its states current. `model`: the weights' fingerprint."""

    corpus_part: str
    model: str


def inputs(a: Artifact) -> Inputs:
    from eagle3_assets.states.target.weights import model_fingerprint

    return Inputs(part_digest(a.store, a.partition), model_fingerprint(a.campaign))


def is_judged(a: Artifact) -> bool:
    """The model's verdict lies under a commit of its own beside the states."""
    from eagle3_assets.states.verdict import on_policy_table

    return on_policy_table.is_judged(a.campaign, a.store, a.partition)


def work(job: Job) -> None:
    from eagle3_assets import corpus as corpora
    from eagle3_assets.states.care.prune import partition_lock
    from eagle3_assets.states.verdict.verdict_pass import VerdictPass
    from eagle3_assets.tier.copier import Copier

    campaign, store = job.campaign, job.store
    to_do = [a for a in job.artifacts if a.state() != "current"]
    for artifact in job.artifacts:
        if artifact not in to_do:
            job.face.done(_made(artifact))
    if not to_do:
        job.face.log(f"all {len(job.artifacts)} partitions are current")
        return
    with contextlib.ExitStack() as locks:
        for device in held_devices(campaign):
            locks.enter_context(store.lock(f"device-{device.replace(':', '-')}", what=f"device {device}"))
        for artifact in to_do:
            locks.enter_context(partition_lock(store, artifact.partition))
        opened = corpora.open(store.corpus)
        copier = locks.enter_context(Copier(campaign, store))
        extractor = job.face.extractor(campaign)
        locks.callback(extractor.close)
        judged = VerdictPass.of(campaign, extractor)
        rows = {a.partition: opened.part(a.partition) for a in to_do}  # views of a mapped file
        progress = _Tokens(total=sum(len(p.input_ids) for packs in rows.values() for p in packs))
        for artifact in to_do:
            key = artifact.partition
            progress.partition = key
            copier.make_way(store.root, state_bytes(campaign, sum(len(p.input_ids) for p in rows[key])))
            judged.write(
                store,
                key,
                rows[key],
                opened.archive(key),
                corpus_part_digest=part_digest(store, key),
                on_tokens=progress.advance,
            )
            job.face.done(_made(artifact))
            copier.add(artifact.path)


@dataclass
class _Tokens:
    """How many tokens of all partitions are done."""

    total: int
    done: int = 0
    partition: str = ""

    def advance(self, tokens: int) -> None:
        self.done += tokens
        publish(Step("hidden_states", self.done, self.total, f"tokens, partition {self.partition}"))


def _made(a: Artifact) -> Made:
    from eagle3_assets.states.verdict.on_policy_checks import sources, summary_markdown
    from eagle3_assets.states.verdict.on_policy_table import read_on_policy

    manifest = st.require(a.path, made_by=a.name)
    shown: dict[str, Any] = {**manifest.numbers, "folder": a.path}
    if (verdicts := read_on_policy(a.path)) is not None:
        shown["on_policy"] = Markdown(summary_markdown(sources([verdicts])))
    return Made(a, manifest, shown)


def state_bytes(campaign: Campaign, tokens: int) -> int:
    """About the bytes of states of so many tokens: N auxiliary layers and the final one."""
    width = 2 if campaign.extraction.dtype == "bfloat16" else 4
    return tokens * campaign.target.hidden_size * (len(campaign.layers) + 1) * width


def held_devices(campaign: Campaign) -> tuple[str, ...]:
    """Devices of this machine that extraction fills, so that two runs never share one. Servers and Ray mind their own."""
    x = campaign.extraction
    return () if x.engine == "ray" or x.urls else tuple(sorted(x.all_devices))


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets import corpus as corpora
    from eagle3_assets.states.care.verify_states import judge_states
    from eagle3_assets.states.verdict.on_policy_checks import judge_on_policy
    from eagle3_assets.states.verdict.on_policy_table import read_on_policy

    verdicts = judge_states(a.campaign, a.store, a.partition, corpora.open(a.store.corpus).part(a.partition))
    return [*verdicts, *judge_on_policy(read_on_policy(a.path), asked=a.campaign.extraction.verdict_share > 0)]


def models_word(a: Artifact, manifest: Manifest) -> Mapping[str, Any]:
    """What the model said of the rows: it is made, and made again, under a commit of its own."""
    try:
        said = st.read_manifest(verdicts_path(a.store, a.partition))
    except StoreError:
        return {"verdicts": "damaged"}
    return {} if said is None else {"verdicts": said.digest}


def card(campaign: Campaign, dataset: str) -> Card:
    low, mid, high = campaign.layers
    return Card(
        frozenset({"torch", "safetensors"}),
        f"E_{low}, E_{mid}, E_{high} (inputs of those decoder layers) and the final state before the norm, for every token of "
        "one corpus part. Streams parts, resumes inside a partition, one lock a device.",
    )


STAGE = Stage(
    name="hidden_states",
    per=Per.PART,
    version=SCHEMA_VERSION,
    version_key="schema",
    packages=STATES,
    path=lambda a: a.store.states(a.partition),
    after=(corpus.STAGE,),
    gates=lambda a: [Gate(a.of(corpus.STAGE))],
    settings=lambda campaign, dataset: state_settings(campaign),
    inputs=inputs,
    whole=is_judged,
    work=work,
    judge=judge,
    bound_to=models_word,
    checks=CHECKS["hidden_states"],
    resources=frozenset({"gpu"}),
    card=card,
)
