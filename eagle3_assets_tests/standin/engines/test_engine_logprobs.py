"""Log-probabilities of both engines: what identifies an id, what does not, where they stand in a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import FakeAnswer, MakeStandin, chat
from eagle3_assets_tests.standin.test_engines import SGLANG, TOOLS, VLLM, ask, chunks_of, more_of, truth_of, with_logprobs
from openrouter_standin.answers.sampled import Sampled
from openrouter_standin.engines.engine_logprobs import sglang_entries, text_behind, vllm_entries
from openrouter_standin.request import ChatRequest, read_request
from openrouter_standin.vocabulary import Vocabulary

LOGPROBS = {"logprobs": True, "top_logprobs": 1}


def raw_of(vocabulary: Vocabulary, ids: Any) -> list[bytes]:
    return [vocabulary.encoding.decode_single_token_bytes(i) for i in ids]


def request(top: int) -> ChatRequest:
    return read_request(json.dumps(chat(logprobs=True, top_logprobs=top)).encode())


# ------------------------------------------------------------------------------------------------ bodies and streams
@pytest.mark.parametrize("path", [VLLM, SGLANG])
@pytest.mark.parametrize("index", range(6))
def test_a_stream_has_the_entries_of_the_whole_answer_one_for_each_id(
    path: str, index: int, make_standin: MakeStandin, vocabulary: Vocabulary, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(with_logprobs(), bank=answers[index : index + 1])
    body = chat(**LOGPROBS, **more_of(answers[index]))
    whole = json.loads(ask(standin, path, body)[2])["choices"][0]["logprobs"]["content"]
    truth = truth_of(standin)["completion_ids"]
    assert len(whole) == len(truth)
    chunks = chunks_of(ask(standin, path, {**body, "stream": True})[2])
    told = [e for c in chunks if c["choices"] for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [entry["token"] for entry in told] == [entry["token"] for entry in whole]
    assert all(len(entry["top_logprobs"]) == 1 and entry["logprob"] < 0 for entry in told + whole)
    if path == SGLANG:  # raw bytes identify each id, markers and the end token included
        assert [bytes(entry["bytes"]) for entry in whole] == raw_of(vocabulary, truth)
    else:  # vLLM's bytes are those of the text: they join to it where characters are whole
        assert b"".join(bytes(entry["bytes"]) for entry in whole) == b"".join(raw_of(vocabulary, truth))


def test_vllm_names_the_ids_when_asked_and_the_text_stays_in_the_bytes(
    make_standin: MakeStandin, vocabulary: Vocabulary, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(with_logprobs(), bank=answers[:1])
    body = chat(**LOGPROBS, return_tokens_as_token_ids=True)
    for stream in (False, True):
        told = ask(standin, VLLM, {**body, "stream": stream})[2]
        choices = [c["choices"][0] for c in chunks_of(told)] if stream else [json.loads(told)["choices"][0]]
        entries = [e for choice in choices for e in (choice["logprobs"] or {"content": []})["content"]]
        ids = truth_of(standin)["completion_ids"]
        assert [entry["token"] for entry in entries] == [f"token_id:{i}" for i in ids]
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"".join(raw_of(vocabulary, ids))
        for entry in entries:  # a candidate's bytes are of the name (serving_chat.py, _get_top_logprobs)
            (candidate,) = entry["top_logprobs"]
            assert candidate["token"] == entry["token"] and bytes(candidate["bytes"]).decode() == candidate["token"]


def test_sglang_log_probabilities_of_what_the_tool_parser_takes_have_chunks_of_their_own(
    make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]
) -> None:
    standin = make_standin(with_logprobs(), bank=answers[4:5])
    chunks = chunks_of(ask(standin, SGLANG, chat(stream=True, **LOGPROBS, **TOOLS))[2])
    for chunk in chunks:
        choice = chunk["choices"][0]
        assert not ("tool_calls" in choice["delta"] and choice["logprobs"])
    alone = [c for c in chunks if c["choices"][0]["logprobs"] and c["choices"][0]["delta"] == {"reasoning_content": None}]
    assert len(alone) > 5


def test_log_probabilities_are_null_when_nobody_asks_or_the_bank_has_none(make_standin: MakeStandin) -> None:
    for path in (VLLM, SGLANG):
        for standin, body in ((make_standin(with_logprobs()), chat()), (make_standin(), chat(**LOGPROBS))):
            assert json.loads(ask(standin, path, body)[2])["choices"][0]["logprobs"] is None
            assert all(not c["choices"][0]["logprobs"] for c in chunks_of(ask(standin, path, {**body, "stream": True})[2]))


# ------------------------------------------------------------------------------------------------ parts of characters
@pytest.mark.parametrize(
    ("raw", "before", "text"),
    [
        (b"abc", [], "abc"),
        (b"\xe4", [b"x"], ""),
        (b"\xb8", [b"x", b"\xe4"], ""),
        (b"\xad", [b"x", b"\xe4", b"\xb8"], "中"),
        (b"\x88\x9a", [b"x", b" \xe2"], " \u221a"),  # what the id before it kept back is told, too
        (b"\x88\x9a!", [b" \xe2"], "\ufffd\ufffd!"),  # only the end of an id's own text is looked at
        (b"\x91\x8b", [b"hi", b"\xf0\x9f"], "\U0001f44b"),
        (b"\xad", [b"x"], ""),
        (b"\xe4", [b"\xe4", b"\xb8", b"\xad"], ""),
    ],
)
def test_vllm_tells_a_character_with_the_id_that_ends_it(raw: bytes, before: list[bytes], text: str) -> None:
    assert text_behind(raw, before) == text


def test_an_emoji_in_parts_keeps_its_bytes_on_sglang_and_loses_them_on_vllm(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode_text("a\U0001f44b")
    raw = raw_of(vocabulary, ids)
    assert any(b"\xf0" in piece and not _whole(piece) for piece in raw), "the small vocabulary splits this one"
    sampled = Sampled(ids, (-1.0,) * len(ids), ())
    sglang = sglang_entries(sampled, request(0), vocabulary)
    vllm = vllm_entries(sampled, request(0), vocabulary, as_ids=False)
    assert sglang is not None and vllm is not None
    assert [bytes(entry["bytes"]) for entry in sglang] == raw
    assert "".join(entry["token"] for entry in vllm) == "a\U0001f44b"
    assert [] in [entry["bytes"] for entry in vllm]
    assert "\ufffd" in "".join(entry["token"] for entry in sglang) and "\ufffd" not in "".join(e["token"] for e in vllm)


def _whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_the_sampled_id_leads_the_candidates_on_vllm_and_only_the_ranks_count_on_sglang(vocabulary: Vocabulary) -> None:
    a, b, c = (vocabulary.encode_text(letter)[0] for letter in "abc")
    sampled = Sampled((c,), (-3.0,), (((a, -0.5), (b, -1.5), (c, -3.0)),))
    for top, expected in ((0, ""), (1, "c"), (2, "ca"), (3, "cab"), (9, "cab")):
        (entry,) = vllm_entries(sampled, request(top), vocabulary, as_ids=False) or ()
        assert "".join(candidate["token"] for candidate in entry["top_logprobs"]) == expected
    (entry,) = sglang_entries(sampled, request(2), vocabulary) or ()
    assert [(candidate["token"], candidate["logprob"]) for candidate in entry["top_logprobs"]] == [("a", -0.5), ("b", -1.5)]


def test_minus_infinity_is_written_as_a_number(vocabulary: Vocabulary) -> None:
    i = vocabulary.encode_text("a")[0]
    sampled = Sampled((i,), (float("-inf"),), (((i, float("-inf")),),))
    (entry,) = vllm_entries(sampled, request(1), vocabulary, as_ids=False) or ()
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0


def test_meta_info_of_chat_has_the_log_probabilities_with_their_text(make_standin: MakeStandin) -> None:
    body = chat(**LOGPROBS, return_meta_info=True, return_token_ids=True)
    choice = json.loads(ask(make_standin(with_logprobs()), SGLANG, body)[2])["choices"][0]
    assert [token for _, token, _ in choice["meta_info"]["output_token_logprobs"]] == choice["response_token_ids"]
    assert [text for *_, text in choice["meta_info"]["output_token_logprobs"]] == [
        entry["token"] for entry in choice["logprobs"]["content"]
    ]
