"""SGLang chat: its ids, whole, and its streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import FakeAnswer, MakeStandin, chat, spell
from eagle3_assets_tests.standin.test_engines import IDS, SGLANG, TOOLS, VLLM, ask, chunks_of, more_of, truth_of
from openrouter_standin.vocabulary import Vocabulary

SGLEXT = {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
SGLEXT_HEADERS = {"x-sglext-return-input-ids": "1", "x-sglext-return-output-ids": "1"}


@pytest.mark.parametrize("index", range(6))
def test_sglang_returns_the_true_ids_in_its_own_places(
    index: int, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(bank=answers[index : index + 1])
    flags = {**IDS, "return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True, "return_meta_info": True}
    status, headers, body = ask(standin, SGLANG, chat(**flags, **more_of(answers[index])))
    told, truth = json.loads(body), truth_of(standin)
    (choice,) = told["choices"]
    assert status == 200 and headers["x-generation-id"] == told["id"] == truth["generation_id"]
    assert len(told["id"]) == 32 and int(told["id"], 16) >= 0
    assert (choice["prompt_token_ids"], choice["response_token_ids"]) == (truth["prompt_ids"], truth["completion_ids"])
    assert told["sglext"] == {"input_ids": truth["prompt_ids"], "output_ids": [truth["completion_ids"]]}
    assert told["usage"]["completion_tokens"] == choice["meta_info"]["completion_tokens"] == len(truth["completion_ids"])
    assert isinstance(choice["message"]["content"], str)  # never null
    end = standin.generator.vocabulary.im_end
    assert choice["matched_stop"] == (None if choice["finish_reason"] == "tool_calls" else end)
    calls = choice["finish_reason"] == "tool_calls"  # the parser changes what meta_info says, too
    assert choice["meta_info"]["finish_reason"] == {"type": "tool_calls" if calls else "stop", "matched": None if calls else end}
    assert standin.ledger.spent_pico == 0


def test_sglang_says_no_ids_when_nobody_asks(make_standin: MakeStandin) -> None:
    standin = make_standin()
    told = json.loads(ask(standin, SGLANG, chat())[2])
    assert not {"response_token_ids", "prompt_token_ids", "meta_info"} & set(told["choices"][0]) and "sglext" not in told


def test_sglang_numbers_calls_anew_whatever_the_model_wrote(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "x", "content": "r"},
    ]
    answer = FakeAnswer(
        spell(vocabulary, " t", "", ("get_weather", "{}"), ("functions.get_weather:9", "{}")), tool_names=("get_weather",)
    )
    standin = make_standin(bank=(answer,))
    request = {**chat(**TOOLS, **IDS), "messages": history}
    calls = json.loads(ask(standin, SGLANG, request)[2])["choices"][0]["message"]["tool_calls"]
    assert [c["id"] for c in calls] == ["functions.get_weather:2", "functions.get_weather:3"]
    assert "get_weather" in vocabulary.text(truth_of(standin)["completion_ids"])
    assert truth_of(standin)["edits"] == ["tool_ids:renumbered"]
    vllm = json.loads(ask(standin, VLLM, request)[2])["choices"][0]["message"]["tool_calls"]
    assert [c["id"] for c in vllm] != [c["id"] for c in calls]


# ------------------------------------------------------------------------------------------------ streamed
@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("index", range(6))
def test_a_sglang_stream_adds_up_to_the_whole_answer(
    index: int, continuous: bool, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...], tmp_path: Path
) -> None:
    request = chat(**SGLEXT, **more_of(answers[index]))
    bank = answers[index : index + 1]
    whole = json.loads(ask(make_standin(bank=bank, folder=tmp_path / "w"), SGLANG, request)[2])
    standin = make_standin(bank=bank, folder=tmp_path / "s")
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    status, headers, body = ask(standin, SGLANG, {**request, "stream": True, "stream_options": options})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    first, *rest, finish, extension, usage = chunks_of(body)
    assert {chunk["id"] for chunk in (first, *rest, finish, extension, usage)} == {headers["x-generation-id"]}
    assert first["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in rest]
    assert all("reasoning_content" in delta for delta in deltas)  # null or text, in each
    message, truth = whole["choices"][0]["message"], truth_of(standin)
    for field in ("reasoning_content", "content"):
        assert "".join(delta.get(field) or "" for delta in deltas) == (message[field] or "")
    calls: dict[int, dict[str, Any]] = {}
    for call in (c for delta in deltas for c in delta.get("tool_calls") or ()):
        entry = calls.setdefault(call["index"], {**call, "function": {**call["function"], "arguments": ""}})
        assert (call["id"] is None) == bool(entry["function"]["arguments"] or call["function"]["arguments"])
        entry["function"]["arguments"] += call["function"]["arguments"]
    assert list(calls.values()) == (message["tool_calls"] or [])
    ending = finish["choices"][0]
    assert (ending["delta"], ending["finish_reason"]) == ({"reasoning_content": None}, whole["choices"][0]["finish_reason"])
    assert ending["matched_stop"] == standin.generator.vocabulary.im_end  # with a call, too
    assert extension["choices"] == [] and extension["sglext"] == whole["sglext"]
    assert extension["sglext"] == {"input_ids": truth["prompt_ids"], "output_ids": [truth["completion_ids"]]}
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    counted = [chunk["usage"]["completion_tokens"] for chunk in rest if chunk.get("usage")]
    assert (counted == sorted(counted) and len(counted) == len(rest)) if continuous else not counted


def test_what_passes_the_tool_parser_is_written_in_full(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    chunks = chunks_of(ask(make_standin(bank=answers[4:5]), SGLANG, chat(stream=True, **TOOLS))[2])
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        if "tool_calls" in delta:
            assert set(delta) == {"role", "content", "reasoning_content", "tool_calls"} and chunk["usage"] is None
        else:
            assert "usage" not in chunk
    assert sum("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks) > 2


def test_a_call_is_named_when_its_arguments_begin_and_told_one_id_later(
    make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    arguments = '{"city": "Florence", "days": 3}'
    ids = spell(vocabulary, " t", "", ("functions.get_weather:0", arguments))
    standin = make_standin(bank=(FakeAnswer(ids, tool_names=("get_weather",)),))
    options = {"continuous_usage_stats": True}
    chunks = chunks_of(ask(standin, SGLANG, chat(stream=True, stream_options=options, **TOOLS))[2])
    told = [
        (chunk["usage"]["completion_tokens"], call["function"])
        for chunk in chunks
        for call in chunk["choices"][0]["delta"].get("tool_calls") or ()
    ]
    begin = ids.index(vocabulary.argument_begin) + 1
    n = len(vocabulary.encode_text(arguments))
    assert told[0] == (begin + 1, {"name": "get_weather", "arguments": ""})
    assert [at for at, _ in told[1:]] == [begin + k for k in range(2, max(n, 2) + 1)]
    assert "".join(function["arguments"] for _, function in told) == arguments


def test_ids_are_asked_for_in_headers_and_may_come_as_an_event_of_their_own(make_standin: MakeStandin) -> None:
    standin = make_standin()
    _, _, body = ask(standin, SGLANG, chat(), SGLEXT_HEADERS)
    truth = truth_of(standin)
    assert json.loads(body)["sglext"] == {"input_ids": truth["prompt_ids"], "output_ids": [truth["completion_ids"]]}
    _, _, body = ask(standin, SGLANG, chat(stream=True), {**SGLEXT_HEADERS, "x-sglext-ids-framed": "1"})
    (framed,) = [event for event in body.split(b"\n\n") if event.startswith(b"event: sglext_ids\ndata: ")]
    assert json.loads(framed.split(b"data: ")[1])["sglext"]["output_ids"] == [truth_of(standin)["completion_ids"]]


def test_a_sglang_stream_says_no_ids_and_no_usage_when_nobody_asks(make_standin: MakeStandin) -> None:
    chunks = chunks_of(ask(make_standin(), SGLANG, chat(stream=True))[2])
    assert all(chunk["choices"] and "sglext" not in chunk and not chunk.get("usage") for chunk in chunks)


def test_a_cut_sglang_stream_ends_in_length_and_matches_nothing(
    make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(bank=answers[:1])
    request = {**chat(stream=True, stream_options={"include_usage": True}), "max_tokens": 3}
    *_, finish, usage = chunks_of(ask(standin, SGLANG, request)[2])
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["matched_stop"]) == ("length", None)
    assert (usage["usage"]["completion_tokens"], usage["usage"]["reasoning_tokens"]) == (3, 3)


@pytest.mark.parametrize("switch", ["return_token_ids", "return_prompt_token_ids", "return_meta_info"])
def test_sglang_refuses_other_ids_in_a_stream_with_a_flat_error(switch: str, make_standin: MakeStandin) -> None:
    standin = make_standin()
    status, _, body = ask(standin, SGLANG, chat(stream=True, **{switch: True}))
    error = json.loads(body)
    assert (status, error["code"], error["object"], error["type"]) == (400, 400, "error", "BadRequestError")
    assert f"{switch} is not supported with streaming" in error["message"] and f"{switch}=true" in error["message"]
    assert not standin.ledger.generations


def test_reasoning_that_never_closes_is_counted_to_the_end(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    """schedule_batch.py counts until `</think>`; a tool section that ends the reasoning does not stop it."""
    told = json.loads(ask(make_standin(bank=answers[5:6]), SGLANG, chat(**TOOLS))[2])
    assert told["usage"]["reasoning_tokens"] == told["usage"]["completion_tokens"] == len(answers[5].ids)
    told = json.loads(ask(make_standin(bank=answers[2:3]), SGLANG, chat(chat_template_kwargs={"thinking": False}))[2])
    assert told["usage"]["reasoning_tokens"] == 0
