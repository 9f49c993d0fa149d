"""What each provider gave for its money so far: answers, errors, speed, and (where tokens exist) how much can be trained on.

Belongs here: one pure function over journal records and the figures of token files. Does not belong here: who may answer
(`collect/servers/routing.py`), how a provider bends text (`exact`), layout (`cli/endpoints.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.review.report.figures import Figures, Tally
from eagle3_assets.wire.completion import completion_tokens, parse_completion
from eagle3_assets.wire.wire_answer import WireAnswer

NOBODY = "(no provider named)"  # a failure that says not whose it was


@dataclass(slots=True)
class _Given:
    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    usd: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


def provider_statistics(answers: Iterable[WireAnswer], tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    """One plain row a provider, ordered by name. Every record counts in `usd` and `errors`, every finished one in the rest.

    `tokens` as billed; `tokens_per_s` of one answer while it runs; `tallies` (`merge_providers`) add `rows`, `trainable_tokens`,
    `usd_per_million_trainable` (money of those rows over the tokens that the corpus may take) and `exact_share` (expected share
    of exact rows); None where there are no tokens. Raises nothing for what a server sent.
    """
    given: dict[str, _Given] = {}
    for answer in answers:
        of = given.setdefault(answer.provider or NOBODY, _Given())
        of.usd += answer.cost_usd or 0.0
        if answer.outcome != "finished":
            of.errors[answer.reason or answer.outcome] += 1
            continue
        of.answers += 1
        of.tokens += completion_tokens(parse_completion(answer.body, answer.content_type))
        of.seconds += max(0.0, answer.finished_at - answer.started_at)
    return [_row(name, given.get(name, _Given()), tallies.get(name, {})) for name in sorted({*given, *tallies})]


def _row(name: str, given: _Given, tally: Tally) -> dict[str, Any]:
    rows, trainable = tally.get("rows", 0), tally.get("trainable_tokens", 0)
    return {
        "provider": name,
        "answers": given.answers,
        "errors": dict(sorted(given.errors.items())),
        "tokens": given.tokens,
        "tokens_per_s": given.tokens / given.seconds if given.seconds else None,
        "usd": given.usd,
        "usd_per_million": given.usd / given.tokens * 1e6 if given.tokens else None,
        "rows": rows,
        "trainable_tokens": trainable,
        "usd_per_million_trainable": tally["cost_usd"] / trainable * 1e6 if trainable else None,
        "exact_share": tally["expected_exact"] / rows if rows else None,
    }


def merge_providers(figures: Iterable[Figures]) -> dict[str, Tally]:
    """The providers' tallies of several datasets added up."""
    merged: dict[str, Tally] = {}
    for of_dataset in figures:
        for name, tally in of_dataset.providers.items():
            into = merged.setdefault(name, {})
            for key, value in tally.items():
                into[key] = into.get(key, 0) + value
    return merged
