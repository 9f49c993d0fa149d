"""`plan`: tokens, dollars, minutes, hours, terabytes. `answers` spends only what a person approved on seeing it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.servers.routing import stored_routing
from eagle3_assets.estimate import plan as planning
from eagle3_assets.review.verdicts.table import CHECKS, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.stage import Artifact, Card, Face, Made, Markdown, Per, Stage, one_by_one
from eagle3_assets.stages import endpoints, pilot, prompts
from eagle3_assets.store import commit, digest_json, read_committed, read_json, write_json


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what it is made from; `prompts` by dataset."""

    pilot: str
    endpoints: str
    prompts: Mapping[str, str]


def settings(campaign: Campaign, dataset: str) -> Mapping[str, Any]:
    """Any setting may change the plan."""
    return {"settings": digest_json(campaign.model_dump(mode="json", exclude={"path"}, exclude_defaults=True))}


def inputs(a: Artifact) -> Inputs:
    return Inputs(
        a.of(pilot.STAGE).digest(), a.of(endpoints.STAGE).digest(), {p.dataset: p.digest() for p in a.all_of(prompts.STAGE)}
    )


def make(a: Artifact, face: Face) -> Made:
    made_from = a.inputs()
    tried = read_committed(a.store.pilot, made_by="pilot")
    routing = stored_routing(a.campaign, a.store)
    found = planning.make_plan(
        a.campaign,
        planning.facts_of(a.campaign, a.store),
        tried,
        (routing.max_prompt_price * 1e6, routing.max_completion_price * 1e6),
        planning.free_bytes(a.store.root),
        listed=[(e.prompt_price * 1e6, e.completion_price * 1e6) for e in routing.eligible],
    )
    write_json(a.path, found)
    return Made(a, commit(a.path, files=[a.path], inputs=made_from), {**shown_of(found), "file": a.path})


def shown_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as numbers, so that the UI plots them over time; tables and picture as `eagle3 plan` shows them."""
    from eagle3_assets.estimate.page import as_markdown
    from eagle3_assets.estimate.picture import draw_plan

    picture = base64.b64encode(draw_plan(plan)).decode()
    return {
        "usd_expected": plan["usd"]["expected"],
        "usd_output": plan["usd"]["output"],
        "usd_prompt": plan["usd"]["prompt"],
        "usd_low": plan["usd"]["low"],
        "usd_high": plan["usd"]["high"],
        "in_flight_that_money_allows": plan["in_flight"]["by_money_left"][0][1],
        "tokens": plan["tokens"]["total"],
        "tokens_kept": plan["kept"]["tokens"],
        "rows_kept": plan["kept"]["rows"],
        "answer_minutes": plan["minutes"]["answers"],
        "extraction_hours": plan["hours"]["extraction"],
        "state_terabytes": plan["states"]["terabytes"],
        "state_tebibytes": plan["states"]["tebibytes"],
        "disk_needed_bytes": plan["disk"]["needed"],
        "disk_free_bytes": plan["disk"]["free"],
        "plan": Markdown(as_markdown(plan)),
        "picture": Markdown(f"![states against the cap, dollars against the budget](data:image/png;base64,{picture})"),
    }


def judge(a: Artifact) -> list[Verdict]:
    usd = read_json(a.path)["usd"]
    message = f"{usd['expected']:.4f} USD expected + {usd['pilot_spent']:.4f} on the pilot, of {planning.usd_text(usd['budget'])}"
    return [verdict("plan", "fits_budget", usd["fits"], message, numbers=usd)]


STAGE = Stage(
    name="plan",
    per=Per.CAMPAIGN,
    version=2,
    path=lambda a: a.store.plan,
    after=(pilot.STAGE, endpoints.STAGE, prompts.STAGE),
    settings=settings,
    inputs=inputs,
    work=one_by_one(make),
    judge=judge,
    checks=CHECKS["plan"],
    card=lambda campaign, dataset: Card(
        frozenset({"json"}),
        "What the campaign will cost: tokens, dollars, minutes, hours, terabytes, what-ifs, each with its assumptions. "
        "`eagle3 plan --approve USD` lets answers spend.",
    ),
)
