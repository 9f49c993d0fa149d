"""The gate: a verdict holds for the bytes and the rules it was given under, and a stage behind a failed one refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.gate import filed_under
from eagle3_assets.review.verdicts import table as checks
from eagle3_assets.review.verdicts import verdict_files
from eagle3_assets.review.verdicts.shares import pooled
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.review.verdicts.waivers import Waiver, add_waiver, apply_waivers, read_waivers, used_waivers, waivers_path
from eagle3_assets.store import Manifest, Store, read_json, write_json

PASS = verdict("tokens", "structure", True, "40 rows are well formed", numbers={"rows": 40})
WARN = verdict("tokens", "quarantined_share", False, "9 of 40 rows", numbers={"bad": 9, "total": 40})
STOP = verdict("tokens", "grammar", False, "3 of 40 rows that the model may not emit", examples=("abc", "def"))


def judge_as(*verdicts: Verdict) -> tuple[list[int], Callable[[], list[Verdict]]]:
    calls: list[int] = []

    def judge() -> list[Verdict]:
        calls.append(1)
        return list(verdicts)

    return calls, judge


def test_a_current_verdict_is_used_and_an_outdated_one_is_refused_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS, WARN)
    for _ in range(3):
        assert verdict_files.require_passed(store, "tokens", "b3", "03", digest="d1", judge=judge) == [PASS, WARN]
    assert len(calls) == 1
    with pytest.raises(
        GateError, match=r"tokens/b3, shard 03.*structure, quarantined_share.*other bytes.*eagle3 recheck b3 --shard 03"
    ):
        verdict_files.require_passed(store, "tokens", "b3", "03", digest="d2", judge=judge)
    assert len(calls) == 1
    assert verdict_files.judge_again(store, "tokens", "b3", "03", digest="d2", judge=judge) == [
        PASS,
        WARN,
    ]  # what recheck and the UI do
    assert verdict_files.require_passed(store, "tokens", "b3", "03", digest="d2", judge=judge) == [PASS, WARN]
    judged = verdict_files.read_verdicts(store, "tokens", "b3", "03")
    assert judged is not None and judged.digest == "d2" and judged.verdicts == (PASS, WARN) and len(calls) == 2
    assert verdict_files.read_verdicts(store, "tokens", "b3", "04") is None


def test_a_failed_blocking_check_is_refused_by_name_every_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS, STOP)
    for _ in range(2):
        with pytest.raises(GateError) as caught:
            verdict_files.require_passed(store, "tokens", "b3_magicoder", "03", digest="d", judge=judge)
    line = str(caught.value)
    assert "\n" not in line and len(calls) == 1
    for part in (
        "tokens/b3_magicoder",
        "shard 03",
        "check grammar",
        "3 of 40 rows",
        "eagle3 show abc",
        "verdicts/tokens/b3_magicoder/03.json",
    ):
        assert part in line


def test_a_failed_warning_does_not_stop(tmp_path: Path) -> None:
    assert not WARN.stops and STOP.stops
    assert verdict_files.require_passed(Store(tmp_path), "tokens", "b3", digest="d", judge=judge_as(WARN)[1]) == [WARN]


def test_a_passing_file_does_not_hide_new_bytes_that_fail(tmp_path: Path) -> None:
    store = Store(tmp_path)
    verdict_files.write_verdicts(store, "tokens", "b3", "00", digest="old", verdicts=[PASS])
    with pytest.raises(GateError):
        verdict_files.require_passed(store, "tokens", "b3", "00", digest="new", judge=judge_as(STOP)[1])


def test_verdicts_given_under_other_limits_are_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS)
    verdict_files.require_passed(store, "tokens", "b3", "00", digest="d", judge=judge)
    stricter = tuple(
        checks.Check(c.name, c.severity, c.blocking, c.description, c.max_share / 2) for c in checks.CHECKS["tokens"]
    )
    monkeypatch.setitem(checks.CHECKS, "tokens", stricter)
    with pytest.raises(GateError, match="judged other rules than today's"):
        verdict_files.require_passed(store, "tokens", "b3", "00", digest="d", judge=judge)
    assert len(calls) == 1
    verdict_files.judge_again(store, "tokens", "b3", "00", digest="d", judge=judge)
    assert len(calls) == 2  # never taken from the file


def test_a_damaged_verdict_file_is_judged_again_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS)
    path = verdict_files.write_verdicts(store, "tokens", "b3", "00", digest="d", verdicts=[PASS])
    for damage in (b"{", b"[]", b'{"version": 1, "digest": "d"}', b'{"version": 99}'):
        path.write_bytes(damage)
        with pytest.raises(StoreError, match=r"check again|cannot be read"):
            verdict_files.read_verdicts(store, "tokens", "b3", "00")
        verdict_files.require_passed(store, "tokens", "b3", "00", digest="d", judge=judge)
    assert len(calls) == 4
    raw = read_json(path)
    assert raw["stage"] == "tokens" and raw["dataset"] == "b3" and raw["shard"] == "00"
    write_json(path, {**raw, "verdicts": [{"check": "structure"}]})
    with pytest.raises(StoreError):
        verdict_files.read_verdicts(store, "tokens", "b3", "00")


def waiver(**changes: str) -> Waiver:
    facts = {
        "who": "ada",
        "why": "poems repeat",
        "until": "2999-01-01",
        "stage": "tokens",
        "dataset": "b3",
        "shard": "03",
        "check": "grammar",
        "digest": "d",
        "given": "2026-11-30T07:00:00Z",
    }
    return Waiver(**{**facts, **changes})


def test_a_valid_waiver_lets_a_failed_check_through_and_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_waiver(store, waiver())
    found = verdict_files.require_passed(store, "tokens", "b3", "03", digest="d", judge=judge_as(PASS, STOP)[1])
    assert not found[1].passed and not found[1].stops and "waived by ada until 2999-01-01: poems repeat" in found[1].message
    assert [w["check"] for w in used_waivers(store, [("tokens", "b3", "03", "d", found)])] == ["grammar"]
    assert used_waivers(store, [("tokens", "b3", "03", "d", [PASS])]) == []
    stored = verdict_files.read_verdicts(store, "tokens", "b3", "03")
    assert stored is not None and stored.verdicts[1].stops  # the file keeps what was found


@pytest.mark.parametrize(
    "other",
    [{"digest": "e"}, {"shard": "04"}, {"check": "wire_text"}, {"until": "2026-01-01"}, {"dataset": "b8"}, {"stage": "answers"}],
)
def test_a_waiver_holds_for_nothing_else(tmp_path: Path, other: dict[str, str]) -> None:
    store = Store(tmp_path)
    add_waiver(store, waiver(**other))
    with pytest.raises(GateError, match="check grammar failed"):
        verdict_files.require_passed(store, "tokens", "b3", "03", digest="d", judge=judge_as(PASS, STOP)[1])


def test_a_waiver_holds_through_its_last_day() -> None:
    given, what = waiver(until="2026-12-24"), ("tokens", "b3", "03", "d")
    assert given.holds(*what, today=dt.date(2026, 12, 24)) and not given.holds(*what, today=dt.date(2026, 12, 25))


def test_a_reports_verdict_is_bound_to_the_waivers_of_its_own_shards(tmp_path: Path) -> None:
    store, manifest = Store(tmp_path), Manifest(tmp_path / "r", {}, {}, {}, 0.0)
    bare = filed_under("report", manifest, store, "b3")
    for other in ({"dataset": "b8"}, {"stage": "answers", "shard": "05"}, {"until": "2026-01-01", "shard": "06"}):
        add_waiver(store, waiver(**other))
        assert filed_under("report", manifest, store, "b3") == bare
    add_waiver(store, waiver())
    assert filed_under("report", manifest, store, "b3") != bare and filed_under("tokens", manifest, store, "b3") == bare


def test_each_shard_is_waived_for_itself_and_only_what_was_needed_is_carried(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for shard in ("03", "04"):
        add_waiver(store, waiver(shard=shard))
    assert [w.shard for w in read_waivers(store)] == ["03", "04"]
    found = apply_waivers([PASS, WARN, STOP], read_waivers(store), "tokens", "b3", "03", "d")
    assert [w["shard"] for w in used_waivers(store, [("tokens", "b3", "03", "d", found)])] == ["03"]
    mended = Verdict("grammar", True, "ERROR", True, "0 of 40 rows")
    assert apply_waivers([mended, WARN], [waiver(), waiver(check=WARN.check)], "tokens", "b3", "03", "d") == [mended, WARN]


def test_damaged_waivers_are_refused_and_a_newer_one_replaces_the_older(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_waiver(store, waiver())
    add_waiver(store, waiver(who="bob"))
    assert [w.who for w in read_waivers(store)] == ["bob"]
    for damage in (b"{", b'{"waivers": [{"who": "x"}]}', b'{"waivers": 3}'):
        waivers_path(store).write_bytes(damage)
        with pytest.raises(StoreError, match="restore it from a copy"):
            read_waivers(store)


def test_rows_of_a_waived_shard_do_not_count_against_the_dataset() -> None:
    bad = Verdict("loss_mask", False, "ERROR", True, "1 of 4", {"bad": 1, "total": 4, "share": 0.25, "max_share": 0.0})
    fine = Verdict("loss_mask", True, "ERROR", True, "0 of 4", {"bad": 0, "total": 4, "share": 0.0, "max_share": 0.0})
    waived = apply_waivers([bad], [waiver(check="loss_mask")], "tokens", "b3", "03", "d")
    assert pooled("tokens", [bad, fine])[0].stops and pooled("tokens", [*waived, bad])[0].stops
    found = pooled("tokens", [*waived, fine])[0]
    assert found.passed and found.numbers["accepted"] == 1 and "1 more in waived shards" in found.message
