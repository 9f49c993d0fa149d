"""The gate: verdict files bound to what they judged, and the refusal to start over a failed predecessor (design rule 12).

Belongs here: writing, reading and re-applying verdicts. Does not belong here: judging (`invariants.py`), Dagster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.review.verdicts.waivers import apply_waivers, read_waivers
from eagle3_assets.store import Store, digest_json, read_json, write_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict file. `digest` is that of what was judged, `rules` that of the stage's entries in the table of checks."""

    digest: str
    rules: str
    verdicts: tuple[Verdict, ...]
    time: float


def rules_digest(stage: str) -> str:
    """Identity of a stage's rules: a verdict given under other limits is outdated."""
    return digest_json([asdict(check) for check in CHECKS[stage]])


def write_verdicts(
    store: Store, stage: str, dataset: str, shard: str = "all", *, digest: str, verdicts: Sequence[Verdict]
) -> Path:
    """Write `verdicts/<stage>/<dataset>/<shard>.json`; returns its path."""
    path = store.verdict(stage, dataset, shard)
    write_json(
        path,
        {
            "version": VERSION,
            "stage": stage,
            "dataset": dataset,
            "shard": shard,
            "digest": digest,
            "rules": rules_digest(stage),
            "time": time.time(),
            "verdicts": [asdict(v) for v in verdicts],
        },
    )
    return path


def read_verdicts(store: Store, stage: str, dataset: str, shard: str = "all") -> Judged | None:
    """The verdict file, or None where nothing was judged yet. Raises StoreError for a damaged one."""
    path = store.verdict(stage, dataset, shard)
    if not path.exists():
        return None
    raw = read_json(path)
    try:
        if raw["version"] != VERSION:
            raise StoreError(f"{path}: expected version {VERSION}, found {raw['version']!r}; remove it and check again")
        verdicts = tuple(_verdict(v) for v in raw["verdicts"])
        return Judged(raw["digest"], raw["rules"], verdicts, raw["time"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path}: is not a verdict file ({error}); remove it and check again") from None


def _verdict(raw: dict[str, Any]) -> Verdict:
    return Verdict(**{**raw, "examples": tuple(raw["examples"])})


def current_verdicts(store: Store, stage: str, dataset: str, shard: str, *, digest: str) -> tuple[Verdict, ...] | None:
    """The stored verdicts when they judged exactly `digest` under today's rules; else None (a damaged file counts as none)."""
    try:
        judged = read_verdicts(store, stage, dataset, shard)
    except StoreError:
        return None
    if judged is None or judged.digest != digest or judged.rules != rules_digest(stage):
        return None
    return judged.verdicts


def judge_again(
    store: Store, stage: str, dataset: str, shard: str, *, digest: str, judge: Callable[[], list[Verdict]]
) -> list[Verdict]:
    """The stored verdicts when they are current; else judge now and write. Never raises for a failed check."""
    stored = current_verdicts(store, stage, dataset, shard, digest=digest)
    if stored is not None:
        return list(stored)
    verdicts = judge()
    write_verdicts(store, stage, dataset, shard, digest=digest, verdicts=verdicts)
    return verdicts


def refuse_outdated(store: Store, stage: str, dataset: str, shard: str, *, digest: str) -> None:
    """Raises GateError when a verdict is there that judged other bytes, or these under other rules: somebody looked at something else.

    One that was never given is no reason to refuse: it is given before the next stage starts.
    """
    try:
        judged = read_verdicts(store, stage, dataset, shard)
    except StoreError:
        return  # damaged: judged anew, never believed
    if judged is None or (judged.digest == digest and judged.rules == rules_digest(stage)):
        return
    other = "other bytes than are there now" if judged.digest != digest else "other rules than today's"
    names = ", ".join(v.check for v in judged.verdicts[:6]) + ("" if len(judged.verdicts) <= 6 else ", ...")
    scope = "" if dataset == "all" else f" {dataset}" + ("" if shard == "all" else f" --shard {shard}")
    raise GateError(
        f"{stage}/{dataset}, shard {shard}: the verdict of its checks ({names}) is outdated, it judged {other}; "
        f"run `eagle3 recheck{scope}` or its checks in the UI (nothing is bought), then go on"
    )


def refuse_stopping(store: Store, stage: str, dataset: str, shard: str, verdicts: Sequence[Verdict]) -> None:
    """Raises GateError naming stage, dataset, shard and check when one verdict `stops`."""
    stopping = [v for v in verdicts if v.stops]
    if not stopping:
        return
    first = stopping[0]
    more = f" (and {len(stopping) - 1} more: {', '.join(v.check for v in stopping[1:])})" if len(stopping) > 1 else ""
    seen = f"; e.g. `eagle3 show {first.examples[0]}`" if first.examples else ""
    raise GateError(
        f"{stage}/{dataset}, shard {shard}: check {first.check} failed: {first.message}{more}{seen}; "
        f"see {store.verdict(stage, dataset, shard)}, mend what it names and materialize {stage}/{dataset} again, or `eagle3 waive` it"
    )


def require_passed(
    store: Store, stage: str, dataset: str, shard: str = "all", *, digest: str, judge: Callable[[], list[Verdict]]
) -> list[Verdict]:
    """All verdicts of a predecessor, current ones, with waivers applied. Raises GateError for an outdated verdict and for one that
    stops; `judge` is asked where there is none yet.

    `digest` is that of what lies on disk now.
    """
    refuse_outdated(store, stage, dataset, shard, digest=digest)
    judged = judge_again(store, stage, dataset, shard, digest=digest, judge=judge)
    verdicts = apply_waivers(judged, read_waivers(store), stage, dataset, shard, digest)
    refuse_stopping(store, stage, dataset, shard, verdicts)
    return verdicts
