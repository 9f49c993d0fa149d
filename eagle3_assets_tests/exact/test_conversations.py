"""One claim: the prompt ids of every turn of a tool conversation are those of an independent rendering.

The other side: the model's own template run by transformers, its text encoded here with the golden tool declaration. Two tool loops,
parallel calls, ids that a provider rewrote, reasoning kept in the open loop and dropped behind it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.targets.tokenizer import Profile, load_profile

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\r\n", "ภาษา", "👩‍👩‍👧", "</think>", "<|im_end|>"]
)
ARGUMENTS = st.dictionaries(st.sampled_from(["location", "n"]), TEXT | st.integers(), max_size=2)
IDS = ["functions.get_weather:{k}", "call_{k:024x}", "chatcmpl-tool-{k:032x}"]


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """user, then two loops of 1-2 rounds (1-3 parallel calls each, their results), each closed by an answer, then a user's or an open loop."""
    style, spaced = draw(st.sampled_from(IDS)), draw(st.booleans())
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Use the tool."}] if draw(st.booleans()) else []
    number = 0
    for loop in range(2):
        if loop == 0 or draw(st.booleans()):  # an answer may be followed by a call at once
            messages.append({"role": "user", "content": draw(TEXT)})
        for _ in range(draw(st.integers(1, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                arguments = json.dumps(draw(ARGUMENTS), ensure_ascii=False, separators=None if spaced else (",", ":"))
                function = {"name": "get_weather", "arguments": arguments}
                calls.append({"id": style.format(k=number), "type": "function", "function": function})
                number += 1
            messages.append({"role": "assistant", "content": draw(TEXT), "reasoning_content": draw(TEXT), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXT)} for call in calls]
        if loop == 0 or draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(TEXT), "reasoning_content": draw(TEXT)})
    return messages


def template_text(tokenizers: Path, model: str, messages: list[dict[str, Any]], **switches: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (tokenizers / model / "chat_template.jinja").read_text(encoding="utf-8")
    (text,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **switches)
    return str(text)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["kimi-k2.5", "kimi-k2-thinking"])
def test_the_prompt_of_every_turn_equals_the_models_template(tokenizers: Path, golden: dict[str, Any], model: str) -> None:
    profile = load_profile(model, tokenizers)
    loop = next(case for case in golden["chat"] if case["model"] == model and case["name"] == "tool_loop")
    compared = set()

    @given(turns(), st.booleans())
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def claim(messages: list[dict[str, Any]], thinking: bool) -> None:
        thinking = thinking or model == "kimi-k2-thinking"
        switches = {"tools_ts_str": loop["tools_ts_str"]} if "tools_ts_str" in loop else {}
        for end in (k for k, message in enumerate(messages) if message["role"] == "assistant"):
            text = template_text(tokenizers, model, messages[:end], tools=loop["tools"], thinking=thinking, **switches)
            ids = profile.encoding.encode(text, allowed_special="all")
            assert render_prompt(profile, messages[:end], loop["tools"], thinking=thinking) == ids
            compared.add(end)

    claim()
    assert len(compared) >= 5


def test_a_turn_goes_on_where_the_last_prompt_left_off_until_its_loop_is_closed(k25: Profile) -> None:
    """One row per assistant turn: a closed loop loses its reasoning, so its turns are no prefix of what follows."""

    def round_of(k: int) -> list[dict[str, Any]]:
        call = {"id": f"functions.f:{k}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calling = {"role": "assistant", "content": "", "reasoning_content": f" round {k}", "tool_calls": [call]}
        return [calling, {"role": "tool", "tool_call_id": call["id"], "content": "r"}]

    open_loop = [{"role": "user", "content": "q"}, *round_of(0), *round_of(1)]
    closed = [
        *open_loop,
        {"role": "assistant", "content": "done", "reasoning_content": " end"},
        {"role": "user", "content": "next"},
    ]
    first, second, third, fourth = (
        render_prompt(k25, messages) for messages in (open_loop[:1], open_loop[:3], open_loop, closed)
    )
    assert second[: len(first)] == first and third[: len(second)] == second
    assert fourth[: len(first)] == first and fourth[: len(second)] != second
