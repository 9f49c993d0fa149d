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
from typing import NamedTuple

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


class Intent(NamedTuple):
    """What a person wants of some stages that follow each other: a job in Dagster, a folder of its groups, a part of `eagle3 run`."""

    name: str
    words: str


# An intent begins at a stage and goes on to the next one that begins another: a new stage belongs to that of the stage before it.
BEGINS = {
    "tokenizer_probe": Intent(
        "prepare", "Probe the tokenizer, list who may answer, sample prompts, ask a pilot, plan what it costs"
    ),
    "answers": Intent("collect", "Ask for answers that are missing, under the approval. Costs money"),
    "wire_profiles": Intent("judge", "Learn what each provider does to text and bills, rebuild exact ids, report. Costs nothing"),
    "corpus": Intent("merge", "Admit, deduplicate, split and shuffle rows; draft vocabulary; tokens for trainers. Costs nothing"),
    "hidden_states": Intent(
        "extract", "The target model's states and its verdict on rows. Needs the target's weights, a GPU for real ones"
    ),
    "handoff_speculators": Intent("handoff", "Write what the trainers read. Costs nothing"),
    "drafter": Intent("train", "Train a drafter with a trainer of its own environment, measure its acceptance"),
}


def intents() -> list[tuple[Intent, list[Stage]]]:
    """The flow by intent, in order."""
    found: list[tuple[Intent, list[Stage]]] = []
    for stage in STAGES:
        if stage.name in BEGINS or not found:
            found.append((BEGINS.get(stage.name, Intent("flow", "")), []))
        found[-1][1].append(stage)
    return found


def intent_of(stage: Stage) -> Intent:
    return next(intent for intent, its in intents() if stage in its)


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
    """The flow as runs: neighbours of one intent that are partitioned alike go together, each partitioned stage by itself.

    A stage with `again_after` comes once more, in a run of its own behind the one it waits for.
    """
    found: list[list[Stage]] = []
    for _, its in intents():
        for i, stage in enumerate(its):
            if i and not stage.per.partitioned and not its[i - 1].per.partitioned:
                found[-1].append(stage)
            else:
                found.append([stage])
    for stage in STAGES:
        behind = next((i for i, group in enumerate(found, 1) if stage.again_after in [s.name for s in group]), len(found))
        if behind < len(found):
            found.insert(behind, [stage])
    return found
