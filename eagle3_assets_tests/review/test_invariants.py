"""Each invariant catches what it is for, by its own name, and leaves innocent rows alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review import invariants
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.token_rows import JudgedRow
from eagle3_assets.review.verdicts.shares import MIN_ROWS_FOR_SHARE, pooled
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.review.made_rows import END, VOCAB, evidence, make_row, quarantined, sample_id, tiny_campaign


class LookingChecker:
    """Objects to responses that do not end as they should; remembers whom it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def grammar(self, row: JudgedRow) -> str | None:
        self.asked.append(row.sample_id)
        ended = int(row.response_ids[-1]) == END
        return None if ended == (row.finish_reason != "length") else "end of turn is not where it is due"

    def wire_text(self, row: JudgedRow) -> str | None:
        return "another text" if row.evidence.get("text") == "differs" else None

    def canonical(self, row: JudgedRow) -> bool | None:
        return row.evidence.get("again") is not False


def judge(rows: Sequence[SampleRow], **more: Any) -> dict[str, Verdict]:
    keys = {(r.sample_id, r.turn) for r in rows}
    return {v.check: v for v in invariants.judge_tokens(to_table(rows), n_vocab=VOCAB, finished_keys=keys, **more)}


def failing(rows: Sequence[SampleRow], **more: Any) -> set[str]:
    return {name for name, v in judge(rows, **more).items() if not v.passed}


GOOD = [make_row(i, prompt=3 + i % 5, response=4 + i % 9) for i in range(40)]
INNOCENT = {
    "a truncated row": make_row("x", finish_reason="length", input_ids=(1, 2, 3, 4, 5, 6), prompt_len=2, loss_spans=((2, 6),),
                                billed_prompt=2, billed_completion=4),
    "a row of one response id": make_row("x", response=1),
    "the highest id there is": make_row("x", input_ids=(0, VOCAB - 1, END), prompt_len=1, loss_spans=((1, 3),),
                                        billed_prompt=1, billed_completion=2),
    "two touching spans": make_row("x", loss_spans=((5, 8), (8, 13))),
    "spans with a gap (a tool result between)": make_row("x", loss_spans=((5, 7), (10, 13))),
    "a row without a bill": make_row("x", billed_completion=None, billed_prompt=None, grade="D", p_exact=0.5),
    "an import": make_row("x", source="import", provider=None, billed_completion=None, billed_prompt=None, grade="I"),
    "a provider that does not bill the end": make_row("x", billed_completion=7, evidence=evidence(convention={"completion": -1})),
    "an empty quarantined row": quarantined("x", "wire_text: no", input_ids=(), prompt_len=0, loss_spans=(), billed_completion=9),
    "another turn of a known sample": make_row("x", sample_id=GOOD[0].sample_id, turn=2),
    "a row with survivors": make_row("x", grade="C1", p_exact=0.97, survivors=((1, 2, 3), (4, 5, END))),
}  # fmt: skip


def test_the_checks_are_those_of_the_table() -> None:
    assert set(judge(GOOD)) == {c.name for c in CHECKS["tokens"]}
    assert not failing(GOOD, checker=LookingChecker())
    assert not failing([])


@pytest.mark.parametrize("innocent", INNOCENT.values(), ids=INNOCENT)
def test_innocent_rows_are_not_flagged(innocent: SampleRow) -> None:
    assert not failing([*GOOD, innocent], checker=LookingChecker())


BROKEN: dict[str, dict[str, Any]] = {
    "id outside the vocabulary": {"input_ids": (1, 2, 3, 4, 5, VOCAB, END)},
    "an id below zero": {"input_ids": (1, 2, 3, 4, 5, -1, END)},
    "prompt_len outside the row": {"prompt_len": 99},
    "empty span": {"loss_spans": ((6, 6), (7, 9))},
    "span outside the row": {"loss_spans": ((5, 14),)},
    "span inside the prompt": {"loss_spans": ((4, 13),)},
    "spans overlap or are out of order": {"loss_spans": ((5, 9), (8, 13))},
    "spans in the wrong order": {"loss_spans": ((9, 13), (5, 8))},
    "no supervised id": {"loss_spans": ()},
    "two rows of one sample and turn": {"sample_id": GOOD[0].sample_id},
    "survivor id outside the vocabulary": {"survivors": ((1, 2), (3, VOCAB))},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_row_fails_structure_at_any_number(name: str) -> None:
    bad = make_row("bad", **BROKEN[name])
    found = judge([*GOOD, bad])["structure"]
    assert not found.passed and found.stops
    assert bad.sample_id in found.examples
    assert "structure" not in failing(GOOD)


def test_lineage_wants_one_row_for_every_finished_answer_and_no_other() -> None:
    keys = {(r.sample_id, r.turn) for r in GOOD}
    table = to_table(GOOD)

    def lineage(keys: set[tuple[str, int]]) -> Verdict:
        return next(v for v in invariants.judge_tokens(table, n_vocab=VOCAB, finished_keys=keys) if v.check == "lineage")

    assert lineage(keys).passed
    assert lineage(keys | {("missing", 0)}).numbers["lacking"] == 1
    foreign = lineage(keys - {(GOOD[3].sample_id, 0)})
    assert not foreign.passed and foreign.examples == (GOOD[3].sample_id,)
    names = [v.check for v in invariants.judge_tokens(table, n_vocab=VOCAB)]
    assert "lineage" not in names  # not judged is not passed


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        ("grammar", make_row("bad", input_ids=(*range(1, 14),))),  # no end of turn though it stopped
        ("grammar", make_row("bad", finish_reason="length")),  # an end of turn though it was cut
        ("wire_text", make_row("bad", evidence=evidence(text="differs"))),
        ("completion_equals_bill", make_row("bad", billed_completion=9)),
        ("completion_equals_bill", make_row("bad", evidence=evidence(convention={"completion": 1}))),
        ("prompt_equals_bill", make_row("bad", billed_prompt=4)),
        ("prompt_equals_bill", make_row("bad", reasons=("prompt_equals_bill: 3 more",), grade="B1")),
    ],
)
def test_one_bad_row_that_is_not_in_quarantine_fails_its_check_alone(check: str, bad: SampleRow) -> None:
    assert failing([*GOOD, bad], checker=LookingChecker()) == {check}
    found = judge([*GOOD, bad], checker=LookingChecker())[check]
    assert found.stops and found.examples == (bad.sample_id,) and "not in quarantine" in found.message
    assert check in failing([bad], checker=LookingChecker())  # however few rows there are


@pytest.mark.parametrize("check", ["grammar", "wire_text", "completion_equals_bill", "prompt_equals_bill"])
def test_quarantined_rows_are_tolerated_up_to_the_share_of_the_table(check: str) -> None:
    def shard(bad: int) -> list[SampleRow]:
        return [*(make_row(i) for i in range(100 - bad)), *(quarantined(f"q{i}", check) for i in range(bad))]

    assert not judge(shard(5))[check].stops
    assert judge(shard(6))[check].stops
    assert judge(shard(6))[check].numbers["not_quarantined"] == 0
    assert failing(shard(5)) == set() and failing(shard(6)) == {check, "quarantined_share"}


def test_a_small_shard_leaves_the_share_to_the_dataset() -> None:
    shard = [*(make_row(i) for i in range(3)), quarantined("q", "wire_text")]
    found = judge(shard)["wire_text"]
    assert found.passed and found.numbers["share"] == 0.25 and "judged over the whole dataset" in found.message
    over_all = {v.check: v for v in pooled("tokens", [*judge(shard).values()] * 6)}
    assert over_all["wire_text"].stops and over_all["wire_text"].numbers == {
        "bad": 6,
        "total": 24,
        "share": 0.25,
        "max_share": 0.05,
    }
    assert not over_all["quarantined_share"].passed and not over_all["quarantined_share"].stops
    big = [*(make_row(i) for i in range(MIN_ROWS_FOR_SHARE - 2)), quarantined("q", "wire_text"), quarantined("r", "wire_text")]
    assert judge(big)["wire_text"].stops


def test_wrong_rows_whose_errors_cancel_pass_the_aggregate_and_fail_row_by_row() -> None:
    """8 % of the rows are wrong, their signed sum is nought: the historic figure sees nothing."""
    rows = [make_row(i, response=50, billed_completion=50 + (7 if i % 2 else -7) * (i < 16)) for i in range(200)]
    verdicts = invariants.judge_tokens(to_table(rows), n_vocab=VOCAB, finished_keys={(r.sample_id, 0) for r in rows})
    by_name = {v.check: v for v in verdicts}
    assert by_name["completion_equals_bill"].stops and by_name["completion_equals_bill"].numbers["bad"] == 16
    from eagle3_assets.review.report.billing import billing_statistics, strata_of

    report = {"billing": billing_statistics(strata_of(Columns(to_table(rows)))), "drift": None, "monitor": {"strata": []}}
    judged = {v.check: v for v in invariants.judge_report(report, {"00": verdicts}, {"00": True})}
    assert judged["aggregate_billing"].passed and judged["aggregate_billing"].numbers["relative_difference"] == 0.0
    assert judged["tokens_pass"].stops and "completion_equals_bill (shard 00" in judged["tokens_pass"].message


def test_truncated_and_noncanonical_shares_warn() -> None:
    cut = [make_row(f"c{i}", finish_reason="length") for i in range(9)]
    found = judge([*GOOD[:31], *cut])["truncated_share"]
    assert not found.passed and not found.stops and found.numbers["bad"] == 9
    engine = [
        make_row(f"e{i}", source="engine", provider=None, grade="A0", evidence=evidence("A0", again=i >= 4)) for i in range(30)
    ]
    odd = judge([*GOOD, *engine], checker=LookingChecker())["canonical"]
    assert odd.numbers["total"] == 30 and odd.numbers["bad"] == 4 and not odd.passed  # rows of OpenRouter are not asked
    own = [dataclasses.replace(r, evidence=evidence("A0", canonical=i >= 2)) for i, r in enumerate(engine)]
    assert judge(own)["canonical"].numbers["bad"] == 2 and judge(own)["canonical"].passed


def test_the_checker_is_not_asked_about_rows_that_are_out_or_broken() -> None:
    checker = LookingChecker()
    rows = [make_row(1), quarantined(2, "grammar"), make_row(3, grade="D"), make_row(4, input_ids=(VOCAB, END), prompt_len=1)]
    judge(rows, checker=checker)
    assert checker.asked == [sample_id(1)]


def test_evidence_that_is_not_json_carries_no_grade_and_is_no_exception() -> None:
    assert failing([*GOOD, make_row("x", evidence="{not json"), make_row("y", evidence="[1]")]) == {"structure", "provenance"}
    assert failing([*GOOD, quarantined("x", "wire_text: no", evidence="{not json")]) == set()


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "a C1 edited to A0": {"grade": "A0", "evidence": evidence("C1")},
    "a C1 edited to B1": {"grade": "B1", "evidence": evidence("C1")},
    "a B1 of several sequences": {"evidence": evidence("B1", hypotheses={"tried": 12, "surviving": 2, "distinct": 2})},
    "a B1 of an undecided provider": {"evidence": evidence("B1", provider_decided=False)},
    "a B1 below its floor": {"p_exact": 0.9},
    "a B1 with survivors": {"survivors": ((1, 2, END),)},
    "a D edited to I": {"grade": "I", "evidence": evidence("B1")},
    "an A0 whose text was never compared": {"grade": "A0", "evidence": evidence("A0", wire_text=False)},
    "a grade that there is not": {"grade": "A9"},
    "p_exact is NaN": {"p_exact": float("nan")},
    "p_exact above 1": {"p_exact": 1.01},
    "p_exact below 0": {"p_exact": -0.01},
    "a quarantined row that is probable": {"grade": "Q", "p_exact": 0.5, "reasons": ("wire_text: no",)},
    "another residual than the ids give": {"evidence": evidence("B1", residual={"completion": 1, "prompt": 0})},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_grade_that_its_evidence_does_not_carry_fails_structure(name: str) -> None:
    bad = make_row("bad", **UNSUPPORTED[name])
    found = judge([*GOOD, bad])["structure"]
    assert not found.passed and found.stops and bad.sample_id in found.examples
    stated = make_row("good", evidence=evidence("B1", residual={"completion": 0, "prompt": 0}))
    assert "structure" not in failing([*GOOD, stated])


def test_judging_slices_and_chunks_of_a_table_is_the_same() -> None:
    rows = [*GOOD, quarantined("q", "grammar", input_ids=(), loss_spans=(), prompt_len=0), make_row("bad", loss_spans=((4, 13),))]
    whole = to_table(rows)
    pieces = pa.concat_tables([to_table(GOOD[:1]).slice(1), to_table([make_row("no"), *rows]).slice(1, 20), whole.slice(20)])
    assert pieces.num_rows == whole.num_rows
    keys = {(r.sample_id, r.turn) for r in rows}
    results = [invariants.judge_tokens(t, n_vocab=VOCAB, finished_keys=keys) for t in (whole, pieces)]
    assert results[0] == results[1]
    assert np.array_equal(Columns(whole).supervised, Columns(pieces).supervised)


# ---------------------------------------------------------------------------------------------------- prompts, answers, report
def write_prompts(path: Path, keys: list[tuple[str, int, bool]]) -> Path:
    columns = dict(zip(("sample_id", "turn", "reserve"), map(list, zip(*keys, strict=True)), strict=True)) if keys else {}
    schema = pa.schema([("sample_id", pa.string()), ("turn", pa.int32()), ("reserve", pa.bool_())])
    pq.write_table(pa.table(columns, schema=schema) if keys else schema.empty_table(), path)
    return path


def test_prompts_need_unique_keys_and_at_least_one_row(tmp_path: Path) -> None:
    dataset = tiny_campaign().dataset[0]

    def failing_prompts(keys: list[tuple[str, int, bool]], **numbers: Any) -> set[str]:
        path = write_prompts(tmp_path / "p.parquet", keys)
        return {v.check for v in invariants.judge_prompts(path, dataset, numbers) if not v.passed}

    enough = [(f"s{i}", 0, False) for i in range(100)]
    assert failing_prompts(enough) == set()
    assert failing_prompts([*enough, ("s1", 1, False)]) == set()
    assert failing_prompts([*enough, ("s1", 0, True)]) == {"unique_ids"}
    assert failing_prompts([]) == {"rows_exist", "enough_rows"}
    assert failing_prompts([*enough[:99], ("r", 0, True)]) == {"enough_rows"}
    assert failing_prompts(enough, source_rows=150, set_aside={"empty": 31}) == {"set_aside_share"}
    assert failing_prompts(enough, source_rows=150, set_aside={"empty": 30}) == set()
    (tmp_path / "p.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(StoreError, match="materialize it again"):
        invariants.judge_prompts(tmp_path / "p.parquet", dataset, {})


def answer(i: int, **changes: Any) -> WireAnswer:
    fields: dict[str, Any] = {
        "request_id": f"r{i}", "sample_id": f"s{i}", "turn": 0, "attempt": 1, "dataset": "b3_magicoder", "shard": "00",
        "source": "openrouter", "request": {}, "status": 200, "body": b"{}", "outcome": "finished", "provider": "Moonshot AI",
        "model": "moonshotai/kimi-k2.5-0127",
    }  # fmt: skip
    return WireAnswer(**{**fields, **changes})


def failing_answers(answers: list[WireAnswer], *, selected: int = 40, closed: bool = False, **counts: int) -> set[str]:
    keys = {(f"s{i}", 0) for i in range(selected)}
    providers = ["moonshotai", "Novita"]
    judged = invariants.judge_answers(counts, answers, keys, model="moonshotai/kimi-k2.5", providers=providers, closed=closed)
    assert [v.check for v in judged] == [c.name for c in CHECKS["answers"]]
    return {v.check for v in judged if not v.passed}


def test_a_shard_is_complete_when_every_prompt_is_answered_failed_or_the_dataset_is_closed() -> None:
    whole = [answer(i) for i in range(40)]
    assert failing_answers(whole, finished=40) == set()
    assert failing_answers(whole[:39], finished=39) == {"complete"}
    assert failing_answers(whole[:39], finished=39, failed=1) == set()
    assert failing_answers(whole[:30], finished=30, closed=True) == set()
    assert failing_answers(whole[:39], finished=40, failed=1) == {"complete"}  # the manifest claims more than the journal holds
    assert failing_answers([*whole[:39], answer(39, outcome="failed")], finished=39) == {"complete"}
    assert failing_answers([*whole[:37], answer(7, attempt=2)], finished=37, failed=3) == {"failed_share"}
    assert failing_answers(whole, finished=40, ambiguous=2) == {"ambiguous_share"}


@pytest.mark.parametrize(
    "odd",
    [
        {"provider": "Fireworks"},
        {"provider": None},
        {"model": "moonshotai/kimi-k2"},
        {"model": "moonshotai/kimi-k2.5-turbo"},
        {"model": None},
    ],
)
def test_an_answer_from_another_provider_or_model_blocks(odd: dict[str, Any]) -> None:
    whole = [answer(i) for i in range(40)]
    assert failing_answers([*whole[:39], answer(39, **odd)], finished=40) == {"provider_and_model"}
    assert failing_answers([*whole[:39], answer(39, **odd, source="engine")], finished=40) == set()
    assert failing_answers([*whole, answer(3, **odd, outcome="failed")], finished=40) == set()


def test_the_report_wants_every_shard_current_and_passed() -> None:
    report = {
        "billing": {"aggregate": {"relative_difference": 0.001, "not_proved": "n"}},
        "drift": None,
        "monitor": {"strata": []},
    }
    good, bad = list(judge(GOOD).values()), list(judge([make_row("bad", billed_completion=3)]).values())

    def failing_report(verdicts: dict[str, list[Verdict]], current: dict[str, bool]) -> dict[str, Verdict]:
        return {v.check: v for v in invariants.judge_report(report, verdicts, current) if not v.passed}

    found = failing_report({"00": good, "01": good}, {"00": True, "01": True})
    assert set(found) == {"aggregate_billing"} and not found["aggregate_billing"].stops
    assert failing_report({"00": good, "01": good}, {"00": True, "01": False})["all_shards_present"].examples == ("01",)
    assert failing_report({"00": good}, {"00": True, "01": True})["all_shards_present"].stops
    found = failing_report({"00": good, "01": bad}, {"00": True, "01": True})
    assert found["tokens_pass"].stops and sample_id("bad") in found["tokens_pass"].examples
    small = list(judge([*GOOD[:3], quarantined("q", "grammar")]).values())
    pooled_up = failing_report({f"{k:02d}": small for k in range(16)}, {f"{k:02d}": True for k in range(16)})
    assert "grammar (all shards: 16 of 64" in pooled_up["tokens_pass"].message


def test_stages_before_the_answers_are_judged_on_what_they_wrote() -> None:
    def passed(verdicts: list[Verdict]) -> dict[str, bool]:
        return {v.check: v.passed for v in verdicts}

    assert passed(invariants.judge_endpoints([{"tag": "a"}], [])) == {"eligible_endpoints": True}
    assert passed(invariants.judge_endpoints([], [{"tag": "a"}])) == {"eligible_endpoints": False}
    pilot = {"spent_usd": 0.5, "endpoints": {"Alpha": {"answers": 3}, "Beta": {"answers": 0}}}
    assert passed(invariants.judge_pilot(pilot, 0.4)) == {"within_cap": False, "providers_answered": False}
    assert passed(invariants.judge_pilot({"spent_usd": 0.4, "endpoints": {"A": {"answers": 1}}}, 0.4)) == dict.fromkeys(
        ("within_cap", "providers_answered"), True
    )
    profiles = {"providers": {"Alpha": {"decided": True}, "Beta": {"decided": False}}}
    found = invariants.judge_wire_profiles(profiles)[0]
    assert not found.passed and not found.stops and found.examples == ("Beta",)
