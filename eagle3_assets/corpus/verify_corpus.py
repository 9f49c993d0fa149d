"""Is the corpus on disk what its manifest says? Every byte is read.

Belongs here: the checks of stage `corpus`. Does not belong here: building, mending.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from eagle3_assets.corpus.forms import paint_mask
from eagle3_assets.corpus.groups import SPLITS, TRAIN, VALIDATION
from eagle3_assets.corpus.reader import Corpus, open_corpus, read_corpus_manifest
from eagle3_assets.corpus.swap import whole_folder
from eagle3_assets.errors import CorpusError
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.verdicts.table import check_named, verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Store, digest_file


def judge_corpus(store: Store) -> list[Verdict]:
    """`drop_reasons_add_up`, `forms_agree`, `parts_match_manifest`, `split_without_leakage`, `parts_balanced`. Raises CorpusError only
    where there is no readable manifest."""
    folder = whole_folder(store.corpus)
    return [_reasons_add_up(folder), _forms_agree(folder), _parts_match(folder), _no_leakage(folder), _balanced(folder)]


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


def _no_leakage(folder: Path) -> Verdict:
    """From the archive's own ids: the labels of the manifest are not believed."""
    side: dict[str, str] = {}
    leaks: list[str] = []
    counted: Counter[str] = Counter()
    try:
        for key in read_corpus_manifest(folder)["partitions"]:
            rows = pq.read_table(
                folder / f"part-{key}.parquet",
                columns=["sample_id", "prompt_len", "loss_spans", "joined", "group", "split", "input_ids"],
            )
            columns = Columns(rows)
            labels = zip(columns.sample_ids, rows.column("group").to_pylist(), rows.column("split").to_pylist(), strict=True)
            prompt_len, (begins, _) = columns.integers("prompt_len").tolist(), columns.spans
            turns = pc.list_value_length(rows.column("joined")).to_pylist()
            for i, (sample, group, split) in enumerate(labels):
                ids = np.ascontiguousarray(columns.input_ids.row(i))
                counted[split] += 1
                ends = {prompt_len[i], *(begins.row(i).tolist() if turns[i] else ())}  # a joined row has the prompt of every turn
                marks = [
                    f"sample {sample}",
                    f"group {group}",
                    *(f"prompt {xxhash.xxh3_128_hexdigest(ids[:end].data)}" for end in ends),
                ]
                if any(side.setdefault(mark, split) != split for mark in marks):
                    leaks.append(sample)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        return verdict("corpus", "split_without_leakage", False, f"cannot be read: {str(error).splitlines()[0]}")
    message = f"{counted[TRAIN]} rows to train on, {counted[VALIDATION]} to validate, {len(leaks)} share a prompt or conversation"
    numbers = {**{name: counted[name] for name in SPLITS}, "leaks": len(leaks)}
    return verdict("corpus", "split_without_leakage", not leaks, message, numbers=numbers, examples=tuple(leaks))


def _balanced(folder: Path) -> Verdict:
    manifest = read_corpus_manifest(folder)
    longest = max((d["longest"] for d in manifest["datasets"].values()), default=0)
    limit = check_named("corpus", "parts_balanced").max_share
    worst, uneven = 0.0, []
    for wave in sorted({p["wave"] for p in manifest["parts"]}):
        parts = [p for p in manifest["parts"] if p["wave"] == wave]
        mean = sum(p["tokens"] for p in parts) / len(parts)
        worst = max(worst, *(p["tokens"] / mean for p in parts))
        uneven += [p["key"] for p in parts if p["tokens"] > max((1 + limit) * mean, mean + longest)]
    message = f"the largest of {len(manifest['parts'])} parts holds {worst:.4f} times the mean"
    return verdict("corpus", "parts_balanced", not uneven, message, numbers={"max_over_mean": worst}, examples=tuple(uneven))
