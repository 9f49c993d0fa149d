"""The checks of a whole dataset, from its report and its shards' verdicts → list of `Verdict` with the names of `table.py`.

Belongs here: judging figures that only many rows together have. Does not belong here: counting them (`figures.py`), their mathematics
(`monitor.py`, `billing.py`), single rows (`token_rows.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.review.report.monitor import DRIFT_SHARE, DRIFT_Z, FALSE_DISCOVERIES, SHIFTED, TOLERATED
from eagle3_assets.review.verdicts.shares import pooled
from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict


def judge_report(
    report: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]], current: Mapping[str, bool]
) -> list[Verdict]:
    """`report` is reports/<ds>.json, `verdicts` those of stage `tokens` by shard, `current` whether its tokens are made from
    its current answers."""
    return [_all_shards_present(verdicts, current), _tokens_pass(verdicts), *judge_statistics(report)]


def judge_statistics(report: Mapping[str, Any]) -> list[Verdict]:
    """Those that look at the report's own figures alone (`billing`, `drift`, `monitor`); a report shows them itself."""
    return [
        _aggregate_billing(report["billing"]["aggregate"]),
        _length_drift(report["drift"]),
        _mismatch_alarm(report["monitor"]["strata"]),
        _mismatch_strata(report["monitor"]["strata"]),
    ]


def _all_shards_present(verdicts: Mapping[str, Sequence[Verdict]], current: Mapping[str, bool]) -> Verdict:
    outdated = sorted(s for s, fresh in current.items() if not fresh or s not in verdicts)
    message = f"{len(outdated)} shards without current tokens" if outdated else "no shards without current tokens"
    numbers = {"shards": len(current), "outdated": len(outdated)}
    return verdict("report", "all_shards_present", not outdated, message, numbers=numbers, examples=tuple(outdated))


def _tokens_pass(verdicts: Mapping[str, Sequence[Verdict]]) -> Verdict:
    stopping = [(s, v) for s in sorted(verdicts) for v in verdicts[s] if v.stops]
    over_all = [v for v in pooled("tokens", (v for s in verdicts.values() for v in s)) if v.stops]
    failed = [f"{v.check} (shard {s}: {v.message})" for s, v in stopping]
    failed += [f"{v.check} (all shards: {v.message})" for v in over_all]
    message = "; ".join(failed) or f"no blocking check of {len(verdicts)} shards failed"
    examples = tuple(dict.fromkeys(e for _, v in stopping for e in v.examples))
    numbers = {"failed": len(failed), "shards": len(verdicts)}
    return verdict("report", "tokens_pass", not failed, message, numbers=numbers, examples=examples)


def _aggregate_billing(aggregate: Mapping[str, Any]) -> Verdict:
    difference, limit = float(aggregate["relative_difference"]), check_named("report", "aggregate_billing").max_share
    message = f"|sum of differences| is {difference:.4%} of billed tokens (tolerated {limit:.2%}). {aggregate['not_proved']}"
    numbers = {k: v for k, v in aggregate.items() if k != "not_proved"}
    return verdict("report", "aggregate_billing", difference <= limit, message, numbers=numbers)


def _length_drift(drift: Mapping[str, Any] | None) -> Verdict:
    """Fails for a mean that chance does not explain and that is far enough off to matter: many rows make any difference significant."""
    if drift is None:
        return verdict("report", "length_drift", True, "the pilot asked nothing of this dataset")
    ratio, z = drift["ratio"], float(drift["z"])
    far = ratio is None or abs(float(ratio) - 1) > DRIFT_SHARE
    message = f"mean response {drift['mean']:.1f} ids, in the pilot {drift['pilot_mean']:.1f} (z = {z:.1f})"
    return verdict("report", "length_drift", not (far and abs(z) > DRIFT_Z), message, numbers=dict(drift))


def _mismatch_alarm(strata: Sequence[Mapping[str, Any]]) -> Verdict:
    alarmed = [s for s in strata if s["cusum_alarm"] is not None]
    said = [
        f"{_named(s)} at row {s['cusum_alarm']['row'] + 1:,} of {s['n']:,}{_moment(s['cusum_alarm']['time'])}" for s in alarmed
    ]
    message = f"mismatches began to pile up ({SHIFTED:.0%} rather than {TOLERATED:.0%}): {'; '.join(said)}"
    return verdict(
        "report", "mismatch_alarm", not alarmed, message if alarmed else f"no alarm in {len(strata)} strata",
        numbers={"alarms": len(alarmed), "strata": len(strata)}, examples=tuple(_named(s) for s in alarmed),
    )  # fmt: skip


def _mismatch_strata(strata: Sequence[Mapping[str, Any]]) -> Verdict:
    flagged = sorted((s for s in strata if s["flagged"]), key=lambda s: float(s["q"]))
    said = [f"{_named(s)}: {s['n'] - s['equal']:,} of {s['n']:,} (q = {s['q']:.1g})" for s in flagged]
    message = f"more mismatches than {TOLERATED:.0%} explains, false discoveries below {FALSE_DISCOVERIES:.0%}: {'; '.join(said)}"
    return verdict(
        "report", "mismatch_strata", not flagged, message if flagged else f"none of {len(strata)} strata stands out",
        numbers={"flagged": len(flagged), "strata": len(strata)}, examples=tuple(_named(s) for s in flagged),
    )  # fmt: skip


def _named(stratum: Mapping[str, Any]) -> str:
    return f"{stratum['provider']}, {stratum['finish_reason']}" + (", tools" if stratum["tools"] else "")


def _moment(time: float | None) -> str:
    return "" if time is None else f", {dt.datetime.fromtimestamp(time, dt.UTC):%Y-%m-%d %H:%M} UTC"
