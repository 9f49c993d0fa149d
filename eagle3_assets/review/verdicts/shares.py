"""Judging a share of bad rows, when there are enough rows to speak of a share.

Belongs here: the rule for small numbers. Does not belong here: the limits (`table.py`), what is bad (`invariants.py`,
`token_rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict

# One bad row in a shard of six is 17 %, and says nothing about a limit of 5 %. A shard is judged by share from this many rows on
# (the first number at which one bad row is within 5 %); below, the check passes with its numbers, and the report judges the
# share over all shards of the dataset (`pooled`).
MIN_ROWS_FOR_SHARE = 20


def share_of_shard(stage: str, name: str, bad: int, total: int, what: str, examples: tuple[str, ...] = ()) -> Verdict:
    """Passes when bad / total <= the table's max_share, and always below MIN_ROWS_FOR_SHARE rows with its numbers (see there)."""
    share, limit = bad / total if total else 0.0, check_named(stage, name).max_share
    small = total < MIN_ROWS_FOR_SHARE
    message = f"{bad} of {total} {what} ({share:.2%}; tolerated {limit:.2%})"
    if small and share > limit:
        message += f"; fewer than {MIN_ROWS_FOR_SHARE} rows: judged over the whole dataset"
    numbers = {"bad": bad, "total": total, "share": share, "max_share": limit}
    return verdict(stage, name, small or share <= limit, message, numbers=numbers, examples=examples)


def pooled(stage: str, verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict over all shards for each share check of `stage`: sums of what the shards' verdicts counted, judged at any
    size. Bad rows of a shard whose failure a person waived are accepted: they are told apart and do not count against the dataset."""
    sums: dict[str, tuple[int, int, int]] = {}
    for v in verdicts:
        if {"bad", "total", "max_share"} <= v.numbers.keys():
            bad, accepted, total = sums.get(v.check, (0, 0, 0))
            mine, waived = int(v.numbers["bad"]), bool(v.numbers.get("waived"))
            sums[v.check] = bad + mine * (not waived), accepted + mine * waived, total + int(v.numbers["total"])
    out = []
    for name, (bad, accepted, total) in sums.items():
        share, limit = bad / total if total else 0.0, check_named(stage, name).max_share
        message = f"{bad} of {total} rows of the dataset ({share:.2%}; tolerated {limit:.2%})"
        message += f", {accepted} more in waived shards" if accepted else ""
        numbers = {"bad": bad, "total": total, "share": share, "max_share": limit} | ({"accepted": accepted} if accepted else {})
        out.append(verdict(stage, name, share <= limit, message, numbers=numbers))
    return out
