"""What each artifact is made from, and so whether it is current.

Belongs here: the list of artifacts of a campaign in the order of the flow, and for each the digests of what it is made from
(predecessors' manifests, settings that decide its content, the version of the code that writes it).
Does not belong here: making anything, judging anything, Dagster (assets, `eagle3 run` and `eagle3 status` all ask here).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from eagle3_assets import store as st
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.errors import Eagle3Error, PromptError, StoreError
from eagle3_assets.store import Manifest, Store

# Raise a number when a stage's code starts to write something else from the same inputs.
CODE_VERSION = {
    "tokenizer_probe": 1, "endpoints": 1, "prompts": 1, "pilot": 2, "plan": 2, "answers": 1, "wire_profiles": 5, "tokens": 7,
    "report": 4, "corpus": 2, "vocab_map": 2, "handoff_tokens": 2, "hidden_states": 1,
    "handoff_speculators": 2, "handoff_specforge": 2, "drafter": 1, "acceptance": 1,
}  # fmt: skip

STAGES = tuple(CODE_VERSION)
VERDICTS_FILE = "on_policy.parquet"  # of states.on_policy_table, in the folder of a partition
State = Literal["current", "outdated", "missing", "damaged"]


@dataclass(frozen=True, slots=True)
class Item:
    """One artifact: an asset key, its partition (None where it has none), its path, and what it should be made from now.

    `inputs()` raises StoreError while a predecessor is missing. `whole()` asks for what belongs to the artifact under a commit of its own.
    """

    stage: str
    key: tuple[str, ...]
    partition: str | None
    artifact: Path
    inputs: Callable[[], dict[str, Any]]
    whole: Callable[[], bool] = lambda: True

    def state(self) -> State:
        try:
            manifest = st.read_manifest(self.artifact)
        except StoreError:
            return "damaged"
        if manifest is None:
            return "missing"
        try:
            return "current" if st.is_current(self.artifact, self.inputs()) and self.whole() else "outdated"
        except Eagle3Error:
            return "outdated"


def _digest(artifact: Path, made_by: str) -> str:
    return st.require(artifact, made_by=made_by).digest


def _versioned(stage: str, **inputs: Any) -> dict[str, Any]:
    return {"code": CODE_VERSION[stage], **inputs}


# ------------------------------------------------------------------------------------------------ inputs, stage by stage
def probe_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(campaign.target.profile)
    return _versioned(
        "tokenizer_probe",
        profile=campaign.target.profile,
        tokenizer_sha256=profile.tokenizer_sha256,
        template_sha256=profile.template_sha256,
        end_of_turn_id=campaign.target.end_of_turn_id,
    )


def endpoints_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    return _versioned("endpoints", model=campaign.target.model, server=campaign.server.model_dump(mode="json"))


def prompts_inputs(campaign: Campaign, store: Store, dataset: str) -> dict[str, Any]:
    from eagle3_assets.prompts.file import prompt_inputs

    try:
        return _versioned("prompts", **prompt_inputs(campaign, campaign.dataset_named(dataset)))
    except PromptError:
        # a local source that went away: the prompts were pinned when they were made, and stay
        pinned = st.read_manifest(store.prompts(dataset))
        if pinned is None:
            raise
        return dict(pinned.inputs)


def pilot_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    return _versioned(
        "pilot",
        endpoints=_digest(store.endpoints, "endpoints"),
        routing=campaign.routing.model_dump(mode="json"),
        prompts={
            d.name: _digest(store.prompts(d.name), f"prompts/{d.name}") for d in campaign.dataset if d.backend == "openrouter"
        },
    )


def plan_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    return _versioned(
        "plan",
        pilot=_digest(store.pilot, "pilot"),
        endpoints=_digest(store.endpoints, "endpoints"),
        prompts={d.name: _digest(store.prompts(d.name), f"prompts/{d.name}") for d in campaign.dataset},
        settings=st.digest_json(campaign.model_dump(mode="json", exclude={"path"})),
    )


def answers_inputs(campaign: Campaign, store: Store, dataset: str, shard: str) -> dict[str, Any]:
    return _versioned(
        "answers",
        prompts=_digest(store.prompts(dataset), f"prompts/{dataset}"),
        shard=shard,
        closed=store.closed(dataset).exists(),
    )


def wire_profiles_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    """The pilot and every shard that is complete at the moment: profiles are learned from what is there."""
    answers: dict[str, str] = {}
    for d in campaign.dataset:
        for shard in SHARDS:
            try:
                manifest = st.read_manifest(store.answers(d.name, shard))
            except StoreError:
                manifest = None
            if manifest is not None:
                answers[f"{d.name}/{shard}"] = manifest.digest
    return _versioned(
        "wire_profiles", pilot=_digest(store.pilot, "pilot"), answers=answers, probe=_digest(store.probe, "tokenizer_probe")
    )


def tokens_inputs(campaign: Campaign, store: Store, dataset: str, shard: str) -> dict[str, Any]:
    return _versioned(
        "tokens",
        answers=_digest(store.answers(dataset, shard), f"answers/{dataset} partition {shard}"),
        wire_profiles=_digest(store.wire_profiles, "wire_profiles"),
        probe=_digest(store.probe, "tokenizer_probe"),
        **({"audit": st.digest_file(store.audit)} if store.audit.exists() else {}),
    )


def report_inputs(campaign: Campaign, store: Store, dataset: str) -> dict[str, Any]:
    return _versioned(
        "report",
        tokens={s: _digest(store.tokens(dataset, s), f"tokens/{dataset} partition {s}") for s in SHARDS},
        prompts=_digest(store.prompts(dataset), f"prompts/{dataset}"),
    )


def corpus_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    return _versioned(
        "corpus",
        tokens={
            f"{d.name}/{s}": _digest(store.tokens(d.name, s), f"tokens/{d.name} partition {s}")
            for d in campaign.dataset
            for s in SHARDS
        },
        policy=campaign.corpus.model_dump(mode="json"),
        seed=campaign.campaign.seed,
    )


def vocab_map_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    from eagle3_assets.corpus.vocab import tokenizer_sha256

    return _versioned(
        "vocab_map",
        corpus=_digest(store.corpus, "corpus"),
        vocab=campaign.vocab.model_dump(mode="json"),
        target_vocab_size=campaign.target.vocab_size,
        tokenizer_sha256=tokenizer_sha256(campaign),
    )


def handoff_tokens_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    return _versioned(
        "handoff_tokens",
        corpus=_digest(store.corpus, "corpus"),
        policy={"grades": list(campaign.handoff.grades)},
        trusted=[d.name for d in campaign.dataset if d.trusted],
        **_verdicts(store),
    )


def handoff_states_inputs(campaign: Campaign, store: Store, trainer: Literal["speculators", "specforge"]) -> dict[str, Any]:
    return _versioned(
        f"handoff_{trainer}",
        corpus=_digest(store.corpus, "corpus"),
        vocab_map=_digest(store.vocab_map, "vocab_map"),
        states={s: _digest(store.states(s), f"hidden_states partition {s}") for s in corpus_shards(store)},
        policy={"grades": list(campaign.handoff.grades)},
        trusted=[d.name for d in campaign.dataset if d.trusted],
        files=trainer in campaign.handoff.files,
        **_verdicts(store),
    )


def drafter_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    """What a checkpoint was trained on: hand-off (and through it states, ids and vocabulary), the target's head, trainer and settings."""
    assert campaign.drafter is not None
    trainer = drafted_from(campaign)
    decided = campaign.drafter.model_dump(mode="json", include={"trainer", "arguments", "settings"})
    head = _digest(store.handoff("target_head"), "handoff/target_head")
    return _versioned("drafter", handoff=_digest(store.handoff(trainer), f"handoff/{trainer}"), target_head=head, **decided)


def drafted_from(campaign: Campaign) -> Literal["speculators", "specforge"]:
    """The hand-off that the campaign's trainer reads."""
    return "specforge" if campaign.drafter is not None and campaign.drafter.trainer == "specforge" else "speculators"


def acceptance_inputs(campaign: Campaign, store: Store) -> dict[str, Any]:
    assert campaign.drafter is not None
    return _versioned(
        "acceptance",
        drafter=_digest(store.drafter, "drafter"),
        decoding=campaign.drafter.model_dump(mode="json", include={"chain", "tree"}),
    )


def _verdicts(store: Store) -> dict[str, Any]:
    """The model's verdicts that decide which rows are handed on; nothing where there are none."""
    manifests = {s: verdicts_manifest(store, s) for s in corpus_shards(store)}
    found = {s: manifest.digest for s, manifest in manifests.items() if manifest is not None}
    return {"verdicts": found} if found else {}


def verdicts_manifest(store: Store, shard: str) -> Manifest | None:
    """The manifest of the model's verdicts on a corpus part: there, on the states that are there, and these of today's rows; else None
    (a row that waits for a verdict still waits then). Raises StoreError for damaged files."""
    states, found = st.read_manifest(store.states(shard)), st.read_manifest(store.states(shard) / VERDICTS_FILE)
    if states is None or found is None or found.inputs.get("states") != states.digest:
        return None
    return found if states.inputs.get("corpus_part") == part_digest(store, shard) else None


def hidden_states_inputs(campaign: Campaign, store: Store, shard: str) -> dict[str, Any]:
    """By part, not by corpus: a corpus that grew without touching this part leaves its states current."""
    from eagle3_assets.states.partition import state_inputs
    from eagle3_assets.states.target.weights import model_fingerprint

    return state_inputs(campaign, part_digest(store, shard), model_fingerprint(campaign))


def _judged(campaign: Campaign, store: Store, shard: str) -> bool:
    from eagle3_assets.states.verdict.on_policy_table import is_judged

    return is_judged(campaign, store, shard)


def part_digest(store: Store, shard: str) -> str:
    """xxh3-128 of one part's rows (names, ids, spans, survivors), from the corpus's manifest: figures about a row may be learned anew
    without touching its states."""
    manifest = st.require(store.corpus, made_by="corpus")
    contents = manifest.numbers.get("content", {})
    if shard in contents:
        return str(contents[shard])
    raise StoreError(f"{store.corpus}: has no part {shard}; it holds {', '.join(corpus_shards(store))}")


def corpus_shards(store: Store) -> list[str]:
    """Partition keys of the committed corpus, in order; empty when there is none."""
    try:
        manifest = st.read_manifest(store.corpus)
    except StoreError:
        return []
    return [str(k) for k in manifest.numbers.get("partitions", [])] if manifest else []


# ------------------------------------------------------------------------------------------------ the flow
def items(campaign: Campaign, store: Store) -> Iterator[Item]:
    """Every artifact of the campaign, in the order of the flow."""
    names = [d.name for d in campaign.dataset]

    def item(
        stage: str,
        key: tuple[str, ...],
        artifact: Path,
        make: Callable[..., dict[str, Any]],
        *rest: str,
        partition: str | None = None,
    ) -> Item:
        return Item(stage, key, partition, artifact, lambda: make(campaign, store, *rest))

    yield item("tokenizer_probe", ("tokenizer_probe",), store.probe, probe_inputs)
    yield item("endpoints", ("endpoints",), store.endpoints, endpoints_inputs)
    for n in names:
        yield item("prompts", ("prompts", n), store.prompts(n), prompts_inputs, n)
    yield item("pilot", ("pilot",), store.pilot, pilot_inputs)
    yield item("plan", ("plan",), store.plan, plan_inputs)
    for n in names:
        for s in SHARDS:
            yield item("answers", ("answers", n), store.answers(n, s), answers_inputs, n, s, partition=s)
    yield item("wire_profiles", ("wire_profiles",), store.wire_profiles, wire_profiles_inputs)
    for n in names:
        for s in SHARDS:
            yield item("tokens", ("tokens", n), store.tokens(n, s), tokens_inputs, n, s, partition=s)
    for n in names:
        yield item("report", ("report", n), store.report(n), report_inputs, n)
    yield item("corpus", ("corpus",), store.corpus, corpus_inputs)
    yield item("vocab_map", ("vocab_map",), store.vocab_map, vocab_map_inputs)
    yield item("handoff_tokens", ("handoff", "tokens"), store.handoff_tokens, handoff_tokens_inputs)
    for s in corpus_shards(store):
        states = item("hidden_states", ("hidden_states",), store.states(s), hidden_states_inputs, s, partition=s)
        yield replace(states, whole=partial(_judged, campaign, store, s))
    for trainer in ("speculators", "specforge"):
        yield item(f"handoff_{trainer}", ("handoff", trainer), store.handoff(trainer), handoff_states_inputs, trainer)
    if campaign.drafter is not None:
        yield item("drafter", ("drafter",), store.drafter, drafter_inputs)
        yield item("acceptance", ("acceptance",), store.acceptance, acceptance_inputs)


def manifest_of(item: Item) -> Manifest | None:
    """The committed manifest, or None; damage counts as none."""
    try:
        return st.read_manifest(item.artifact)
    except StoreError:
        return None
