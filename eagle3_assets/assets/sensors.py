"""Sensors, all off until a person switches them on: `automation` makes what costs nothing, `notices` tells of stops, drift and budget.

Belongs here: when something is looked for, and the cursor of what was told. Does not belong here: what is worth telling (`notices.py`), which
assets are made by themselves (`build.py`).
No `from __future__ import annotations` in this file: Dagster inspects the annotation of `context` at run time.
"""

import json
import os

import dagster as dg

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import WireError
from eagle3_assets.notices import WEBHOOK, find_notices, tell
from eagle3_assets.store import Store

EVERY_S = 60


def build(campaign: Campaign) -> list[dg.SensorDefinition]:
    return [_automation(), _notices(campaign), _failed_runs(campaign)]


def _automation() -> dg.SensorDefinition:
    return dg.AutomationConditionSensorDefinition(
        "automation",
        target=dg.AssetSelection.all(),
        description="The one switch of automation: makes what costs neither money nor a GPU when what it is made from has changed.",
        default_status=dg.DefaultSensorStatus.STOPPED,
        minimum_interval_seconds=EVERY_S,
    )


def _notices(campaign: Campaign) -> dg.SensorDefinition:
    @dg.sensor(
        name="notices",
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Tells once of each check that stops data, each provider that changed and an approval that is used up: in its log, and to "
        f"the address in {WEBHOOK}.",
    )
    def notices(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        told = set(json.loads(context.cursor or "[]"))
        found = find_notices(campaign, Store.of(campaign))
        new = [n for n in found if n.key not in told]
        for notice in new:
            _say(context, notice.words)
        context.update_cursor(json.dumps(sorted(n.key for n in found)))
        return dg.SkipReason("; ".join(n.words for n in new) or "nothing new to tell")

    return notices


def _failed_runs(campaign: Campaign) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name="failed_runs",
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Tells of each run that failed (a budget stop is one), with its last line: in its log, and to the address in {WEBHOOK}.",
    )
    def failed_runs(context: dg.RunFailureSensorContext) -> None:
        reasons = [e.event_specific_data for e in context.get_step_failure_events()]
        said = [r.user_failure_data.description if r.user_failure_data else r.error.message.strip() for r in reasons]  # type: ignore[union-attr]
        words = said[0] if said else context.failure_event.message
        _say(context, f"campaign {campaign.name}: run {context.dagster_run.run_id[:8]} failed: {words}")

    return failed_runs


def _say(context: dg.SensorEvaluationContext | dg.RunFailureSensorContext, words: str) -> None:
    context.log.warning(words)
    if address := os.environ.get(WEBHOOK):
        try:
            tell(address, words)
        except WireError as error:
            context.log.error(str(error))
