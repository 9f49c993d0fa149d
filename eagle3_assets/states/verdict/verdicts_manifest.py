"""The commit of the model's verdicts on a corpus part: whether they are there, and speak of today's rows and states.

Belongs here: that one question, without reading a verdict. Does not belong here: the file itself (`on_policy_table.py`).
"""

from __future__ import annotations

from pathlib import Path

from eagle3_assets.corpus.parts import corpus_shards, part_digest
from eagle3_assets.store import Manifest, Store, read_manifest

VERDICTS_FILE = "on_policy.parquet"  # in the folder of a partition


def verdicts_path(store: Store, shard: str) -> Path:
    return store.states(shard) / VERDICTS_FILE


def verdicts_manifest(store: Store, shard: str) -> Manifest | None:
    """The manifest of the model's verdicts on a corpus part: there, on the states that are there, and these of today's rows; else None
    (a row that waits for a verdict still waits then). Raises StoreError for damaged files."""
    states, found = read_manifest(store.states(shard)), read_manifest(verdicts_path(store, shard))
    if states is None or found is None or found.inputs.get("states") != states.digest:
        return None
    return found if states.inputs.get("corpus_part") == part_digest(store, shard) else None


def verdict_digests(store: Store) -> dict[str, str]:
    """Part -> digest of the verdicts that decide which of its rows are handed on; parts without one are left out."""
    manifests = {shard: verdicts_manifest(store, shard) for shard in corpus_shards(store)}
    return {shard: manifest.digest for shard, manifest in manifests.items() if manifest is not None}
