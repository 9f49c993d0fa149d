"""The invariants of token rows, as pure functions → list of `Verdict`.

Belongs here: every check of stage `tokens`. Does not belong here: mending rows (`exact`), figures of billing (`billing.py`).

Rows are judged twice: `exact` wrote its own `reasons` when it made them, and what can be recomputed from the row is recomputed
here.
A bad row must be out already (grade Q or D). A bad row that is *not* out fails its check at any number: that is a rule about
the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from eagle3_assets.review.rows.columns import Bools, Columns
from eagle3_assets.review.rows.grading import grade_faults
from eagle3_assets.review.rows.row_invariants import FATAL, INVARIANTS, Rules, Wires, broken_rows
from eagle3_assets.review.rows.structure import structure_faults
from eagle3_assets.review.verdicts.shares import share_of_shard
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict

Key = tuple[str, int]  # sample_id, turn


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """What a `RowChecker` sees of a row; names as in `SampleRow`. `input_ids` int32 [length] is a view, `evidence` the parsed
    JSON."""

    sample_id: str
    turn: int
    attempt: int
    source: str
    provider: str | None
    grade: str
    input_ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    prompt_len: int
    finish_reason: str | None
    native_finish_reason: str | None
    max_tokens: int | None
    evidence: dict[str, Any]

    @property
    def response_ids(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return self.input_ids[self.prompt_len :]


class RowChecker(Protocol):
    """Second opinions on a row, from the tokenizer profile and the journal. None: nothing to object; else one short reason."""

    def grammar(self, row: JudgedRow) -> str | None:
        """Would the model's grammar emit this response, ended as its finish reason says?"""

    def wire_text(self, row: JudgedRow) -> str | None:
        """Does decoding the ids under the provider's wire profile give the returned text, byte for byte, and are the prompt ids
        what the evidence says: those that the server returned, or a rendering of the request?"""

    def canonical(self, row: JudgedRow) -> bool | None:
        """encode(decode(ids)) == ids, field by field; None where that cannot be asked."""


def judge_tokens(
    table: pa.Table,
    *,
    n_vocab: int,
    finished_keys: Collection[Key] | None = None,
    checker: RowChecker | None = None,
    wires: Wires | None = None,
    rules: Rules | None = None,
) -> list[Verdict]:
    """Judge the rows of one shard: every check of stage `tokens`.

    Without `finished_keys` there is no verdict on lineage; without `checker` grammar, wire text and canonicity rest on the rows'
    own reasons and evidence. `wires` are the answers behind the rows, one a row (None: what needs them rests on the rows' own
    reasons), `rules` what the campaign says.
    """
    columns = Columns(table)
    known = wires if wires is not None else [None] * len(columns)
    broken = broken_rows(columns, known, rules or Rules())
    return judge_columns(columns, n_vocab=n_vocab, finished_keys=finished_keys, checker=checker, broken=broken)


def judge_columns(
    columns: Columns,
    *,
    n_vocab: int,
    finished_keys: Collection[Key] | None,
    checker: RowChecker | None,
    broken: Mapping[str, Bools],
    just_made: bool = False,
) -> list[Verdict]:
    """The same where the columns are in memory and the invariants of single rows are known: `broken`, invariant → bool [rows].

    `just_made`: the evidence was written a moment ago by the very function that would be asked for canonicity again.
    """
    faults = structure_faults(columns, n_vocab) | grade_faults(columns)
    malformed = np.any(list(faults.values()), axis=0) if len(columns) else np.zeros(0, dtype=bool)
    checked = {} if checker is None else _second_opinions(columns, ~malformed, checker, believed=just_made)
    verdicts = [_structure(columns, faults, malformed)]
    if finished_keys is not None:
        verdicts.append(_lineage(columns, finished_keys))
    for name, what in (("grammar", "rows that the model may not emit"), ("wire_text", "rows that do not give the returned text")):
        bad = columns.with_reason(name) | checked.get(name, np.zeros(len(columns), dtype=bool))
        verdicts.append(_rows_verdict(name, columns, bad, len(columns), what))
    for part, name in (("completion", "completion_equals_bill"), ("prompt", "prompt_equals_bill")):
        residual = columns.residual(part)
        bad = columns.with_reason(name) | residual.wrong
        billed = int(np.count_nonzero(residual.known | bad))
        verdicts.append(_rows_verdict(name, columns, bad, billed, f"billed rows differ from their {part} bill"))
    return [*verdicts, *_invariants(columns, broken), *_shares(columns, checked)]


def _invariants(columns: Columns, broken: Mapping[str, Bools]) -> list[Verdict]:
    """Those of `row_invariants`: a fatal one must have put its rows out already, the others are shares of the rows that are in."""
    verdicts = []
    for name in INVARIANTS:
        bad, what = broken[name] | columns.with_reason(name), f"rows break `{name}`"
        if name in FATAL:
            verdicts.append(_rows_verdict(name, columns, bad, len(columns), what))
        else:
            bad &= columns.admitted
            total = int(columns.admitted.sum())
            verdicts.append(share_of_shard("tokens", name, int(bad.sum()), total, what, _ids(columns, bad)))
    return verdicts


def _structure(columns: Columns, faults: Mapping[str, Bools], broken: Bools) -> Verdict:
    found = {name: int(bad.sum()) for name, bad in faults.items() if bad.any()}
    bad_ids = _ids(columns, broken)
    message = "; ".join(f"{n} rows: {name}" for name, n in found.items()) or f"{len(columns)} rows are well formed"
    return verdict("tokens", "structure", not bad_ids, message, numbers={"rows": len(columns), **found}, examples=bad_ids)


def _lineage(columns: Columns, finished: Collection[Key]) -> Verdict:
    have = set(zip(columns.sample_ids, columns.integers("turn").tolist(), strict=True))
    lacking, foreign = sorted(set(finished) - have), sorted(have - set(finished))
    message = f"{len(lacking)} finished answers have no row, {len(foreign)} rows have no finished answer"
    return verdict(
        "tokens", "lineage", not lacking and not foreign, message,
        numbers={"answers": len(finished), "rows": len(columns), "lacking": len(lacking), "foreign": len(foreign)},
        examples=tuple(key[0] for key in (*lacking, *foreign)),
    )  # fmt: skip


def _shares(columns: Columns, checked: Mapping[str, Bools]) -> list[Verdict]:
    quarantined = columns.grades == "Q"
    cut = np.array([f == "length" for f in columns.strings("finish_reason")], dtype=bool)
    server = np.array([s in ("engine", "import") for s in columns.strings("source")], dtype=bool) & (columns.lengths > 0)
    asked = checked.get("canonical_asked", np.array(["canonical" in e for e in columns.evidence], dtype=bool)) & server
    evidence = np.array([e.get("canonical") is False for e in columns.evidence], dtype=bool)
    odd = (checked.get("canonical", evidence) | columns.with_reason("canonical")) & server
    return [
        share_of_shard(
            "tokens", "quarantined_share", int(quarantined.sum()), len(columns), "rows in quarantine", _ids(columns, quarantined)
        ),
        share_of_shard(
            "tokens", "truncated_share", int(cut.sum()), len(columns), "rows cut off by max_tokens", _ids(columns, cut)
        ),
        share_of_shard(
            "tokens",
            "canonical",
            int(odd.sum()),
            int((asked | odd).sum()),
            "rows with server ids that encode(decode(ids)) does not give back",
            _ids(columns, odd),
        ),
    ]


def _rows_verdict(name: str, columns: Columns, bad: Bools, total: int, what: str) -> Verdict:
    """A share check whose bad rows must all be out; one that is not fails it at any share."""
    leaked = bad & columns.admitted
    judged = share_of_shard("tokens", name, int(bad.sum()), total, what, _ids(columns, bad))
    numbers = {**judged.numbers, "not_quarantined": int(leaked.sum())}
    if not leaked.any():
        return verdict("tokens", name, judged.passed, judged.message, numbers=numbers, examples=judged.examples)
    message = f"{int(leaked.sum())} rows fail it and are not in quarantine; {judged.message}"
    return verdict("tokens", name, False, message, numbers=numbers, examples=_ids(columns, leaked))


def _second_opinions(columns: Columns, well_formed: Bools, checker: RowChecker, *, believed: bool) -> dict[str, Bools]:
    """The checker on every admitted, well-formed row (rows that are out carry their reasons already)."""
    asked: dict[str, Callable[[JudgedRow], bool]] = {
        "grammar": lambda row: checker.grammar(row) is not None,
        "wire_text": lambda row: checker.wire_text(row) is not None,
    }
    out = {name: np.zeros(len(columns), dtype=bool) for name in (*asked, "canonical", "canonical_asked")}
    for i in np.flatnonzero(columns.admitted & well_formed):
        row = _judged_row(columns, int(i))
        for name, fails in asked.items():
            out[name][i] = fails(row)
        if row.source != "openrouter":
            told = row.evidence.get("canonical") if believed else None
            same = told if isinstance(told, bool) else checker.canonical(row)
            out["canonical"][i], out["canonical_asked"][i] = same is False, same is not None
    return out


def _judged_row(columns: Columns, i: int) -> JudgedRow:
    def cell(name: str) -> Any:
        return columns.table.column(name)[i].as_py()

    names = (
        "sample_id",
        "turn",
        "attempt",
        "source",
        "provider",
        "grade",
        "prompt_len",
        "finish_reason",
        "native_finish_reason",
        "max_tokens",
    )
    return JudgedRow(input_ids=columns.input_ids.row(i), evidence=columns.evidence[i], **{name: cell(name) for name in names})


def _ids(columns: Columns, rows: Bools) -> tuple[str, ...]:
    return tuple(columns.sample_ids[i] for i in np.flatnonzero(rows))
