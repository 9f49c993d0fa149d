"""`handoff/speculators`: what speculators' trainer reads; the hidden states stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_assets.campaign import Campaign
from eagle3_assets.installed import STATES
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Gate, Made, Per, Stage, one_by_one
from eagle3_assets.stages import corpus, handoff_tokens, hidden_states, vocab_map
from eagle3_assets.states.verdict.verdicts_manifest import verdict_digests
from eagle3_assets.store import Manifest


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what is handed on; `states` by part, `verdicts` of the model on them where there are any."""

    corpus: str
    vocab_map: str
    states: Mapping[str, str]
    verdicts: Mapping[str, str] | None


def states_inputs(a: Artifact) -> Inputs:
    return Inputs(
        a.of(corpus.STAGE).digest(),
        a.of(vocab_map.STAGE).digest(),
        {s.partition: s.digest() for s in a.all_of(hidden_states.STAGE)},
        verdict_digests(a.store) or None,
    )


def states_gates(a: Artifact) -> list[Gate]:
    """Corpus, vocabulary map and every part of the states."""
    states = [Gate(part, verify=False) for part in a.all_of(hidden_states.STAGE)]
    return [Gate(a.of(corpus.STAGE)), Gate(a.of(vocab_map.STAGE)), *states]


def export_work(trainer: str, export: Callable[[], Callable[..., Manifest]]) -> Callable[[Artifact, Face], Made]:
    """The work of a hand-off of states. `export` loads the exporter (and what it imports) when it is needed."""

    def make(a: Artifact, face: Face) -> Made:
        made_from = a.inputs()
        with a.store.lock(f"handoff-{trainer}", what=f"handoff/{trainer}"):
            manifest = export()(a.campaign, a.store, commit_inputs=made_from)
        return Made(a, manifest, {**manifest.numbers, "folder": a.path}, rows=manifest.numbers["rows"])

    return make


def export_settings(trainer: Literal["speculators", "specforge"]) -> Callable[[Campaign, str], Mapping[str, Any]]:
    return lambda campaign, dataset: {
        **handoff_tokens.settings(campaign, dataset),
        "files": trainer in campaign.handoff.files,
    }


def export_judge(trainer: Literal["speculators", "specforge"]) -> Callable[[Artifact], list[Verdict]]:
    def judge(a: Artifact) -> list[Verdict]:
        from eagle3_assets.handoff.verify_export import judge_export

        return judge_export(a.campaign, a.store, trainer)

    return judge


def _exporter() -> Callable[..., Manifest]:
    from eagle3_assets.handoff.speculators_export import export_speculators

    return export_speculators


STAGE = Stage(
    name="handoff_speculators",
    key=("handoff", "speculators"),
    group="handoff",
    per=Per.CAMPAIGN,
    version=2,
    packages=STATES,
    path=lambda a: a.store.handoff("speculators"),
    after=(hidden_states.STAGE, vocab_map.STAGE),
    gates=states_gates,
    settings=export_settings("speculators"),
    inputs=states_inputs,
    work=one_by_one(export_work("speculators", _exporter)),
    judge=export_judge("speculators"),
    checks=CHECKS["handoff_speculators"],
    card=lambda campaign, dataset: Card(
        frozenset({"arrow", "torch"}),
        "speculators' Arrow dataset and vocabulary files; its trainer reads the states in place through a registered backend. "
        "Its own hs_{i}.safetensors only where [handoff] files asks.",
    ),
)
