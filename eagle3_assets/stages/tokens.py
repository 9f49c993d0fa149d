"""`tokens/<ds>`: exact ids, loss spans, grade and evidence of each answer; recomputed freely, costs nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from eagle3_assets import gate
from eagle3_assets import store as st
from eagle3_assets.campaign import Campaign
from eagle3_assets.progress import Step, publish
from eagle3_assets.review import invariants
from eagle3_assets.review.rows.fatal_rules import fatal_rules_digest
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Gate, Job, Made, Per, Stage
from eagle3_assets.stages import answers, tokenizer_probe, wire_profiles
from eagle3_assets.wire import journal
from eagle3_assets.workers import over_cores, seats


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what it is made from; `audit` of what `eagle3 audit` measured, where it was run."""

    answers: str
    wire_profiles: str
    probe: str
    audit: str | None


def inputs(a: Artifact) -> Inputs:
    return Inputs(
        a.of(answers.STAGE).digest(),
        a.of(wire_profiles.STAGE).digest(),
        a.of(tokenizer_probe.STAGE).digest(),
        st.digest_file(a.store.audit) if a.store.audit.exists() else None,
    )


def work(job: Job) -> None:
    made_from = [a.of(answers.STAGE) for a in job.artifacts]
    workers = seats(job.campaign.execution.workers, len(job.artifacts), sum(a.size() for a in made_from))
    for done, made in enumerate(over_cores(make, job.artifacts, workers), 1):
        job.face.done(made)
        publish(Step("tokens", done, len(job.artifacts), f"{made.artifact.dataset} shard {made.artifact.partition}"))


def make(a: Artifact) -> Made:
    from eagle3_assets.exact.rows import build_rows
    from eagle3_assets.exact.sample_row import write_table
    from eagle3_assets.exact.second_opinion import audit
    from eagle3_assets.exact.second_opinion.checker import Checker
    from eagle3_assets.review.rows.quarantine import rules_of
    from eagle3_assets.review.rows.shard_rows import judge_rows
    from eagle3_assets.targets.tokenizer import load_profile

    campaign, store, made_from = a.campaign, a.store, a.inputs()
    dataset, profile = campaign.dataset_named(a.dataset), load_profile(campaign.target.profile)
    answers = list(journal.best(journal.read(store.answers(a.dataset, a.partition))).values())
    made = build_rows(
        profile,
        campaign,
        dataset,
        answers,
        st.read_committed(store.wire_profiles, made_by="wire_profiles"),
        audit.read(store.audit),
    )
    checker = Checker(profile, answers, thinking=campaign.target.thinking)
    rows, table, verdicts = judge_rows(made, answers, rules_of(campaign, dataset, profile), checker, profile.n_vocab)
    write_table(a.path, table)
    numbers = {
        "rows": len(rows),
        "tokens": sum(len(r.input_ids) for r in rows),
        "response_tokens": sum(len(r.input_ids) - r.prompt_len for r in rows),
        "grades": dict(sorted(Counter(r.grade for r in rows).items())),
        "cost_usd": sum(r.cost_usd or 0.0 for r in rows),
        "expected_exact": sum(r.p_exact for r in rows),
    }
    manifest = st.commit(a.path, files=[a.path], inputs=made_from, numbers=numbers)
    gate.file_verdicts(a, verdicts)
    return Made(a, manifest, numbers, rows=len(rows))


def judge(a: Artifact) -> list[Verdict]:
    from eagle3_assets.exact.sample_row import read_table
    from eagle3_assets.exact.second_opinion.checker import Checker
    from eagle3_assets.review.rows.columns import Columns
    from eagle3_assets.review.rows.quarantine import rules_of
    from eagle3_assets.review.rows.wires import wires_of
    from eagle3_assets.targets.tokenizer import load_profile

    best = journal.best(journal.read(a.store.answers(a.dataset, a.partition)))
    profile = load_profile(a.campaign.target.profile)
    table = read_table(a.path)
    return invariants.judge_tokens(
        table,
        finished_keys=set(best),
        n_vocab=profile.n_vocab,
        checker=Checker(profile, best.values(), thinking=a.campaign.target.thinking),
        wires=wires_of(Columns(table), best.values()),
        rules=rules_of(a.campaign, a.campaign.dataset_named(a.dataset), profile),
    )


def card(campaign: Campaign, name: str) -> Card:
    return Card(
        frozenset({"parquet"}),
        f"Exact token ids of {name}: prompt as the server saw it, response as the model sampled it, loss spans, "
        "grade by evidence, survivors. One row an assistant turn.",
    )


STAGE = Stage(
    name="tokens",
    per=Per.SHARD,
    version=7,
    rules=fatal_rules_digest(),
    path=lambda a: a.store.tokens(a.dataset, a.partition),
    after=(answers.STAGE, wire_profiles.STAGE, tokenizer_probe.STAGE),
    gates=lambda a: [Gate(a.of(answers.STAGE))],
    inputs=inputs,
    work=work,
    judge=judge,
    checks=CHECKS["tokens"],
    card=card,
)
