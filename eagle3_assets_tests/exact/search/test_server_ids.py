"""Claims about ids that a server returned: they prove a completion, in whichever mode; the prompt needs a proof of its own."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.hypotheses import enumerate_prompts
from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.selection import Case
from eagle3_assets.exact.search.server_ids import server_prompt
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import needs, shared_data

WIRE = shared_data() / "wire"


@pytest.fixture(scope="module")
def rollouts() -> list[dict[str, Any]]:
    with gzip.open(needs(WIRE / "truth-qwen3.jsonl.gz"), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def qwen() -> Profile:
    return load_profile("qwen3", needs(shared_data() / "tokenizers"))


@pytest.mark.slow
def test_sampled_ids_of_a_model_that_did_not_think_are_a0(qwen: Profile, rollouts: list[dict[str, Any]]) -> None:
    """114 of 120 were refused: a non-thinking answer was held to a thinking grammar."""
    grades = []
    for row in rollouts:
        fields = replace(
            parse_fields(row["response_body"].encode(), "application/json"),
            output_ids=tuple(row["truth_g"]),
            prompt_ids=tuple(row["truth_p"]),
        )
        found = reconstruct(qwen, row["request"], fields, None, source="import")
        assert found.input_ids == (*row["truth_p"], *row["truth_g"])
        grades.append((found.grade, found.evidence["thinking"]))
    assert {grade for grade, _ in grades} == {"A0"} and {thinks for _, thinks in grades} == {True, False}


@pytest.mark.slow
def test_prompts_of_real_rollouts_are_among_the_candidates(qwen: Profile, rollouts: list[dict[str, Any]]) -> None:
    held = [
        any(c.ids == tuple(row["truth_p"]) for c in enumerate_prompts(qwen, row["request"], thinking=True)) for row in rollouts
    ]
    assert sum(held) >= len(held) * 119 / 120


def test_prompt_ids_of_production_are_one_candidate_each(k25: Profile) -> None:
    path = needs(WIRE / "truth-k2.6-prompts.jsonl")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        candidates = enumerate_prompts(k25, row["request"], thinking=True)
        assert [c.forms[0] for c in candidates if c.ids == tuple(row["truth_prompt"])] == [candidates[0].forms[0]]


TOOL = {"type": "function", "function": {"name": "f", "description": "Ask.", "parameters": {"type": "object", "properties": {}}}}


def answer(profile: Profile, request: dict[str, Any], *, thinking: bool = True, text: bool = False, **more: Any) -> Any:
    """Fields of an answer whose server returned ids (`text`: none of the completion)."""
    close = profile.special("</think>")
    reasoning, content = profile.encode(" so"), profile.encode("Yes.")
    ids = [*reasoning, close, *content, profile.end_id] if thinking else [*content, profile.end_id]
    message = {"content": "Yes.", **({"reasoning": " so"} if thinking else {})}
    choice = {"finish_reason": "stop", "message": message, **({} if text else {"token_ids": ids})}
    return parse_fields(json.dumps({"choices": [choice], **more}).encode())


def test_an_instant_answer_to_a_thinking_request_is_read_as_what_it_is(mini: Profile) -> None:
    request = {"messages": [{"role": "user", "content": "q"}]}
    prompt = enumerate_prompts(mini, request, thinking=False)[0].ids
    fields = answer(mini, request, thinking=False, usage={"prompt_tokens": len(prompt), "completion_tokens": 3})
    fields = replace(fields, billed_completion=len(fields.output_ids))
    found = reconstruct(mini, request, fields, None, source="openrouter")
    assert found.grade == "A0" and found.evidence["thinking"] is False and found.input_ids[: found.prompt_len] == prompt


def test_without_a_prompt_bill_only_the_completion_is_proven(mini: Profile) -> None:
    request = {"messages": [{"role": "user", "content": "q"}], "tools": [TOOL]}
    found = reconstruct(mini, request, answer(mini, request), None, source="openrouter")
    prompts = {c.ids for c in enumerate_prompts(mini, request, thinking=True)}
    assert found.grade == "C1" and "the prompt is one of" in found.reasons[0]
    assert {ids[: -(len(found.input_ids) - found.prompt_len)] for ids in (found.input_ids, *found.survivors)} <= prompts
    assert found.p_exact < 0.95 and found.survivors


def test_a_bill_that_one_rendering_meets_proves_the_prompt(mini: Profile) -> None:
    request = {"messages": [{"role": "user", "content": "q"}], "tools": [TOOL]}
    candidates = enumerate_prompts(mini, request, thinking=True)
    counts = [candidate.count for candidate in candidates]
    alone = next(candidate for candidate in candidates if counts.count(candidate.count) == 1)
    several = next(candidate for candidate in candidates if counts.count(candidate.count) > 1)
    for candidate, grade in ((alone, "A0"), (several, "C1")):
        fields = replace(answer(mini, request), billed_prompt=candidate.count)
        found = reconstruct(mini, request, fields, None, source="openrouter")
        assert found.grade == grade
        assert candidate.ids in {ids[: candidate.count] for ids in (found.input_ids, *found.survivors)}


@pytest.mark.parametrize("mode", [True, False])
def test_prompt_ids_without_output_ids_prove_the_prompt_in_its_own_mode(mini: Profile, mode: bool) -> None:
    """A Fireworks row was in quarantine although its prompt ids, which end in both markers, were in the body (cause 12)."""
    request = {"messages": [{"role": "user", "content": "q"}], "tools": [TOOL]}
    prompt = enumerate_prompts(mini, request, thinking=mode)[3]
    fields = answer(mini, request, thinking=mode, text=True, prompt_token_ids=list(prompt.ids))
    for tried in (True, False):
        case = Case(mini, request, fields, None, "openrouter", Mode(tried, tried, 0, 1.0))
        told = server_prompt(case, enumerate_prompts(mini, request, thinking=tried))
        assert (told is not None) is (tried is mode)
        assert told is None or (told.ids == prompt.ids and told.forms == prompt.forms)


def test_prompt_ids_that_are_no_rendering_prove_nothing(mini: Profile) -> None:
    request = {"messages": [{"role": "user", "content": "q"}]}
    candidates = enumerate_prompts(mini, request, thinking=True)
    other = [*candidates[0].ids[:-1], mini.encode("x")[0]]
    fields = answer(mini, request, text=True, prompt_token_ids=other)
    assert server_prompt(Case(mini, request, fields, None, "openrouter", Mode(True, True, 0, 1.0)), candidates) is None
    fields = answer(mini, request, text=True)
    assert server_prompt(Case(mini, request, fields, None, "openrouter", Mode(True, True, 0, 1.0)), candidates) is None


@pytest.mark.parametrize(("source", "believed"), [("engine", True), ("import", True), ("openrouter", False)])
def test_another_encoding_of_the_prompt_is_believed_of_a_server_of_ones_own(mini: Profile, source: str, believed: bool) -> None:
    request = {"messages": [{"role": "user", "content": "the user"}]}
    candidates = enumerate_prompts(mini, request, thinking=True)
    whole, pieces = mini.encode("the user"), [mini.encode(char)[0] for char in "the user"]
    ids = list(candidates[0].ids)
    at = next(k for k in range(len(ids)) if ids[k : k + len(whole)] == whole)
    ids[at : at + len(whole)] = pieces
    fields = answer(mini, request, text=True, prompt_token_ids=ids)
    told = server_prompt(Case(mini, request, fields, None, source, Mode(True, True, 0, 1.0)), candidates)
    assert (told is not None) is believed and (told is None or told.ids == tuple(ids))


@pytest.mark.slow
def test_the_variants_of_qwen3_share_its_tokenizer_and_not_its_mode(tmp_path: Path) -> None:
    folder = needs(shared_data() / "tokenizers")
    plain, instruct, thinker = (load_profile(n, folder) for n in ("qwen3", "qwen3-instruct-2507", "qwen3-thinking-2507"))
    messages = [{"role": "user", "content": "q"}]
    first = [
        enumerate_prompts(p, {"messages": messages}, thinking=p.opened_by != "never")[0].ids for p in (plain, instruct, thinker)
    ]
    assert first[0] == first[1] and first[2] == (*first[0], plain.think_open, *plain.encode("\n"))
    assert plain.tokenizer_sha256 == instruct.tokenizer_sha256 and (instruct.opened_by, thinker.opened_by) == ("never", "prompt")
