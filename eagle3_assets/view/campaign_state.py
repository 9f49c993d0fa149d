"""The campaign at a glance: the flow with counts, money, datasets, verdicts, and what to do next.

Belongs here: adding up what the stages wrote, in the order of the flow, each figure with the query of the rows behind it.
Does not belong here: rows (`search.py`), judging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets import stages as flow
from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.account import read_account
from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.estimate.plan import approved_usd
from eagle3_assets.exact.show import visible
from eagle3_assets.review.verdicts.verdict_files import read_verdicts
from eagle3_assets.review.verdicts.waivers import read_waivers
from eagle3_assets.store import read_json, read_manifest
from eagle3_assets.view.catalogue import Catalogue

# The flow as it is drawn: column by column, left to right
FLOW = (
    ("prepare", ("tokenizer_probe", "endpoints", "prompts")),
    ("try", ("pilot", "plan")),
    ("buy", ("answers",)),
    ("rebuild", ("wire_profiles", "tokens")),
    ("review", ("report",)),
    ("corpus", ("corpus", "vocab_map")),
    ("states", ("hidden_states",)),
    ("hand over", ("handoff_tokens", "handoff_speculators", "handoff_specforge")),
    ("prove", ("drafter", "acceptance")),
)
_SUMMED = ("rows", "selected", "finished", "failed", "tokens", "response_tokens", "bytes", "cost_usd", "missing")
_DATASETS = """SELECT dataset, count(*) AS rows, sum(length) AS tokens, sum(generated) AS generated, sum(supervised) AS supervised,
  sum(coalesce(cost_usd, 0)) AS cost_usd, count(*) FILTER (failing = 'yes') AS failing, sum(p_exact) AS expected_exact,
  count(*) FILTER (dropped = '') AS kept, sum(p_exact) FILTER (dropped = '') AS kept_exact,
  count(residual_completion) AS billed, count(*) FILTER (residual_completion = 0) AS equal,
  count(*) FILTER (model_grade <> '') AS judged FROM rows GROUP BY dataset ORDER BY dataset"""


def campaign_page(catalogue: Catalogue) -> dict[str, Any]:
    """{name, root, stages, flow, money, datasets, grades, checks, waivers, next, problems}."""
    root, problems = catalogue.root, []
    stages: dict[str, Any] = {}
    if root.campaign is not None:
        try:
            stages = _stages(catalogue)
        except Eagle3Error as error:
            problems.append(str(error))
    checks = _checks(catalogue, problems)
    money = _money(catalogue, problems)
    return {
        "name": root.name,
        "title": root.campaign.target.model if root.campaign else None,
        "root": str(root.store.root),
        "demo": root.campaign is not None and root.campaign.server.kind == "embedded",
        "flow": _flow(root.campaign, stages),
        "money": money,
        "datasets": _datasets(catalogue),
        "grades": catalogue.records("SELECT dataset, grade, count(*) AS rows FROM rows GROUP BY ALL ORDER BY ALL"),
        "checks": checks,
        "waivers": [{"check": w.check, "dataset": w.dataset, "shard": w.shard, "who": visible(w.who), "why": visible(w.why), "until": str(w.until)}
                    for w in read_waivers(root.store)],
        "next": what_next(stages, checks, money, catalogue),
        "problems": [visible(problem) for problem in (*problems, *catalogue.told())],
    }  # fmt: skip


def _flow(campaign: Campaign | None, stages: Mapping[str, Any]) -> list[dict[str, Any]]:
    """FLOW with what is known of each stage, without those that the campaign does not want."""
    unwanted = {stage.name for stage in flow.STAGES if campaign is not None and not stage.wanted(campaign)}
    drawn = [(step, [{"stage": name, **stages.get(name, {})} for name in names if name not in unwanted]) for step, names in FLOW]
    return [{"step": step, "stages": told} for step, told in drawn if told]


def _stages(catalogue: Catalogue) -> dict[str, Any]:
    """Stage -> {current, outdated, missing, damaged, when, numbers (sums over its artifacts)}."""
    assert catalogue.root.campaign is not None
    out: dict[str, Any] = {}
    for item in flow.artifacts(catalogue.root.campaign, catalogue.root.store):
        of = out.setdefault(
            item.stage.name, {"current": 0, "outdated": 0, "missing": 0, "damaged": 0, "when": None, "numbers": {}, "damage": []}
        )
        state = item.state()
        of[state] += 1
        if state == "damaged":
            of["damage"].append(str(item.path))
        manifest = item.manifest()
        if manifest is None:
            continue
        of["when"] = max(of["when"] or 0.0, manifest.created)
        for name in _SUMMED:
            value = manifest.numbers.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                of["numbers"][name] = of["numbers"].get(name, 0) + value
    return out


def _money(catalogue: Catalogue, problems: list[str]) -> dict[str, Any]:
    store, campaign = catalogue.root.store, catalogue.root.campaign
    out: dict[str, Any] = {
        "spent_usd": None,
        "reserved_usd": None,
        "ambiguous_usd": None,
        "approved_usd": None,
        "budget_usd": None,
        "scopes": [],
    }
    try:
        totals = read_account(store.ledger).totals
        out |= {"spent_usd": totals.total.spent_usd, "reserved_usd": totals.total.reserved_usd, "ambiguous_usd": totals.total.ambiguous_usd,
                "scopes": [[visible(name), scope.spent_usd] for name, scope in sorted(totals.scopes.items())]}  # fmt: skip
    except StoreError as error:
        problems.append(str(error))
    if campaign is not None:
        out["budget_usd"] = campaign.budget.campaign_usd
        try:
            out["approved_usd"] = approved_usd(campaign, store)
        except Eagle3Error:  # nothing is approved
            out["approved_usd"] = None
    return out


def _datasets(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Figures of each dataset's rows, and the words of its report."""
    lines = catalogue.records(_DATASETS)
    known = {line["dataset"] for line in lines}
    campaign = catalogue.root.campaign
    lines += [{"dataset": d.name, "rows": 0} for d in (campaign.dataset if campaign else ()) if d.name not in known]
    for line in lines:
        path = catalogue.root.store.report(line["dataset"])
        report: Mapping[str, Any] = {}
        if path.exists():
            try:
                report = read_json(path)
            except StoreError:
                report = {}
        verdict = report.get("verdict") if isinstance(report, dict) else None
        words = [visible(str(word)) for word in (verdict or {}).get("words", ())]
        line["report"] = {"passed": bool(verdict.get("passed")), "words": words} if verdict else None
        try:
            manifest = read_manifest(catalogue.root.store.prompts(line["dataset"]))
        except StoreError:
            manifest = None
        line["prompts"] = manifest.numbers.get("selected") if manifest else None
    return lines


def _checks(catalogue: Catalogue, problems: list[str]) -> list[dict[str, Any]]:
    """Every check of every stage that did not pass, with the shards and up to ten rows: {stage, dataset, check, stops, severity, message, shards,
    keys}."""
    store = catalogue.root.store
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(store.root.glob("verdicts/*/*/*.json")):
        stage, dataset, shard = path.parts[-3], path.parts[-2], path.stem
        if stage not in flow.names():
            continue
        try:
            judged = read_verdicts(path)
        except StoreError as error:
            problems.append(str(error))
            continue
        for verdict in judged.verdicts if judged else ():
            if verdict.passed:
                continue
            line = found.setdefault((stage, dataset, verdict.check), {
                "stage": stage, "dataset": dataset, "check": verdict.check, "severity": verdict.severity, "stops": False,
                "message": visible(verdict.message), "shards": [], "examples": [],
            })  # fmt: skip
            line["stops"] |= verdict.stops
            line["shards"].append(shard)
            line["examples"] += [e for e in verdict.examples if e not in line["examples"]]
    lines = sorted(found.values(), key=lambda line: (not line["stops"], line["stage"], line["dataset"], line["check"]))
    for line in lines:
        examples = line.pop("examples")[:10]
        marks = ", ".join("?" * len(examples)) or "NULL"
        keys = catalogue.ask(
            f"SELECT key, sample_id FROM rows WHERE dataset = ? AND sample_id IN ({marks})", [line["dataset"], *examples]
        )
        line["keys"] = [[key, visible(sample)] for key, sample in keys][:10]
    return lines


def what_next(
    stages: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], money: Mapping[str, Any], catalogue: Catalogue
) -> list[dict[str, Any]]:
    """What a person would do now, most pressing first: {words, command?, query?}."""
    out: list[dict[str, Any]] = []

    def say(words: str, **more: str) -> None:
        out.append({"words": words, **more})

    damaged = [path for told in stages.values() for path in told["damage"]]
    if damaged:
        words = f"{len(damaged)} files are damaged, first {damaged[0]}; a run makes again what costs nothing."
        say(words, command="eagle3 run")
    for line in checks:
        if line["stops"]:
            query = f"dataset={line['dataset']}&failing=yes"
            say(f"{line['dataset']}: {line['check']} stops it: {line['message']}", query=query)
    plan, answers = stages.get("plan", {}), stages.get("answers", {})
    if plan.get("current") and money["approved_usd"] is None and (answers.get("missing") or answers.get("outdated")):
        say("The plan waits for somebody to approve its cost.", command="eagle3 plan --approve USD")
    unmade = [name for _, names in FLOW for name in names if _is_open(stages.get(name, {}))]
    if unmade:
        told = stages[unmade[0]]
        say(f"{unmade[0]} is next: {told['missing']} missing, {told['outdated']} outdated.", command="eagle3 run")
    failing = catalogue.ask("SELECT count(*) FROM rows WHERE failing = 'yes'")[0][0]
    if failing:
        words = f"{failing:,} rows are not trained on as they stand: their reasons say why."
        say(f"{words} An audit, or more answers of a provider, may settle those that are open.", query="failing=yes")
    if stages and not unmade and not damaged:
        folder = catalogue.root.store.handoff_tokens.parent.name
        say(f"Every stage is current; the hand-offs are in {folder}/ of the campaign's folder.")
    return out


def _is_open(told: Mapping[str, Any]) -> bool:
    return bool(told.get("missing") or told.get("outdated"))
