"""Claims about the audit: what one blind rebuild says, rates with bounds that hold, and what others may read."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.search.canonicality import noncanonical_regions
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.second_opinion.audit import Audit, Judged, Rate, Rates, rates_of, read, summarize, with_rates, write
from eagle3_assets.exact.second_opinion.blind import judge, true_ids
from eagle3_assets.intervals import interval
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import tokens
from eagle3_assets.store import Store
from eagle3_assets.targets.grammar import Parts
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences


def answered(profile: Profile, truth: Truth, **changes: Any) -> tuple[dict[str, Any], Fields]:
    made = Provider(profile).answer(truth, **changes)
    return made.request, parse_fields(made.body)


def judged(profile: Profile, request: dict[str, Any], fields: Fields) -> Judged | None:
    return judge(profile, request, fields, None, provider="P", dataset="d", source="engine")


def logprobs(profile: Profile, ids: tuple[int, ...]) -> tuple[dict[str, Any], ...]:
    pieces = [profile.encoding.decode_single_token_bytes(token) for token in ids]
    return tuple({"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": -0.1} for piece in pieces)


# ---------------------------------------------------------------------------------------------------- one answer
def test_an_answer_with_ids_is_rebuilt_without_them_and_compared(mini: Profile) -> None:
    request, fields = answered(mini, Truth(), with_ids=True)
    found = judged(mini, request, fields)
    assert found is not None and (found.truth, found.exact, found.same_count, found.regions) == ("server_ids", True, True, 0)
    assert found.grade == "C1" and found.length == fields.billed_completion and found.prompt_exact


def split_somewhere(profile: Profile, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The same text with one token cut in two."""
    for k, token in enumerate(ids):
        data = profile.encoding.decode_single_token_bytes(token)
        if token < profile.n_base and len(data) > 2 and data.isalpha():
            halves = (profile.encode(data[:1].decode())[0], *profile.encode(data[1:].decode()))
            return (*ids[:k], *halves, *ids[k + 1 :])
    raise AssertionError("no such token")


def test_ids_that_are_not_canonical_are_wrong_and_counted_as_regions(mini: Profile) -> None:
    request, fields = answered(mini, Truth(content="The market of the river"), with_ids=True)
    assert fields.output_ids is not None
    odd = split_somewhere(mini, fields.output_ids)
    found = judged(mini, request, dataclasses.replace(fields, output_ids=odd, billed_completion=len(odd)))
    assert found is not None and (found.exact, found.regions) == (False, 1)


def test_regions_are_counted_field_by_field(mini: Profile) -> None:
    canonical = tuple(mini.encode("The market of the river"))
    assert noncanonical_regions(mini, Parts(canonical, canonical)) == 0
    odd = split_somewhere(mini, canonical)
    assert noncanonical_regions(mini, Parts(odd, odd)) == 2
    assert noncanonical_regions(mini, Parts(tuple(mini.encode("😀")[:1]))) == 0, "a cut inside a character is no segmentation"


def test_logprob_bytes_are_ids_with_and_without_the_end_of_turn(mini: Profile) -> None:
    request, fields = answered(mini, Truth(content="Grüße 😀"), with_ids=True)
    ids = fields.output_ids or ()
    told = dataclasses.replace(fields, output_ids=None, prompt_ids=None)
    for entries in (logprobs(mini, ids), logprobs(mini, ids[:-1])):
        assert true_ids(mini, dataclasses.replace(told, logprobs=entries), thinking=True, truncated=False) == (
            ids,
            "logprob_bytes",
        )
    named = tuple({"token": f"token_id:{token}"} for token in ids)
    found = judged(mini, request, dataclasses.replace(told, logprobs=named))
    assert found is not None and found.exact and found.prompt_exact is None


@pytest.mark.parametrize(
    "entry", [{"token": "\ufffd", "bytes": [239, 191, 189]}, {"token": "no such token at all"}, {"bytes": [300]}, {}]
)
def test_one_entry_that_is_no_token_makes_the_answer_unknown(mini: Profile, entry: dict[str, Any]) -> None:
    request, fields = answered(mini, Truth(), with_ids=True)
    entries = (*logprobs(mini, fields.output_ids or ())[:-2], entry)
    assert judged(mini, request, dataclasses.replace(fields, output_ids=None, logprobs=entries)) is None


def test_ids_that_do_not_spell_the_text_are_no_truth(mini: Profile) -> None:
    request, fields = answered(mini, Truth(), with_ids=True)
    assert judged(mini, request, dataclasses.replace(fields, content="Another answer.")) is None
    assert judged(mini, request, dataclasses.replace(fields, output_ids=(fields.output_ids or ())[:-1])) is None
    assert judged(mini, request, dataclasses.replace(fields, output_ids=None)) is None


# ---------------------------------------------------------------------------------------------------- rates
def a_row(**changes: Any) -> Judged:
    row = Judged("P", "d", False, "server_ids", 100, True, True, 0, "B1", 0.99)
    return dataclasses.replace(row, **changes)


def test_the_rates_are_those_of_the_formula(mini: Profile) -> None:
    rows = [a_row() for _ in range(95)] + [a_row(exact=False, same_count=k < 2, regions=1) for k in range(5)]
    rates = rates_of(rows)
    assert (rates.q.events, rates.q.value, rates.f0.value) == (5, 0.05, 0.4)
    assert rates.lambda_per_id.value == 5 / 10_000 and rates.enough
    # docs/research/exactness.md#3.6: q = 5 %, f0 = 0.40 gives 0.979
    assert rates.p_exact(100) == pytest.approx(0.95 / (0.95 + 0.05 * 0.4))
    assert rates.p_exact(100) == pytest.approx(0.979, abs=5e-4)
    assert rates.p_exact(1000) < rates.p_exact(100) < rates.p_exact(10), "longer answers are likelier to hold a region"


def test_no_error_is_no_proof(mini: Profile) -> None:
    """docs/research/exactness.md#3.7: n answers without an error leave up to about 3/n (one-sided; 3.7/n two-sided)."""
    assert Rate.of(0, 299).high == pytest.approx(3.7 / 299, rel=0.02) and Rate.of(0, 299).low == 0.0
    assert rates_of([]).q == Rate(0, 0, 0.0, 0.0, 1.0) and not rates_of([a_row()] * 29).enough


def test_bounds_cover_the_true_rate_as_often_as_they_say() -> None:
    chance, q, covered = random.Random("audit"), 0.03, 0
    for _ in range(400):
        low, high = interval(sum(chance.random() < q for _ in range(150)), 150)
        covered += low <= q <= high
    assert covered / 400 >= 0.95


def test_bounds_are_clopper_and_pearsons() -> None:
    """R: binom.test(5, 100)$conf.int; binom.test(0, 20); binom.test(20, 20)."""
    assert interval(5, 100) == pytest.approx((0.0164319, 0.1128349), abs=1e-6)
    assert interval(0, 20) == pytest.approx((0.0, 0.1684335), abs=1e-6)
    assert interval(20, 20) == pytest.approx((0.8315665, 1.0), abs=1e-6)


# ---------------------------------------------------------------------------------------------------- the file
def test_only_an_audited_stratum_has_rates(mini: Profile, tmp_path: Path) -> None:
    rows = [a_row() for _ in range(40)] + [a_row(provider="Q", tools=True, exact=False, grade="Q") for _ in range(3)]
    write(tmp_path / "audit.json", summarize(mini, rows, unknown=2))
    found = read(tmp_path / "audit.json")
    assert found is not None and found.tokenizer_sha256 == mini.tokenizer_sha256
    assert found.rates("P", "d", False) == rates_of(rows[:40])
    assert found.rates("Q", "d", True) is None, "three answers say nothing"
    assert found.rates("P", "d", True) is found.rates("P", "e", False) is None
    assert found.pooled.rows == 43 and found.pooled.q.events == 3
    raw = json.loads((tmp_path / "audit.json").read_text())
    assert raw["truth"] == {"server_ids": 43, "logprob_bytes": 0, "unknown": 2}
    assert raw["grades"]["B1"]["exact"]["events"] == 40 and raw["grades"]["B1"]["mean_p_exact"] == pytest.approx(0.99)


def test_no_audit_is_none_and_a_damaged_one_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    assert read(path) is None
    for text in ("{", "[]", "{}", '{"version": 9}', '{"version": 1, "strata": [{}]}', '{"version": 1, "strata": 3, "pooled": 1}'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"eagle3 audit") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_rates_go_through_the_file_unchanged(mini: Profile, tmp_path: Path) -> None:
    rows = [a_row(exact=k % 7 > 0, same_count=k % 14 > 0, regions=k % 3, length=50 + k) for k in range(60)]
    write(tmp_path / "a.json", summarize(mini, rows))
    found = read(tmp_path / "a.json")
    assert found is not None and isinstance(found.pooled, Rates) and found.pooled == rates_of(rows)


# ---------------------------------------------------------------------------------------------------- what rows take from it
def test_only_rows_of_an_audited_stratum_are_called_audited_and_never_above_what_was_measured(mini: Profile) -> None:
    campaign = load_campaign("demo")
    dataset = campaign.dataset_named("b3_magicoder")
    provider = Provider(mini)
    for text in sentences(mini, 60, neutral=None):
        provider.answer(Truth(" " + text, text))
    learned = learn(mini, provider.answers)
    good = [a_row(provider="P", dataset="b3_magicoder") for _ in range(300)]
    poor = [a_row(provider="P", dataset="b3_magicoder", exact=k % 5 > 0, same_count=True) for k in range(300)]
    elsewhere = [a_row(provider="other", dataset="b3_magicoder") for _ in range(300)]
    found = {}
    for name, rows in (("none", None), ("good", good), ("poor", poor), ("elsewhere", elsewhere)):
        audit = None if rows is None else Audit(mini.tokenizer_sha256, rates_of(rows), {rows[0].stratum: rates_of(rows)})
        found[name] = build_rows(mini, campaign, dataset, provider.answers[:3], learned, audit)[0]
    assert [(name, row.grade, row.p_basis) for name, row in found.items()] == [
        ("none", "B1", "simulated"), ("good", "B1", "audited"), ("poor", "C1", "audited"), ("elsewhere", "B1", "simulated")
    ]  # fmt: skip
    assert found["good"].p_exact == found["none"].p_exact and found["poor"].p_exact == pytest.approx(0.8, abs=0.01)
    assert json.loads(found["poor"].evidence)["audit"]["q"] == pytest.approx(0.2)
    other = Audit("another tokenizer", rates_of(poor), {poor[0].stratum: rates_of(poor)})
    assert build_rows(mini, campaign, dataset, provider.answers[:1], learned, other)[0].p_basis == "simulated"


def test_rows_with_ids_and_rows_set_aside_do_not_rest_on_the_audit(mini: Profile) -> None:
    request, fields = answered(mini, Truth(), with_ids=True)
    found = reconstruct(mini, request, fields, None, source="engine")
    assert found.grade == "A0" and with_rates(found, rates_of([a_row()] * 40)) is found
    assert with_rates(found, None) is found


def test_tokens_are_made_again_when_an_audit_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Artifact, "digest", lambda artifact: artifact.name)
    campaign = load_campaign("demo")
    store = Store(tmp_path)
    shard = Artifact(tokens.STAGE, campaign, store, "b3_magicoder", "00")
    before = shard.inputs()
    store.audit.write_text("{}")
    first = shard.inputs()
    store.audit.write_text('{"version": 1}')
    assert "audit" not in before and first["audit"] != shard.inputs()["audit"]
