"""Prompts and answers as text, in lower case, for full-text search: decoded once from the token ids, in the background.

Belongs here: filling the table `texts` of a catalogue. Does not belong here: searching (`search.py`), texts that are shown (`one_row.py`).

In memory, because a plain scan of 560 MB (40,000 rows of 3,500 ids) takes 0.12 s there, and an index takes minutes to build.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.errors import Eagle3Error, ExactError
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.view.catalogue import Catalogue


@cache
def profile_named(name: str) -> Profile | None:
    """The tokenizer profile, or None where its files are not here (texts are then not shown, everything else is)."""
    try:
        return load_profile(name)
    except Eagle3Error:
        return None


def fill_texts(catalogue: Catalogue, stop: threading.Event, on_file: Callable[[], None] = lambda: None) -> None:
    """Decode the files that have no texts yet. Rows whose ids no profile here can decode get empty texts."""
    lacking = catalogue.ask("SELECT DISTINCT file FROM facts WHERE file NOT IN (SELECT DISTINCT file FROM texts) ORDER BY file")
    for (file,) in lacking:
        if stop.is_set():
            return
        names = dict(catalogue.ask("SELECT place, profile FROM facts WHERE file = ?", [file]))
        try:
            table = pq.read_table(file, columns=["input_ids", "prompt_len"])
        except (OSError, pa.ArrowException):
            continue  # the catalogue names it
        catalogue.add("texts", _texts(file, table, names, catalogue.root.profile or "", stop))
        on_file()


def _texts(file: str, table: pa.Table, names: dict[int, str], otherwise: str, stop: threading.Event) -> pa.Table:
    column = table.column("input_ids").combine_chunks()
    ids, offsets = (
        column.flatten().to_numpy(zero_copy_only=False),
        np.concatenate([[0], np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))]),
    )
    prompts: list[str] = []
    answers: list[str] = []
    for place, prompt_len in enumerate(table.column("prompt_len").to_pylist()):
        profile = profile_named(names.get(place) or otherwise)
        start, middle, end = offsets[place], min(offsets[place] + (prompt_len or 0), offsets[place + 1]), offsets[place + 1]
        for into, run in ((prompts, ids[start:middle]), (answers, ids[middle:end])):
            into.append("" if profile is None or stop.is_set() else _text(profile, run.tolist()))
    places = pa.array(range(table.num_rows), pa.int64())
    return pa.table({"file": pa.array([file] * table.num_rows), "place": places, "prompt": prompts, "answer": answers})


def _text(profile: Profile, ids: list[int]) -> str:
    try:
        return profile.decode(ids).lower()
    except ExactError:
        return ""
