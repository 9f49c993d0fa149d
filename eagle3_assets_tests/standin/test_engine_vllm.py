"""vLLM: chat with its ids, whole and streamed, and the small routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import FakeAnswer, MakeStandin, chat, spell
from eagle3_assets_tests.standin.test_engines import IDS, TOOLS, VLLM, ask, chunks_of, more_of, truth_of
from openrouter_standin.vocabulary import Vocabulary


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("index", range(6))
def test_a_vllm_stream_adds_up_to_the_whole_answer_and_its_chunks_to_the_ids(
    index: int, with_ids: bool, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...], tmp_path: Path
) -> None:
    request = chat(return_token_ids=with_ids, **more_of(answers[index]))
    bank = answers[index : index + 1]
    whole = json.loads(ask(make_standin(bank=bank, folder=tmp_path / "w"), VLLM, request)[2])
    streaming = make_standin(bank=bank, folder=tmp_path / "s")
    status, headers, body = ask(streaming, VLLM, {**request, "stream": True, "stream_options": {"include_usage": True}})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    first, *rest, usage = chunks_of(body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == whole["prompt_token_ids"] and "token_ids" not in first["choices"][0]
    assert all("prompt_token_ids" not in chunk for chunk in rest)
    assert usage["choices"] == [] and usage["usage"] == {k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"}
    choices = [chunk["choices"][0] for chunk in rest]
    told = [i for choice in choices for i in choice["token_ids"] or ()]
    assert told == (truth_of(streaming)["completion_ids"] if with_ids else [])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [whole["choices"][0]["finish_reason"]]
    if not with_ids:
        assert all(choice["delta"] for choice in choices[:-1])  # nothing is said about an id that shows nothing
    message = whole["choices"][0]["message"]
    for field in ("reasoning", "content"):
        assert "".join(choice["delta"].get(field, "") for choice in choices) == (message[field] or "")
    calls: dict[int, dict[str, Any]] = {}
    for call in (c for choice in choices for c in choice["delta"].get("tool_calls", ())):
        entry = calls.setdefault(call["index"], {"id": call.get("id"), "name": call["function"].get("name"), "arguments": ""})
        entry["arguments"] += call["function"].get("arguments", "")
    assert list(calls.values()) == [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", ())]


def test_a_vllm_chunk_shows_its_id_with_its_text(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    standin = make_standin(bank=(FakeAnswer(spell(vocabulary, " one two", "three four")),))
    _, _, body = ask(standin, VLLM, chat(stream=True, **IDS))
    shown = [(vocabulary.text(c["token_ids"]), c["delta"]) for c in (chunk["choices"][0] for chunk in chunks_of(body)[1:])]
    assert [text for text, delta in shown if not delta] == ["</think>", ""]  # the last one is the end token
    assert all(text == (delta.get("reasoning") or delta.get("content")) for text, delta in shown if delta)


def test_a_vllm_stream_cut_by_length_ends_with_its_last_id(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    standin = make_standin(bank=answers[:1])
    _, _, body = ask(standin, VLLM, {**chat(stream=True, **IDS), "max_tokens": 3})
    choices = [chunk["choices"][0] for chunk in chunks_of(body)[1:]]
    assert [c["token_ids"] for c in choices] == [[i] for i in answers[0].ids[:3]]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("length", None)
    assert "usage" not in chunks_of(body)[-1]


def test_a_vllm_stream_without_usage_asked_has_none_and_costs_nothing(make_standin: MakeStandin) -> None:
    standin = make_standin()
    _, _, body = ask(standin, VLLM, chat(stream=True))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks_of(body))
    assert standin.ledger.spent_pico == 0 and truth_of(standin)["cost_pico"] == 0


def test_a_vllm_stream_counts_on_every_chunk_when_asked(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    standin = make_standin(bank=answers[:1])
    chunks = chunks_of(ask(standin, VLLM, chat(stream=True, stream_options=options, **IDS))[2])
    told = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    n = len(answers[0].ids)
    assert told == [*range(n + 1), n]
    assert all(c["usage"]["total_tokens"] == c["usage"]["prompt_tokens"] + c["usage"]["completion_tokens"] for c in chunks)
    thought = answers[0].ids.index(standin.generator.vocabulary.close_think)
    assert [c["usage"]["completion_tokens_details"]["reasoning_tokens"] for c in chunks][-1] == thought


def test_a_cut_answer_with_a_whole_call_ends_in_length_in_a_stream_only(
    make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    """vllm#58228 and vllm#53270: in a body a parsed call wins, unless the request requires one."""
    call = ("functions.get_weather:0", "{}")
    ids = spell(vocabulary, " t", "", call, call)
    cut = {"max_tokens": ids.index(vocabulary.call_end) + 3}
    standin = make_standin(bank=(FakeAnswer(ids, tool_names=("get_weather",)),))
    required, auto = {**chat(**TOOLS), **cut}, {**chat(**TOOLS), **cut, "tool_choice": "auto"}
    finishes = []
    for request in (required, auto):
        while True:  # `auto` calls in most attempts
            body = json.loads(ask(standin, VLLM, request)[2])
            if body["choices"][0]["message"].get("tool_calls"):
                break
        finishes.append(body["choices"][0]["finish_reason"])
    assert finishes == ["length", "tool_calls"]
    last = chunks_of(ask(standin, VLLM, {**required, "stream": True})[2])[-1]
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_setting_without_the_one_that_it_belongs_to_is_a_400(
    more: dict[str, Any], param: str, make_standin: MakeStandin
) -> None:
    status, _, body = ask(make_standin(), VLLM, chat(**more))
    error = json.loads(body)["error"]
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", param)


def test_tokenize_and_detokenize_are_the_prompt_of_an_answer(make_standin: MakeStandin) -> None:
    standin = make_standin()
    prompt = json.loads(ask(standin, VLLM, chat(**IDS))[2])["prompt_token_ids"]
    told = json.loads(ask(standin, "/engine/tokenize", chat())[2])
    assert (told["tokens"], told["count"], told["token_strs"]) == (prompt, len(prompt), None)
    text = json.loads(ask(standin, "/engine/detokenize", {"tokens": prompt})[2])["prompt"]
    assert json.loads(ask(standin, "/engine/tokenize", {"prompt": text})[2])["tokens"] == prompt
    for path, bad in (("tokenize", {}), ("detokenize", {"tokens": [-1]}), ("detokenize", {"tokens": "x"})):
        assert ask(standin, f"/engine/{path}", bad)[0] == 400
