"""`handoff/tokens`: pre-tokenised rows for online training; needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Gate, Made, Per, Stage, one_by_one
from eagle3_assets.stages import corpus
from eagle3_assets.states.verdict.verdicts_manifest import verdict_digests


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of the corpus, and of the model's verdicts on its parts where there are any."""

    corpus: str
    verdicts: Mapping[str, str] | None


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {
        "policy": {"grades": list(campaign.handoff.grades)},
        "trusted": [d.name for d in campaign.dataset if d.trusted],
    }


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.handoff.tokens import export_tokens

    made_from = a.inputs()
    with a.store.lock("handoff-tokens", what="handoff/tokens"):
        manifest = export_tokens(a.campaign, a.store, commit_inputs=made_from)
    return Made(a, manifest, {**manifest.numbers, "folder": a.path}, rows=manifest.numbers["rows"])


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.handoff.tokens import judge_handoff_tokens

    return judge_handoff_tokens(a.campaign, a.store)


STAGE = Stage(
    name="handoff_tokens",
    key=("handoff", "tokens"),
    group="handoff",
    per=Per.CAMPAIGN,
    version=3,
    path=lambda a: a.store.handoff_tokens,
    after=(corpus.STAGE,),
    gates=lambda a: [Gate(a.of(corpus.STAGE))],
    settings=settings,
    inputs=lambda a: Inputs(a.of(corpus.STAGE).digest(), verdict_digests(a.store) or None),
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["handoff_tokens"],
    again_after="hidden_states",  # with the states comes the model's verdict on rows that wait for it
    card=lambda campaign, dataset: Card(
        frozenset({"jsonl"}),
        "Pre-tokenised JSONL (input_ids, loss_mask) under the final grade policy, as speculators and SpecForge read it, "
        "with a dataset card. Reads the model's verdict on rows that wait for one, where there is one.",
    ),
)
