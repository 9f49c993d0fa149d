"""Claims about rows: one a sample and turn, from the attempt that counts, with what a reader needs to trust or refuse it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from eagle3_assets.campaign import Campaign, Sampling
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow, read_table, rows_of, write_rows
from eagle3_assets.exact.second_opinion.checker import Checker
from eagle3_assets.review.rows.quarantine import rules_of
from eagle3_assets.review.rows.shard_rows import judge_rows
from eagle3_assets.store import write_json
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.parse import parse_fields
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
    input_ids: tuple[int, ...]
    prompt_len: int


def judged(row: SampleRow) -> Judged:
    ids = np.array(row.input_ids[row.prompt_len :], dtype=np.int32)
    return Judged(
        row, row.sample_id, row.turn, row.attempt, row.finish_reason, json.loads(row.evidence), ids, row.input_ids, row.prompt_len
    )


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


def test_of_two_records_of_one_attempt_rows_and_checks_take_the_same(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    first = provider.answer(Truth(content="One."))
    again = dataclasses.replace(provider.answer(Truth(content="Two.")), sample_id=first.sample_id)
    assert first.attempt == again.attempt
    (row,) = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [first, again], None)
    assert row.wire_sha256 == hashlib.sha256(journal.best([first, again])[first.key].body).hexdigest()


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


def test_a_dataset_with_its_own_sampling_is_judged_by_it(mini: Profile, campaign: Campaign) -> None:
    """Each row is sent with its dataset's temperature and top_p; the campaign's are another dataset's."""
    usual = campaign.dataset_named("b3_magicoder")
    own = usual.model_copy(update={"sampling": Sampling(temperature=0.7, top_p=1.0)})
    provider = Provider(mini)
    sent, asked_otherwise = (
        provider.answer(Truth(content=f"Number {k}."), source="engine", with_ids=True, model=campaign.target.model)
        for k in range(2)
    )
    sent.request.update(temperature=0.7, top_p=1.0, max_tokens=64)
    asked_otherwise.request.update(temperature=campaign.sampling.temperature, top_p=campaign.sampling.top_p, max_tokens=64)
    answers = [sent, asked_otherwise]
    for dataset, fitting in ((own, sent), (usual, asked_otherwise)):
        made = build_rows(mini, campaign, dataset, answers, None)
        rows = judge_rows(made, answers, rules_of(campaign, dataset, mini), Checker(mini, answers), mini.n_vocab).rows
        assert {row.sample_id: row.grade for row in rows} == {a.sample_id: "A0" if a is fitting else "Q" for a in answers}
        assert {reason for row in rows for reason in row.reasons} == {"sampling"}


def test_wire_profiles_of_another_target_are_refused(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    answers = [provider.answer(Truth(content=text)) for text in sentences(mini, 12, neutral=None)]
    learned, dataset = learn(mini, answers), campaign.dataset_named("b3_magicoder")
    assert len(build_rows(mini, campaign, dataset, answers, learned)) == len(answers)
    for other in ({"profile": "kimi-k2.5"}, {"tokenizer_sha256": "0" * 64}, {"profile": None}):
        with pytest.raises(ExactError, match="learn it again"):
            build_rows(mini, campaign, dataset, answers, {**learned, **other})


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
    wrong_prompt = (*good.input_ids[:2], good.input_ids[2] ^ 1, *good.input_ids[3:])
    assert "no rendering of the request" in (checker.wire_text(judged(dataclasses.replace(good, input_ids=wrong_prompt))) or "")


def test_the_checker_holds_server_ids_against_those_that_were_returned(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    answer = provider.answer(Truth(), with_ids=True, source="engine")
    bare = json.loads(provider.answer(Truth(), with_ids=True, source="engine").body)
    del bare["prompt_token_ids"]
    no_prompt = dataclasses.replace(provider.answers[1], body=json.dumps(bare).encode())
    checker = Checker(mini, [answer, no_prompt])
    rows = build_rows(mini, campaign, campaign.dataset_named("b1_glaive"), [answer, no_prompt], None)
    assert [row.grade for row in rows] == ["A0", "A0"]
    for row in rows:
        assert checker.wire_text(judged(row)) is None
        changed = dataclasses.replace(row, input_ids=(row.input_ids[0] ^ 1, *row.input_ids[1:]))
        assert "prompt ids" in (checker.wire_text(judged(changed)) or "")


# A body's text goes into JSON and Parquet, which hold no lone surrogate; \\ud800 in JSON is one.
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (b'"provider": "P"', b'"provider": "P", "id": "gen-\\ud800"', "generation_id"),
        (b'"finish_reason": "stop"', b'"finish_reason": "stop", "native_finish_reason": "\\udfff"', "native_finish_reason"),
        (b'"provider": "P"', b'"provider": "P", "model": "kimi\\ud800"', "model"),
        (b'"provider": "P"', b'"provider": "\\ud800"', "provider"),
        (b'"finish_reason": "stop"', b'"finish_reason": "\\ud800"', "finish_reason"),
    ],
)
def test_one_poisoned_name_never_stops_a_shard(
    mini: Profile, campaign: Campaign, tmp_path: Path, old: bytes, new: bytes, word: str
) -> None:
    provider = Provider(mini)
    good, bad = (provider.answer(Truth(content=text), provider=None) for text in ("One.", "Two."))
    assert old in bad.body
    bad = dataclasses.replace(bad, body=bad.body.replace(old, new))
    write_json(tmp_path / "wire_profiles.json", learn(mini, [good, bad]))
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [good, bad], learn(mini, [good, bad]))
    write_rows(tmp_path / "00.parquet", rows)
    back = list(rows_of(read_table(tmp_path / "00.parquet")))
    assert (
        back == rows
        and all(reason.startswith("open: ") for reason in back[0].reasons)
        and any(reason.startswith(f"{word}: ") for reason in back[1].reasons)
    )
    assert "?" in str(getattr(back[1], word))
    assert (back[1].grade == "Q") is (word == "finish_reason"), "a name does not touch the ids; an unknown end does"


def test_an_escaped_surrogate_in_tool_arguments_is_one_row_in_quarantine(mini: Profile, campaign: Campaign) -> None:
    provider = Provider(mini)
    calls = (("f", '{"a":"\\ud800"}'),)
    answer = provider.answer(Truth(content="", calls=calls, finish="tool_calls"), bill_shift=5)
    (row,) = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [answer], None)
    assert row.grade == "Q" and row.reasons[0].startswith("completion_equals_bill: ")


@pytest.mark.parametrize("cost", [-1.0, 1.7e308, float("nan"), float("inf"), True, "0.1", 10**400])
def test_a_price_that_can_be_none_is_none_whoever_states_it(mini: Profile, campaign: Campaign, cost: object) -> None:
    provider = Provider(mini)
    body = json.loads(provider.answer(Truth()).body)
    body["usage"]["cost"] = cost
    bodied = dataclasses.replace(provider.answers[0], body=json.dumps(body).encode())
    assert parse_fields(bodied.body).cost_usd is None
    settled = provider.answer(Truth(), cost_usd=cost)
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [bodied, settled], None)
    assert [row.cost_usd for row in rows] == [None, None]


def test_what_was_not_settled_is_not_taken_from_the_body(mini: Profile, campaign: Campaign) -> None:
    body = json.loads(Provider(mini).answer(Truth()).body)
    body["usage"]["cost"] = 0.5
    answer = dataclasses.replace(Provider(mini).answer(Truth()), body=json.dumps(body).encode())
    (row,) = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [answer], None)
    assert row.cost_usd is None and parse_fields(answer.body).cost_usd == 0.5
