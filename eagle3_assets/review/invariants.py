"""The invariants of the stages up to `answers` as pure functions → list of `Verdict` with the names of `table.py`.

Belongs here: judging what a stage left on disk. Does not belong here: token rows (`token_rows.py`) and whole datasets (`report_checks.py`),
whose `judge_tokens` and `judge_report` are offered here too; verdict files (`gate.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.campaign import Dataset
from eagle3_assets.collect.servers.routing import is_same_model
from eagle3_assets.errors import StoreError
from eagle3_assets.estimate.plan import usd_text
from eagle3_assets.review.report.report_checks import judge_report
from eagle3_assets.review.rows.token_rows import JudgedRow, Key, RowChecker, judge_tokens
from eagle3_assets.review.verdicts.shares import share_of_shard
from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.wire.wire_answer import WireAnswer

__all__ = [
    "JudgedRow",
    "Key",
    "RowChecker",
    "judge_answers",
    "judge_endpoints",
    "judge_pilot",
    "judge_prompts",
    "judge_report",
    "judge_tokens",
    "judge_wire_profiles",
]


# ---------------------------------------------------------------------------------------------------- endpoints, pilot, profiles
def judge_endpoints(
    eligible: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]], *, needed: bool = True
) -> list[Verdict]:
    """`eligible` and `refused` as in endpoints.json; none are `needed` where no answer is rented."""
    message = f"{len(eligible)} of {len(eligible) + len(refused)} endpoints are eligible"
    message = message if needed else "no dataset is answered through OpenRouter: no endpoint was listed"
    numbers = {"eligible": len(eligible), "refused": len(refused)}
    return [verdict("endpoints", "eligible_endpoints", bool(eligible) or not needed, message, numbers=numbers)]


def judge_pilot(found: Mapping[str, Any], cap_usd: float) -> list[Verdict]:
    """`found` is pilot.json: `spent_usd`, and `endpoints` {tag: {"answers": n, ...}} of every eligible endpoint."""
    spent = float(found["spent_usd"])
    endpoints = {str(tag): int(facts["answers"]) for tag, facts in found["endpoints"].items()}
    silent = sorted(tag for tag, answers in endpoints.items() if not answers)
    within = spent <= cap_usd + 1e-9  # sums of doubles
    return [
        verdict(
            "pilot",
            "within_cap",
            within,
            f"{spent:.6f} USD spent of {usd_text(cap_usd)}",
            numbers={"spent_usd": spent, "cap_usd": cap_usd},
        ),
        verdict(
            "pilot",
            "providers_answered",
            not silent,
            _counted(silent, "eligible endpoints without an answer"),
            numbers={"endpoints": len(endpoints), "silent": len(silent)},
            examples=tuple(silent),
        ),
    ]


def judge_wire_profiles(profiles: Mapping[str, Any]) -> list[Verdict]:
    """`profiles` is wire_profiles.json: `providers` {name: {"decided": bool, ...}}."""
    providers = dict(profiles.get("providers") or {})
    undecided = sorted(name for name, facts in providers.items() if not facts.get("decided"))
    return [
        verdict(
            "wire_profiles",
            "providers_decided",
            not undecided,
            _counted(undecided, "providers whose leading space is undecided"),
            numbers={"providers": len(providers), "undecided": len(undecided)},
            examples=tuple(undecided),
        ),
    ]


# ---------------------------------------------------------------------------------------------------- prompts
def judge_prompts(path: Path, dataset: Dataset, numbers: Mapping[str, Any]) -> list[Verdict]:
    """Judge a prompts file. `numbers` are its manifest's: `source_rows` read, `set_aside` {reason: rows} that could not become
    a prompt."""
    try:
        table = pq.read_table(path, columns=["sample_id", "turn", "reserve"])
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: is not readable as prompts ({str(error).splitlines()[0]}); materialize it again") from None
    ids, turns = table.column("sample_id").to_pylist(), table.column("turn").to_pylist()
    seen: set[Key] = set()
    twice = []
    for key in zip(ids, turns, strict=True):
        if key in seen:
            twice.append(key[0])
        seen.add(key)
    selected = sum(not r for r in table.column("reserve").to_pylist())
    set_aside = {k: int(v) for k, v in dict(numbers.get("set_aside") or {}).items()}
    bad = sum(set_aside.values())
    looked_at = int(numbers.get("source_rows") or bad + len(ids))
    share, limit = bad / looked_at if looked_at else 0.0, check_named("prompts", "set_aside_share").max_share
    return [
        verdict(
            "prompts",
            "unique_ids",
            not twice,
            _counted(twice, "rows share sample_id and turn with another"),
            numbers={"twice": len(twice), "rows": len(ids)},
            examples=tuple(twice),
        ),
        verdict("prompts", "rows_exist", selected > 0, f"{selected} rows selected", numbers={"selected": selected}),
        verdict(
            "prompts",
            "enough_rows",
            selected >= dataset.n_rows,
            f"{selected} rows of the {dataset.n_rows} asked for",
            numbers={"selected": selected, "asked": dataset.n_rows},
        ),
        verdict(
            "prompts",
            "set_aside_share",
            share <= limit,
            f"{bad} of {looked_at} rows set aside ({share:.2%}; tolerated {limit:.2%})",
            numbers={"bad": bad, "total": looked_at, "share": share, "max_share": limit, "reasons": set_aside},
        ),
    ]


# ---------------------------------------------------------------------------------------------------- answers
def judge_answers(
    counts: Mapping[str, Any],
    answers: Iterable[WireAnswer],
    selected: Collection[Key],
    *,
    model: str,
    providers: Collection[str],
    closed: bool = False,
) -> list[Verdict]:
    """Judge one shard. `counts` are its manifest's numbers (finished, failed, ambiguous), `answers` its journal, `selected`
    the keys of its prompts, `providers` the names of the eligible ones (empty for engines and imports).

    The journal is the truth: a manifest that claims more finished answers than the journal holds fails `complete`.
    """
    allowed = {_bare(name) for name in providers}
    records, finished, wrong = 0, set(), []
    for answer in answers:
        records += 1
        if answer.outcome != "finished":
            continue
        finished.add(answer.key)
        if answer.source == "openrouter" and not (_bare(answer.provider or "") in allowed and is_same_model(model, answer.model)):
            wrong.append(answer.sample_id)
    failed, ambiguous, claimed = (int(counts.get(k) or 0) for k in ("failed", "ambiguous", "finished"))
    open_keys = sorted(set(selected) - finished)
    complete = claimed <= len(finished) and (closed or len(open_keys) <= failed)
    message = f"{len(selected) - len(open_keys)} of {len(selected)} prompts answered, {failed} counted as failed"
    message += ", dataset closed" if closed else ""
    if claimed > len(finished):
        message = f"the manifest claims {claimed} finished answers, the journal holds {len(finished)}"
    return [
        verdict(
            "answers",
            "complete",
            complete,
            message,
            numbers={
                "selected": len(selected),
                "open": len(open_keys),
                "failed": failed,
                "finished": len(finished),
                "closed": closed,
            },
            examples=() if complete else tuple(key[0] for key in open_keys),
        ),
        verdict(
            "answers",
            "provider_and_model",
            not wrong,
            _counted(wrong, "answers from another provider or model than asked"),
            numbers={"wrong": len(wrong), "finished": len(finished)},
            examples=tuple(wrong),
        ),
        share_of_shard("answers", "failed_share", failed, len(selected), "prompts failed"),
        share_of_shard("answers", "ambiguous_share", ambiguous, max(records, ambiguous), "attempts lost after they were sent"),
    ]


def _bare(name: str) -> str:
    """`Moonshot AI` in one place is `moonshotai` in another."""
    return "".join(c for c in name.casefold() if c.isalnum())


def _counted(bad: Sequence[str], what: str) -> str:
    return f"{len(bad)} {what}" if bad else f"no {what}"
