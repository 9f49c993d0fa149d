"""Which verdicts a stage needs before it starts, and where they come from.

Belongs here: for each stage, how one of its artifacts is judged (the room's function over the files) and under which digest the
verdict is filed; the refusals that assets call first (design rule 12: the gate of a stage is re-applied by the stage behind it).
Does not belong here: the judging itself (rooms), verdict files (`review.gate`), Dagster (`checks/` shows the same verdicts).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eagle3_assets import lineage
from eagle3_assets import store as st
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts import verdict_files as verdict_files
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.review.verdicts.waivers import Waiver, apply_waivers, read_waivers, used_waivers
from eagle3_assets.store import Manifest, Store, read_json
from eagle3_assets.wire import journal

Judge = Callable[[Campaign, Store, str, str], list[Verdict]]
PER_DATASET = ("prompts", "answers", "tokens", "report")
ALL = "all"  # file name of verdicts without a dataset or a shard


def judge(
    campaign: Campaign, store: Store, stage: str, dataset: str = ALL, shard: str = ALL, *, anew: bool = False
) -> list[Verdict]:
    """Current verdicts of one artifact, waivers applied: from their file when it judged these bytes under today's rules, else judged
    now and filed. `anew`: judged now in any case.

    Raises StoreError when the artifact was never made.
    """
    manifest = committed(campaign, store, stage, dataset, shard)
    digest = filed_under(stage, manifest, store, dataset)
    if anew:
        verdicts = _JUDGES[stage](campaign, store, dataset, shard)
        verdict_files.write_verdicts(store, stage, dataset, shard, digest=digest, verdicts=verdicts)
    else:
        verdicts = verdict_files.judge_again(
            store, stage, dataset, shard, digest=digest, judge=lambda: _JUDGES[stage](campaign, store, dataset, shard)
        )
    return apply_waivers(verdicts, read_waivers(store), stage, dataset, shard, digest)


def file_verdicts(campaign: Campaign, store: Store, stage: str, dataset: str, shard: str, verdicts: Sequence[Verdict]) -> None:
    """File verdicts that were given while the artifact was in memory: they are bound to the bytes that were then committed."""
    digest = filed_under(stage, committed(campaign, store, stage, dataset, shard), store, dataset)
    verdict_files.write_verdicts(store, stage, dataset, shard, digest=digest, verdicts=verdicts)


def made(campaign: Campaign, store: Store, dataset: str | None = None, shard: str | None = None) -> list[tuple[str, str, str]]:
    """(stage, dataset, shard) of every committed artifact that has checks, in the order of the flow; `dataset` and `shard` narrow it."""
    found = []
    for item in lineage.items(campaign, store):
        named, part = (item.key[1] if item.stage in PER_DATASET else ALL), item.partition or ALL
        wanted = dataset in (None, named) and (shard is None or part in (shard, ALL))
        if wanted and item.stage in _JUDGES and lineage.manifest_of(item) is not None:
            found.append((item.stage, named, part))
    return found


def rejudge_outdated(campaign: Campaign, store: Store) -> list[tuple[str, str, str]]:
    """Judge again what carries a verdict on other bytes or rules (a run that died between making and checking); returns which."""
    again = []
    for stage, dataset, shard in made(campaign, store):
        manifest = st.read_manifest(_item(campaign, store, stage, dataset, shard).artifact)
        try:
            assert manifest is not None
            digest = filed_under(stage, manifest, store, dataset)
            verdict_files.refuse_outdated(store, stage, dataset, shard, digest=digest)
        except GateError:
            judge(campaign, store, stage, dataset, shard)
            again.append((stage, dataset, shard))
    return again


def waivers_in_use(campaign: Campaign, store: Store) -> list[dict[str, Any]]:
    """The waivers that let tokens and reports through to the corpus, as plain JSON."""
    files = []
    for stage, dataset, shard in made(campaign, store):
        if stage in ("tokens", "report"):
            digest = filed_under(stage, committed(campaign, store, stage, dataset, shard), store, dataset)
            files.append((stage, dataset, shard, digest, judge(campaign, store, stage, dataset, shard)))
    return used_waivers(store, files)


def require(
    campaign: Campaign, store: Store, stage: str, dataset: str = ALL, shard: str = ALL, *, verify: bool = True
) -> list[Verdict]:
    """Raises GateError when a blocking check of the predecessor failed, StoreError when it was never made.

    `verify=False` compares sizes only: terabytes of states are not read again where their readers compare every row.
    """
    manifest = committed(campaign, store, stage, dataset, shard, verify=verify)
    return verdict_files.require_passed(
        store,
        stage,
        dataset,
        shard,
        digest=filed_under(stage, manifest, store, dataset),
        judge=lambda: _JUDGES[stage](campaign, store, dataset, shard),
    )


def require_current(campaign: Campaign, store: Store, stage: str, dataset: str = ALL, shard: str = ALL) -> None:
    """Raises GateError when a predecessor is missing, damaged, or was made from something that has changed since."""
    item = _item(campaign, store, stage, dataset, shard)
    state = item.state()
    if state != "current":
        name = "/".join(item.key)
        where = f" partition {item.partition}" if item.partition else ""
        raise GateError(f"{name}{where} is {state} ({item.artifact}); materialize {name}{where} again, or run `eagle3 run`")


def require_probe(campaign: Campaign, store: Store) -> None:
    """The tokenizer probe gates everything that costs money or makes ids."""
    require_current(campaign, store, "tokenizer_probe")
    require(campaign, store, "tokenizer_probe")


def committed(
    campaign: Campaign, store: Store, stage: str, dataset: str = ALL, shard: str = ALL, *, verify: bool = True
) -> Manifest:
    """The manifest of an artifact, its checksums compared: what goes on from here must be the bytes that were made."""
    item = _item(campaign, store, stage, dataset, shard)
    where = f" partition {item.partition}" if item.partition else ""
    return st.require(item.artifact, made_by="/".join(item.key) + where, verify=verify)


def filed_under(stage: str, manifest: Manifest, store: Store, dataset: str) -> str:
    """What a verdict is bound to: the bytes, what they were made from, for a report the waivers of its shards that hold today, and for
    hidden states what the model said of them (it is made, and made again, under a commit of its own)."""
    bound = {"content": manifest.digest, "inputs": manifest.inputs}
    if stage == "report":
        holding = [w for w in read_waivers(store) if (w.stage, w.dataset) == ("tokens", dataset) and w.holds(*_of(w))]
        bound |= {"waived": sorted(f"{w.shard} {w.check} {w.digest}" for w in holding)} if holding else {}
    if stage == "hidden_states":
        states = manifest.path.with_name(manifest.path.name.removesuffix(st.MANIFEST_SUFFIX))
        try:
            said = st.read_manifest(states / lineage.VERDICTS_FILE)
            bound |= {} if said is None else {"verdicts": said.digest}
        except StoreError:
            bound |= {"verdicts": "damaged"}
    return st.digest_json(bound)


def _of(waiver: Waiver) -> tuple[str, str, str, str]:
    return waiver.stage, waiver.dataset, waiver.shard, waiver.digest


def _item(campaign: Campaign, store: Store, stage: str, dataset: str, shard: str) -> lineage.Item:
    for item in lineage.items(campaign, store):
        named = item.key[1] if item.stage in PER_DATASET else ALL
        if item.stage == stage and named == dataset and (item.partition or ALL) == shard:
            return item
    raise GateError(f"{stage} has no artifact for {dataset}, shard {shard}")


# ------------------------------------------------------------------------------------------------ one function a stage
def _probe(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    found = read_json(store.probe)["checks"]
    return [
        verdict("tokenizer_probe", name, c["passed"], c["message"], numbers=c.get("numbers", {})) for name, c in found.items()
    ]


def _endpoints(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    found = read_json(store.endpoints)
    return invariants.judge_endpoints(found["eligible"], found["refused"], needed=campaign.rents)


def _prompts(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    manifest = committed(campaign, store, "prompts", dataset)
    return invariants.judge_prompts(store.prompts(dataset), campaign.dataset_named(dataset), manifest.numbers)


def _pilot(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    return invariants.judge_pilot(read_json(store.pilot), campaign.budget.pilot_usd)


def _plan(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    usd = read_json(store.plan)["usd"]
    message = f"{usd['expected']:.4f} USD expected + {usd['pilot_spent']:.4f} on the pilot, of {planning.usd_text(usd['budget'])}"
    return [verdict("plan", "fits_budget", usd["fits"], message, numbers=usd)]


def _answers(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.prompts.file import read_shard

    eligible: list[str] = []
    if campaign.dataset_named(dataset).backend == "openrouter":
        eligible = [e["provider_name"] for e in st.read_committed(store.endpoints, made_by="endpoints")["eligible"]]
    return invariants.judge_answers(
        committed(campaign, store, "answers", dataset, shard).numbers,
        list(journal.read(store.answers(dataset, shard))),
        {p.key for p in read_shard(store.prompts(dataset), shard)},
        model=campaign.target.model,
        providers=eligible,
        closed=store.closed(dataset).exists(),
    )


def _wire_profiles(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    return invariants.judge_wire_profiles(read_json(store.wire_profiles))


def _tokens(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.exact.sample_row import read_table
    from eagle3_assets.exact.second_opinion.checker import Checker
    from eagle3_assets.review.rows.columns import Columns
    from eagle3_assets.review.rows.quarantine import rules_of
    from eagle3_assets.review.rows.wires import wires_of
    from eagle3_assets.targets.tokenizer import load_profile

    best = journal.best(journal.read(store.answers(dataset, shard)))
    profile = load_profile(campaign.target.profile)
    table = read_table(store.tokens(dataset, shard))
    return invariants.judge_tokens(
        table,
        finished_keys=set(best),
        n_vocab=profile.n_vocab,
        checker=Checker(profile, best.values(), thinking=campaign.target.thinking),
        wires=wires_of(Columns(table), best.values()),
        rules=rules_of(campaign, campaign.dataset_named(dataset), profile),
    )


def _report(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    verdicts = {
        s: judge(campaign, store, "tokens", dataset, s) for s in SHARDS if st.manifest_path(store.tokens(dataset, s)).exists()
    }
    current = {s: _item(campaign, store, "tokens", dataset, s).state() == "current" for s in SHARDS}
    return invariants.judge_report(read_json(store.report(dataset)), verdicts, current)


def _corpus(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.corpus.verify_corpus import judge_corpus

    return judge_corpus(store)


def _vocab_map(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.corpus.vocab import judge_vocab_map

    return judge_vocab_map(campaign, store)


def _handoff_tokens(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.handoff.tokens import judge_handoff_tokens

    return judge_handoff_tokens(campaign, store)


def _handoff_speculators(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.handoff.verify_export import judge_export

    return judge_export(campaign, store, "speculators")


def _handoff_specforge(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets.handoff.verify_export import judge_export

    return judge_export(campaign, store, "specforge")


def _hidden_states(campaign: Campaign, store: Store, dataset: str, shard: str) -> list[Verdict]:
    from eagle3_assets import corpus as corpora
    from eagle3_assets.states.care.verify_states import judge_states
    from eagle3_assets.states.verdict.on_policy_checks import judge_on_policy
    from eagle3_assets.states.verdict.on_policy_table import read_on_policy

    verdicts = judge_states(campaign, store, shard, corpora.open(store.corpus).part(shard))
    return [*verdicts, *judge_on_policy(read_on_policy(store.states(shard)), asked=campaign.extraction.verdict_share > 0)]


_JUDGES: dict[str, Judge] = {
    "tokenizer_probe": _probe,
    "endpoints": _endpoints,
    "prompts": _prompts,
    "pilot": _pilot,
    "plan": _plan,
    "answers": _answers,
    "wire_profiles": _wire_profiles,
    "tokens": _tokens,
    "report": _report,
    "corpus": _corpus,
    "vocab_map": _vocab_map,
    "handoff_tokens": _handoff_tokens,
    "hidden_states": _hidden_states,
    "handoff_speculators": _handoff_speculators,
    "handoff_specforge": _handoff_specforge,
}


def numbers_of(verdict_: Verdict) -> dict[str, Any]:
    """Figures of a verdict for display: plain scalars only."""
    return {k: v for k, v in verdict_.numbers.items() if isinstance(v, bool | int | float | str)}
