"""`pilot`: a few dozen paid answers per eligible endpoint under its own small cap: lengths, prices, speed, habits of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.collect.campaign_ledger import open_ledger
from eagle3_assets.collect.servers import routing as routes
from eagle3_assets.collect.signals import run, stopping_on_signals
from eagle3_assets.errors import GateError
from eagle3_assets.estimate import plan as planning
from eagle3_assets.review import invariants
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import After, Artifact, Card, Face, Gate, Interrupted, Made, Per, Stage, one_by_one
from eagle3_assets.stages import endpoints, prompts, tokenizer_probe
from eagle3_assets.store import Store, commit, read_committed, read_json, write_json
from eagle3_assets.wire import journal

# pilot.json of a campaign that rents no answer: there is nobody to try
NOBODY_ASKED: dict[str, Any] = {"endpoints": {}, "answers": 0, "lengths": {}, "spent_usd": 0.0}


def rented(dataset: Dataset) -> bool:
    return dataset.backend == "openrouter"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what it is made from; `prompts` of the rented datasets by name."""

    endpoints: str
    prompts: Mapping[str, str]


def inputs(a: Artifact) -> Inputs:
    asked = [p for p in a.all_of(prompts.STAGE) if rented(a.campaign.dataset_named(p.dataset))]
    return Inputs(a.of(endpoints.STAGE).digest(), {p.dataset: p.digest() for p in asked})


def make(a: Artifact, face: Face) -> Made:
    made_from = a.inputs()
    snapshot = read_committed(a.store.endpoints, made_by="endpoints")["snapshot"]
    found = run(_ask(a, face, snapshot)) if a.campaign.rents else dict(NOBODY_ASKED)
    found["wire_profiles"] = first_wire_profiles(a.campaign, a.store)
    resolved = routes.resolve(a.campaign, snapshot, pilot=found, wire_profiles=found["wire_profiles"])
    found["routing"] = routes.routing_table(resolved, found)
    write_json(a.path, found)
    files = [a.path, *a.store.pilot_dir.glob("segment-*")]
    manifest = commit(
        a.path, files=files, inputs=made_from, numbers={"spent_usd": found["spent_usd"], "server": a.campaign.server_address}
    )
    shown = {name: value for name, value in found.items() if name not in ("wire_profiles", "routing")}
    return Made(a, manifest, {**shown, "routing": endpoints.endpoint_table(resolved, found), "file": a.path})


async def _ask(a: Artifact, face: Face, snapshot: dict[str, Any]) -> dict[str, Any]:
    from eagle3_assets.collect.pilot.pilot import run_pilot
    from eagle3_assets.prompts.file import read_prompts

    campaign, store = a.campaign, a.store
    servers = face.servers(campaign, store, rented=True)
    stop = asyncio.Event()
    with stopping_on_signals(stop), open_ledger(campaign, store, spending_limit(campaign, store)) as ledger:
        found = await run_pilot(
            campaign,
            {d.name: read_prompts(store.prompts(d.name), with_reserve=True) for d in campaign.dataset if rented(d)},
            servers=servers,
            ledger=ledger,
            # the policy alone: whom an earlier pilot spoke against is asked again
            routing=routes.resolve(campaign, snapshot),
            folder=store.pilot_dir,
            stop=stop,
            count_tokens=token_counter(campaign),
        )
    if stop.is_set():
        raise Interrupted
    return found


def token_counter(campaign: Campaign) -> Callable[[str], int]:
    """Tokens of a text by the target's own tokenizer."""
    from eagle3_assets.targets.tokenizer import load_profile

    profile = load_profile(campaign.target.profile)
    return lambda text: len(profile.encoding.encode_ordinary(text))


def spending_limit(campaign: Campaign, store: Store) -> float:
    """USD in all while the pilot runs: its own cap before any approval, the approved amount after."""
    try:
        return planning.approved_usd(campaign, store)
    except GateError:
        return min(campaign.budget.pilot_usd, campaign.budget.campaign_usd)


def first_wire_profiles(campaign: Campaign, store: Store) -> dict[str, Any]:
    """What the pilot's answers alone say of each provider's wire; `wire_profiles` learns more when there are more answers."""
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets.targets.tokenizer import load_profile

    best = journal.best(journal.read(store.pilot_dir))
    return learn(load_profile(campaign.target.profile), (best[key] for key in sorted(best)), thinking=campaign.target.thinking)


def judge(a: Artifact) -> list[Verdict]:
    return invariants.judge_pilot(read_json(a.path), a.campaign.budget.pilot_usd)


STAGE = Stage(
    name="pilot",
    per=Per.CAMPAIGN,
    version=2,
    path=lambda a: a.store.pilot,
    after=(endpoints.STAGE, tokenizer_probe.STAGE, After(prompts.STAGE, rented)),
    gates=lambda a: [Gate(a.of(tokenizer_probe.STAGE))],
    settings=lambda campaign, dataset: {"routing": campaign.routing.model_dump(mode="json")},
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["pilot"],
    resources=frozenset({"openrouter"}),
    costs_money=True,
    card=lambda campaign, dataset: Card(
        frozenset({"openrouter"}),
        f"A few dozen paid answers per eligible endpoint, at most {campaign.budget.pilot_usd:g} USD: length "
        "distribution, prices, speed; probes of streams, log-probabilities, history replay and leading spaces; first wire "
        "profiles. Resumes; never buys an answer twice.",
    ),
)
