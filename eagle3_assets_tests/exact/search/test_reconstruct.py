"""Claims about single answers: grades that mean what they say, and real bills met without tolerance."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.render import PromptForm
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.tokenizer import Profile, load_profile, profile_for_model
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth

# Row by row, no tolerance: residual of prompt and completion, grade, and a word of the reason (docs/research/prompt-side.md#rows,
# docs/research/openrouter-contract.md#4.1).
RECORDED = {
    "TestOpenAICompatibleCommon/avian-kimi/simple_streaming#0": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/avian-kimi/tool_streaming#0": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/groq-kimi-k2/simple_streaming#0": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/groq-kimi-k2/tool#0": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/groq-kimi-k2/tool#1": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/huggingface-kimi-k2/multi_tool#0": (0, 0, "C1", ""),
    "TestOpenAICompatibleCommon/huggingface-kimi-k2/simple#0": (0, 0, "C1", ""),
    "TestOpenRouterCommon/kimi/simple#0": (0, 0, "C1", ""),
    "TestOpenRouterCommon/kimi/tool#0": (0, 0, "C1", ""),
    "TestOpenRouterCommon/kimi/tool#1": (0, 0, "C1", ""),
    "TestOpenRouterCommon/kimi/tool_streaming#0": (0, 0, "C1", ""),
    "TestOpenRouterCommon/kimi/tool_streaming#1": (0, 0, "C1", ""),
}


SCHEMA = {"type": "object", "properties": {"who": {"type": "string", "description": "the person"}}, "required": ["who"]}


def rebuild(profile: Profile, answer: Any, wire: dict[str, Any] | None = None) -> Reconstruction:
    return reconstruct(profile, answer.request, parse_fields(answer.body), wire, source=answer.source)


@pytest.fixture
def provider(mini: Profile) -> Provider:
    return Provider(mini)


def test_recorded_rows_meet_their_bills_row_by_row(tokenizers: Path, recorded: list[dict[str, Any]]) -> None:
    seen = {}
    for row in recorded:
        fields = parse_fields(row["response_body"].encode(), row["content_type"])
        profile = load_profile(profile_for_model(fields.model) or "", tokenizers)
        found = reconstruct(profile, row["request"], fields, None, source="openrouter")
        seen[row["id"]] = found
        prompt, completion, grade, word = RECORDED[row["id"]]
        assert (found.residual["prompt"], found.residual["completion"], found.grade) == (prompt, completion, grade), row["id"]
        assert word in "; ".join(found.reasons), row["id"]
    assert set(seen) == set(RECORDED)


def test_recorded_tool_turns_fit_only_what_prompt_side_found(tokenizers: Path, recorded: list[dict[str, Any]]) -> None:
    profile = load_profile("kimi-k2.5", tokenizers)
    forms = {}
    for row in recorded:
        if profile_for_model(row["request"]["model"]) == "kimi-k2.5":
            fields = parse_fields(row["response_body"].encode(), row["content_type"])
            forms[row["id"]] = reconstruct(profile, row["request"], fields, None, source="openrouter").evidence["prompt_forms"]
    assert all("typescript" in form and "dropped" in form for form in forms["TestOpenRouterCommon/kimi/tool#1"])
    assert all("typescript" in form and "dropped" in form for form in forms["TestOpenRouterCommon/kimi/tool_streaming#1"])
    avian = forms["TestOpenAICompatibleCommon/avian-kimi/tool_streaming#0"]
    assert avian[0] == "compact_json+typed/reasoning_kept/arguments_as_sent"
    assert all(form.startswith("compact_json+typed") for form in avian)


def test_reasoning_counts_of_chutes_and_inceptron_are_r_plus_one(tokenizers: Path, recorded: list[dict[str, Any]]) -> None:
    profile = load_profile("kimi-k2.5", tokenizers)
    for name in ("simple#0", "tool#0", "tool#1", "tool_streaming#0"):
        row = next(row for row in recorded if row["id"] == f"TestOpenRouterCommon/kimi/{name}")
        fields = parse_fields(row["response_body"].encode(), row["content_type"])
        assert reconstruct(profile, row["request"], fields, None, source="openrouter").residual["reasoning"] == 0, name


# ---------------------------------------------------------------------------------------------------- grades
def test_server_ids_that_agree_with_text_and_bill_are_a0(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth(calls=(("f", '{"a": 1}'),), content="", finish="tool_calls"), with_ids=True, source="engine")
    found = rebuild(mini, answer)
    assert found.grade == "A0" and found.input_ids == provider.truths[0] and found.reasons == ()
    assert found.evidence["canonical"] is True and found.evidence["prompt_equals_template"] is True
    assert found.loss_spans == ((found.prompt_len, len(found.input_ids)),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body["choices"][0]["message"].update(content="Another."), "wire_text: content differs at character 2"),
        (lambda body: body["choices"][0]["token_ids"].pop(), "grammar: "),
        (lambda body: body["usage"].update(completion_tokens=99), "completion_equals_bill: "),
        (lambda body: body["usage"].update(prompt_tokens=99), "prompt_equals_bill: "),
        (lambda body: body["choices"][0]["token_ids"].__setitem__(0, 10**6), "grammar: an id is outside the vocabulary"),
        (lambda body: body["choices"][0].update(finish_reason="content_filter"), "finish reason 'content_filter'"),
    ],
)
def test_server_ids_that_disagree_are_quarantined_with_the_reason(
    mini: Profile, provider: Provider, change: Any, reason: str
) -> None:
    answer = provider.answer(Truth(), with_ids=True, source="engine")
    body = json.loads(answer.body)
    change(body)
    found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source="engine")
    assert found.grade == "Q" and found.p_exact == 0.0
    assert any(text.startswith(reason) for text in found.reasons), found.reasons


@pytest.mark.parametrize("source", ["openrouter", "engine", "import"])
def test_prompt_ids_of_the_billed_length_prove_nothing_by_their_number(mini: Profile, provider: Provider, source: str) -> None:
    answer = provider.answer(Truth(), with_ids=True, source=source)
    assert rebuild(mini, answer).grade == "A0"
    body = json.loads(answer.body)
    n, garbage = len(body["prompt_token_ids"]), mini.encode("x")[0]
    one_wrong = [*body["prompt_token_ids"]]
    one_wrong[n // 2] = garbage
    for ids in ([garbage] * n, one_wrong):
        body["prompt_token_ids"] = ids
        found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source=source)
        assert found.grade == "Q" and found.p_exact == 0.0, ids
        assert any(text.startswith("prompt: ") and "no rendering of the request" in text for text in found.reasons), found.reasons


@pytest.mark.parametrize(("source", "grade"), [("openrouter", "Q"), ("engine", "A0"), ("import", "A0")])
def test_another_encoding_of_the_prompts_text_is_believed_from_a_server_of_ones_own(
    mini: Profile, provider: Provider, source: str, grade: str
) -> None:
    answer = provider.answer(Truth(), with_ids=True, source=source)
    body = json.loads(answer.body)
    whole = mini.encode("question")
    pieces = [mini.encode(char)[0] for char in "question"]
    ids, text = body["prompt_token_ids"], mini.decode(body["prompt_token_ids"])
    at = next(k for k in range(len(ids)) if ids[k : k + len(whole)] == whole)
    body["prompt_token_ids"] = [*ids[:at], *pieces, *ids[at + len(whole) :]]
    body["usage"]["prompt_tokens"] = len(body["prompt_token_ids"])
    assert pieces != whole and mini.decode(body["prompt_token_ids"]) == text
    found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source=source)
    assert found.grade == grade and found.evidence["prompt_equals_template"] is False


@pytest.mark.parametrize(("source", "text", "grade"), [("engine", "<s>user question 0<e>", "A0"), ("engine", "<s>user<e>", "Q"),
                                                       ("openrouter", "<s>user question 0<e>", "Q")])  # fmt: skip
def test_without_a_template_an_engines_prompt_must_spell_the_request(
    tokenizers: Path, source: str, text: str, grade: str
) -> None:
    k2 = load_profile("kimi-k2-instruct", tokenizers)
    profile = dataclasses.replace(k2, facts=k2.facts.changed(template={"kind": "none"}))
    prompt, ids = profile.encode(text), [*profile.encode("Answer."), profile.end_id]
    body = {
        "choices": [{"finish_reason": "stop", "message": {"content": "Answer."}, "token_ids": ids}],
        "prompt_token_ids": prompt,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
    }
    request = {"messages": [{"role": "user", "content": "question 0"}]}
    found = reconstruct(profile, request, parse_fields(json.dumps(body).encode()), None, source=source)
    assert found.grade == grade, found.reasons
    assert grade == "A0" or any(reason.startswith("prompt: ") for reason in found.reasons)


def test_ids_outside_the_vocabulary_are_not_kept_so_that_the_shard_stays_well_formed(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth(), with_ids=True, source="engine")
    body = json.loads(answer.body)
    for ids in (body["prompt_token_ids"], body["choices"][0]["token_ids"]):
        right, ids[0] = ids[0], 2**31 - 1
        found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source="engine")
        ids[0] = right
        assert (found.grade, found.input_ids, found.prompt_len, found.loss_spans) == ("Q", (), 0, ())
        assert any(text.startswith("grammar: an id is outside") for text in found.reasons)


@pytest.mark.parametrize(
    ("usage", "grade"),
    [
        ({}, "I"),
        ({"prompt_tokens": None, "completion_tokens": 2}, "D"),
        ({"prompt_tokens": 0, "completion_tokens": 0}, "D"),
        ({"completion_tokens": None, "prompt_tokens": 9999}, "D"),
    ],
)
def test_half_a_bill_that_does_not_fit_leaves_an_import_unverified(
    mini: Profile, provider: Provider, usage: dict[str, Any], grade: str
) -> None:
    answer = provider.answer(Truth(), no_usage=True, source="import")
    body = {**json.loads(answer.body), "usage": usage}
    found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source="import")
    assert found.grade == grade and (
        grade == "I" or found.reasons == ("no usage: half a bill, which does not fit, so nothing is verified",)
    )


def test_a_call_whose_name_is_not_in_the_ids_is_quarantined_though_its_id_agrees(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth(content="", calls=(("f", '{"a": 1}'),), finish="tool_calls"), with_ids=True, source="engine")
    renamed = answer.body.replace(b'"name": "f"', b'"name": "g"')
    assert renamed != answer.body
    found = reconstruct(mini, answer.request, parse_fields(renamed), None, source="engine")
    assert found.grade == "Q" and found.reasons[0].startswith("wire_text: name of call 0")


def test_server_ids_that_are_not_canonical_stay_a0_and_are_counted(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth(reasoning=" user"), with_ids=True, source="engine")
    body = json.loads(answer.body)
    ids = body["choices"][0]["token_ids"]
    whole = mini.encode(" user")
    pieces = [mini.encode(char)[0] for char in " user"]
    assert ids[: len(whole)] == whole and pieces != whole
    body["choices"][0]["token_ids"] = pieces + ids[len(whole) :]
    body["usage"]["completion_tokens"] = len(body["choices"][0]["token_ids"])
    found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source="engine")
    assert found.grade == "A0" and found.evidence["canonical"] is False and found.evidence["noncanonical"] == ["reasoning"]
    assert list(found.input_ids[found.prompt_len :])[: len(pieces)] == pieces


@pytest.mark.parametrize(("old", "new"), [(b'{\\"a\\": 1}', b'{\\"a\\": 2}'), (b'"name": "f"', b'"name": "g"')])
def test_server_ids_whose_calls_are_not_those_on_the_wire_are_quarantined(
    mini: Profile, provider: Provider, old: bytes, new: bytes
) -> None:
    answer = provider.answer(Truth(content="", calls=(("f", '{"a": 1}'),), finish="tool_calls"), with_ids=True, source="engine")
    assert old in answer.body
    body = answer.body.replace(old, new).replace(b"functions.f:0", b"call_1")
    found = reconstruct(mini, answer.request, parse_fields(body), None, source="engine")
    assert found.grade == "Q" and found.reasons[0].startswith("wire_text: ") and "call 0" in found.reasons[0]
    rewritten = answer.body.replace(b"functions.f:0", b"call_1")
    assert reconstruct(mini, answer.request, parse_fields(rewritten), None, source="engine").grade == "A0", "ids may be rewritten"


@pytest.mark.parametrize("bends", ["injects", "strips"])
def test_server_ids_under_a_known_bend_are_a0_and_say_which(mini: Profile, bends: str) -> None:
    provider = Provider(mini, bends=bends)
    found = rebuild(mini, provider.answer(Truth(), with_ids=True, source="engine"))
    assert found.grade == "A0" and found.evidence["spacing"] == {"injects": "injected", "strips": "stripped"}[bends]


def test_a_row_without_usage_is_unverified(mini: Profile, provider: Provider) -> None:
    found = rebuild(mini, provider.answer(Truth(), no_usage=True))
    assert found.grade == "D" and "no usage" in found.reasons[0] and found.residual["completion"] is None


def test_an_import_without_ids_is_grade_i_and_with_ids_a0(mini: Profile, provider: Provider) -> None:
    text = provider.answer(Truth(), no_usage=True, source="import")
    found = rebuild(mini, text)
    assert found.grade == "I" and found.evidence["basis"] == "none" and found.input_ids == provider.truths[0]
    ids = provider.answer(Truth(), no_usage=True, with_ids=True, source="import")
    assert rebuild(mini, ids).grade == "A0" and rebuild(mini, ids).evidence["prompt_basis"] == "server_ids"


def test_an_imported_message_without_finish_reason_is_a_whole_one(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth(), no_usage=True, source="import")
    body = json.loads(answer.body)
    body["choices"][0]["finish_reason"] = None
    found = reconstruct(mini, answer.request, parse_fields(json.dumps(body).encode()), None, source="import")
    assert found.grade == "I" and found.input_ids[-1] == mini.end_id


@pytest.mark.parametrize("shift", [-4, 5])
def test_a_bill_that_nothing_fits_is_quarantine_with_the_residual_of_the_text_as_it_stands(
    mini: Profile, provider: Provider, shift: int
) -> None:
    found = rebuild(mini, provider.answer(Truth(), bill_shift=shift))
    assert found.grade == "Q" and found.residual["completion"] == -shift
    assert found.reasons[0].startswith("completion_equals_bill: ") and found.hypotheses["surviving"] == 0


def test_a_prompt_that_nothing_fits_is_quarantine(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth())
    answer.request["messages"].insert(0, {"role": "system", "content": "This line was not there when it was billed."})
    found = rebuild(mini, answer)
    assert found.grade == "Q" and found.reasons[0].startswith("prompt_equals_bill: ")


def test_without_a_wire_profile_nothing_is_better_than_c1(mini: Profile, provider: Provider) -> None:
    found = rebuild(mini, provider.answer(Truth(reasoning="", content="12")))
    assert found.grade == "C1" and found.p_basis == "simulated"


def test_ambiguous_rows_keep_their_survivors_for_the_model(mini: Profile, provider: Provider) -> None:
    found = rebuild(mini, provider.answer(Truth(reasoning=" the user", content="Answer.")))
    sequences = {found.input_ids, *found.survivors}
    assert found.grade == "C1" and len(sequences) == found.hypotheses["distinct"] > 1
    assert provider.truths[0] in sequences


def test_a_bill_that_only_an_unclosed_reading_fits_is_weighed_against_one_token_of_damage(mini: Profile) -> None:
    """`</think>` left out costs one token less; a server that re-spaces arguments adds as many. The bill shows only the sum."""
    provider = Provider(mini)
    wire = {
        "rows": 200,
        "explained": 199,
        "decided": True,
        "readings": [{"weight": 1.0, "edges": {}}],
        "damage": {"calls": 0.02},
    }
    sent = ('{"a":1}', '{"a":true}', '{"a":[1,2]}', '{"b":"x"}')
    pairs = [(text, text.replace(":", ": ", 1)) for text in sent] + [(text, text.replace(",", ", ")) for text in sent]
    told, spaced = next(pair for pair in pairs if len(mini.encode(pair[1])) - len(mini.encode(pair[0])) == 1)
    calls = (("f", told),)
    honest = provider.answer(Truth(" so", "", calls=calls, finish="tool_calls", closed=False))
    body = json.loads(provider.answer(Truth(" so", "", calls=calls, finish="tool_calls")).body)
    body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = spaced
    argspace = dataclasses.replace(provider.answers[-1], body=json.dumps(body).encode())
    clean = provider.answer(Truth(" so", "", calls=calls, finish="tool_calls"))
    for answer, grade, closed in ((honest, "C1", False), (argspace, "C1", False), (clean, "B1", True)):
        found = rebuild(mini, answer, wire)
        assert (found.grade, found.evidence["reasoning_closed"]) == (grade, closed), found.reasons
        assert (found.p_exact < 0.95) is (grade == "C1")


@pytest.mark.parametrize("calls", [(), (("f", '{"a": 1'),)])
@pytest.mark.parametrize("closed", [True, False])
def test_a_truncated_answer_never_gets_an_end(
    mini: Profile, provider: Provider, closed: bool, calls: tuple[tuple[str, str], ...]
) -> None:
    truth = Truth(reasoning=" so", content="and" if closed and not calls else "", calls=calls, finish="length", closed=closed)
    found = rebuild(mini, provider.answer(truth))
    assert found.grade == "C1" and mini.end_id not in found.input_ids[found.prompt_len :]
    assert provider.truths[0] in {found.input_ids, *found.survivors}


def test_a_replacement_character_means_lost_bytes(mini: Profile, provider: Provider) -> None:
    found = rebuild(mini, provider.answer(Truth(content="a\ufffdb")))
    assert found.grade == "Q" and "U+FFFD" in found.reasons[0]


def test_a_lone_surrogate_is_quarantined_and_never_raised(mini: Profile, provider: Provider) -> None:
    answer = provider.answer(Truth())
    body = answer.body.replace(b"Answer.", b"A\\ud83d")
    found = reconstruct(mini, answer.request, parse_fields(body), None, source="openrouter")
    assert found.grade == "Q" and "surrogate" in found.reasons[0] and found.input_ids == ()


def test_problems_of_the_body_are_reasons(mini: Profile, provider: Provider) -> None:
    found = reconstruct(mini, {"messages": []}, parse_fields(b"<html>"), None, source="openrouter")
    assert found.grade == "Q" and "not a JSON object" in found.reasons[0]


def test_the_bill_selects_the_prompt_that_the_server_rendered(mini: Profile) -> None:
    form = PromptForm("compact_json", history_reasoning="dropped", arguments="spaced")
    provider = Provider(mini, form=form, foreign_ids=True)
    call = {
        "id": "functions.f:0",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":1,"b":"two words","c":[1,2]}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "reasoning": " let me see what f says", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "7"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "Ask f.", "parameters": SCHEMA}}]
    answer = provider.answer(
        Truth(reasoning="", content="", calls=(("f", "{}"),), finish="tool_calls"), messages=messages, tools=tools
    )
    found = rebuild(mini, answer)
    assert found.residual["prompt"] == found.residual["completion"] == 0
    assert form.name in found.evidence["prompt_forms"]
    assert provider.truths[0] in {found.input_ids, *found.survivors}
    assert "functions.f:1" in mini.decode(found.input_ids[found.prompt_len :]), (
        "the rebuilt id continues the conversation's count"
    )
