"""Claims about grades: one home, and the campaign's defaults, orders and floors that users rely on follow from it."""

from __future__ import annotations

from typing import get_args

from eagle3_assets.campaign import Campaign, Corpus, Handoff
from eagle3_assets.grades import ADMITTED, BY_STRENGTH, GRADES, HANDED_ON, OUT, GradeName


def test_every_grade_has_its_facts_and_no_other_has() -> None:
    assert tuple(GRADES) == get_args(GradeName) and all(name == grade.name for name, grade in GRADES.items())
    assert sorted(grade.strength for grade in GRADES.values()) == list(range(len(GRADES)))


def test_what_a_corpus_and_a_hand_off_take_by_default_is_the_designs(campaign: Campaign) -> None:
    """docs/design.md#admission, "Where a row may go"."""
    assert ADMITTED == ("A0", "A1", "A2", "B1", "B2", "C1", "R", "I") == Corpus.model_fields["grades"].default
    assert HANDED_ON == ("A0", "A1", "A2", "B1", "B2", "R", "I") == Handoff.model_fields["grades"].default
    assert set(OUT) == {"Q", "D"}
    assert GRADES["B1"].floor == campaign.corpus.min_p_exact


def test_what_the_model_decides_is_what_is_left_open_and_admitted() -> None:
    assert [name for name in ADMITTED if GRADES[name].leaves_open] == ["C1"]
    assert not any(GRADES[name].leaves_open for name in HANDED_ON)


def test_no_surprise_of_the_model_unsays_what_a_server_stated() -> None:
    assert [name for name, grade in GRADES.items() if grade.proven] == ["A0", "A1", "A2"]
    assert all(grade.asserted for grade in GRADES.values() if grade.proven)
    assert list(BY_STRENGTH[:3]) == ["A0", "A1", "A2"] and BY_STRENGTH[-1] == "Q"
