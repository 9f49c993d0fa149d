"""Claims about public reports in which a prompt of the right length was not the prompt (shared faults 02, 06, 10): the true ids are
among the candidates, and nothing is sure of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.hypotheses import PromptCandidate, enumerate_prompts
from eagle3_assets.exact.prompt_side.request_facts import request_oddities, thinking_prior
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.prompt_selection import select_prompts
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import B1_FLOOR
from eagle3_assets.exact.search.selection import Case
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import needs, shared_data

FAULTS = shared_data() / "wire" / "faults"
FILES = ("02_prompt_equal_count", "06_thinking_mode", "10_requests")


def lines(name: str) -> list[dict[str, Any]]:
    path = FAULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line] if path.exists() else []


ROWS = [pytest.param(row, id=f"{name[:2]}: {row['id']}") for name in FILES for row in lines(name)]
EQUAL_COUNT = [pytest.param(row, id=row["id"]) for row in lines("02_prompt_equal_count")]


@pytest.fixture(autouse=True)
def _shared() -> Path:
    return needs(FAULTS)


def fields_of(row: dict[str, Any]) -> Fields:
    return parse_fields(row["response_body"].encode(), "application/json")


def true_prompts(row: dict[str, Any], candidates: list[PromptCandidate]) -> list[PromptCandidate]:
    """The candidates that the true ids begin with; a bill, where there is one, says how many ids of them are the prompt."""
    truth, billed = tuple(row["truth"]), fields_of(row).billed_prompt
    return [c for c in candidates if truth[: c.count] == c.ids and billed in (None, c.count)]


def test_the_files_are_those_that_the_claims_are_about() -> None:
    assert len(ROWS) >= 20 and len(EQUAL_COUNT) == 9


@pytest.mark.parametrize("row", ROWS)
def test_the_true_prompt_is_among_the_candidates_of_a_mode_that_the_request_leaves_open(
    k25: Profile, row: dict[str, Any]
) -> None:
    modes = dict(thinking_prior(row["request"], k25))
    held = [mode for mode in modes if true_prompts(row, enumerate_prompts(k25, row["request"], thinking=mode))]
    assert held and max(modes[mode] for mode in held) >= 0.02


@pytest.mark.parametrize("row", ROWS)
def test_no_bill_makes_us_sure_of_another_prompt(k25: Profile, row: dict[str, Any]) -> None:
    fields = fields_of(row)
    if fields.billed_prompt is None:
        pytest.skip("nothing was billed")
    for mode, _ in thinking_prior(row["request"], k25):
        candidates = enumerate_prompts(k25, row["request"], thinking=mode)
        case = Case(k25, row["request"], fields, None, "openrouter", Mode(mode, mode, 0, 1.0))
        truth = {candidate.ids for candidate in true_prompts(row, candidates)}
        left, odd = select_prompts(case, candidates)
        assert not odd and sum(share for _, share in left) <= 1.0
        assert truth <= {candidate.ids for candidate, _ in left}
        if truth:
            assert all(share < B1_FLOOR for candidate, share in left if candidate.ids not in truth)


@pytest.mark.parametrize("row", EQUAL_COUNT)
def test_equal_counts_are_never_taken_for_the_prompt(k25: Profile, row: dict[str, Any]) -> None:
    found = reconstruct(k25, row["request"], fields_of(row), None, source="openrouter")
    truth = tuple(row["truth"])
    assert found.grade == "C1"
    assert truth == found.input_ids or truth in found.survivors


@pytest.mark.parametrize("row", [row for row in EQUAL_COUNT if "ids" in str(row.id)])
def test_output_ids_without_a_proven_prompt_say_that_the_completion_is_proven(k25: Profile, row: dict[str, Any]) -> None:
    found = reconstruct(k25, row["request"], fields_of(row), None, source="engine")
    assert found.grade == "C1" and "the completion's ids are the server's; the prompt is one of" in found.reasons[0]
    assert found.input_ids[found.prompt_len :] == fields_of(row).output_ids


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in lines("10_requests")])
def test_requests_that_servers_treat_in_more_ways_than_one_are_named(row: dict[str, Any]) -> None:
    assert request_oddities(row["request"])
