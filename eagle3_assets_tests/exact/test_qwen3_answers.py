"""Claims about answers of a model that is data only: Qwen3's are rebuilt from text and bill, its ids are believed, its limits are said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.grammar import Ids, assemble
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.targets.turn_text import TurnText, parts_of
from eagle3_assets.wire.fields import ToolCall
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import needs, shared_data

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("f", "g")
]
CALLS = (ToolCall("", "f", '{"a": "é"}'), ToolCall("", "g", "{}"))
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}], "tools": TOOLS}


@pytest.fixture(scope="module")
def qwen(tokenizers: Path) -> Profile:
    return load_profile("qwen3", tokenizers)


def rebuilt(
    qwen: Profile, turn: TurnText, *, with_ids: bool = False, thinking: bool = True, shown: str | None = None
) -> tuple[Reconstruction, Ids]:
    """(what is made of a server's answer, the truth). Servers give calls ids of their own; `shown` is the content on the wire where it is not
    the model's."""
    ids = assemble(qwen, parts_of(qwen, turn, thinking=thinking))
    prompt = render_prompt(qwen, REQUEST["messages"], TOOLS, thinking=thinking)
    message: dict[str, Any] = {"reasoning": turn.reasoning or None, "content": turn.content if shown is None else shown}
    if turn.calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
        message["tool_calls"] = [{"id": f"call_{k:024x}", "type": "function", "function": f} for k, f in enumerate(functions)]
    choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls" if turn.calls else "stop", "message": message}
    body: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}
    if with_ids:
        body["prompt_token_ids"], choice["token_ids"] = prompt, list(ids)
    request = {**REQUEST, "chat_template_kwargs": {"enable_thinking": thinking}}
    found = reconstruct(qwen, request, parse_fields(json.dumps(body).encode()), None, source="openrouter")
    return found, (*prompt, *ids)


@pytest.mark.parametrize("calls", [(), CALLS[:1], CALLS])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_verbatim_answer_is_rebuilt_with_its_calls(qwen: Profile, calls: tuple[ToolCall, ...], thinking: bool) -> None:
    found, truth = rebuilt(qwen, TurnText("\nhm, so\n" if thinking else "", "\n\nok\n", calls), thinking=thinking)
    assert found.input_ids == truth and found.grade == "C1", found.reasons
    assert (found.residual["prompt"], found.residual["completion"]) == (0, 0)


@pytest.mark.parametrize("content", ["ok.", "a list:", "done", ""])
@pytest.mark.parametrize("run", ["\n\n", "\n"])
@pytest.mark.parametrize("thinking", [True, False])
def test_whitespace_that_a_parser_cut_off_in_front_of_a_call_is_put_back_or_left_open(
    qwen: Profile, content: str, run: str, thinking: bool
) -> None:
    """`.` and `.\\n\\n` are one id each, so no count shows what was cut off."""
    if not content and not thinking:
        return  # nothing stands in front of such a call
    text = ("\n\n" + content) if thinking and content else content
    found, truth = rebuilt(qwen, TurnText("\nhm\n" if thinking else "", text + run, CALLS[:1]), thinking=thinking, shown=text)
    assert found.grade == "C1" and truth in (found.input_ids, *found.survivors), found.reasons
    if run == "\n\n":  # what Qwen3 writes
        assert found.input_ids == truth


def test_recorded_answers_with_true_ids_are_rebuilt_from_their_text(qwen: Profile) -> None:
    path = needs(shared_data() / "wire" / "truth-qwen3.jsonl.gz")
    wrong, sure = [], 0.0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        found = reconstruct(qwen, row["request"], parse_fields(row["response_body"].encode()), None, source="openrouter")
        sure += found.p_exact
        if found.input_ids != (*row["truth_p"], *row["truth_g"]):
            wrong.append((row["id"], found.p_exact))
    assert not wrong and sure < len(rows) and len(rows) >= 48


def test_ids_that_a_server_returned_are_believed_with_calls_and_all(qwen: Profile) -> None:
    found, truth = rebuilt(qwen, TurnText("\nhm\n", "\n\n", CALLS), with_ids=True)
    assert (found.grade, found.input_ids, found.reasons) == ("A0", truth, ())


def test_text_that_is_not_nfc_is_kept_as_it_is_and_doubted(qwen: Profile) -> None:
    found, truth = rebuilt(qwen, TurnText("\nhm\n", "\n\nCafe\u0301"))
    assert found.grade == "C1" and any("not NFC" in reason for reason in found.reasons)
    assert truth in (found.input_ids, *found.survivors)
    assert "Cafe\u0301" in qwen.decode(found.input_ids)
