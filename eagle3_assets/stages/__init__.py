"""The flow: one file a stage, in this order. `STAGES` is the one list of them: the asset graph, checks, `eagle3 run`, `status`, `recheck`,
`waive` and the gates are loops over it.

Belongs here: for each stage what is true of it (`stage.Stage`): key, partitions, path, typed inputs, code version, work, checks, judge. A new
stage is one file and one line below.
Does not belong here: how work is done and rows are judged (rooms, imported inside functions: no torch, no DuckDB with the definitions),
Dagster (`assets/` and `checks/` make assets of stages).
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator

from eagle3_assets.campaign import Campaign
from eagle3_assets.stage import Artifact, Stage
from eagle3_assets.stages import (
    acceptance,
    answers,
    corpus,
    drafter,
    endpoints,
    handoff_specforge,
    handoff_speculators,
    handoff_tokens,
    hidden_states,
    pilot,
    plan,
    prompts,
    report,
    tokenizer_probe,
    tokens,
    vocab_map,
    wire_profiles,
)
from eagle3_assets.store import Store

STAGES: list[Stage] = [
    tokenizer_probe.STAGE,
    endpoints.STAGE,
    prompts.STAGE,
    pilot.STAGE,
    plan.STAGE,
    answers.STAGE,
    wire_profiles.STAGE,
    tokens.STAGE,
    report.STAGE,
    corpus.STAGE,
    vocab_map.STAGE,
    handoff_tokens.STAGE,
    hidden_states.STAGE,
    handoff_speculators.STAGE,
    handoff_specforge.STAGE,
    drafter.STAGE,
    acceptance.STAGE,
]


def named(name: str) -> Stage:
    return next(stage for stage in STAGES if stage.name == name)


copyreg.pickle(Stage, lambda stage: (named, (stage.name,)))  # to a worker process a stage goes by its name


def names() -> list[str]:
    return [stage.name for stage in STAGES]


def artifacts(campaign: Campaign, store: Store) -> Iterator[Artifact]:
    """Every artifact of the campaign, in the order of the flow."""
    for stage in STAGES:
        yield from stage.artifacts(campaign, store)


def made(campaign: Campaign, store: Store, dataset: str | None = None, shard: str | None = None) -> list[Artifact]:
    """Every committed artifact, in the order of the flow; `dataset` and `shard` narrow it."""
    return [
        a
        for a in artifacts(campaign, store)
        if dataset in (None, a.dataset) and (shard is None or a.partition in (shard, "all")) and a.manifest() is not None
    ]


def groups() -> list[list[Stage]]:
    """The flow as runs: neighbours that are partitioned alike go together, each partitioned stage by itself.

    A stage with `again_after` comes once more, in the first group behind the one it waits for.
    """
    found: list[list[Stage]] = []
    for stage in STAGES:
        if found and not stage.per.partitioned and not found[-1][-1].per.partitioned:
            found[-1].append(stage)
        else:
            found.append([stage])
    place = {stage.name: i for i, group in enumerate(found) for stage in group}
    for stage in STAGES:
        behind = place.get(stage.again_after, len(found)) + 1
        if behind < len(found):
            found[behind].insert(0, stage)
    return found
