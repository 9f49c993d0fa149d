"""`acceptance`: the acceptance length τ of the drafter, from stored states, without serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.installed import STATES
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Gate, Made, Markdown, Per, Picture, Stage, one_by_one
from eagle3_assets.stages import drafter, hidden_states
from eagle3_assets.store import commit


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digest of the checkpoint (and through it of all that it was trained on)."""

    drafter: str


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    return {"decoding": drafter.table_of(campaign).model_dump(mode="json", include={"chain", "tree"})}


def make(a: Artifact, face: Face) -> Made:
    from eagle3_assets.accept.page import draw, render_markdown
    from eagle3_assets.accept.report import build_acceptance, decoding_of, write_acceptance
    from eagle3_assets.accept.training_record import find_checkpoint

    made_from = a.inputs()
    with a.store.lock("acceptance", what="acceptance"):
        a.path.mkdir(parents=True, exist_ok=True)
        document = build_acceptance(
            a.campaign,
            a.store,
            find_checkpoint(a.store.drafter),
            decoding_of(a.campaign),
            on_rows=lambda n: publish(Step("acceptance", n, n, "rows")),
        )
        files = write_acceptance(a.path, document)
        taus = {f"tau_{way}": found["all"]["tau"] for way, found in document["ways"].items()}
        numbers = {**taus, "tau_untrained": document["untrained"]["tau"], "rows": document["rows"]}
        manifest = commit(a.path, files=files, inputs=made_from, numbers=numbers)
    shown = {"page": a.path / "acceptance.html", "table": Markdown(render_markdown(document)), "picture": Picture(draw(document))}
    return Made(a, manifest, {**numbers, **shown})


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.accept.report import judge_acceptance, read_acceptance

    return judge_acceptance(read_acceptance(a.path))


STAGE = Stage(
    name="acceptance",
    group="drafter",
    per=Per.CAMPAIGN,
    version=1,
    wanted=lambda campaign: campaign.drafter is not None,
    packages=STATES,
    path=lambda a: a.store.acceptance,
    after=(drafter.STAGE, hidden_states.STAGE),
    gates=lambda a: [Gate(a.of(drafter.STAGE))],
    settings=settings,
    inputs=lambda a: Inputs(a.of(drafter.STAGE).digest()),
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["acceptance"],
    card=lambda campaign, dataset: Card(
        frozenset({"torch"}),
        "Acceptance length τ of the drafter, from the stored states of the validation rows, without serving: chains and trees, greedy "
        "and sampled, by dataset, grade, position and context length, with intervals. Beside it that of an untrained drafter.",
    ),
)
