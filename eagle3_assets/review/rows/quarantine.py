"""Rows that an invariant rejects: put out when their tokens are made, and kept with their reasons for a person.

Belongs here: grade Q with the invariant's name in `reasons`; the Parquet of rejected rows. Does not belong here: the invariants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.grades import OUT
from eagle3_assets.review.rows.columns import Bools, Columns
from eagle3_assets.review.rows.row_invariants import FATAL, Rules
from eagle3_assets.store import atomic_file
from eagle3_assets.targets.tokenizer import Profile


def rules_of(campaign: Campaign, dataset: Dataset, profile: Profile) -> Rules:
    """The rules for single rows of a dataset: what its own `sampling` says, else the campaign's."""
    sampling = campaign.sampling_of(dataset)
    return Rules(
        model=campaign.target.model,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_length=campaign.corpus.max_length,
        reserved=profile.reserved_ids,
        markers=profile.marker_pattern,
        tokenizer_sha256=profile.tokenizer_sha256,
    )


def put_out(rows: Sequence[SampleRow], broken: Mapping[str, Bools]) -> list[SampleRow]:
    """`rows` with grade Q, probability 0 and the invariant's name in `reasons` where one of `FATAL` is broken. The rest is untouched;
    survivors of a row that is out are kept: they say what was thought. `broken`: invariant → bool [rows] (`row_invariants`)."""
    out = []
    for i, row in enumerate(rows):
        names = [name for name in FATAL if broken[name][i]]
        if names and row.grade != "D":
            told = {reason.split(":", 1)[0] for reason in row.reasons}
            reasons = (*row.reasons, *(name for name in names if name not in told))
            row = dataclasses.replace(row, grade="Q", p_exact=0.0, reasons=reasons)
        out.append(row)
    return out


def rejected(tables: Iterable[pa.Table]) -> pa.Table | None:
    """The rows of grades Q and D, all columns (ids, evidence and reasons among them); None of no table."""
    parts = [t.filter(pc.is_in(t.column("grade"), value_set=pa.array(OUT))) for t in tables]
    return pa.concat_tables(parts) if parts else None


def write_rejected(path: Path, table: pa.Table) -> None:
    """Atomically write the quarantine file of a dataset."""
    with atomic_file(path) as handle:
        pq.write_table(table, handle, compression="zstd")


def with_reason(table: pa.Table, reason: str) -> list[dict[str, Any]]:
    """sample_id, turn, attempt of the rejected rows whose reasons name `reason` (alone or before a colon), and of the later turns of
    their samples: those were built on what is asked for again."""
    columns = Columns(table)
    rows = table.select(["sample_id", "turn", "attempt"]).to_pylist()
    picked = (columns.with_reason(reason) & ~columns.admitted).tolist()
    first: dict[str, int] = {}
    for row, take in zip(rows, picked, strict=True):
        if take:
            first[row["sample_id"]] = min(row["turn"], first.get(row["sample_id"], row["turn"]))
    return [row for row in rows if row["sample_id"] in first and row["turn"] >= first[row["sample_id"]]]
