"""`handoff/specforge`: what SpecForge's trainer reads; the hidden states stay where they are."""

from __future__ import annotations

from collections.abc import Callable

from eagle3_assets.installed import STATES
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.stage import Card, Per, Stage, one_by_one
from eagle3_assets.stages import hidden_states, vocab_map
from eagle3_assets.stages.handoff_speculators import export_judge, export_settings, export_work, states_gates, states_inputs
from eagle3_assets.store import Manifest


def _exporter() -> Callable[..., Manifest]:
    from eagle3_assets.handoff.specforge_export import export_specforge

    return export_specforge


STAGE = Stage(
    name="handoff_specforge",
    key=("handoff", "specforge"),
    group="handoff",
    per=Per.CAMPAIGN,
    version=2,
    packages=STATES,
    path=lambda a: a.store.handoff("specforge"),
    after=(hidden_states.STAGE, vocab_map.STAGE),
    gates=states_gates,
    settings=export_settings("specforge"),
    inputs=states_inputs,
    work=one_by_one(export_work("specforge", _exporter)),
    judge=export_judge("specforge"),
    checks=CHECKS["handoff_specforge"],
    card=lambda campaign, dataset: Card(
        frozenset({"torch"}),
        "SpecForge's vocabulary map, configuration and feature files that refer to the states in place, with the final norm "
        "applied when a row is read. Self-contained files only where [handoff] files asks.",
    ),
)
