"""`handoff/tokens`: pre-tokenised JSONL that both trainers read for online training; no GPU needed.

    {"id": "<sample_id>/<turn>", "dataset": "...", "grade": "B1", "input_ids": [...], "loss_mask": [...]}

speculators (`prepare-data --data FILE`) and SpecForge (`data.prompts_path`) take rows with `input_ids` and `loss_mask` of
equal length
as they are, without server or chat template, and drop the other keys (eagle3-anchors.md 2.1, 2.2). Masks are unshifted.

Belongs here: the final grade policy, the export, its check. Does not belong here: hidden states, the dataset card's wording
(`card.py`). There is no JSON file but the rows in the folder: speculators reads every `.json` and `.jsonl` of a folder as data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.reader import Corpus, open_corpus
from eagle3_assets.corpus.swap import replaced_folder, whole_folder
from eagle3_assets.errors import CorpusError
from eagle3_assets.handoff.card import write_card
from eagle3_assets.progress import Step, publish
from eagle3_assets.review.table import verdict
from eagle3_assets.review.verdict import Verdict
from eagle3_assets.store import Manifest, Store, commit

ROWS, CARD = "tokens.jsonl", "README.md"

REFUSALS = {
    "awaits_model_verdict": "grade C1: left out until the target model has chosen among the survivors",
    "grade_not_admitted": "the grade is not in handoff.grades",
    "import_not_trusted": "grade I, and the dataset does not say trusted = true",
    "nothing_supervised": "no supervised id",
}


def refusal(campaign: Campaign, pack: Pack) -> str | None:
    """Why a corpus row is not handed on (the first reason of `REFUSALS` that holds), or None."""
    if pack.grade == "C1":
        return "awaits_model_verdict"
    if pack.grade not in campaign.handoff.grades:
        return "grade_not_admitted"
    if pack.grade == "I" and not any(d.name == pack.dataset and d.trusted for d in campaign.dataset):
        return "import_not_trusted"
    return None if pack.loss_mask.any() else "nothing_supervised"


def export_tokens(campaign: Campaign, store: Store, *, commit_inputs: Mapping[str, Any] | None = None) -> Manifest:
    """Write `handoff/tokens/tokens.jsonl` and its dataset card, in corpus order, swap the folder in and commit it.

    `numbers`: rows, tokens, supervised tokens, refused rows by reason. Raises CorpusError when no row may be handed on.
    """
    corpus = open_corpus(store.corpus)
    refused: Counter[str] = Counter()
    kept: dict[str, dict[str, Any]] = {}
    with replaced_folder(store.handoff_tokens) as folder:
        with (folder / ROWS).open("wb") as out:
            for pack in corpus:
                why = refusal(campaign, pack)
                if why is not None:
                    refused[why] += 1
                    continue
                out.write(orjson.dumps(_row(pack), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
                _count(kept, pack)
                if pack.index % 1000 == 0:
                    publish(Step("handoff_tokens", pack.index + 1, len(corpus)))
        if not kept:
            why_not = ", ".join(f"{n} {reason}" for reason, n in sorted(refused.items()))
            raise CorpusError(
                f"handoff/tokens: none of {len(corpus)} corpus rows may be handed on ({why_not}); look at [handoff] grades"
            )
        numbers = {
            "rows": sum(d["rows"] for d in kept.values()),
            "tokens": sum(d["tokens"] for d in kept.values()),
            "supervised_tokens": sum(d["supervised_tokens"] for d in kept.values()),
            "refused": {reason: refused[reason] for reason in REFUSALS if refused[reason]},
            "datasets": dict(sorted(kept.items())),
        }
        write_card(folder / CARD, campaign, corpus.manifest, numbers, REFUSALS)
    files = [store.handoff_tokens / name for name in (ROWS, CARD)]
    inputs = commit_inputs if commit_inputs is not None else {"corpus": corpus.digest, "grades": list(campaign.handoff.grades)}
    return commit(store.handoff_tokens, files=files, inputs=inputs, numbers=numbers)


def _row(pack: Pack) -> dict[str, Any]:
    return {
        "id": f"{pack.sample_id}/{pack.turn}",
        "dataset": pack.dataset,
        "grade": pack.grade,
        "input_ids": pack.input_ids,
        "loss_mask": pack.loss_mask,
    }


def _count(kept: dict[str, dict[str, Any]], pack: Pack) -> None:
    facts = kept.setdefault(pack.dataset, {"rows": 0, "tokens": 0, "supervised_tokens": 0, "grades": {}})
    facts["rows"] += 1
    facts["tokens"] += len(pack.input_ids)
    facts["supervised_tokens"] += int(pack.loss_mask.sum())
    facts["grades"][pack.grade] = facts["grades"].get(pack.grade, 0) + 1


# ---------------------------------------------------------------------------------------------------- check
def judge_handoff_tokens(campaign: Campaign, store: Store) -> list[Verdict]:
    """`rows_match_corpus`: every line equals its corpus row, in order; every row that may be handed on is there, and no other."""
    corpus = open_corpus(store.corpus)
    path = whole_folder(store.handoff_tokens) / ROWS
    wanted = [p.index for p in corpus if refusal(campaign, p) is None]
    wrong: list[str] = []
    lines = 0
    try:
        with path.open("rb") as handle:
            for i, fault in enumerate(_faults(handle, corpus, wanted)):
                lines = i + 1
                if fault:
                    wrong.append(fault)
    except OSError as error:
        return [verdict("handoff_tokens", "rows_match_corpus", False, f"{path}: cannot be read ({error.strerror})")]
    ok = not wrong and lines == len(wanted)
    message = f"{lines} lines, {len(wanted)} rows of the corpus may be handed on, {len(wrong)} lines differ from their row"
    numbers = {"lines": lines, "wanted": len(wanted), "wrong": len(wrong)}
    return [verdict("handoff_tokens", "rows_match_corpus", ok, message, numbers=numbers, examples=tuple(wrong[:10]))]


def _faults(lines: Any, corpus: Corpus, wanted: list[int]) -> Iterator[str | None]:
    """For each line the id of the row that it should equal and does not, or None."""
    for i, line in enumerate(lines):
        if i >= len(wanted):
            yield f"line {i + 1}: no such row"
            continue
        pack = corpus[wanted[i]]
        try:
            row = orjson.loads(line)
            same = (
                row["id"] == f"{pack.sample_id}/{pack.turn}"
                and np.array_equal(row["input_ids"], pack.input_ids)
                and np.array_equal(row["loss_mask"], pack.loss_mask)
            )
        except (orjson.JSONDecodeError, KeyError, TypeError):
            same = False
        yield None if same else pack.sample_id
