"""The pilot: a few paid answers from every eligible endpoint, under a cap of its own.

Belongs here: which prompt and which probe goes to which endpoint, and the figures that the plan needs.
Does not belong here: the probes (`probes.py`), sending and journaling (`collector.py`), what the answers teach about a provider's
text (`exact`).

All endpoints share one journal (`folder`), so that whoever reads it sees every pilot answer. A pilot sample has an id of its own,
made of endpoint and prompt: the same prompt at two endpoints is two samples, and no pilot answer is taken for an answer of a
dataset. Probes say so in their record's shard (`probes.is_probe`); lengths and speed are those of real prompts alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import probes
from eagle3_assets.collect.pilot.probes import Probe
from eagle3_assets.collect.run.collector import DEFAULT_PACE, Pace, Progress, Servers, ShardJob, ShardResult, collect
from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.collect.servers.routing import RequestForm, Routing
from eagle3_assets.errors import BudgetStop, WireError
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.completion import as_dict, completion_tokens, parse_completion
from eagle3_assets.wire.journal import best, read
from eagle3_assets.wire.wire_answer import WireAnswer

SCOPE = "pilot"
ANSWERS_PER_ENDPOINT = 6


async def run_pilot(
    campaign: Campaign,
    prompts_by_dataset: Mapping[str, Sequence[Prompt]],
    *,
    servers: Servers,
    ledger: Ledger,
    routing: Routing,
    folder: Path,
    stop: asyncio.Event,
    answers_per_endpoint: int = ANSWERS_PER_ENDPOINT,
    count_tokens: Callable[[str], int] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    pace: Pace = DEFAULT_PACE,
) -> dict[str, Any]:
    """Ask each eligible endpoint for `answers_per_endpoint` answers (pinned, without fallbacks) and report figures as plain JSON.

    With `count_tokens` (the target's own tokenizer; text to tokens) each endpoint is asked the probes, too.

    Answers already in the journal are not bought again. When the cap ends it early, the figures of what there is are returned and
    `stopped` holds the line; with no answer at all that line is raised. Raises LockedError, StoreError, WireError, BudgetStop.
    """
    pool = interleave(
        prompts_by_dataset[d.name] for d in campaign.dataset if d.backend == "openrouter" and prompts_by_dataset.get(d.name)
    )
    words = probes.choose_words(count_tokens) if count_tokens is not None else []
    asked = {e.tag: probes.probes_for(e, words) if count_tokens is not None else [] for e in routing.eligible}
    jobs: list[ShardJob] = []
    for endpoint in routing.eligible:
        jobs += _prompt_jobs(campaign, endpoint, choose(endpoint, pool, answers_per_endpoint), routing, folder)
        jobs += probe_jobs(campaign, endpoint, asked[endpoint.tag], routing, folder)
    results: list[ShardResult] = []
    stopped: BudgetStop | None = None
    try:
        await collect(
            campaign,
            jobs,
            servers=servers,
            ledger=ledger,
            routing=routing,
            stop=stop,
            on_progress=on_progress,
            on_shard_done=results.append,
            tolerant=True,
            pace=pace,
        )
    except BudgetStop as error:
        stopped = error
    records = list(read(folder))
    figures = summarize(routing, records, stopped)
    if count_tokens is not None:
        figures["words"] = [word for word, _ in words]
        figures["probes"] = {
            e.tag: probes.findings(e, asked[e.tag], [a for a in best(records).values() if _tag(a) == e.tag], count_tokens)
            for e in routing.eligible
        }
    if figures["answers"] == 0 and not stop.is_set():
        reasons = sum((Counter(r.reasons) for r in results), Counter[str]())
        raise stopped or WireError(
            f"the pilot got no answer from any of {len(routing.eligible)} endpoints "
            f"({', '.join(f'{reason}: {n}' for reason, n in reasons.items()) or 'no prompts'}); see {folder}"
        )
    figures["spent_usd"] = ledger.totals().scopes[SCOPE].spent_usd if SCOPE in ledger.totals().scopes else 0.0
    return figures


def _prompt_jobs(
    campaign: Campaign, endpoint: Endpoint, chosen: Sequence[Prompt], routing: Routing, folder: Path
) -> list[ShardJob]:
    pinned, jobs = routing.only(endpoint), []
    for dataset in campaign.dataset:
        mine = tuple(p for p in chosen if p.dataset == dataset.name)
        if mine:
            # a pilot asks one turn of a conversation, whatever the dataset's policy
            one_turn = dataset.model_copy(update={"turns": "last"})
            jobs.append(ShardJob(one_turn, SCOPE, mine, folder, routing=pinned, scope=SCOPE))
    return jobs


def probe_jobs(
    campaign: Campaign,
    endpoint: Endpoint,
    asked: Sequence[Probe],
    routing: Routing,
    folder: Path,
    *,
    scope: str = SCOPE,
    identity: str = SCOPE,
) -> list[ShardJob]:
    """One job a probe, since the shard carries its name; probes of one form share a routing, and so a lane. `scope`: whose money; a probe
    with another `identity` is another sample."""
    pinned: dict[RequestForm, Routing] = {}
    return [
        ShardJob(
            probe_dataset(campaign),
            probe.shard,
            (probe.prompt(endpoint, identity),),
            folder,
            routing=pinned.setdefault(probe.form, routing.only(endpoint, probe.form)),
            scope=scope,
        )
        for probe in asked
    ]


def probe_dataset(campaign: Campaign) -> Dataset:
    """The settings of probes: those of the first rented dataset, with short answers."""
    like = next((d for d in campaign.dataset if d.backend == "openrouter"), campaign.dataset[0])
    sampling = campaign.sampling_of(like)
    short = sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, probes.MOST_TOKENS)})
    return like.model_copy(update={"name": probes.DATASET, "turns": "last", "sampling": short})


# ---------------------------------------------------------------------------------------------------- choice of prompts
def interleave(datasets: Iterable[Sequence[Prompt]]) -> list[Prompt]:
    """One prompt of each dataset in turn; reserve prompts first, so that the pilot uses none of the selection while it can."""
    ordered = [sorted(prompts, key=lambda p: (not p.reserve, p.rank)) for prompts in datasets]
    return [p for row in itertools.zip_longest(*ordered) for p in row if p is not None]


def choose(endpoint: Endpoint, pool: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts for an endpoint, as pilot samples. The choice depends on its tag alone: other endpoints may come and go
    without anything being bought twice. Prompts with tools are left out where the endpoint lists parameters and `tools` is not
    among them.
    """
    takes_tools = not endpoint.supported_parameters or "tools" in endpoint.supported_parameters
    fit = [p for p in pool if takes_tools or not p.tools]
    start = int(hashlib.sha256(endpoint.tag.encode()).hexdigest()[:8], 16) % max(1, len(fit))
    return [
        replace(
            p,
            sample_id=hashlib.sha256(f"pilot\0{endpoint.tag}\0{p.sample_id}\0{p.turn}".encode()).hexdigest()[:32],
            shard=SCOPE,
            reserve=False,
            follow_ups=(),
        )
        for p in (fit[start:] + fit[:start])[:count]
    ]


# ---------------------------------------------------------------------------------------------------- figures
def summarize(routing: Routing, answers: Iterable[WireAnswer], stopped: BudgetStop | None = None) -> dict[str, Any]:
    """Figures of a pilot journal: per endpoint tag, and output lengths per dataset. Tokens as billed, money in USD, times in
    seconds. Probes count in money and errors only.
    """
    records = list(answers)
    finished = [a for a in best(records).values() if not probes.is_probe(a)]
    by_tag: dict[str, list[WireAnswer]] = {e.tag: [] for e in routing.eligible}
    for record in records:
        by_tag.setdefault(_tag(record), []).append(record)
    seconds = [a.finished_at - a.started_at for a in finished]
    names = sorted({a.dataset for a in finished})
    return {
        "answers": len(finished),
        "mean_seconds": _distribution(seconds).get("mean", 0.0),
        "lengths": {name: _distribution([_tokens(a) for a in finished if a.dataset == name]) for name in names},
        "endpoints": {tag: _endpoint_figures(records) for tag, records in sorted(by_tag.items())},
        "stopped": str(stopped) if stopped else None,
    }


def _endpoint_figures(records: list[WireAnswer]) -> dict[str, Any]:
    finished = [a for a in best(records).values() if not probes.is_probe(a)]
    seconds, tokens = [a.finished_at - a.started_at for a in finished], [_tokens(a) for a in finished]
    return {
        "answers": len(finished),
        "providers": sorted({a.provider for a in finished if a.provider}),
        "tokens": _distribution(tokens),
        "cost_usd": sum(a.cost_usd or 0.0 for a in records),
        "seconds": _distribution(seconds),
        "tokens_per_s": sum(tokens) / sum(seconds) if sum(seconds) > 0 else 0.0,
        "errors": dict(Counter(a.reason or a.outcome for a in records if a.outcome != "finished")),
    }


def _tokens(answer: WireAnswer) -> int:
    return completion_tokens(parse_completion(answer.body, answer.content_type))


def _tag(answer: WireAnswer) -> str:
    only = as_dict(answer.request.get("provider")).get("only") or ["?"]
    return str(only[0])


def _distribution(values: Sequence[float]) -> dict[str, float]:
    """n, mean, p50, p90, max (quantiles are values that occurred); {} of nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    quantile = {f"p{q}": ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)] for q in (50, 90)}
    return {"n": len(ordered), "mean": sum(ordered) / len(ordered), **quantile, "max": ordered[-1]}
