"""SGLang /generate: ids and text, batches, streams, refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import FakeAnswer, MakeStandin, spell
from eagle3_assets_tests.standin.test_engines import GENERATE, ask, chunks_of, truth_of, with_logprobs
from openrouter_standin.vocabulary import Vocabulary

LONG = {"sampling_params": {"max_new_tokens": 4000}}


def test_generate_takes_ids_or_their_text_and_returns_all_ids(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    text = "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    ids = list(vocabulary.encode_prompt(text))
    told = []
    for k, prompt in enumerate(({"input_ids": ids}, {"text": text})):
        standin = make_standin(folder=tmp_path / str(k))
        status, _, body = ask(standin, GENERATE, {**prompt, "sampling_params": {"max_new_tokens": 4000}})
        answer, truth = json.loads(body), truth_of(standin)
        assert status == 200 and truth["prompt_ids"] == ids
        assert answer["output_ids"] == truth["completion_ids"]
        assert truth["generation_id"] == answer["meta_info"]["id"]
        assert answer["text"] == vocabulary.encoding.decode(truth["completion_ids"][:-1])
        meta = answer["meta_info"]
        assert meta["finish_reason"] == {"type": "stop", "matched": vocabulary.im_end}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), len(truth["completion_ids"]))
        assert "output_token_logprobs" not in meta and meta["reasoning_tokens"] == 0 and "prompt_token_ids" not in answer
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
    standin = make_standin(with_logprobs())
    answer = json.loads(ask(standin, GENERATE, request)[2])
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [i for _, i, _ in entries] == answer["output_ids"]
    assert [text for *_, text in entries] == [vocabulary.encoding.decode([i]) for i in answer["output_ids"]]
    assert all(logprob < 0 for logprob, *_ in entries)
    assert [top[0] for top in answer["meta_info"]["output_top_logprobs"]] == entries
    bare = json.loads(ask(standin, GENERATE, {**request, "return_text_in_logprobs": False})[2])
    assert {text for *_, text in bare["meta_info"]["output_token_logprobs"]} == {None}


def test_reasoning_is_counted_and_the_prompt_told_only_where_asked(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    request = {"text": "x<think>", **LONG, "require_reasoning": True, "return_prompt_token_ids": True}
    answer = json.loads(ask(make_standin(), GENERATE, request)[2])
    assert answer["meta_info"]["reasoning_tokens"] == answer["output_ids"].index(vocabulary.close_think) + 1
    assert answer["prompt_token_ids"] == list(vocabulary.encode_prompt("x<think>"))


# ------------------------------------------------------------------------------------------------ batches
def test_a_batch_is_answered_in_its_order_each_with_its_own_settings(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    standin = make_standin(bank=(FakeAnswer(spell(vocabulary, " a" * 50, "b")),))
    texts = [f"{k}<think>" for k in range(5)]
    settings = [{"max_new_tokens": k + 1} for k in range(5)]
    answers = json.loads(ask(standin, GENERATE, {"text": texts, "sampling_params": settings})[2])
    assert [len(answer["output_ids"]) for answer in answers] == [1, 2, 3, 4, 5]
    lines = (standin.ledger.folder / "truth.jsonl").read_text().splitlines()
    prompts = {truth["generation_id"]: truth["prompt_ids"] for truth in map(json.loads, lines)}
    assert [prompts[answer["meta_info"]["id"]] for answer in answers] == [list(vocabulary.encode_prompt(text)) for text in texts]
    again = json.loads(ask(standin, GENERATE, {"input_ids": [list(vocabulary.encode_prompt(text)) for text in texts]})[2])
    assert [answer["meta_info"]["prompt_tokens"] for answer in again] == [len(vocabulary.encode_prompt(text)) for text in texts]


def test_n_answers_stand_prompt_by_prompt(make_standin: MakeStandin) -> None:
    standin = make_standin()
    request = {"text": ["short<think>", "rather longer<think>"], "sampling_params": {"n": 3, "max_new_tokens": 4000}}
    answers = json.loads(ask(standin, GENERATE, request)[2])
    counts = [answer["meta_info"]["prompt_tokens"] for answer in answers]
    assert len(answers) == 6 and len({answer["meta_info"]["id"] for answer in answers}) == 6
    assert counts[0] == counts[1] == counts[2] < counts[3] == counts[4] == counts[5]
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1  # drawn anew each time
    single = json.loads(ask(standin, GENERATE, {"text": "x<think>", "sampling_params": {"n": 2}})[2])
    assert isinstance(single, list) and len(single) == 2
    assert isinstance(json.loads(ask(standin, GENERATE, {"text": ["x<think>"]})[2]), list)


# ------------------------------------------------------------------------------------------------ streamed
@pytest.mark.parametrize("index", range(3))
def test_each_event_says_everything_from_the_beginning(
    index: int, make_standin: MakeStandin, vocabulary: Vocabulary, answers: tuple[FakeAnswer, ...], tmp_path: Path
) -> None:
    prompt = "x<think>" if answers[index].thinking else "x<think></think>"
    request = {"text": prompt, **LONG, "require_reasoning": True}
    bank = answers[index : index + 1]
    whole = json.loads(ask(make_standin(bank=bank, folder=tmp_path / "w"), GENERATE, request)[2])
    standin = make_standin(bank=bank, folder=tmp_path / "s")
    status, headers, body = ask(standin, GENERATE, {**request, "stream": True})
    events = chunks_of(body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    ids = truth_of(standin)["completion_ids"]
    assert [event["output_ids"] for event in events] == [ids[: k + 1] for k in range(len(ids))]
    assert [event["meta_info"]["completion_tokens"] for event in events] == list(range(1, len(ids) + 1))
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert not any("\ufffd" in text for text in texts)  # parts of a character are held back
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert "e2e_latency" not in events[0]["meta_info"] and all("index" not in event for event in events)
    last, clock = events[-1], ("id", "e2e_latency", "response_sent_to_client_ts")
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    assert {k: v for k, v in last["meta_info"].items() if k not in clock} == {
        k: v for k, v in whole["meta_info"].items() if k not in clock
    }
    reasoning = [event["meta_info"]["reasoning_tokens"] for event in events]
    assert reasoning == sorted(reasoning) and reasoning[-1] == whole["meta_info"]["reasoning_tokens"]


def test_events_of_a_batch_are_told_apart_by_their_index(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    standin = make_standin()
    request = {"text": ["one<think>", "two<think>"], "sampling_params": {"n": 2, "max_new_tokens": 4000}, "stream": True}
    events = chunks_of(ask(standin, GENERATE, request)[2])
    lines = (standin.ledger.folder / "truth.jsonl").read_text().splitlines()
    truths = {truth["generation_id"]: truth for truth in map(json.loads, lines)}
    last = {event["index"]: event for event in events}
    assert sorted(last) == [0, 1, 2, 3] and len({event["meta_info"]["id"] for event in last.values()}) == 4
    for index, event in last.items():
        truth = truths[event["meta_info"]["id"]]
        assert event["output_ids"] == truth["completion_ids"]
        assert truth["prompt_ids"] == list(vocabulary.encode_prompt(request["text"][index // 2]))


def test_a_stream_tells_log_probabilities_from_the_beginning_each_time(make_standin: MakeStandin) -> None:
    request = {"text": "x<think>", **LONG, "stream": True, "return_logprob": True, "top_logprobs_num": 1}
    events = chunks_of(ask(make_standin(with_logprobs()), GENERATE, request)[2])
    for event in events:
        meta = event["meta_info"]
        assert [token for _, token, _ in meta["output_token_logprobs"]] == event["output_ids"]
        assert meta["output_token_logprobs_length"] == len(event["output_ids"]) == len(meta["output_top_logprobs"])
        assert meta["output_token_logprobs"] == events[-1]["meta_info"]["output_token_logprobs"][: len(event["output_ids"])]


def test_a_stream_of_3500_ids_takes_no_second(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    """Cumulative events are 3,500 bodies of up to 30 KB; a head encoded anew each time, or texts joined anew, take several."""
    standin = make_standin(bank=(FakeAnswer(spell(vocabulary, " word" * 3500, "b")),))
    request = {"text": "x<think>", "sampling_params": {"max_new_tokens": 3500}, "stream": True}
    _, _, body = ask(standin, GENERATE, request)
    assert body.count(b"data: ") == 3501
    assert len(json.loads(body.split(b"\n\n")[-3].removeprefix(b"data: "))["output_ids"]) == 3500


# ------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"input_ids": [True]}, "input_ids"),
        ({"input_ids": "x"}, "input_ids"),
        ({"text": ["a", 1]}, "text"),
        ({"text": "a", "sampling_params": [1]}, "sampling_params"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_body_that_is_no_request_is_a_flat_400(body: Any, word: str, stream: bool, make_standin: MakeStandin) -> None:
    status, _, told = ask(make_standin(), GENERATE, {**body, "stream": stream})
    error = json.loads(told)
    assert (status, error["object"], error["type"]) == (400, "error", "Bad Request") and word in error["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "Either text, input_ids or input_embeds"),
        ({"text": "a", "input_ids": [1]}, "not both"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"text": ""}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [10**9]}, "vocab size"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "parallel_sample_num"),
        ({"text": "a", "sampling_params": {"n": 0}}, "n must be"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature must be a non-negative finite number"),
        ({"text": "a", "sampling_params": {"top_p": 2}}, "top_p"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -5}}, "max_new_tokens must be at least"),
        ({"text": "a", "top_logprobs_num": "x"}, "top_logprobs"),
    ],
)
def test_a_bad_value_is_a_400_that_names_the_field_and_an_event_in_a_stream(
    body: Any, word: str, make_standin: MakeStandin
) -> None:
    status, _, told = ask(make_standin(), GENERATE, body)
    assert status == 400 and word in json.loads(told)["error"]["message"]
    status, _, told = ask(make_standin(), GENERATE, {**body, "stream": True})
    (event,) = chunks_of(told)
    assert status == 200 and word in event["error"]["message"]
