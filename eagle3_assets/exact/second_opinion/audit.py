"""The audit: how often a rebuilt answer is right, measured where the truth is known. Pure statistics over judged answers.

Belongs here: the rates of docs/research/exactness.md#3.6 with their bounds (`summarize`), the file `audit.json` and how others
read it (`read`), what a row takes from them (`with_rates`).
Does not belong here: judging one answer (`blind.py`), asking for answers (`cli/audit.py`), grades (`reconstruct.py`).

    q       share of answers whose rebuilt ids are not the sampled ones (not canonical, or wrongly read)
    f0      of those, the share with the right number of ids: no bill shows them
    lambda  regions that are not canonical per sampled id (a fact about the model, from the truth alone)

All bounds are two-sided 95 % Clopper-Pearson; for lambda, over ids.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eagle3_assets.errors import StoreError
from eagle3_assets.exact.search.reconstruction import B1_FLOOR, Reconstruction
from eagle3_assets.grades import GRADES
from eagle3_assets.intervals import interval
from eagle3_assets.store import read_json, write_json
from eagle3_assets.targets.tokenizer import Profile

VERSION = 1
# fewer say nothing that the pooled rates do not say better (the upper bound of 0 errors in 30 is 12 %)
ENOUGH = 30

Stratum = tuple[str, str, bool]  # provider, dataset, tools declared


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer whose sampled ids are known (`truth`: server_ids or logprob_bytes), rebuilt without looking at them.

    `length` sampled ids; `exact`: the rebuilt response is them; `same_count`: it has their number; `regions` of the truth that are
    not canonical; `grade` and `p_exact` of the blind rebuild; `prompt_exact` None where the server told no prompt ids.
    """

    provider: str
    dataset: str
    tools: bool
    truth: str
    length: int
    exact: bool
    same_count: bool
    regions: int
    grade: str
    p_exact: float
    prompt_exact: bool | None = None

    @property
    def stratum(self) -> Stratum:
        return self.provider, self.dataset, self.tools


# ---------------------------------------------------------------------------------------------------- many answers
@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % bounds: `events` of `n`."""

    events: int
    n: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, events: int, n: int) -> Rate:
        low, high = interval(events, n)
        return cls(events, n, events / n if n else 0.0, low, high)


@dataclass(frozen=True, slots=True)
class Rates:
    """What a set of judged answers says. `lambda_per_id` in regions per sampled id."""

    rows: int
    ids: int
    q: Rate
    f0: Rate
    lambda_per_id: Rate

    @property
    def enough(self) -> bool:
        return self.rows >= ENOUGH

    def p_exact(self, length: int) -> float:
        """P(all `length` ids are right | their number is the bill's): docs/research/exactness.md#3.6 with the non-canonical share
        of that length in the place of the mean one where the model's rate is known."""
        q = min(1.0, self.q.value * _length_factor(self, length))
        return (1 - q) / ((1 - q) + q * self.f0.value) if q < 1 else 0.0


def _length_factor(rates: Rates, length: int) -> float:
    """How much likelier than on average a non-canonical region is in an answer of `length` ids."""
    rate, mean = rates.lambda_per_id.value, rates.ids / max(rates.rows, 1)
    usual = -math.expm1(-rate * mean)
    return -math.expm1(-rate * length) / usual if usual > 0 else 1.0


def rates_of(rows: Sequence[Judged]) -> Rates:
    """q, f0 and lambda of `rows`."""
    wrong = [row for row in rows if not row.exact]
    ids = sum(row.length for row in rows)
    regions = min(sum(row.regions for row in rows), ids)
    return Rates(
        rows=len(rows),
        ids=ids,
        q=Rate.of(len(wrong), len(rows)),
        f0=Rate.of(sum(row.same_count for row in wrong), len(wrong)),
        lambda_per_id=Rate.of(regions, ids),
    )


def summarize(profile: Profile, rows: Iterable[Judged], *, unknown: int = 0) -> dict[str, Any]:
    """audit.json as plain JSON: pooled rates, one entry a stratum, and how often each grade was right. `unknown` counts answers with
    ids that prove nothing (`true_ids`)."""
    judged = list(rows)
    strata: dict[Stratum, list[Judged]] = defaultdict(list)
    grades: dict[str, list[Judged]] = defaultdict(list)
    for row in judged:
        strata[row.stratum].append(row)
        grades[row.grade].append(row)
    prompts = [row for row in judged if row.prompt_exact is not None]
    return {
        "version": VERSION,
        "profile": profile.name,
        "tokenizer_sha256": profile.tokenizer_sha256,
        "truth": {how: sum(row.truth == how for row in judged) for how in ("server_ids", "logprob_bytes")} | {"unknown": unknown},
        "pooled": asdict(rates_of(judged)),
        "prompts_exact": asdict(Rate.of(sum(bool(row.prompt_exact) for row in prompts), len(prompts))),
        "strata": [
            {"provider": provider, "dataset": dataset, "tools": tools, **asdict(rates_of(strata[provider, dataset, tools]))}
            for provider, dataset, tools in sorted(strata)
        ],
        "grades": {grade: _grade_json(grades[grade]) for grade in sorted(grades)},
    }


def _grade_json(rows: Sequence[Judged]) -> dict[str, Any]:
    """How often a grade was right, and what it claimed."""
    exact = sum(row.exact for row in rows)
    return {"exact": asdict(Rate.of(exact, len(rows))), "mean_p_exact": sum(row.p_exact for row in rows) / len(rows)}


# ---------------------------------------------------------------------------------------------------- rows
def with_rates(found: Reconstruction, rates: Rates | None) -> Reconstruction:
    """A row whose stratum was audited: its p_exact is no higher than what was measured there for its length, and is called audited. A B1
    that falls below the floor is C1. Rows of other grades, and where `rates` is None, stay as they are."""
    if rates is None or not GRADES[found.grade].from_text:  # what the audit rebuilds
        return found
    measured = rates.p_exact(len(found.input_ids) - found.prompt_len)
    p = min(found.p_exact, measured)
    evidence = {
        **found.evidence,
        "audit": {
            "rows": rates.rows,
            "q": rates.q.value,
            "f0": rates.f0.value,
            "lambda": rates.lambda_per_id.value,
            "p_exact": measured,
        },
    }
    grade = "C1" if found.grade == "B1" and p < B1_FLOOR else found.grade
    return replace(found, grade=grade, p_exact=p, p_basis="audited", evidence=evidence)


# ---------------------------------------------------------------------------------------------------- the file
@dataclass(frozen=True, slots=True)
class Audit:
    """audit.json as read. `strata` holds those with enough answers; the others are in `pooled` alone."""

    tokenizer_sha256: str
    pooled: Rates
    strata: Mapping[Stratum, Rates]

    def rates(self, provider: str, dataset: str, tools: bool) -> Rates | None:
        """Rates of exactly this stratum, None where it was not audited (enough): then no number of it may be called audited."""
        return self.strata.get((provider, dataset, tools))


def write(path: Path, summary: Mapping[str, Any]) -> None:
    """Atomically write audit.json."""
    write_json(path, summary)


def read(path: Path) -> Audit | None:
    """audit.json, or None where no audit was made. Raises StoreError for a damaged one, one line."""
    if not path.exists():
        return None
    raw = read_json(path, otherwise="remove it and run `eagle3 audit` again")
    try:
        if raw["version"] != VERSION:
            raise StoreError(f"{path}: expected version {VERSION}, found {raw['version']}; run `eagle3 audit` again")
        strata = {(str(s["provider"]), str(s["dataset"]), bool(s["tools"])): _rates(s) for s in raw["strata"]}
        return Audit(
            str(raw["tokenizer_sha256"]), _rates(raw["pooled"]), {key: rates for key, rates in strata.items() if rates.enough}
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path}: is not an audit ({error!r}); remove it and run `eagle3 audit` again") from None


def _rates(raw: Mapping[str, Any]) -> Rates:
    def rate(key: str) -> Rate:
        found = raw[key]
        return Rate(int(found["events"]), int(found["n"]), *(float(found[k]) for k in ("value", "low", "high")))

    return Rates(int(raw["rows"]), int(raw["ids"]), rate("q"), rate("f0"), rate("lambda_per_id"))
