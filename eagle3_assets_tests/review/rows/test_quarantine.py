"""Rows that a fatal invariant rejects are out with their reason; requeue sends one kind back and keeps every byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from eagle3_assets.collect.run.shard_work import ShardJob, ShardWork, read_requeued, requeue
from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import to_table
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.quarantine import put_out, with_reason
from eagle3_assets.review.rows.row_invariants import FATAL, broken_rows
from eagle3_assets.review.rows.wires import wires_of
from eagle3_assets.wire.journal import Journal, best, read
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.review.made_rows import make_row, quarantined, sample_id, tiny_campaign
from eagle3_assets_tests.review.mutations import RULES


def answer(name: str, content: str, attempt: int = 1, **changes: Any) -> WireAnswer:
    body = {
        "provider": "Alpha",
        "model": "eagle3/kimi-mini",
        "usage": {"prompt_tokens": 5, "completion_tokens": 8},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
    }
    facts: dict[str, Any] = {
        "request_id": f"{name}{attempt}",
        "sample_id": sample_id(name),
        "turn": 0,
        "attempt": attempt,
        "dataset": "b3_magicoder",
        "shard": "00",
        "source": "openrouter",
        "request": {"messages": []},
        "status": 200,
        "body": orjson.dumps(body),
        "outcome": "finished",
        "provider": "Alpha",
        "model": "eagle3/kimi-mini",
        "cost_usd": 0.001,
    }
    return WireAnswer(**{**facts, **changes})


def row(made: WireAnswer, name: str, **changes: Any) -> Any:
    import hashlib

    return make_row(name, wire_sha256=hashlib.sha256(made.body).hexdigest(), **changes)


def broken(rows: list[Any], answers: list[WireAnswer]) -> Any:
    columns = Columns(to_table(rows))
    return broken_rows(columns, wires_of(columns, answers), RULES, FATAL)


def test_a_row_that_breaks_a_fatal_invariant_is_out_and_the_rest_is_untouched() -> None:
    answers = [
        answer("good", "Fine."),
        answer("page", '{"error": {"message": "Provider returned error"}}'),
        answer("blank", "  "),
    ]
    rows = [row(a, n) for a, n in zip(answers, ("good", "page", "blank"), strict=True)]
    out = put_out(rows, broken(rows, answers))
    assert out[0] == rows[0]
    assert [(r.grade, r.p_exact, r.reasons) for r in out[1:]] == [("Q", 0.0, ("error_text",)), ("Q", 0.0, ("not_empty",))]
    assert put_out(out, broken(out, answers)) == out  # a second time changes nothing


def test_a_kind_is_picked_by_its_reason_with_the_turns_built_on_it() -> None:
    bad = quarantined("q", "wire_text: content differs")
    later, other = make_row("l", sample_id=bad.sample_id, turn=1), quarantined("o", "grammar")
    table = to_table([make_row("g"), bad, later, other])
    assert [(r["sample_id"], r["turn"]) for r in with_reason(table, "wire_text")] == [(bad.sample_id, 0), (bad.sample_id, 1)]
    assert with_reason(table, "wire") == []


def test_requeued_answers_are_asked_again_and_stay_in_the_journal(tmp_path: Path) -> None:
    folder, dataset = tmp_path / "00", tiny_campaign().dataset[0]
    prompts = tuple(
        Prompt(sample_id(n), dataset.name, 0, "00", k, [{"role": "user", "content": n}], None, 8) for k, n in enumerate("ab")
    )

    def work() -> ShardWork:
        made = ShardWork(ShardJob(dataset, "00", prompts, folder), 5)
        for found in read(folder):
            made.note(found)
        return made

    with Journal.open(folder) as journal:
        journal.append(answer("a", "one"))
        journal.append(answer("b", "two"))
    before = (folder / "segment-000.jsonl").read_bytes()
    assert work().start() == []
    requeue(folder, {(sample_id("a"), 0): 1}, "wire_text")
    again = work()
    assert [p.sample_id for p in again.start()] == [sample_id("a")] and again.next_attempt((sample_id("a"), 0)) == 2
    assert again.result().cost_usd == pytest.approx(0.002)  # money of the old answer still counts
    assert (folder / "segment-000.jsonl").read_bytes() == before
    with Journal.open(folder) as journal:
        journal.append(answer("a", "three", attempt=2))
    assert work().start() == [] and best(read(folder))[sample_id("a"), 0].attempt == 2
    (folder / "requeued.json").write_bytes(b'{"keys": [{}]}')
    with pytest.raises(StoreError, match="not a list of requeued answers"):
        read_requeued(folder)
