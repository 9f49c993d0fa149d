"""`handoff/tokens`: pre-tokenised JSONL that both trainers read for online training; no GPU needed.

    {"id": "<sample_id>/<turn>", "dataset": "...", "grade": "B1", "input_ids": [...], "loss_mask": [...]}

speculators (`prepare-data --data FILE`) and SpecForge (`data.prompts_path`) take rows with `input_ids` and `loss_mask` of
equal length as they are, without server or chat template, and drop the other keys (docs/research/eagle3-anchors.md#2.1, #2.2).
Masks are unshifted.

Belongs here: the export, its check. Does not belong here: which rows may go (`policy.py`), hidden states, the dataset card's wording
(`card.py`). There is no JSON file but the training rows in the folder: speculators reads every `.json` and `.jsonl` of a folder, and of
the folders in it, as training data. So validation rows, where the corpus has them, are packed: `validation.jsonl.gz`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson
import pyarrow.parquet as pq

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.corpus.swap import replaced_folder, whole_folder
from eagle3_assets.errors import Eagle3Error
from eagle3_assets.handoff.card import write_card
from eagle3_assets.handoff.policy import refusal, rows_as_judged
from eagle3_assets.handoff.row_table import Tally
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.store import Manifest, Store, commit

ROWS, VALIDATION, CARD = "tokens.jsonl", "validation.jsonl.gz", "README.md"
FILES = {"train": ROWS, "validation": VALIDATION}

USE = (
    "`tokens.jsonl`, one object a line: `id` (sample id / assistant turn), `dataset`, `grade`, `input_ids`, `loss_mask` (1 on ids that the "
    "target generated; unshifted). `speculators prepare-data --data tokens.jsonl` and SpecForge's `data.prompts_path` read it as it is.",
    "`validation.jsonl.gz`, where it is there: rows of prompts that no training row shares, in the same form.",
)


def export_tokens(campaign: Campaign, store: Store, *, commit_inputs: Mapping[str, Any] | None = None) -> Manifest:
    """Write `handoff/tokens/tokens.jsonl` (and `validation.jsonl.gz`) and the dataset card, in corpus order, swap the folder in and
    commit it.

    `numbers`: rows, tokens, supervised tokens, rows of each split, refused rows by reason. Raises CorpusError when no row may be handed
    on, StateError for a damaged file of verdicts.
    """
    corpus = open_corpus(store.corpus)
    tally = Tally()
    with replaced_folder(store.handoff_tokens) as folder:
        with ExitStack() as stack:
            out: dict[str, IO[bytes]] = {"train": stack.enter_context((folder / ROWS).open("wb"))}
            for pack in rows_as_judged(store, corpus):
                if (why := refusal(campaign, pack)) is not None:
                    tally.refused[why] += 1
                    continue
                split = pack.split
                if split not in out:
                    out[split] = _packed(stack, folder / VALIDATION)
                out[split].write(orjson.dumps(_line(pack), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
                tally.keep(pack)
                if pack.index % 1000 == 0:
                    publish(Step("handoff_tokens", pack.index + 1, len(corpus)))
        numbers = tally.numbers("handoff/tokens", len(corpus)) | {"p_exact": mean_p_exact(store.corpus)}
        write_card(folder / CARD, campaign, corpus.manifest, numbers, what="Pre-tokenised answers", use=USE, files=FILES)
    files = [path for path in store.handoff_tokens.iterdir() if path.is_file()]
    default = {"corpus": corpus.digest, "grades": list(campaign.handoff.grades)}
    return commit(
        store.handoff_tokens, files=files, inputs=commit_inputs if commit_inputs is not None else default, numbers=numbers
    )


def mean_p_exact(corpus: Path) -> dict[str, float]:
    """Grade -> mean p_exact of the corpus rows that came with it."""
    sums: dict[str, tuple[float, int]] = {}
    for part in sorted(corpus.glob("part-*.parquet")):
        table = pq.read_table(part, columns=["grade", "p_exact"])
        for grade, p in zip(table["grade"].to_pylist(), table["p_exact"].to_pylist(), strict=True):
            total, n = sums.get(grade, (0.0, 0))
            sums[grade] = total + p, n + 1
    return {grade: total / n for grade, (total, n) in sorted(sums.items())}


def _packed(stack: ExitStack, path: Path) -> IO[bytes]:
    """A gzip file without name and time in it: equal rows give equal bytes."""
    raw = stack.enter_context(path.open("wb"))
    packed = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
    return cast("IO[bytes]", packed)


def _line(pack: Pack) -> dict[str, Any]:
    return {
        "id": f"{pack.sample_id}/{pack.turn}",
        "dataset": pack.dataset,
        "grade": pack.grade,
        "input_ids": pack.input_ids,
        "loss_mask": pack.loss_mask,
    }


# ---------------------------------------------------------------------------------------------------- check
def judge_handoff_tokens(campaign: Campaign, store: Store) -> list[Verdict]:
    """`rows_match_corpus`: every line equals its corpus row, in order; every row that may be handed on is there, and no other."""
    corpus = open_corpus(store.corpus)
    folder = whole_folder(store.handoff_tokens)
    wrong: list[str] = []
    lines = wanted = 0
    try:
        with ExitStack() as stack:
            found: dict[str, Iterator[bytes]] = {"train": iter(stack.enter_context((folder / ROWS).open("rb")))}
            if (folder / VALIDATION).exists():
                found["validation"] = iter(stack.enter_context(gzip.open(folder / VALIDATION)))
            for pack in rows_as_judged(store, corpus):
                if refusal(campaign, pack) is not None:
                    continue
                wanted += 1
                line = next(found.get(pack.split, iter(())), None)
                lines += line is not None
                if line is None or not _equals(line, pack):
                    wrong.append(pack.sample_id)
            more = sum(1 for rest in found.values() for _ in rest)
    except (OSError, EOFError, zlib.error, Eagle3Error) as error:
        message = f"{folder}: cannot be read ({getattr(error, 'strerror', None) or error})"
        return [verdict("handoff_tokens", "rows_match_corpus", False, message)]
    wrong += ["a line that is no such row"] * min(more, 10)
    message = f"{lines + more} lines, {wanted} rows of the corpus may be handed on, {len(wrong)} lines differ from their row"
    numbers = {"lines": lines + more, "wanted": wanted, "wrong": len(wrong)}
    return [
        verdict(
            "handoff_tokens", "rows_match_corpus", not wrong and not more, message, numbers=numbers, examples=tuple(wrong[:10])
        )
    ]


def _equals(line: bytes, pack: Pack) -> bool:
    try:
        row = orjson.loads(line)
        return bool(
            row["id"] == f"{pack.sample_id}/{pack.turn}"
            and row["grade"] == pack.grade
            and np.array_equal(row["input_ids"], pack.input_ids)
            and np.array_equal(row["loss_mask"], pack.loss_mask)
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False
