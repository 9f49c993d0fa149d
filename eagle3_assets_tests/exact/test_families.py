"""Claims about models nobody prepared: `new-profile` measures a family's files, and prompts, turns and rebuilt answers are then exact."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli.main import run
from eagle3_assets.exact.new_profile import grammar_faults
from eagle3_assets.exact.probe import probe
from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.grammar import assemble, check, split
from eagle3_assets.targets.profile_facts import profile_facts
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.targets.turn_text import TurnText, parts_of, texts_of
from eagle3_assets.wire.fields import ToolCall
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.families import FAMILIES, TOOLS, WORDS, Family, conversations, publish

TEXTS = [Path(__file__).read_text(encoding="utf-8"), *WORDS]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def measured(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """The profile that `new-profile` writes of the family's folder."""
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    folder = publish(family, tmp_path / family.name, TEXTS)
    assert run(["new-profile", str(folder)]) == 0
    return load_profile(family.name)


def test_what_the_files_say_is_measured_and_nothing_is_asked(family: Family, measured: Profile) -> None:
    facts = profile_facts(family.name)
    for where, expected in family.says.items():
        table, key = where.split(".")
        assert getattr(getattr(facts, table), key) == expected, where
    assert set(facts.tokenizer.special) == set(family.tokens)
    assert not [fault for fault in grammar_faults(measured) if "whole numbers" in fault]


def test_the_probe_holds_the_profile_against_the_publishers_own_encodings(
    family: Family, measured: Profile, campaign: Campaign
) -> None:
    own = campaign.target.model_copy(update={"profile": family.name, "end_of_turn_id": None})
    found = probe(campaign.model_copy(update={"target": own}), measured)
    assert {name: result["message"] for name, result in found["checks"].items() if not result["passed"]} == {}
    assert found["facts"]["golden_encodings"] >= 200 and found["facts"]["golden_renderings"] >= 4


def test_a_golden_encoding_that_the_profile_does_not_give_is_seen(measured: Profile, campaign: Campaign) -> None:
    path = measured.ranks_path.with_name("golden.json")
    golden = json.loads(path.read_text(encoding="utf-8"))
    golden["chat"][0]["ids"][-1] -= 1
    path.write_text(json.dumps(golden), encoding="utf-8")
    assert not probe(campaign, measured)["checks"]["golden"]["passed"]


def test_prompts_are_those_of_the_models_own_template_and_library(family: Family, measured: Profile) -> None:
    from tokenizers import Tokenizer
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs = Tokenizer.from_file(str(measured.ranks_path))
    tried = 0
    for messages, tools in conversations(family.name, 200):
        for thinking in (True, False) if measured.instant else (True,):
            shown = copy.deepcopy(messages)
            for message in shown:
                for call in message.get("tool_calls", ()):
                    if family.says.get("template.arguments") == "object" or family.name == "glm":
                        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
                if measured.opened_by == "never":
                    message.pop("reasoning_content", None)
            switch = {str(family.says["template.switch"]): thinking} if measured.instant else {}
            (text,), _ = render_jinja_template([shown], tools=tools, chat_template=family.template, add_generation_prompt=True,
                                               bos_token=family.tokens[0], **switch)  # fmt: skip
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert render_prompt(measured, messages, tools, thinking=thinking) == ids, messages
            tried += 1
    assert tried >= 200


def turns(family: Family, profile: Profile) -> list[tuple[TurnText, bool]]:
    """(turn, whether it thinks) of every kind that the family writes."""
    modes = ([True] if profile.opened_by != "never" else []) + (
        [False] if profile.opened_by == "never" or profile.instant else []
    )
    names = [t["function"]["name"] for t in TOOLS]  # type: ignore[index]
    made = [ToolCall(profile.tool_id(name, k), name, json.dumps({"city": WORDS[k], "n": k})) for k, name in enumerate(names)]
    calls = (
        [()]
        if family.name == "chatml"
        else [(), tuple(made[:1])]
        if family.name == "bare"
        else [(), tuple(made[:1]), tuple(made)]
    )
    return [
        (TurnText(f"Hm. {text}" if thinking else "", "" if family.name == "bare" and called else text, called), thinking)
        for thinking in modes
        for called in calls
        for text in WORDS
    ]


def test_turns_become_ids_and_the_same_turns_again_whole_and_cut(family: Family, measured: Profile) -> None:
    for turn, thinking in turns(family, measured):
        parts = parts_of(measured, turn, thinking=thinking)
        ids = assemble(measured, parts)
        assert check(measured, ids, thinking=thinking) is None and split(measured, ids, thinking=thinking) == parts
        read = texts_of(measured, parts)
        assert (read.reasoning, read.content, [call.name for call in read.calls]) == (
            turn.reasoning, turn.content, [call.name for call in turn.calls])  # fmt: skip
        assert [json.loads(call.arguments) for call in read.calls] == [json.loads(call.arguments) for call in turn.calls]
        for cut in range(len(ids)):
            assert assemble(measured, split(measured, ids[:cut], thinking=thinking, truncated=True)) == ids[:cut]


def test_answers_are_rebuilt_from_their_text_alone(family: Family, measured: Profile) -> None:
    for turn, thinking in turns(family, measured):
        found, truth = rebuilt(measured, turn, thinking)
        assert truth in (found.input_ids, *found.survivors) and found.grade == "C1", (turn, found.reasons)


def rebuilt(profile: Profile, turn: TurnText, thinking: bool) -> tuple[Any, tuple[int, ...]]:
    ids = assemble(profile, parts_of(profile, turn, thinking=thinking))
    tools = TOOLS if turn.calls else None
    messages = [{"role": "user", "content": "q"}]
    prompt = render_prompt(profile, messages, tools, thinking=thinking)
    message: dict[str, Any] = {"reasoning": turn.reasoning or None, "content": turn.content}
    if turn.calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
        message["tool_calls"] = [{"id": f"call_{k:024x}", "type": "function", "function": f} for k, f in enumerate(functions)]
    choice = {"index": 0, "finish_reason": "tool_calls" if turn.calls else "stop", "message": message}
    body = {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}
    switch = profile.facts.template.switch
    request = {
        "messages": messages,
        **({"tools": tools} if tools else {}),
        **({"chat_template_kwargs": {switch: thinking}} if switch else {}),
    }
    found = reconstruct(profile, request, parse_fields(json.dumps(body).encode()), None, source="openrouter")
    return found, (*prompt, *ids)


# ---------------------------------------------------------------------------------------------------- what is asked
def test_what_the_files_leave_open_is_a_todo_line_and_an_answer_settles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """generation_config.json stops at a token that the template does not write behind an answer."""
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    folder = publish(FAMILIES["chatml"], tmp_path / "odd", TEXTS)
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert run(["new-profile", str(folder)]) == 1
    path = tmp_path / "data" / "tokenizers" / "odd" / "profile.toml"
    assert "# TODO turn.end: Which control token ends a turn?" in path.read_text() and "TODO turn.end" in capsys.readouterr().out
    path.unlink()
    assert run(["new-profile", str(folder), "--answer", "turn.end=<|im_end|>"]) == 0
    assert profile_facts("odd").turn.end == "<|im_end|>"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "is no folder and no OWNER/MODEL"),
        ([".", "--name", "qwen3"], "is a profile of the package already"),
        ([".", "--answer", "turn.end"], "expected KEY=VALUE"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(publish(FAMILIES["chatml"], tmp_path / "x", TEXTS))
    assert run(["new-profile", *arguments]) == 1
    error = capsys.readouterr().err
    assert line in error and "Traceback" not in error


def test_a_template_runs_in_the_sandbox_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path / "data"))
    folder = publish(FAMILIES["chatml"], tmp_path / "evil", TEXTS)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    assert run(["new-profile", str(folder)]) == 1
    assert "cannot render one user message" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- real files
def test_qwen3_is_measured_as_the_package_knows_it(tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    assert run(["new-profile", str(tokenizers / "qwen3"), "--name", "again", "--model", "again"]) == 0
    mine, known = profile_facts("again"), profile_facts("qwen3")
    for table in ("turn", "reasoning"):
        assert getattr(mine, table) == getattr(known, table)
    fields = ("pattern", "normalizer", "n_base", "n_special", "special", "eos", "ranks_sha256")
    assert [getattr(mine.tokenizer, f) for f in fields] == [getattr(known.tokenizer, f) for f in fields]
    assert mine.template.switch == known.template.switch and mine.tools.form == "json" == known.tools.form
    assert (mine.tools.call_begin, mine.tools.separator, mine.tools.body_format) == (
        known.tools.call_begin, known.tools.separator, known.tools.body_format)  # fmt: skip
    assert grammar_faults(load_profile("again")) == []


def test_tiktoken_gives_the_publishers_ids_on_100_000_texts(tokenizers: Path) -> None:
    from eagle3_assets.exact.measure_tokenizer import fuzzed_texts
    from eagle3_assets.targets.hub_encoder import HubEncoder

    profile = load_profile("qwen3", tokenizers)
    theirs = HubEncoder(profile.ranks_path, profile.ranks_path.read_bytes(), profile.specials)
    for text in fuzzed_texts(100_000, tuple(profile.specials)[:8]):
        assert profile.encode(text) == theirs.encode_ordinary(text), text
        assert profile.encode_prompt(text) == theirs.encode(text, allowed_special="all"), text
