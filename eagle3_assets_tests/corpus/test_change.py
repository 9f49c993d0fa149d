"""Building a corpus again says what that changes, and why; a row leads back to the answer it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.change import reasons
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.provenance import journal_record, journal_records
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.progress import Step, listening
from eagle3_assets.store import Store, manifest_path
from eagle3_assets.wire.journal import Journal
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.corpus.test_joined_turns import session
from eagle3_assets_tests.review.made_rows import make_row, tiny_campaign, write_tokens

OLD = [make_row(i) for i in range(40)]
NEW = [make_row(("new", i), dataset="b8_sweagent") for i in range(10)]


def build(campaign: Campaign, store: Store, *datasets: list[SampleRow]) -> dict[str, Any]:
    files = [write_tokens(store, rows[0].dataset, "00", rows) for rows in datasets]
    change: dict[str, Any] = build_corpus(campaign, store, files).numbers["change"]
    return change


@pytest.mark.slow
def test_a_first_corpus_says_that_it_is_one(tmp_path: Path) -> None:
    assert build(tiny_campaign(), Store(tmp_path), OLD) == {"first": True, "message": "a new corpus: 40 rows in 4 parts"}


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    build(tiny_campaign(), Store(tmp_path), OLD)
    change = build(tiny_campaign(), Store(tmp_path), OLD)
    assert change["parts"] == {"same": 4, "rewritten": 0, "new": 0, "gone": 0} and change["why"] == []
    assert change["rows"] == {"same_part": 40, "added": 0, "removed": 0, "other_part": 0}
    assert change["message"] == "0 rows join, 0 leave, 0 move to another part; 4 of 4 parts stay as they are"


def test_a_dataset_that_joins_says_what_it_rewrites_and_how_to_avoid_it(tmp_path: Path) -> None:
    build(tiny_campaign(), Store(tmp_path), OLD)
    told: list[Step] = []
    with listening(told.append):
        change = build(tiny_campaign(), Store(tmp_path), OLD, NEW)
    assert change["why"] == ["dataset b8_sweagent joined"] and change["rows"]["added"] == 10 and change["rows"]["removed"] == 0
    assert (
        change["parts"]["rewritten"] == 4
        and "4 change or go, and their hidden states have to be extracted again" in change["message"]
    )
    assert "additions = [['b8_sweagent']] would put their rows behind the old parts" in change["message"]
    notes = [s.note for s in told]
    assert notes.index(change["message"]) < notes.index("write part 00000")  # before anything is written


def test_an_addition_says_that_the_old_parts_stay(tmp_path: Path) -> None:
    build(tiny_campaign(), Store(tmp_path), OLD)
    change = build(tiny_campaign(corpus={"additions": (("b8_sweagent",),)}), Store(tmp_path), OLD, NEW)
    assert change["parts"] == {"same": 4, "rewritten": 0, "new": 1, "gone": 0}
    assert change["why"] == ["corpus.additions was [] and is [['b8_sweagent']]", "dataset b8_sweagent joined"]
    assert change["message"].endswith("4 of 4 parts stay as they are, 1 are new") and change["rows"]["same_part"] == 40


def test_figures_learned_anew_leave_the_parts(tmp_path: Path) -> None:
    """p_exact is written into the archive, and does not touch hidden states."""
    build(tiny_campaign(), Store(tmp_path), OLD)
    change = build(tiny_campaign(), Store(tmp_path), [make_row(i, p_exact=0.97) for i in range(40)])
    assert change["parts"]["same"] == 4 and change["why"] == ["1 of 1 token files of b3_magicoder changed"]


def test_reasons_name_each_cause() -> None:
    old = {"code": 1, "seed": 7, "policy": {"shards": 4, "min_p_exact": 0.9}, "tokens": {"a/00": "x", "a/01": "y", "b/00": "z"}}
    new = {"code": 2, "seed": 8, "policy": {"shards": 8, "min_p_exact": 0.9}, "tokens": {"a/00": "x", "a/01": "Y", "c/00": "z"}}
    assert reasons(old, old) == []
    assert reasons(old, new) == [
        "the code that builds it is newer", "campaign.seed was 7 and is 8", "corpus.shards was 4 and is 8", "dataset c joined",
        "dataset b left", "1 of 2 token files of a changed",
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["index.parquet", "manifest.json"])
def test_a_damaged_old_corpus_is_no_obstacle(tmp_path: Path, damage: str) -> None:
    build(tiny_campaign(), Store(tmp_path), OLD)
    (Store(tmp_path).corpus / damage).write_bytes(b"torn")
    assert build(tiny_campaign(), Store(tmp_path), OLD)["first"]


def test_an_old_corpus_without_its_record_is_compared_and_no_cause_is_invented(tmp_path: Path) -> None:
    store = Store(tmp_path)
    build(tiny_campaign(), store, OLD)
    manifest_path(store.corpus).unlink()
    change = build(tiny_campaign(), store, OLD)
    assert change["parts"]["same"] == 4 and change["why"] == ["what the old one was made from is not on record"]


# ---------------------------------------------------------------------------------------------------- back to the wire
def answered(store: Store, rows: list[SampleRow]) -> list[SampleRow]:
    """Write a journal in which each row has a failed attempt 1 and a finished attempt 2; the rows are those of attempt 2."""
    out = []
    with Journal.open(store.answers("b3_magicoder", "00")) as journal:
        for row in rows:
            for attempt, outcome in ((1, "failed"), (2, "finished")):
                body = f"body of {row.sample_id} {row.turn} {attempt}".encode()
                journal.append(
                    WireAnswer(
                        request_id=f"{row.sample_id}-{row.turn}-{attempt}", sample_id=row.sample_id, turn=row.turn, attempt=attempt,
                        dataset="b3_magicoder", shard="00", source="openrouter", request={}, status=200, body=body, outcome=outcome,
                    )
                )  # fmt: skip
            sha = hashlib.sha256(body).hexdigest()
            out.append(make_row("", **{**{f: getattr(row, f) for f in row.__slots__}, "attempt": 2, "wire_sha256": sha}))
    return out


def test_every_row_leads_back_to_its_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    build(tiny_campaign(), store, answered(store, OLD[:5]))
    c = corpora.open(store.corpus)
    for k, pack in enumerate(c):
        found = journal_record(store, c.lineage(k))
        assert (found.sample_id, found.attempt, found.body) == (pack.sample_id, 2, f"body of {pack.sample_id} 0 2".encode())
        assert found == journal_record(store, c.archive(pack.part).to_pylist()[[p.index for p in c.part(pack.part)].index(k)])


def test_a_joined_row_leads_back_to_all_of_its_answers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = session((5, 4, True), (3, 2, True), (1, 6, True))
    build(tiny_campaign(corpus={"join_turns": True}), store, answered(store, rows))
    found = list(journal_records(store, corpora.open(store.corpus).lineage(0)))
    assert [(f.turn, f.attempt, f.outcome) for f in found] == [(0, 2, "finished"), (1, 2, "finished"), (2, 2, "finished")]


def test_a_row_whose_answer_is_gone_or_another_one_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (row,) = answered(store, OLD[:1])
    facts = {f: getattr(row, f) for f in row.__slots__}
    assert journal_record(store, facts).attempt == 2
    with pytest.raises(CorpusError, match="has another body than the one that the row was made from"):
        journal_record(store, {**facts, "wire_sha256": "0" * 64})
    with pytest.raises(CorpusError, match="turn 3 attempt 2"):
        journal_record(store, {**facts, "turn": 3})


@pytest.mark.slow
def test_lineage_is_that_of_the_row_asked_for_in_any_part_and_row_group(tmp_path: Path) -> None:
    build(tiny_campaign(corpus={"shards": 2}), Store(tmp_path), [make_row(i) for i in range(300)])
    c = corpora.open(Store(tmp_path).corpus)
    assert [c.lineage(k)["sample_id"] for k in range(len(c))] == [p.sample_id for p in c]
    assert c.lineage(-1)["sample_id"] == c[-1].sample_id and "input_ids" not in c.lineage(0)
