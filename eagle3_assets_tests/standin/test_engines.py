"""Engines return the ids themselves: vLLM whole and streamed, SGLang chat and /generate."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.errors import Eagle3Error
from eagle3_assets.standin.profiles import Profiles
from eagle3_assets.standin.server import Standin
from eagle3_assets.standin.source import Bank, Sampled
from eagle3_assets.standin.vocabulary import Vocabulary
from eagle3_assets_tests.standin.conftest import TOOL, FakeAnswer, MakeStandin, chat, connected, settings, spell
from eagle3_assets_tests.standin.test_server import skeleton

VLLM, SGLANG, GENERATE = "/engine/v1/chat/completions", "/sglang/v1/chat/completions", "/sglang/generate"
TOOLS: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
IDS = {"return_token_ids": True}


def ask(standin: Standin, path: str, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    async def run() -> tuple[int, dict[str, str], bytes]:
        async with connected(standin) as client:
            return await client.post(request, path=path, key=None)

    return asyncio.run(run())


def truth_of(standin: Standin) -> dict[str, Any]:
    return dict(json.loads((standin.ledger.folder / "truth.jsonl").read_text().splitlines()[-1]))


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    assert events[-1] == b"data: [DONE]"
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


def more_of(answer: FakeAnswer) -> dict[str, Any]:
    instant: dict[str, Any] = {} if answer.thinking else {"chat_template_kwargs": {"thinking": False}}
    return {**instant, **(TOOLS if answer.tool_names else {})}


# ------------------------------------------------------------------------------------------------ vLLM, streamed
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
    for field in ("reasoning", "reasoning_content", "content"):
        assert "".join(choice["delta"].get(field, "") for choice in choices) == (message[field] or "")
    calls: dict[int, dict[str, Any]] = {}
    for call in (c for choice in choices for c in choice["delta"].get("tool_calls", ())):
        entry = calls.setdefault(call["index"], {"id": call.get("id"), "name": call["function"].get("name"), "arguments": ""})
        entry["arguments"] += call["function"].get("arguments", "")
    assert list(calls.values()) == [{"id": c["id"], **c["function"]} for c in message["tool_calls"]]


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


# ------------------------------------------------------------------------------------------------ SGLang chat
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
    assert choice["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}
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


@pytest.mark.parametrize("more", [IDS, {}])
def test_sglang_refuses_a_stream_with_a_flat_error(more: dict[str, Any], make_standin: MakeStandin) -> None:
    standin = make_standin()
    status, _, body = ask(standin, SGLANG, chat(stream=True, **more))
    error = json.loads(body)
    assert (status, error["code"], error["object"], error["type"]) == (400, 400, "error", "BadRequestError")
    assert ("return_token_ids is not supported with streaming" in error["message"]) == bool(more)
    assert not standin.ledger.generations


def test_an_unknown_model_is_a_404_of_each_engine(make_standin: MakeStandin) -> None:
    for path in (VLLM, SGLANG):
        status, _, body = ask(make_standin(), path, {**chat(), "model": "other"})
        told = json.loads(body)
        error = told["error"] if path == VLLM else told
        assert (status, error["code"], error["type"]) == (404, 404, "NotFoundError") and "other" in error["message"]


def test_the_two_engines_and_openrouter_count_attempts_apart(make_standin: MakeStandin) -> None:
    standin = make_standin()
    for path in (VLLM, SGLANG, "/api/v1/chat/completions"):

        async def run(path: str = path) -> None:
            async with connected(standin) as client:
                assert (await client.post(chat(), path=path))[0] == 200

        asyncio.run(run())
    lines = [json.loads(line) for line in (standin.ledger.folder / "truth.jsonl").read_text().splitlines()]
    assert [line["attempt"] for line in lines] == [0, 0, 0]
    assert len({line["request_hash"] for line in lines}) == len({line["generation_id"] for line in lines}) == 3


def test_engines_are_listed_with_their_model(make_standin: MakeStandin) -> None:
    async def run() -> None:
        standin = make_standin()
        async with connected(standin) as client:
            for path, owner in (("/engine/v1/models", "stand-in"), ("/sglang/v1/models", "sglang")):
                status, told = await client.get(path, key=None)
                assert status == 200 and told["data"][0]["id"] == standin.generator.profiles.engine.model
                assert told["data"][0]["owned_by"] == owner

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ SGLang /generate
def synthetic() -> Profiles:
    profiles = settings()
    return profiles.model_copy(update={"source": profiles.source.model_copy(update={"synthetic_logprobs": True})})


def test_generate_takes_ids_or_their_text_and_returns_all_ids(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    text = "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    ids = list(vocabulary.encode_prompt(text))
    told = []
    for k, prompt in enumerate(({"input_ids": ids}, {"text": text})):
        standin = make_standin(folder=tmp_path / str(k))
        status, headers, body = ask(standin, GENERATE, {**prompt, "sampling_params": {"max_new_tokens": 4000}})
        answer, truth = json.loads(body), truth_of(standin)
        assert status == 200 and truth["prompt_ids"] == ids
        assert answer["output_ids"] == truth["completion_ids"]
        assert headers["x-generation-id"] == answer["meta_info"]["id"]
        assert answer["text"] == vocabulary.encoding.decode(truth["completion_ids"][:-1])
        meta = answer["meta_info"]
        assert meta["finish_reason"] == {"type": "stop", "matched": vocabulary.im_end}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), len(truth["completion_ids"]))
        assert "output_token_logprobs" not in meta
        assert vocabulary.close_think in answer["output_ids"]  # the prompt ends in <think>
        told.append(answer["output_ids"])
    assert told[0] == told[1]


def test_generate_without_an_open_think_is_instant_and_stops_at_its_length(
    make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    ids = list(vocabulary.encode_prompt("<|im_assistant|>assistant<|im_middle|><think></think>"))
    standin = make_standin()
    _, _, body = ask(standin, GENERATE, {"input_ids": ids, "sampling_params": {"max_new_tokens": 2}})
    answer = json.loads(body)
    assert "Instant answer.".startswith(answer["text"])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2} and len(answer["output_ids"]) == 2


def test_generate_limits_itself_to_128_ids_unless_told_otherwise(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    long = FakeAnswer(spell(vocabulary, " a" * 300, "b"))
    prompt = list(vocabulary.encode_prompt("x<think>"))
    _, _, body = ask(make_standin(bank=(long,)), GENERATE, {"input_ids": prompt})
    assert len(json.loads(body)["output_ids"]) == 128


def test_generate_tells_log_probabilities_with_ids_and_text(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    request = {"text": "x<think>", "return_logprob": True, "top_logprobs_num": 1, "return_text_in_logprobs": True}
    standin = make_standin(synthetic())
    answer = json.loads(ask(standin, GENERATE, request)[2])
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [i for _, i, _ in entries] == answer["output_ids"]
    assert [text for *_, text in entries] == [vocabulary.encoding.decode([i]) for i in answer["output_ids"]]
    assert all(logprob < 0 for logprob, *_ in entries)
    assert [top[0] for top in answer["meta_info"]["output_top_logprobs"]] == entries
    bare = json.loads(ask(standin, GENERATE, {**request, "return_text_in_logprobs": False})[2])
    assert {text for *_, text in bare["meta_info"]["output_token_logprobs"]} == {None}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "input_ids"),
        ({"text": "a", "input_ids": [1]}, "not both"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], [2]]}, "one prompt"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [True]}, "input_ids"),
        ({"input_ids": [10**9]}, "input_ids"),
        ({"text": ["a", "b"]}, "text"),
        ({"text": "a", "stream": True}, "stream"),
        ({"text": "a", "sampling_params": [1]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -5}}, "max_tokens"),
        ({"text": "a", "top_logprobs_num": "x"}, "top_logprobs"),
    ],
)
def test_a_bad_generate_request_is_a_400_that_names_the_field(body: Any, word: str, make_standin: MakeStandin) -> None:
    status, _, told = ask(make_standin(), GENERATE, body)
    assert status == 400 and word in json.loads(told)["error"]["message"]


# ------------------------------------------------------------------------------------------------ recorded OpenAI-style bodies
@pytest.mark.parametrize("path", [VLLM, SGLANG])
def test_an_engine_says_what_recorded_openai_style_servers_say(
    path: str, foreign: dict[str, dict[str, Any]], make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    """No vLLM or SGLang server was recorded; Groq and Hugging Face were, of the same contract. What is in all of their bodies is in
    ours, of the same type. Explained: their model does not think and their content is never null, vLLM's may be."""
    for name, index in (("groq-kimi-k2/tool#1", 1), ("groq-kimi-k2/tool#0", 4), ("huggingface-kimi-k2/simple#0", 1)):
        real = json.loads(foreign[name]["response_body"])
        mine = json.loads(ask(make_standin(bank=answers[index : index + 1]), path, chat(**more_of(answers[index])))[2])
        assert mine["object"] == real["object"]
        for key in ("id", "object", "created", "model"):
            assert skeleton(mine[key]) == skeleton(real[key])
        ours, theirs = mine["choices"][0], real["choices"][0]
        assert set(theirs) <= set(ours)
        assert {k: skeleton(v) for k, v in ours.items() if k in theirs and k != "message"} == {
            k: skeleton(v) for k, v in theirs.items() if k != "message"
        }
        assert set(theirs["message"]) <= set(ours["message"])
        assert skeleton(ours["message"]["content"]) == skeleton(theirs["message"]["content"])
        for own, call in zip(ours["message"]["tool_calls"] or (), theirs["message"].get("tool_calls", ()), strict=False):
            assert skeleton({k: own[k] for k in call}) == skeleton(call)
            assert set(own) - set(call) == ({"index"} if path == SGLANG else set())  # SGLang's ToolCall has one
        assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(mine["usage"]) & set(real["usage"])


def test_a_vllm_stream_is_framed_like_a_recorded_openai_style_one(
    foreign: dict[str, dict[str, Any]], make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    """Explained differences: Groq adds system_fingerprint and x_groq; vLLM adds prompt_token_ids, token_ids and stop_reason."""
    row = foreign["groq-kimi-k2/simple_streaming#0"]
    real = [json.loads(e[6:]) for e in row["response_body"].strip().split("\n\n") if e.startswith("data: {")]
    assert row["response_body"].rstrip().endswith("data: [DONE]")
    standin = make_standin(bank=(FakeAnswer(spell(vocabulary, None, "Plain text."), thinking=False),))
    request = chat(stream=True, chat_template_kwargs={"thinking": False})
    mine = chunks_of(ask(standin, VLLM, request)[2])
    for k in (0, 1):
        ours, theirs = mine[k], real[k]
        assert [key for key in ours if key in theirs] == [key for key in theirs if key in ours]
        assert set(theirs) - set(ours) <= {"system_fingerprint", "x_groq"} and set(ours) - set(theirs) <= {"prompt_token_ids"}
        own = {key: value for key, value in ours["choices"][0].items() if key != "token_ids"}
        assert skeleton(own) == skeleton(theirs["choices"][0])
    last = next(chunk["choices"][0] for chunk in real if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    ending = mine[-1]["choices"][0]
    assert (ending["finish_reason"], ending["delta"]) == (last["finish_reason"], last["delta"]) == ("stop", {})


def test_a_model_that_fails_after_the_200_of_a_vllm_stream_is_an_error_event(make_standin: MakeStandin) -> None:
    class Ended(Bank):
        def answer(self, *_: Any, **__: Any) -> asyncio.Future[Sampled]:
            future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
            future.set_exception(Eagle3Error("the model is gone"))
            return future

    standin = make_standin()
    source = Ended((), standin.generator.vocabulary, standin.generator.profiles.source)
    standin.generator = dataclasses.replace(standin.generator, source=source)
    status, _, body = ask(standin, VLLM, chat(stream=True))
    (event,) = chunks_of(body)
    assert (status, event["error"]["code"], event["error"]["message"]) == (200, 500, "the model is gone")
    for path, request in ((VLLM, chat()), (SGLANG, chat())):
        assert ask(standin, path, request)[0] == 500
    assert ask(standin, GENERATE, {"text": "x"})[0] == 400  # SGLang's own habit
    assert not standin.ledger.generations
