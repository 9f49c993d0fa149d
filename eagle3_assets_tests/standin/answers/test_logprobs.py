"""Log-probabilities: an entry says which id was sampled, whatever the provider made of the text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import (
    KEY,
    SLUG,
    TOOL,
    TRUTH_TOKEN,
    FakeAnswer,
    MakeStandin,
    chat,
    connected,
    only,
    settings,
    spell,
)
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.provider import LogprobEntries
from openrouter_standin.vocabulary import Vocabulary

TAGS = ("verbatim", "injector", "stripper")
ASKED = {"logprobs": True, "top_logprobs": 3}


def telling(*, synthetic: bool = True, **entries: Any) -> Profiles:
    """Every endpoint serves log-probabilities."""
    profiles = settings()
    habits = LogprobEntries(**entries)
    providers = tuple(p.model_copy(update={"logprobs": True, "logprob_entries": habits}) for p in profiles.provider)
    source = profiles.source.model_copy(update={"synthetic_logprobs": synthetic})
    return profiles.model_copy(update={"provider": providers, "source": source})


def streamed(body: bytes) -> Iterator[dict[str, Any]]:
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: {"):
            yield json.loads(event[6:])


def entries_in(body: bytes, *, stream: bool) -> list[dict[str, Any]]:
    choices = [chunk["choices"][0] for chunk in streamed(body)] if stream else [json.loads(body)["choices"][0]]
    return [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]


def ask(standin: Any, request: dict[str, Any]) -> bytes:
    async def run() -> bytes:
        async with connected(standin) as client:
            status, _, body = await client.post(request)
        assert status == 200, body
        return body

    return asyncio.run(run())


def last_truth(standin: Any) -> dict[str, Any]:
    return dict(json.loads((standin.ledger.folder / "truth.jsonl").read_text().splitlines()[-1]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("index", range(6))
def test_the_bytes_of_the_entries_spell_the_sampled_ids_one_by_one_however_the_text_is_bent(
    index: int, tag: str, stream: bool, make_standin: MakeStandin, answers: tuple[FakeAnswer, ...], vocabulary: Vocabulary
) -> None:
    more: dict[str, Any] = {} if answers[index].thinking else {"reasoning": {"enabled": False}}
    more |= {"tools": [TOOL], "tool_choice": "required"} if answers[index].tool_names else {}
    standin = make_standin(telling(), bank=answers[index : index + 1])
    body = ask(standin, chat(stream=stream, **only(tag), **ASKED, **more))
    entries = entries_in(body, stream=stream)
    spelt = [bytes(entry["bytes"]) for entry in entries]
    one = vocabulary.encoding.decode_single_token_bytes
    assert spelt == [one(i) for i in last_truth(standin)["completion_ids"]]
    assert all(entry["token"].encode() == told for entry, told in zip(entries, spelt, strict=True) if "�" not in entry["token"])
    assert all(entry["logprob"] < 0 and len(entry["top_logprobs"]) == 1 for entry in entries)


def test_a_part_of_a_character_has_its_own_bytes_or_what_the_endpoint_makes_of_them(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    parts = [vocabulary.encoding.encode_single_token(bytes([b])) for b in "€".encode()]
    answer = FakeAnswer((vocabulary.close_think, *parts, vocabulary.im_end))
    told = {}
    for habit in ("exact", "replaced", "null"):
        standin = make_standin(telling(bytes=habit), bank=(answer,), folder=tmp_path / habit)
        body = ask(standin, chat(**only("verbatim"), **ASKED))
        assert json.loads(body)["choices"][0]["message"]["content"] == "€"
        told[habit] = [entry["bytes"] for entry in entries_in(body, stream=False)[1:4]]
    assert told == {
        "exact": [[b] for b in "€".encode()],
        "replaced": [list("\ufffd".encode())] * 3,
        "null": [None] * 3,
    }


def test_a_stream_tells_each_entry_once_with_the_delta_that_shows_its_id(
    make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    answer = FakeAnswer(spell(vocabulary, " one two three four five", "\n\nsix seven"))
    standin = make_standin(telling(), bank=(answer,))
    body = ask(standin, chat(stream=True, **only("verbatim"), **ASKED))
    shown = {"reasoning": b"", "content": b""}
    for chunk in streamed(body):
        choice = chunk["choices"][0]
        spelt = b"".join(bytes(e["bytes"]) for e in (choice["logprobs"] or {"content": []})["content"])
        text = choice["delta"].get("reasoning") or choice["delta"].get("content") or ""
        assert spelt.removeprefix(b"</think>").removesuffix(b"<|im_end|>") == text.encode()
        shown["reasoning" if choice["delta"].get("reasoning") else "content"] += spelt
    assert shown["reasoning"] == b" one two three four five"
    assert shown["content"] == b"</think>\n\nsix seven<|im_end|>"


def test_the_entries_of_a_call_come_with_its_deltas(make_standin: MakeStandin, answers: tuple[FakeAnswer, ...]) -> None:
    standin = make_standin(telling(), bank=answers[4:5])
    body = ask(standin, chat(stream=True, **only("verbatim"), **ASKED, tools=[TOOL], tool_choice="required"))
    names, arguments = [], ["", ""]
    for chunk in streamed(body):
        choice = chunk["choices"][0]
        spelt = "".join(entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"])
        for call in choice["delta"].get("tool_calls", ()):
            if "name" in call["function"]:
                names.append(spelt.rpartition("<|tool_call_begin|>")[2])
            else:
                arguments[call["index"]] += spelt
    assert names == [f"functions.get_weather:{k}<|tool_call_argument_begin|>" for k in (0, 1)]
    assert arguments == ['{"city": "Florence"}', "{}"]


@pytest.mark.parametrize(
    ("habits", "expected"),
    [
        ({"cover": "all"}, " r</think>\nc <|im_end|>"),
        ({"cover": "all", "end": False}, " r</think>\nc "),
        ({"cover": "content"}, "\nc "),
    ],
)
def test_an_endpoint_covers_what_its_profile_says(
    habits: dict[str, Any], expected: str, make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    answer = FakeAnswer(spell(vocabulary, " r", "\nc "))
    body = ask(make_standin(telling(**habits), bank=(answer,)), chat(**only("stripper"), **ASKED))
    assert json.loads(body)["choices"][0]["message"]["content"] == "c"
    assert "".join(entry["token"] for entry in entries_in(body, stream=False)) == expected


def test_hidden_reasoning_has_no_entries(make_standin: MakeStandin, vocabulary: Vocabulary) -> None:
    standin = make_standin(telling(), bank=(FakeAnswer(spell(vocabulary, " secret", "open")),))
    body = ask(standin, chat(**only("verbatim"), **ASKED, reasoning={"exclude": True}))
    assert b"secret" not in body
    assert "".join(entry["token"] for entry in entries_in(body, stream=False)) == "open<|im_end|>"


def test_nobody_who_does_not_ask_gets_any_and_the_answer_is_the_same_one(make_standin: MakeStandin, tmp_path: Path) -> None:
    told = []
    for more in ({}, {"logprobs": False}, ASKED):
        standin = make_standin(telling(), folder=tmp_path / str(len(told)))
        told.append(json.loads(ask(standin, chat(**only("verbatim"), **more)))["choices"][0])
    assert [choice["logprobs"] is None for choice in told] == [True, True, False]
    assert told[0] == told[1] == {**told[2], "logprobs": None}
    stream = ask(make_standin(telling(), folder=tmp_path / "s"), chat(stream=True, **only("verbatim")))
    assert all("logprobs" not in chunk["choices"][0] for chunk in streamed(stream))


def test_a_bank_without_numbers_has_none_to_serve(make_standin: MakeStandin) -> None:
    body = ask(make_standin(telling(synthetic=False)), chat(**only("verbatim"), **ASKED))
    assert json.loads(body)["choices"][0]["logprobs"] is None


def test_an_endpoint_without_them_drops_them_silently_and_is_not_routed_to_when_they_are_required(
    make_standin: MakeStandin,
) -> None:
    profiles = telling()
    mute = tuple(p.model_copy(update={"logprobs": p.slug == "injector"}) for p in profiles.provider)
    standin = make_standin(profiles.model_copy(update={"provider": mute}))

    async def run() -> None:
        async with connected(standin) as client:
            status, _, body = await client.post(chat(**only("verbatim"), **ASKED))
            assert status == 200 and json.loads(body)["choices"][0]["logprobs"] is None
            for k in range(10):
                _, _, body = await client.post(chat(f"{k}", provider={"require_parameters": True}, **ASKED))
                assert json.loads(body)["provider"] == "Injector"
                assert json.loads(body)["choices"][0]["logprobs"]["content"]
            wanted = {"require_parameters": True, "only": ["verbatim"]}
            status, _, body = await client.post(chat(provider=wanted, **ASKED))
            assert (status, json.loads(body)["error"]["availability"]["code"]) == (404, "constraint_filtered")
            _, catalogue = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            declared = {e["tag"]: "logprobs" in e["supported_parameters"] for e in catalogue["data"]["endpoints"]}
            assert [tag for tag, yes in declared.items() if yes] == ["injector/fp8"]

    asyncio.run(run())


@pytest.mark.parametrize("value", [21, -1, "3", True, 1.5])
def test_a_number_of_alternatives_that_cannot_be_is_a_400(value: Any, make_standin: MakeStandin) -> None:
    async def run() -> None:
        async with connected(make_standin(telling())) as client:
            status, _, body = await client.post(chat(logprobs=True, top_logprobs=value))
            assert status == 400 and "top_logprobs" in json.loads(body)["error"]["message"]

    asyncio.run(run())


@pytest.mark.slow
def test_the_live_model_tells_its_own_numbers_and_its_own_alternatives(vocabulary: Vocabulary, tmp_path: Path) -> None:
    import torch

    from eagle3_assets_tests.kimi_mini.random_weights import random_model
    from kimi_mini.sampler import Ask, Sampler, sample_all
    from openrouter_standin import chance
    from openrouter_standin.answers.live import Live
    from openrouter_standin.service.server import Standin
    from openrouter_standin.truth.generation import Generator
    from openrouter_standin.truth.ledger import Ledger

    torch.set_num_threads(1)
    model = random_model(1)
    source = Live(Sampler(model, 2, 300))
    standin = Standin(Generator(telling(), vocabulary, source, "0"), Ledger(tmp_path / "standin"), KEY, TRUTH_TOKEN)
    try:
        body = ask(standin, {**chat(**only("verbatim"), **ASKED), "max_tokens": 20})
    finally:
        source.close()
    truth = last_truth(standin)
    seed = int(chance.hexadecimal(32, "0", truth["request_hash"], 0, "sample"), 16)
    (sample,) = sample_all(model, [Ask(truth["prompt_ids"], 1.0, 0.95, seed, 20, top_logprobs=300)], positions=300)
    assert list(sample.ids) == truth["completion_ids"]
    one = vocabulary.encoding.decode_single_token_bytes
    entries = entries_in(body, stream=False)
    assert [entry["logprob"] for entry in entries] == pytest.approx(sample.logprobs, abs=1e-4)
    for entry, i, logprob, top in zip(entries, sample.ids, sample.logprobs, sample.top, strict=True):
        assert [bytes(t["bytes"]) for t in entry["top_logprobs"]] == [one(other) for other, _ in top[:3]]
        assert [t["logprob"] for t in entry["top_logprobs"]] == pytest.approx([number for _, number in top[:3]], abs=1e-4)
        assert sorted((number for _, number in top), reverse=True) == [number for _, number in top]
        assert dict(top).get(i, logprob) == logprob
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
