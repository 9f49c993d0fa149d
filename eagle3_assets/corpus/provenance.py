"""From a row of the corpus back to the answer that it came from.

Belongs here: finding the journal record of a row. Does not belong here: which artifact is made from which (`eagle3_assets.lineage`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_assets.errors import CorpusError
from eagle3_assets.store import Store
from eagle3_assets.wire import journal
from eagle3_assets.wire.wire_answer import WireAnswer


def journal_record(store: Store, row: Mapping[str, Any]) -> WireAnswer:
    """The journal record (request, raw body, provider, times, cost) of a row: its attempt at this sample and turn.

    `row` is one of `Corpus.lineage(i)`, `Corpus.archive(key).to_pylist()`, or a row of a tokens file: dataset, shard, sample_id, turn,
    attempt, wire_sha256. Reads the shard's journal until it is found. Raises CorpusError when there is none, or when its bytes are not
    those that the ids were made from.
    """
    folder = store.answers(str(row["dataset"]), str(row["shard"]))
    wanted = (row["sample_id"], row["turn"], row["attempt"])
    seen = 0
    for answer in journal.read(folder):
        if (answer.sample_id, answer.turn, answer.attempt) != wanted or answer.outcome != "finished":
            continue
        if hashlib.sha256(answer.body).hexdigest() == row["wire_sha256"]:
            return answer
        seen += 1
    what = f"sample {wanted[0]} turn {wanted[1]} attempt {wanted[2]}"
    if seen:
        raise CorpusError(f"{folder}: {what} has another body than the one that the row was made from ({row['wire_sha256'][:12]}…); "
                          f"materialize tokens/{row['dataset']} partition {row['shard']} again, then the corpus")  # fmt: skip
    raise CorpusError(f"{folder}: holds no answer to {what}; was the journal moved or pruned?")


def journal_records(store: Store, row: Mapping[str, Any]) -> Iterator[WireAnswer]:
    """The records of every answer that a row supervises: the earlier turns that were joined into it, then its own."""
    for earlier in row.get("joined", ()):
        yield journal_record(store, {**row, **earlier})
    yield journal_record(store, row)
