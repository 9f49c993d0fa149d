"""What a check says of a whole asset, from what it said of each partition. UI, `eagle3 recheck`, reports and closing lines show this one.

Belongs here: putting the verdicts of partitions together. Does not belong here: judging (`invariants.py`), how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_assets.review.verdicts.shares import MIN_ROWS_FOR_SHARE, pooled
from eagle3_assets.review.verdicts.table import Check
from eagle3_assets.review.verdicts.verdict import Verdict


def over_all(
    stage: str, checks: Sequence[Check], judged: Mapping[str, Sequence[Verdict]], *, whole: bool = True
) -> list[Verdict]:
    """One verdict a check that judged anything, in the order of `checks`: failed where it failed in a partition, or where the share of bad
    rows of all partitions together is above what is tolerated. `judged` is by partition.

    Unless `judged` is the `whole` asset, fewer than MIN_ROWS_FOR_SHARE rows together say nothing of a share, as in a single shard.
    """
    shares = {v.check: v for v in pooled(stage, (v for verdicts in judged.values() for v in verdicts))}
    found = []
    for check in checks:
        mine = {p: v for p, verdicts in judged.items() for v in verdicts if v.check == check.name}
        if mine:
            share = shares.get(check.name)
            if share is not None and not whole and share.numbers["total"] < MIN_ROWS_FOR_SHARE:
                share = None
            found.append(_one(check, mine, share) if len(judged) > 1 else next(iter(mine.values())))
    return found


def _one(check: Check, mine: Mapping[str, Verdict], share: Verdict | None) -> Verdict:
    failed = {p: v for p, v in sorted(mine.items(), key=lambda item: (not item[1].stops, item[0])) if not v.passed}
    spread = share is not None and not share.passed
    words = [f"{len(mine) - len(failed)} of {len(mine)} partitions pass"]
    if failed:
        partition, first = next(iter(failed.items()))
        words.append(f"partition {partition}: {first.message}")
    if share is not None and spread:
        words.insert(0 if not failed else len(words), share.message)
        words[1:] = words[1:] if failed else ["each partition passes by itself"]
    elif share is not None and not failed:
        words.append(share.message if share.numbers["total"] else "there are no such rows")
    examples = tuple(dict.fromkeys(e for v in (failed or mine).values() for e in v.examples))
    numbers = {**_numbers(list(mine.values()), share), "partitions": len(mine), "failed_partitions": len(failed)}
    verdict = check.verdict(not failed and not spread, "; ".join(words), numbers=numbers, examples=examples)
    waived = failed and not spread and not any(v.stops for v in failed.values())
    return replace(verdict, severity="WARN", numbers={**numbers, "waived": True}) if waived and verdict.stops else verdict


def _numbers(verdicts: Sequence[Verdict], share: Verdict | None) -> dict[str, Any]:
    """Counts added up, the share made anew, and nothing that only holds for one partition."""
    counts = {k for v in verdicts for k, n in v.numbers.items() if isinstance(n, int) and not isinstance(n, bool)}
    total = {k: sum(int(v.numbers.get(k, 0)) for v in verdicts) for k in sorted(counts)}
    return {**total, **(share.numbers if share is not None else {})}
