"""Every corruption is caught under its own check's name, and no innocent look-alike under any."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_assets.review.rows.row_invariants import FATAL, INVARIANTS
from eagle3_assets.review.verdicts.table import CHECKS, check_named
from eagle3_assets_tests.review.mutations import GOOD, MUTATIONS, flagged_by, judged, table_of
from eagle3_assets_tests.review.report_mutations import CALM, CASES, Case, failed_by, table_of_reports

# what an innocent may be told about beside its own check: a cut row *is* cut, a quarantined one *is* out
TRUE_OF_IT = {"truncated_share", "quarantined_share"}
BAD = [(check, name) for check, cases in MUTATIONS.items() for name in cases["bad"]]
INNOCENT = [(check, name) for check, cases in MUTATIONS.items() for name in cases["innocent"]]


def test_every_check_of_token_rows_has_three_corruptions_and_three_innocents() -> None:
    assert set(MUTATIONS) == {c.name for c in CHECKS["tokens"]}
    assert all(len(cases[kind]) >= 3 for cases in MUTATIONS.values() for kind in ("bad", "innocent"))
    assert all(v.passed and not v.examples for v in judged([]).values()) and len(GOOD) == 60


@pytest.mark.slow
@pytest.mark.parametrize(("check", "name"), BAD)
def test_a_corruption_is_caught_under_its_own_name(check: str, name: str) -> None:
    assert check in flagged_by(MUTATIONS[check]["bad"][name], foreign=check == "lineage")


@pytest.mark.parametrize(("check", "name"), INNOCENT)
def test_an_innocent_look_alike_is_left_alone(check: str, name: str) -> None:
    flagged = flagged_by(MUTATIONS[check]["innocent"][name])
    assert check not in flagged
    out = {row.grade for row, _ in MUTATIONS[check]["innocent"][name]} == {"Q"}
    assert flagged <= TRUE_OF_IT or (out and flagged <= TRUE_OF_IT | {"grammar", "wire_text"})


def test_every_check_of_a_dataset_has_three_corruptions_and_three_innocents() -> None:
    assert set(CASES) == {c.name for c in CHECKS["report"]}
    assert all(len(cases[kind]) >= 3 for cases in CASES.values() for kind in ("bad", "innocent"))
    assert failed_by(Case(CALM)) == set()


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, cases in CASES.items() for name in cases["bad"]])
def test_a_broken_dataset_is_caught_under_its_own_name(check: str, name: str) -> None:
    assert check in failed_by(CASES[check]["bad"][name])


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, cases in CASES.items() for name in cases["innocent"]])
def test_an_innocent_dataset_is_left_alone(check: str, name: str) -> None:
    assert check not in failed_by(CASES[check]["innocent"][name])


def test_fatal_invariants_block_and_the_others_warn() -> None:
    for name in INVARIANTS:
        check = check_named("tokens", name)
        assert check.blocking == (name in FATAL) and check.severity == ("ERROR" if name in FATAL else "WARN")


@pytest.mark.slow
def test_the_table_in_the_docs_is_what_the_suite_finds() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    for table in (table_of(), table_of_reports()):
        assert table in docs, "run `python -m eagle3_assets_tests.review.mutations` and paste its tables"
