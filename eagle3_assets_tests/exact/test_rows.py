"""Claims about rows: one a sample and turn, from the attempt that counts, with what a reader needs to trust or refuse it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.checker import Checker
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow, read_table, rows_of, write_rows
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.wire_profiles import learn
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the review hands to the checker."""

    row: SampleRow
    sample_id: str
    turn: int
    attempt: int
    finish_reason: str | None
    evidence: dict[str, object]
    response_ids: object


def judged(row: SampleRow) -> Judged:
    ids = np.array(row.input_ids[row.prompt_len :], dtype=np.int32)
    return Judged(row, row.sample_id, row.turn, row.attempt, row.finish_reason, json.loads(row.evidence), ids)


def test_the_highest_finished_attempt_counts_and_failures_give_no_row(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    first = provider.answer(Truth(content="One."))
    second = dataclasses.replace(provider.answer(Truth(content="Two.")), sample_id=first.sample_id, attempt=2)
    third = dataclasses.replace(provider.answer(Truth(content="Three.")), sample_id=first.sample_id, attempt=3, outcome="failed")
    lost = provider.answer(Truth(), outcome="ambiguous")
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [second, first, third, lost], None)
    assert [(row.sample_id, row.attempt) for row in rows] == [(first.sample_id, 2)]
    assert "Two." in mini.decode(rows[0].input_ids)
    assert rows[0].wire_sha256 == hashlib.sha256(second.body).hexdigest()


def test_rows_survive_the_file_and_carry_what_was_sent_and_billed(mini: Profile, campaign: Campaign, tmp_path: Path) -> None:
    provider = Provider(mini)
    answer = provider.answer(Truth(reasoning=" emoji 😀", content="\x1b[31m<script>"), cost_usd=0.25)
    answer.request.update(temperature=1.0, top_p=0.95, max_tokens=77)
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [answer], None)
    write_rows(tmp_path / "00.parquet", rows)
    back = list(rows_of(read_table(tmp_path / "00.parquet")))
    assert back == rows
    row = back[0]
    assert (row.temperature, row.top_p, row.max_tokens, row.cost_usd) == (1.0, 0.95, 77, 0.25)
    assert row.billed_completion == len(row.input_ids) - row.prompt_len and row.tokenizer_sha256 == mini.tokenizer_sha256
    assert json.loads(row.evidence)["residual"] == {"prompt": 0, "completion": 0, "reasoning": None}


def test_imports_measure_canonicity_and_never_assume_it(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    answers = [provider.answer(Truth(content=text), with_ids=True, no_usage=True, source="import") for text in ("One.", "user")]
    body = json.loads(answers[1].body)
    ids = body["choices"][0]["token_ids"]
    at = ids.index(mini.special("</think>")) + 1
    body["choices"][0]["token_ids"] = [*ids[:at], *(mini.encode(char)[0] for char in "user"), ids[-1]]
    answers[1] = dataclasses.replace(answers[1], body=json.dumps(body).encode())
    rows = build_rows(mini, campaign, campaign.dataset_named("a1_deepswekimi"), answers, None)
    assert [row.grade for row in rows] == ["A0", "A0"]
    assert [json.loads(row.evidence)["canonical"] for row in rows] == [True, False]


def test_the_checker_confirms_good_rows_and_catches_changed_ones(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini, bends="injects")
    for text in sentences(mini, 60, neutral=None):
        provider.answer(Truth(" " + text, text, calls=(("f", '{"a": 1}'),), finish="tool_calls"))
    dataset = campaign.dataset_named("b3_magicoder")
    rows = build_rows(mini, campaign, dataset, provider.answers, learn(mini, provider.answers))
    checker = Checker(mini, provider.answers)
    assert {row.grade for row in rows} == {"B1"}
    for row in rows:
        assert checker.grammar(judged(row)) is None and checker.wire_text(judged(row)) is None and checker.canonical(judged(row))
    good = rows[0]
    no_end = dataclasses.replace(good, input_ids=good.input_ids[:-1])
    assert "end of turn" in (checker.grammar(judged(no_end)) or "")
    other = list(good.input_ids)
    other[good.prompt_len] = mini.encode("Z")[0]
    assert "reasoning differs" in (checker.wire_text(judged(dataclasses.replace(good, input_ids=tuple(other)))) or "")
    spaceless = dataclasses.replace(good, evidence=json.dumps({**json.loads(good.evidence), "edits": {}}))
    assert checker.wire_text(judged(spaceless)) is not None, "without its edits the row does not give the wire's text"
    assert checker.wire_text(judged(dataclasses.replace(good, attempt=2))) == "the journal has no such answer"
