"""The gate: a verdict holds for the bytes and the rules it was given under, and a stage behind a failed one refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import GateError, StoreError
from eagle3_assets.gate import filed_of
from eagle3_assets.review.verdicts import table as checks
from eagle3_assets.review.verdicts.shares import pooled
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Subject, Verdict
from eagle3_assets.review.verdicts.verdict_files import Filed
from eagle3_assets.review.verdicts.waivers import Waiver, add_waiver, apply_waivers, read_waivers, used_waivers, waivers_path
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import report, tokens
from eagle3_assets.store import Manifest, Store, read_json, write_json

PASS = verdict("tokens", "structure", True, "40 rows are well formed", numbers={"rows": 40})
WARN = verdict("tokens", "quarantined_share", False, "9 of 40 rows", numbers={"bad": 9, "total": 40})
STOP = verdict("tokens", "grammar", False, "3 of 40 rows that the model may not emit", examples=("abc", "def"))


SUBJECT = Subject("tokens", "b3", "03", "d")


def filed(store: Store, digest: str, dataset: str = "b3", shard: str = "03", limits: tuple[checks.Check, ...] = ()) -> Filed:
    return Filed(store, Subject("tokens", dataset, shard, digest), limits or checks.CHECKS["tokens"])


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
        assert filed(store, "d1", "b3", "03").require_passed(judge) == [PASS, WARN]
    assert len(calls) == 1
    with pytest.raises(
        GateError, match=r"tokens/b3, shard 03.*structure, quarantined_share.*other bytes.*eagle3 recheck b3 --shard 03"
    ):
        filed(store, "d2", "b3", "03").require_passed(judge)
    assert len(calls) == 1
    assert filed(store, "d2", "b3", "03").judged_again(judge) == [
        PASS,
        WARN,
    ]  # what recheck and the UI do
    assert filed(store, "d2", "b3", "03").require_passed(judge) == [PASS, WARN]
    judged = filed(store, "", "b3", "03").read()
    assert judged is not None and judged.digest == "d2" and judged.verdicts == (PASS, WARN) and len(calls) == 2
    assert filed(store, "", "b3", "04").read() is None


def test_a_failed_blocking_check_is_refused_by_name_every_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS, STOP)
    for _ in range(2):
        with pytest.raises(GateError) as caught:
            filed(store, "d", "b3_magicoder", "03").require_passed(judge)
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
    assert filed(Store(tmp_path), "d", "b3", checks.ALL).require_passed(judge_as(WARN)[1]) == [WARN]


def test_a_passing_file_does_not_hide_new_bytes_that_fail(tmp_path: Path) -> None:
    store = Store(tmp_path)
    filed(store, "old", "b3", "00").write([PASS])
    with pytest.raises(GateError):
        filed(store, "new", "b3", "00").require_passed(judge_as(STOP)[1])


def test_verdicts_given_under_other_limits_are_outdated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS)
    filed(store, "d", "b3", "00").require_passed(judge)
    stricter = tuple(
        checks.Check(c.name, c.severity, c.blocking, c.description, c.max_share / 2) for c in checks.CHECKS["tokens"]
    )
    with pytest.raises(GateError, match="judged other rules than today's"):
        filed(store, "d", "b3", "00", stricter).require_passed(judge)
    assert len(calls) == 1
    filed(store, "d", "b3", "00", stricter).judged_again(judge)
    assert len(calls) == 2  # never taken from the file


def test_a_damaged_verdict_file_is_judged_again_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    calls, judge = judge_as(PASS)
    damaged = filed(store, "d", "b3", "00")
    damaged.write([PASS])
    path = damaged.path
    for damage in (b"{", b"[]", b'{"version": 1, "digest": "d"}', b'{"version": 99}'):
        path.write_bytes(damage)
        with pytest.raises(StoreError, match=r"check again|cannot be read"):
            filed(store, "", "b3", "00").read()
        filed(store, "d", "b3", "00").require_passed(judge)
    assert len(calls) == 4
    raw = read_json(path)
    assert raw["stage"] == "tokens" and raw["dataset"] == "b3" and raw["shard"] == "00"
    write_json(path, {**raw, "verdicts": [{"check": "structure"}]})
    with pytest.raises(StoreError):
        filed(store, "", "b3", "00").read()


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
    found = filed(store, "d", "b3", "03").require_passed(judge_as(PASS, STOP)[1])
    assert not found[1].passed and not found[1].stops and "waived by ada until 2999-01-01: poems repeat" in found[1].message
    assert [w["check"] for w in used_waivers(store, [(SUBJECT, found)])] == ["grammar"]
    assert used_waivers(store, [(SUBJECT, [PASS])]) == []
    stored = filed(store, "", "b3", "03").read()
    assert stored is not None and stored.verdicts[1].stops  # the file keeps what was found


@pytest.mark.parametrize(
    "other",
    [{"digest": "e"}, {"shard": "04"}, {"check": "wire_text"}, {"until": "2026-01-01"}, {"dataset": "b8"}, {"stage": "answers"}],
)
def test_a_waiver_holds_for_nothing_else(tmp_path: Path, other: dict[str, str]) -> None:
    store = Store(tmp_path)
    add_waiver(store, waiver(**other))
    with pytest.raises(GateError, match="check grammar failed"):
        filed(store, "d", "b3", "03").require_passed(judge_as(PASS, STOP)[1])


def test_a_waiver_holds_through_its_last_day() -> None:
    given = waiver(until="2026-12-24")
    assert given.holds(SUBJECT, dt.date(2026, 12, 24)) and not given.holds(SUBJECT, dt.date(2026, 12, 25))


def test_a_reports_verdict_is_bound_to_the_waivers_of_its_own_shards(tmp_path: Path, campaign: Campaign) -> None:
    store, manifest = Store(tmp_path), Manifest(tmp_path / "r", {}, {}, {}, 0.0)
    its_report = Artifact(report.STAGE, campaign, store, "b3")
    shard = Artifact(tokens.STAGE, campaign, store, "b3", "03")
    bare, of_shard = filed_of(its_report, manifest).subject, filed_of(shard, manifest).subject
    for other in ({"dataset": "b8"}, {"stage": "answers", "shard": "05"}, {"until": "2026-01-01", "shard": "06"}):
        add_waiver(store, waiver(**other))
        assert filed_of(its_report, manifest).subject == bare
    add_waiver(store, waiver())
    assert filed_of(its_report, manifest).subject != bare and filed_of(shard, manifest).subject == of_shard


def test_each_shard_is_waived_for_itself_and_only_what_was_needed_is_carried(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for shard in ("03", "04"):
        add_waiver(store, waiver(shard=shard))
    assert [w.shard for w in read_waivers(store)] == ["03", "04"]
    found = apply_waivers([PASS, WARN, STOP], read_waivers(store), SUBJECT)
    assert [w["shard"] for w in used_waivers(store, [(SUBJECT, found)])] == ["03"]
    mended = Verdict("grammar", True, "ERROR", True, "0 of 40 rows")
    assert apply_waivers([mended, WARN], [waiver(), waiver(check=WARN.check)], SUBJECT) == [mended, WARN]


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
    waived = apply_waivers([bad], [waiver(check="loss_mask")], SUBJECT)
    assert pooled("tokens", [bad, fine])[0].stops and pooled("tokens", [*waived, bad])[0].stops
    found = pooled("tokens", [*waived, fine])[0]
    assert found.passed and found.numbers["accepted"] == 1 and "1 more in waived shards" in found.message
