"""Claims about answers that servers damaged on the wire (names and calls in pieces, odd streams, markers left in the text): the true ids
come back, or nobody claims them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.grammar import assemble
from eagle3_assets.targets.tokenizer import Profile, load_profile, profile_for_model
from eagle3_assets.targets.turn_text import TurnText, parts_of
from eagle3_assets.wire.fields import Fields, ToolCall
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import needs, shared_data
from eagle3_assets_tests.exact.synthetic import Truth, truth_ids

FAULTS = shared_data() / "wire" / "faults"
SURE = ("A0", "A1", "A2", "B1", "B2", "R")
MENDED = ("04_tool_name_fragments", "05_tool_calls_same_index", "07_unsplit_think", "08_streams")
REQUEST = {"messages": [{"role": "user", "content": "Weather in Oslo?"}]}
CALLS = (("get_weather", '{"city": "Oslo"}'),)


def _lines(name: str) -> Iterator[dict[str, Any]]:
    for line in needs(FAULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _rebuilt(row: dict[str, Any], tokenizers: Path) -> Reconstruction:
    profile = load_profile(str(profile_for_model(row["request"]["model"])), tokenizers)
    fields = parse_fields(row["response_body"].encode(), row.get("content_type", "application/json"))
    return reconstruct(profile, row["request"], fields, None, source="openrouter")


@pytest.mark.parametrize("name", MENDED)
def test_the_true_ids_of_reported_faults_come_back(name: str, tokenizers: Path) -> None:
    for row in _lines(name):
        found = _rebuilt(row, tokenizers)
        assert found.grade != "Q" and tuple(row["truth"]) in (found.input_ids, *found.survivors), (row["id"], found.reasons)


def test_no_reported_bill_gives_a_row_of_wrong_ids(tokenizers: Path) -> None:
    for row in _lines("09_bills"):
        found = _rebuilt(row, tokenizers)
        assert found.grade not in SURE or found.input_ids == tuple(row["truth"]), row["id"]


def test_an_index_of_null_loses_no_row(tokenizers: Path) -> None:
    (row,) = (row for row in _lines("09_bills") if row["id"].startswith("choice index null"))
    assert _rebuilt(row, tokenizers).input_ids == tuple(row["truth"])


# ---------------------------------------------------------------------------------------------------- names
def _called(mini: Profile, names: list[str], declared: str, source: str = "openrouter") -> Reconstruction:
    """A stream of one call whose name comes in these pieces, billed as the call of `declared`."""
    tools = [{"type": "function", "function": {"name": declared, "parameters": {"type": "object", "properties": {}}}}]
    ids = truth_ids(mini, Truth(content="", calls=((declared, "{}"),)))
    prompt = render_prompt(mini, REQUEST["messages"], tools)
    pieces = [{"index": 0, "id": "functions.x:0", "function": {"name": name, "arguments": ""}} for name in names]
    pieces.append({"index": 0, "function": {"arguments": "{}"}})
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"reasoning": " thinking"}}]}]
    chunks += [{"choices": [{"delta": {"tool_calls": [piece]}}]} for piece in pieces]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}})
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    found = reconstruct(mini, {**REQUEST, "tools": tools}, parse_fields(body), None, source=source)
    assert found.grade not in SURE or found.input_ids == (*prompt, *ids)
    return found


@pytest.mark.parametrize("names", [["py", "thon"], ["p", "y", "thon"], ["python", "python"], ["py", "python"]])
def test_a_name_in_fragments_is_the_tools_name(mini: Profile, names: list[str]) -> None:
    found = _called(mini, names, "python")
    assert found.grade == "C1" and "functions.python:0" in mini.decode(found.input_ids)


def test_a_name_that_nobody_declared_is_never_accepted(mini: Profile) -> None:
    found = _called(mini, ["py"], "python")
    assert found.grade == "Q" and any("'py'" in reason and "python" in reason for reason in found.reasons)


# ---------------------------------------------------------------------------------------------------- markers in the text
def _section(mini: Profile, space: str = "") -> str:
    tools = mini.facts.tools
    assert tools.form == "sections"
    (name, arguments), *_ = CALLS
    words = [
        tools.section_begin,
        tools.call_begin,
        f"functions.{name}:0",
        tools.argument_begin,
        arguments,
        tools.call_end,
    ]
    return space.join([*words, tools.section_end])


def _answer(
    mini: Profile, truth: Truth, content: str, reasoning: str | None = None, *, billed: bool, source: str = "openrouter"
) -> tuple[Reconstruction, tuple[int, ...]]:
    ids, prompt = truth_ids(mini, truth), tuple(render_prompt(mini, REQUEST["messages"], None))
    choice = {
        "index": 0,
        "finish_reason": "length" if truth.finish == "length" else "stop",
        "message": {"content": content, "reasoning": reasoning},
    }
    usage = {"usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}} if billed else {}
    fields = parse_fields(json.dumps({"choices": [choice], **usage}).encode())
    return reconstruct(mini, REQUEST, fields, None, source=source), (*prompt, *ids)


R, C = "The user wants rain.", "It rains."
LEAKS = [
    ("both markers", Truth(R, C), f"<think>{R}</think>{C}", None),
    ("the closing one", Truth(R, C), f"{R}</think>{C}", None),
    ("all in the reasoning", Truth(R, C), "", f"{R}</think>{C}"),
    ("an opening one left", Truth(R, C), C, f"<think>{R}"),
    ("a closing one left", Truth(R, C), f"</think>{C}", R),
    ("the end of turn", Truth(R, C), f"{C}<|im_end|>", R),
    ("everything", Truth(R, C), f"<think>{R}</think>{C}<|im_end|>", None),
    ("only reasoning", Truth(R, "", closed=True), f"<think>{R}</think>", None),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "content", "reasoning"), [leak[1:] for leak in LEAKS], ids=[leak[0] for leak in LEAKS])
def test_leaked_markers_are_read_back_by_the_bill_and_without_one(
    mini: Profile, truth: Truth, content: str, reasoning: str | None
) -> None:
    """TorchSpec#115, agent-data-protocol#195, vllm#33457"""
    found, ids = _answer(mini, truth, content, reasoning, billed=True)
    assert found.grade == "C1" and ids in (found.input_ids, *found.survivors), found.reasons
    imported, ids = _answer(mini, truth, content, reasoning, billed=False, source="import")
    assert (imported.grade, imported.input_ids) == ("I", ids) and imported.evidence["leaked"] is True
    assert "markers" in imported.reasons[0]
    unbilled, _ = _answer(mini, truth, content, reasoning, billed=False)
    assert unbilled.grade == "D"


def test_a_tool_section_in_the_text_is_read_back(mini: Profile) -> None:
    truth = Truth(R, C, CALLS, finish="tool_calls")
    for content in (f"{R}</think>{C}{_section(mini)}", f"<think>{R}</think>{C}{_section(mini)}<|im_end|>"):
        billed, ids = _answer(mini, truth, content, billed=True)
        assert ids in (billed.input_ids, *billed.survivors), billed.reasons
        imported, ids = _answer(mini, truth, content, billed=False, source="import")
        assert (imported.grade, imported.input_ids) == ("I", ids)


def test_spaces_beside_markers_are_decided_by_the_bill_only(mini: Profile) -> None:
    spaced = f" <think> {R} </think> {C}"
    found, ids = _answer(mini, Truth(R, C), spaced, billed=True)
    assert found.grade == "C1" and ids in (found.input_ids, *found.survivors)
    imported, _ = _answer(mini, Truth(R, C), spaced, billed=False, source="import")
    assert imported.grade == "Q" and "space" in imported.reasons[0]


@pytest.mark.parametrize(
    ("content", "reasoning"),
    [
        (f"{R}</think>{C}</think>", None),
        (f"{R} </think> {C}", "first thoughts"),
        (f"<think>{R}", None),
        (f"<think>a<think>{R}</think>{C}", None),
        (f"{C}<|im_end|>{C}", R),
        (f"{C}<|tool_calls_section_begin|>", R),
        (f"{C}[EOS]", R),
    ],
)
def test_text_that_can_be_read_in_several_ways_or_in_none_is_set_aside(
    mini: Profile, content: str, reasoning: str | None
) -> None:
    imported, _ = _answer(mini, Truth(R, C), content, reasoning, billed=False, source="import")
    assert imported.grade == "Q" and imported.reasons[0].startswith("marker_text: the text holds"), imported.reasons


def test_a_marker_between_quotation_marks_is_the_models_own_text(mini: Profile) -> None:
    text = "Reasoning ends with `</think>`."
    imported, ids = _answer(mini, Truth(R, text), text, R, billed=False, source="import")
    assert (imported.grade, imported.input_ids, imported.reasons) == ("I", ids, ())


def test_reasoning_that_was_cut_and_not_split_off_has_no_end(mini: Profile) -> None:
    cut = Truth(R, "", finish="length", closed=False)
    found, ids = _answer(mini, cut, f"<think>{R}", billed=True)
    assert ids in (found.input_ids, *found.survivors), found.reasons
    imported, ids = _answer(mini, cut, f"<think>{R}", billed=False, source="import")
    assert (imported.grade, imported.input_ids) == ("I", ids)


def test_ids_of_a_server_are_kept_although_their_text_is_in_one_piece(mini: Profile) -> None:
    ids, prompt = truth_ids(mini, Truth(R, C)), render_prompt(mini, REQUEST["messages"], None)
    for content in (f"<think>{R}</think>{C}", f"{R}</think>{C}", f"{R}</think>{C}<|im_end|>"):
        choice = {"finish_reason": "stop", "message": {"content": content}, "token_ids": list(ids)}
        found = reconstruct(mini, REQUEST, parse_fields(json.dumps({"choices": [choice]}).encode()), None, source="import")
        assert found.grade != "Q" and found.input_ids == (*prompt, *ids), found.reasons
    lost = {**choice, "message": {"content": f"{R}</think>Another text."}}
    found = reconstruct(mini, REQUEST, parse_fields(json.dumps({"choices": [lost]}).encode()), None, source="import")
    assert found.grade == "Q" and found.reasons[0].startswith("wire_text")


# ---------------------------------------------------------------------------------------------------- calls as JSON (Qwen3)
def _qwen_body(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("calls", [(), CALLS, (*CALLS, ("look", '{"q": 1}'))])
@pytest.mark.parametrize("billed", [True, False])
def test_qwen_s_reasoning_and_calls_inside_content_are_read_back(
    tokenizers: Path, calls: tuple[tuple[str, str], ...], billed: bool
) -> None:
    """Ollama, Groq's raw form"""
    qwen = load_profile("qwen3", tokenizers)
    reasoning, content = "\nHm, so.\n", "\n\nIt rains.\n" if calls else "\n\nIt rains."
    text = f"<think>{reasoning}</think>{content}" + "\n".join(_qwen_body(*call) for call in calls)
    tools = [
        {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}}
        for n in ("get_weather", "look")
    ]
    turn = TurnText(reasoning, content, tuple(ToolCall("", *call) for call in calls))
    ids, prompt = assemble(qwen, parts_of(qwen, turn)), render_prompt(qwen, REQUEST["messages"], tools)
    bill = {"billed_prompt": len(prompt), "billed_completion": len(ids)} if billed else {}
    fields = Fields(None, text, (), "stop", **bill)
    found = reconstruct(qwen, {**REQUEST, "tools": tools}, fields, None, source="openrouter" if billed else "import")
    assert found.input_ids == (*prompt, *ids) and found.grade == ("C1" if billed else "I"), found.reasons
