"""A replay bank as a source: chosen by (seed, request, attempt), tools of the request's own, and settings that are checked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openrouter_standin.answers.load import load_source
from openrouter_standin.answers.source import Bank
from openrouter_standin.errors import StandinError
from openrouter_standin.profiles import DEFAULT_PROFILES, load_profiles
from openrouter_standin.request import ChatRequest, read_request
from openrouter_standin.schema.source import Replay, Source
from openrouter_standin.vocabulary import Vocabulary, take_apart

OWN_TOOLS = ("deploy-service", "ns.lookup", "get_time")


def ask(text: str = "Hi", tools: tuple[str, ...] = (), **more: Any) -> ChatRequest:
    declared = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    messages = more.pop("messages", [{"role": "user", "content": text}])
    return read_request(
        json.dumps({"model": "m", "messages": messages, **({"tools": declared} if tools else {}), **more}).encode()
    )


@pytest.fixture(scope="module")
def source() -> Bank:
    bank, _ = load_source(Source(kind="replay", replay=Replay(answers=400, mean_tokens=300)))
    assert isinstance(bank, Bank)
    return bank


def _calls(source: Bank, request: ChatRequest, attempt: int) -> list[str]:
    v, sampled = source.vocabulary, source.choose(request, seed="0", attempt=attempt, limit=99_999)
    return [v.text(call.header) for call in take_apart(sampled.ids, request.thinking, v).calls]


def test_a_request_with_tools_that_the_bank_does_not_know_gets_calls_of_its_own_tools(source: Bank) -> None:
    request = ask(tools=OWN_TOOLS, tool_choice="required")
    headers = [_calls(source, request, attempt) for attempt in range(60)]
    native = [h for one in headers for h in one if h.startswith("functions.")]
    assert {h.split(":")[0].removeprefix("functions.") for h in native} == set(OWN_TOOLS)
    for one in headers:
        assert all(h.endswith(f":{k}") for k, h in enumerate(one) if h.startswith("functions."))
    assert headers == [_calls(source, request, attempt) for attempt in range(60)]


def test_a_request_that_declares_the_banks_tools_gets_its_answers_unchanged(source: Bank) -> None:
    request = ask(tools=Replay().tools, tool_choice="required")
    drawn = [source.choose(request, seed="0", attempt=attempt, limit=99_999) for attempt in range(40)]
    assert all(sampled.key is not None for sampled in drawn) and len({sampled.key for sampled in drawn}) > 20
    one = drawn[0]
    again = source.choose(request, seed="0", attempt=0, limit=99_999)
    assert again == one and again.ids is one.ids and again.habits == one.habits


def test_a_request_that_declares_one_of_them_is_not_renamed(source: Bank) -> None:
    request = ask(tools=("get_weather", "other"), tool_choice="required")
    headers = [h for attempt in range(40) for h in _calls(source, request, attempt) if h.startswith("functions.")]
    assert headers and all(h.startswith("functions.get_weather:") for h in headers)


def test_without_tools_or_with_tool_choice_none_there_are_no_calls(source: Bank) -> None:
    for request in (ask(), ask(tools=OWN_TOOLS, tool_choice="none")):
        assert not any(_calls(source, request, attempt) for attempt in range(40))


def test_calls_go_on_from_those_of_the_history(source: Bank) -> None:
    call = {"id": "functions.get_time:0", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    request = ask(tools=("get_time",), tool_choice="required", messages=[*history, {"role": "tool", "content": "12:00"}])
    for attempt in range(30):
        headers = _calls(source, request, attempt)
        assert all(h == f"functions.get_time:{k}" for k, h in enumerate(headers, 1) if h.startswith("functions."))


def test_modes_limits_and_habits(source: Bank) -> None:
    v = source.vocabulary
    habits = set()
    for attempt in range(80):
        instant = source.choose(ask(reasoning={"enabled": False}), seed="0", attempt=attempt, limit=50)
        assert v.close_think not in instant.ids and len(instant.ids) <= 50
        habits |= set(source.choose(ask(), seed="0", attempt=attempt, limit=99_999).habits)
    assert "reasoning_leading" in habits
    cut = source.choose(ask(), seed="0", attempt=0, limit=7)
    assert cut.key is None and len(cut.ids) == 7


def test_made_up_log_probabilities_leave_the_ids_and_take_the_number(source: Bank) -> None:
    made_up = Bank([], source.vocabulary, Source(kind="replay", synthetic_logprobs=True), renames=True)
    made_up._modes, made_up._groups = source._modes, {}

    async def both(request: ChatRequest) -> tuple[Any, Any]:
        ask_it = {"seed": "0", "attempt": 0, "limit": 99_999}
        return await made_up.answer(request, (), **ask_it), await source.answer(request, (), **ask_it)

    told, silent = asyncio.run(both(ask(logprobs=True, top_logprobs=2)))
    assert told.ids == silent.ids and told.habits == silent.habits
    assert told.logprobs is not None and len(told.logprobs) == len(told.ids) and told.key is None
    assert silent.logprobs is None and silent.key is not None


# ---------------------------------------------------------------------------------------------------- settings
def _profiles(folder: Path, replay: str) -> Path:
    text = DEFAULT_PROFILES.read_text()
    head, tail = text.split("[source]", 1)
    rest = tail[tail.index("\n[engine]") :]
    path = folder / "profiles.toml"
    path.write_text(f'{head}[source]\nkind = "replay"\n{replay}\n{rest}', encoding="utf-8")
    return path


def test_a_profiles_file_with_a_text_beside_it(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "own.txt").write_text("My very own sentence.\n\n" * 3)
    path = _profiles(
        tmp_path,
        '[source.replay]\nanswers = 12\nmean_tokens = 100\ntext = ["texts/*.txt"]\ntool_answers = 0.0\n'
        '[source.replay.habits]\ncut = { reasoning = 0.0 }\ncontent_leading = { " " = 0.5, "\\n\\n" = 0.5 }',
    )
    source, vocabulary = load_source(load_profiles(path).source, path.parent)
    assert isinstance(source, Bank)
    assert "My very own sentence." in vocabulary.text(source.choose(ask(), seed="0", attempt=0, limit=9999).ids)


@pytest.mark.parametrize(
    ("replay", "told"),
    [
        ('[source.replay.habits]\nreasoning_leading = { " " = 0.7, "\\n" = 0.6 }', "reasoning_leading"),
        ("[source.replay.habits.cut]\nreasoning = 0.5\ncontent = 0.5\narguments = 0.1", "add up to 1.1; expected at most 1"),
        ("[source.replay.habits]\nimplicit_end = 0.6\nno_content = 0.5", "'implicit_end', 'no_content' add up to 1.1"),
        ('[source.replay.habits]\ncontent_trailing = { "x" = 0.1 }', "'x' is not whitespace"),
        ("[source.replay.habits]\nnon_canonical = 1.5", "source.replay.habits.non_canonical = 1.5"),
        ("[source.replay]\nmean_tokens = 9000", "mean_tokens = 9000 needs max_tokens >= 18000, found 16384"),
        ('[source.replay]\ntools = ["has space"]', "source.replay.tools"),
        ("[source.replay]\ntools = []", "source.replay.tools"),
        ("[source.replay]\nlength = 3", "unknown key source.replay.length; known keys: seed, answers, tokenizer"),
        ("[source.replay.habits]\nnoncanonical = 0.1", "unknown key source.replay.habits.noncanonical"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path: Path, replay: str, told: str) -> None:
    with pytest.raises(StandinError) as error:
        load_profiles(_profiles(tmp_path, replay))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_bank_whose_files_are_missing_is_one_line(tmp_path: Path) -> None:
    for replay in (Replay(text=("none.txt",)), Replay(tokenizer="none")):
        with pytest.raises(StandinError) as error:
            load_source(Source(kind="replay", replay=replay), tmp_path)
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_kimis_vocabulary_is_the_one_that_is_served(kimi_files: Path, kimi: Vocabulary) -> None:
    replay = Replay(tokenizer=str(kimi_files), answers=20)
    _, vocabulary = load_source(Source(kind="replay", replay=replay))
    assert vocabulary.im_end == kimi.im_end == 163586
