"""Token files → the corpus: read, decide, write, commit. The order of steps, and the manifest.

Belongs here: `build_corpus`, `corpus/manifest.json`. Does not belong here: the steps themselves (`lines.py`, `order.py`, `forms.py`,
`change.py`, `swap.py`), reading it back (`reader.py`), Dagster partitions (the caller registers `partitions`).

Memory and disk: docs/corpus.md has the figures; about 1.5 KB a row, one token file and one part, and 8 bytes a token of spool and mapped
ids on the disk while it is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.change import compare
from eagle3_assets.corpus.forms import PartFacts, part_contents, write_forms
from eagle3_assets.corpus.groups import SPLITS
from eagle3_assets.corpus.lines import IDS_SPOOL, LINEAGE_SPOOL, Lines, TokenFile, read_lines
from eagle3_assets.corpus.order import DROP_REASONS, Order, order_rows
from eagle3_assets.corpus.swap import replaced_folder
from eagle3_assets.errors import CorpusError
from eagle3_assets.progress import Step, publish
from eagle3_assets.store import Manifest, Store, commit, digest_file, digest_json, write_json

__all__ = ["VERSION", "TokenFile", "build_corpus"]

VERSION = 2


def build_corpus(
    campaign: Campaign,
    store: Store,
    inputs: Sequence[TokenFile],
    waived: Sequence[Mapping[str, Any]] = (),
    *,
    commit_inputs: Mapping[str, Any] | None = None,
) -> Manifest:
    """Build `corpus/` anew from `inputs`, swap it in and commit it; `numbers["partitions"]` are the keys to register, and
    `numbers["change"]` says what became of the old corpus's rows and parts, and why (also published before anything is written).

    Equal rows give equal bytes, whatever the order of `inputs`, the number of threads, or what was there before. `waived` (accepted
    failures of checks) is carried into `corpus/manifest.json`; `commit_inputs` says what the corpus was made from, as
    `lineage.corpus_inputs` does. Raises CorpusError when no row may enter or a file breaks its own rules; the old corpus stays then.
    """
    made_from = dict(commit_inputs if commit_inputs is not None else default_inputs(campaign, inputs))
    with replaced_folder(store.corpus) as folder:
        lines = read_lines(campaign, inputs, folder)
        order = order_rows(campaign, lines)
        if not len(order.kept):
            raise CorpusError(_nothing_left(lines.table.num_rows, _dropped(order)))
        change = compare(store.corpus, made_from, _rows(lines, order), part_contents(lines, order))
        publish(Step("corpus", 1, 2, change["message"], figures=change))
        parts = write_forms(folder, lines, order)
        for spool in (IDS_SPOOL, LINEAGE_SPOOL):
            (folder / spool).unlink()
        manifest = _manifest(campaign, folder, inputs, lines, order, parts, waived)
        write_json(folder / "manifest.json", manifest)
    return commit(
        store.corpus,
        files=[store.corpus / "manifest.json"],
        inputs=made_from,
        numbers={
            "rows": manifest["rows"]["kept"],
            "input_rows": manifest["rows"]["input"],
            "dropped": manifest["rows"]["dropped"],
            **{k: manifest[k] for k in ("tokens", "supervised_tokens", "splits", "datasets", "partitions", "waived")},
            "content": {p.key: p.content for p in parts},
            "change": change,
        },
        known={store.corpus / name: str(facts["xxh3"]) for name, facts in manifest["files"].items()},
    )


def default_inputs(campaign: Campaign, inputs: Sequence[TokenFile]) -> dict[str, Any]:
    """What `lineage.corpus_inputs` would say, without its code version."""
    return {
        "tokens": {f"{f.dataset}/{f.shard}": f.digest for f in sorted(inputs, key=lambda f: (f.dataset, f.shard, f.digest))},
        "policy": campaign.corpus.model_dump(mode="json"),
        "seed": campaign.campaign.seed,
    }


def _rows(lines: Lines, order: Order) -> dict[tuple[str, int], str]:
    """(sample id, turn) -> part, of the corpus that is about to be written."""
    some = lines.table.take(pa.array(order.kept))
    part = [p.key for p in order.parts for _ in range(p.first, p.last)]
    return dict(zip(zip(some.column("sample_id").to_pylist(), some.column("turn").to_pylist(), strict=True), part, strict=True))


def _dropped(order: Order) -> Counter[str]:
    return Counter(why for why in order.reasons if why is not None)


def _nothing_left(rows: int, dropped: Counter[str]) -> str:
    why = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "the token files are empty"
    return (
        f"corpus: none of {rows} rows may enter ({why}); look at reports/, or change [corpus] grades, min_p_exact or max_length"
    )


# ---------------------------------------------------------------------------------------------------- the manifest
def _manifest(
    campaign: Campaign,
    folder: Path,
    inputs: Sequence[TokenFile],
    lines: Lines,
    order: Order,
    parts: Sequence[PartFacts],
    waived: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that the corpus says about itself. No times and no paths: equal input gives equal bytes."""
    files = {p.name: {"bytes": p.stat().st_size, "xxh3": digest_file(p)} for p in sorted(folder.iterdir())}
    dropped = _dropped(order)
    rows_of_file = np.diff(lines.file_starts).tolist()
    sources = [
        {"dataset": f.dataset, "shard": f.shard, "digest": f.digest, "rows": n} for f, n in zip(inputs, rows_of_file, strict=True)
    ]
    return {
        "version": VERSION,
        "campaign": campaign.name,
        "seed": campaign.campaign.seed,
        "policy": campaign.corpus.model_dump(mode="json"),
        "rows": {
            "input": lines.table.num_rows,
            "kept": len(order.kept),
            "dropped": {r: dropped[r] for r in DROP_REASONS if dropped[r]},
        },
        "tokens": sum(p.tokens for p in parts),
        "supervised_tokens": sum(p.supervised for p in parts),
        "splits": _splits(lines, order),
        "datasets": _statistics({f.dataset for f in inputs}, lines, order),
        "partitions": [p.key for p in parts],
        "parts": [asdict(p) for p in parts],
        "waived": [dict(w) for w in waived],
        "inputs": sorted(sources, key=lambda s: (s["dataset"], s["shard"], s["digest"])),
        "files": files,
        "digest": digest_json({name: f["xxh3"] for name, f in files.items()}),
    }


def _splits(lines: Lines, order: Order) -> dict[str, dict[str, int]]:
    """Rows, tokens and supervised tokens of either side."""
    some = lines.table.take(pa.array(order.kept))
    length, supervised = some.column("length").to_numpy(), some.column("supervised_kept").to_numpy()
    side = np.array(order.split, dtype=np.str_)
    return {
        name: {
            "rows": int((side == name).sum()),
            "tokens": int(length[side == name].sum()),
            "supervised_tokens": int(supervised[side == name].sum()),
        }
        for name in SPLITS
    }


def _statistics(names: set[str], lines: Lines, order: Order) -> dict[str, Any]:
    """Per dataset: rows in and out, tokens, supervised tokens, rows by grade, dropped rows by reason; of the kept rows how many were
    cut, and how many supervised tokens the cut took."""
    column = {c: lines.table.column(c).to_pylist() for c in (
        "dataset", "grade", "length", "supervised", "supervised_kept", "truncated",
    )}  # fmt: skip
    validation = {i for i, side in zip(order.kept.tolist(), order.split, strict=True) if side == SPLITS[1]}
    counts = ("input", "kept", "validation", "tokens", "supervised_tokens", "longest", "truncated", "lost_supervised_tokens")
    found: dict[str, dict[str, Any]] = {
        name: {**dict.fromkeys(counts, 0), "grades": Counter(), "dropped": Counter()}
        for name in sorted(names | set(column["dataset"]))
    }
    for i, why in enumerate(order.reasons):
        facts = found[column["dataset"][i]]
        facts["input"] += 1
        if why is not None:
            facts["dropped"][why] += 1
            continue
        facts["kept"] += 1
        facts["validation"] += int(i in validation)
        facts["tokens"] += column["length"][i]
        facts["supervised_tokens"] += column["supervised_kept"][i]
        facts["longest"] = max(facts["longest"], column["length"][i])
        facts["truncated"] += int(column["truncated"][i])
        facts["lost_supervised_tokens"] += column["supervised"][i] - column["supervised_kept"][i]
        facts["grades"][column["grade"][i]] += 1
    for facts in found.values():
        facts["grades"], facts["dropped"] = (dict(sorted(facts[k].items())) for k in ("grades", "dropped"))
    return found
