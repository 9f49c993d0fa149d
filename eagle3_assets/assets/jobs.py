"""Jobs by intent: what a person starts, instead of a selection of assets.

Belongs here: one job for each intent of the flow (`stages.intents`), and the tags that every run carries. Does not belong here: what the stages
do; the job that prunes (`prune.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from eagle3_assets import stages
from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.stage import Artifact, Stage


def intent_jobs(campaign: Campaign) -> list[Any]:  # Dagster gives the type of a job by selection no public name
    """A job an intent, with the checks of its assets; an intent of which this campaign has no stage is left out."""
    found = []
    for intent, its in stages.intents():
        keys = [dg.AssetKey(stage.asset_key(name)) for stage in its for name in stage.datasets(campaign)]
        if keys:
            found.append(
                dg.define_asset_job(
                    intent.name,
                    dg.AssetSelection.assets(*keys),
                    description=f"{intent.words}.",
                    tags={"eagle3/campaign": campaign.name},
                )
            )
    return found


def run_tags(campaign: Campaign, artifacts: Iterable[Artifact]) -> dict[str, str]:
    """What a run of `eagle3 run` is about, to filter the runs by."""
    made = list(artifacts)
    datasets = [name for name in dict.fromkeys(a.dataset for a in made) if name != ALL]
    tags = {
        "eagle3/campaign": campaign.name,
        "eagle3/stages": _joined(list(dict.fromkeys(a.stage.name for a in made))),
    }
    return tags | ({"eagle3/datasets": _joined(datasets)} if datasets else {})


def job_of(artifacts: Sequence[Stage]) -> str:
    """The job that holds these stages: those of one run have one intent."""
    return stages.intent_of(artifacts[0]).name


def _joined(names: Sequence[str]) -> str:
    """Comma-separated; a tag holds 200 characters and more, a page shows fewer."""
    text = ",".join(names)
    return text if len(text) <= 200 else f"{text[:190].rpartition(',')[0]},... ({len(names)})"
