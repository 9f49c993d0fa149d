"""The lines that end a run early. Belongs here: what the user reads. Does not belong here: deciding to stop (`collector.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.run.lanes import Lane
from eagle3_assets.collect.run.outcomes import Finding
from eagle3_assets.collect.servers.openrouter import key_refused_line
from eagle3_assets.errors import BudgetStop, Eagle3Error, WireError


def _words(finding: Finding) -> str:
    return f" ({finding.message})" if finding.message else ""


def out_of_money(ledger: Ledger, lanes: Iterable[Lane]) -> BudgetStop:
    """Our own limits refuse: spent, held, which limit, how many prompts are missing, what to do."""
    blocked = [lane for lane in lanes if lane.blocked_by and len(lane)]
    limits = sorted({lane.blocked_by for lane in blocked if lane.blocked_by})
    named = (f"{ledger.limit_usd:.10g} USD in all" if n == "campaign" else f"{ledger.caps[n]:.10g} USD for {n}" for n in limits)
    money = ledger.totals().total
    return BudgetStop(
        f"stopped on budget: {money.spent_usd:.4f} USD spent, {money.reserved_usd + money.ambiguous_usd:.4f} USD held for "
        f"answers whose price is not known, limit {', '.join(named)}; {sum(map(len, blocked))} prompts of "
        f"{', '.join(sorted({lane.scope for lane in blocked}))} are missing; everything paid for is kept: raise the amount with "
        "`eagle3 plan --approve USD` and run again, or make what is there the dataset with `eagle3 close DATASET`"
    )


def refused(lane: Lane, status: int, finding: Finding) -> Eagle3Error:
    """The server ends the run: key (`/key` says so, or nothing else is ever answered), credit, redirect."""
    if finding.handling.then == "stop_budget" or finding.reason == "credit_doubted":
        return BudgetStop(
            f"the server refuses further spending{_words(finding)}; everything paid for is kept: "
            "add credit or raise the key's limit, then run again"
        )
    if finding.reason == "redirected":
        return WireError(f"{lane.scope}: the server redirects (HTTP {status}), which is never followed; check the base URL")
    if lane.source == "engine":
        return WireError(f"{lane.scope}: the engine refuses requests (HTTP {status}){_words(finding)}; check [[engine]]")
    return WireError(key_refused_line(status) + _words(finding))


def settings_are_wrong(lane: Lane, finding: Finding) -> WireError:
    """A series of the same kind of failure without one answer."""
    where = "[[engine]]" if lane.source == "engine" else "[target] and [routing] against endpoints.json"
    return WireError(
        f"{lane.scope}: {lane.streak} requests in a row ended with {finding.reason}{_words(finding)}; "
        f"check {where}, then run again"
    )


def nobody_answers(lane: Lane, left_out: Mapping[str, str], seconds: float) -> WireError:
    """Every eligible provider is left out, and none came back."""
    why = ", ".join(f"{provider} ({words})" for provider, words in sorted(left_out.items()))
    return WireError(
        f"{lane.scope}: no eligible provider takes requests for {seconds / 60:.0f} minutes: {why}; everything paid for is kept: run again "
        "later, or loosen [routing] so that others may answer"
    )
