"""What building the corpus again changes, and why: said before anything is written.

Belongs here: comparing an old corpus with the one that is about to be. Does not belong here: deciding either.

A part whose `content` stays keeps its hidden states; any other part's states have to be extracted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.corpus.swap import whole_folder
from eagle3_assets.errors import StoreError
from eagle3_assets.store import read_json, read_manifest

Change = dict[str, Any]


def compare(old: Path, made_from: Mapping[str, Any], rows: Mapping[tuple[str, int], str], contents: Sequence[str]) -> Change:
    """`rows`: (sample id, turn) -> part of the new corpus; `contents` of its parts in order; `old`: the folder to be replaced.

    `parts` {same, rewritten, new, gone}, `rows` {same_part, other_part, added, removed}, `why` (a phrase each), `message` (one line).
    An old corpus that cannot be read counts as none.
    """
    folder = whole_folder(old)
    try:
        manifest = read_json(folder / "manifest.json")
        before = [str(p["content"]) for p in manifest["parts"]]
        index = pq.read_table(folder / "index.parquet", columns=["sample_id", "turn", "part"])
        committed = read_manifest(old)
    except (StoreError, OSError, pa.ArrowException, KeyError, TypeError):
        return {"first": True, "message": f"a new corpus: {len(rows):,} rows in {len(contents)} parts"}
    was = dict(
        zip(
            zip(*(index.column(c).to_pylist() for c in ("sample_id", "turn")), strict=True),
            index.column("part").to_pylist(),
            strict=True,
        )
    )
    same = sum(a == b for a, b in zip(before, contents, strict=False))
    common = min(len(before), len(contents))
    moved = {
        "same_part": sum(was.get(k) == part for k, part in rows.items()),
        "added": sum(k not in was for k in rows),
        "removed": sum(k not in rows for k in was),
    }
    moved["other_part"] = len(rows) - moved["same_part"] - moved["added"]
    parts = {"same": same, "rewritten": common - same, "new": len(contents) - common, "gone": len(before) - common}
    why = reasons(committed.inputs, made_from) if committed else ["what the old one was made from is not on record"]
    return {"first": False, "parts": parts, "rows": moved, "why": why, "message": _message(parts, moved, why, made_from)}


def reasons(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How two records of what a corpus is made from (`lineage.corpus_inputs`) differ: a phrase for each cause."""
    found: list[str] = []
    if "code" in old and old["code"] != new.get("code", old["code"]):
        found.append("the code that builds it is newer")
    if old.get("seed") != new.get("seed"):
        found.append(f"campaign.seed was {old.get('seed')} and is {new.get('seed')}")
    policies: list[dict[str, Any]] = [record.get("policy") or {} for record in (old, new)]
    for key in sorted(set(policies[0]) | set(policies[1])):
        if policies[0].get(key) != policies[1].get(key):
            was, now = ("not set" if policy.get(key) is None else policy[key] for policy in policies)
            found.append(f"corpus.{key} was {was} and is {now}")
    tokens: list[dict[str, Any]] = [record.get("tokens") or {} for record in (old, new)]
    names = [{file.split("/")[0] for file in files} for files in tokens]
    found += [f"dataset {name} joined" for name in sorted(names[1] - names[0])]
    found += [f"dataset {name} left" for name in sorted(names[0] - names[1])]
    for name in sorted(names[0] & names[1]):
        files = {f for record in tokens for f in record if f.split("/")[0] == name}
        changed = sum(tokens[0].get(f) != tokens[1].get(f) for f in files)
        if changed:
            found.append(f"{changed} of {len(files)} token files of {name} changed")
    return found


def _message(parts: Mapping[str, int], rows: Mapping[str, int], why: Sequence[str], made_from: Mapping[str, Any]) -> str:
    total = parts["same"] + parts["rewritten"] + parts["gone"]
    because = f" because {', '.join(why)}" if why else ""
    text = (
        f"{rows['added']:,} rows join, {rows['removed']:,} leave, {rows['other_part']:,} move to another part{because}; "
        f"{parts['same']} of {total} parts stay as they are"
    )
    if parts["rewritten"] or parts["gone"]:
        text += f", {parts['rewritten'] + parts['gone']} change or go, and their hidden states have to be extracted again"
    if parts["new"]:
        text += f", {parts['new']} are new"
    joined = [w.split()[1] for w in why if w.endswith(" joined")]
    later = {name for names in (made_from.get("policy") or {}).get("additions") or [] for name in names}
    if parts["rewritten"] and (free := [name for name in joined if name not in later]):
        text += f"; [corpus] additions = {[free]} would put their rows behind the old parts and leave those as they are"
    return text
