"""Is the corpus on disk what its manifest says? Every byte is read.

Belongs here: the checks of stage `corpus`. Does not belong here: building, mending.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.corpus.merge import paint_mask
from eagle3_assets.corpus.reader import Corpus, open_corpus, read_corpus_manifest
from eagle3_assets.corpus.swap import whole_folder
from eagle3_assets.errors import CorpusError
from eagle3_assets.review.columns import Columns
from eagle3_assets.review.table import verdict
from eagle3_assets.review.verdict import Verdict
from eagle3_assets.store import Store, digest_file


def judge_corpus(store: Store) -> list[Verdict]:
    """`drop_reasons_add_up`, `forms_agree`, `parts_match_manifest`. Raises CorpusError only where there is no readable
    manifest."""
    folder = whole_folder(store.corpus)
    return [_reasons_add_up(folder), _forms_agree(folder), _parts_match(folder)]


def _reasons_add_up(folder: Path) -> Verdict:
    manifest = read_corpus_manifest(folder)
    rows = manifest["rows"]
    dropped = sum(rows["dropped"].values())
    read = sum(source["rows"] for source in manifest["inputs"])
    per_dataset = sum(d["kept"] + sum(d["dropped"].values()) for d in manifest["datasets"].values())
    in_parts = sum(p["rows"] for p in manifest["parts"])
    numbers = {**rows, "read_from_files": read, "in_parts": in_parts, "sum_over_datasets": per_dataset}
    add_up = rows["input"] == rows["kept"] + dropped == read == per_dataset and rows["kept"] == in_parts
    message = f"{rows['input']} rows in = {rows['kept']} kept + {dropped} dropped by reason"
    if not add_up:
        message = f"{message}: does not add up ({read} read, {in_parts} in parts, {per_dataset} over datasets)"
    return verdict("corpus", "drop_reasons_add_up", add_up, message, numbers=numbers)


def _parts_match(folder: Path) -> Verdict:
    manifest = read_corpus_manifest(folder)
    damaged = []
    for name, facts in manifest["files"].items():
        file = folder / name
        if not file.exists() or file.stat().st_size != facts["bytes"] or digest_file(file) != facts["xxh3"]:
            damaged.append(name)
    extra = sorted(p.name for p in folder.iterdir() if p.name not in manifest["files"] and p.name != "manifest.json")
    ok = f"{len(manifest['files'])} files as the manifest says"
    message = f"damaged or missing: {', '.join(damaged)}; materialize corpus again" if damaged else ok
    return verdict(
        "corpus",
        "parts_match_manifest",
        not damaged,
        message,
        numbers={"damaged": damaged, "unnamed": extra},
        examples=tuple(damaged),
    )


def _forms_agree(folder: Path) -> Verdict:
    try:
        corpus = open_corpus(folder)
        wrong = [key for key in corpus.parts if not _part_agrees(corpus, key)]
    except (CorpusError, OSError, pa.ArrowException, ValueError) as error:
        return verdict("corpus", "forms_agree", False, f"cannot be compared: {str(error).splitlines()[0]}")
    message = (
        f"archive and training form differ in part {', '.join(wrong)}" if wrong else f"{len(corpus)} rows agree in both forms"
    )
    return verdict("corpus", "forms_agree", not wrong, message, numbers={"parts": len(corpus.parts)}, examples=tuple(wrong))


def _part_agrees(corpus: Corpus, key: str) -> bool:
    rows = pq.read_table(corpus.path / f"part-{key}.parquet")
    columns, packs = Columns(rows), corpus.part(key)
    if rows.num_rows != len(packs) or columns.lengths.tolist() != [len(p.input_ids) for p in packs]:
        return False
    lineage = zip(columns.sample_ids, rows.column("turn").to_pylist(), columns.grades.tolist(), strict=True)
    if list(lineage) != [(p.sample_id, p.turn, p.grade) for p in packs] or any(p.part != key for p in packs):
        return False
    same_ids = np.array_equal(columns.input_ids.values, np.concatenate([p.input_ids for p in packs]))
    return same_ids and np.array_equal(paint_mask(rows, columns.lengths), np.concatenate([p.loss_mask for p in packs]))
