"""Which parts the committed corpus has: the partition keys of everything behind it.

Belongs here: what the corpus's manifest says of its parts. Does not belong here: reading rows (`reader.py`).
"""

from __future__ import annotations

from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store, read_manifest, require


def corpus_shards(store: Store) -> list[str]:
    """Partition keys of the committed corpus, in order; empty when there is none."""
    try:
        manifest = read_manifest(store.corpus)
    except StoreError:
        return []
    return [str(k) for k in manifest.numbers.get("partitions", [])] if manifest else []


def part_digest(store: Store, shard: str) -> str:
    """xxh3-128 of one part's rows (names, ids, spans, survivors), from the corpus's manifest: figures about a row may be learned anew
    without touching its states. Raises StoreError for a part that is not there."""
    manifest = require(store.corpus, made_by="corpus")
    contents = manifest.numbers.get("content", {})
    if shard in contents:
        return str(contents[shard])
    raise StoreError(f"{store.corpus}: has no part {shard}; it holds {', '.join(corpus_shards(store))}")
