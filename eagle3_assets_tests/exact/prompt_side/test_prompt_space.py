"""Claims about the space of prompts: turns that are encoded once and joined are what the tokenizer makes of the whole text."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side import segments
from eagle3_assets.exact.prompt_side.hypotheses import enumerate_prompts, is_open, is_rendering, prompt_counts
from eagle3_assets.exact.prompt_side.prompt_forms import (
    PRIORS,
    PromptForm,
    factor_of,
    form_of,
    prior_of_tools,
    prior_of_word,
    tool_forms,
)
from eagle3_assets.exact.prompt_side.prompt_space import number_calls
from eagle3_assets.exact.prompt_side.render import declaration, render_text
from eagle3_assets.exact.prompt_side.request_facts import declared_tools
from eagle3_assets.exact.prompt_side.tools_ts import declare_tools
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets_tests.conftest import needs, shared_data

TEXTS = st.lists(
    st.sampled_from(["a", "Bob", " ", "\n", "é", "<think>", "[EOS]", "<|im_end|>", "1.", "{", "你"]), max_size=6
).map("".join)
SCHEMA = {"type": "object", "properties": {"b": {"type": "string", "description": "A <tag>.\nTwo"}, "a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "run", "description": "Run it.\nNow", "strict": True, "parameters": SCHEMA}}


def call(k: int, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{k}", "type": "function", "function": {"name": "run", "arguments": arguments}}


MESSAGES = st.one_of(
    st.builds(lambda t, n: {"role": "user", "content": t, **({"name": n} if n else {})}, TEXTS, st.sampled_from(["", "bob"])),
    st.builds(lambda t: {"role": "system", "content": t}, TEXTS),
    st.builds(lambda t: {"role": "developer", "content": t}, TEXTS),
    st.builds(lambda t, r: {"role": "assistant", "content": t, "reasoning": r}, TEXTS, TEXTS),
    st.builds(
        lambda k, a, r: {"role": "assistant", "content": None, "reasoning": r, "tool_calls": [call(k, a)]},
        st.integers(0, 3),
        st.sampled_from(['{"a":1}', '{"a": 1}', "{", "{}"]),
        TEXTS,
    ),
    st.builds(lambda k, t: {"role": "tool", "tool_call_id": f"call_{k}", "content": t}, st.integers(0, 3), TEXTS),
)
REQUESTS = st.builds(
    lambda messages, tools: {"messages": messages, **({"tools": [TOOL]} if tools else {})},
    st.lists(MESSAGES, min_size=1, max_size=5),
    st.booleans(),
)


def whole(profile: Profile, request: dict[str, Any], form: PromptForm, thinking: bool) -> tuple[int, ...]:
    messages = request["messages"]
    if form.tool_ids != "as_sent":
        messages = number_calls(profile, messages, anew=form.tool_ids == "local")
    return tuple(profile.encode_prompt(render_text(profile, messages, declared_tools(request), thinking=thinking, form=form)))


@pytest.mark.slow
@given(REQUESTS, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
def test_joined_turns_are_the_ids_of_the_whole_text(request_: dict[str, Any], thinking: bool, random: Any) -> None:
    profile = load_profile("kimi-mini")
    candidates = enumerate_prompts(profile, request_, thinking=thinking)
    assert len({candidate.ids for candidate in candidates}) == len(candidates), (
        "forms that lead to the same ids are one candidate"
    )
    for candidate in random.sample(candidates, min(8, len(candidates))):
        assert candidate.count == len(candidate.ids)
        name = random.choice(candidate.forms)
        assert is_rendering(profile, request_, candidate.ids, thinking=thinking, forms=[name])
        assert is_rendering(profile, request_, candidate.ids, thinking=thinking)
        assert not is_rendering(profile, request_, (*candidate.ids, 0), thinking=thinking)
        form = form_of(name.replace("no_tools", "typescript"))
        assert form is not None
        if form.control == "ids":
            assert whole(profile, request_, form, thinking) == candidate.ids


@pytest.mark.slow
@given(REQUESTS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_counts_by_form_are_those_of_the_candidates(request_: dict[str, Any], thinking: bool) -> None:
    profile = load_profile("kimi-mini")
    table = prompt_counts(profile, request_, thinking)
    candidates = enumerate_prompts(profile, request_, thinking=thinking)
    assert dict(table) == {form: c.count for c in candidates for form in c.forms} and len(table) == len(dict(table))
    by_digest: dict[int, set[tuple[int, ...]]] = {}
    for candidate in candidates:
        for form in candidate.forms:
            by_digest.setdefault(table.digests[form], set()).add(candidate.ids)
    assert all(len(ids) == 1 for ids in by_digest.values()) and len(by_digest) == len(candidates)


@given(st.sampled_from(tool_forms(PromptForm("compact_json"))), st.data())
def test_a_form_is_known_again_by_its_name(form: PromptForm, data: Any) -> None:
    for word in (*form.history, form.tools):
        factor = factor_of(word)
        assert (factor == "tools") == (word == form.tools)
    assert form_of(form.name) == form
    assert prior_of_tools(form.tools, "compact_json") > 0 and all(prior_of_word(word) > 0 for word in form.history)


def test_every_value_of_a_factor_has_a_prior() -> None:
    assert form_of("typescript/reasoning_kept/arguments_as_sent/ids_odd") is None and form_of("yaml/reasoning_kept") is None
    for factor in ("reasoning", "arguments", "ids", "name", "developer", "control", "prefill", "system"):
        for value in PRIORS[factor]:
            assert form_of(f"typescript/{factor}_{value}") is not None, (factor, value)


def test_a_text_that_the_chunk_rule_cuts_is_encoded_as_a_whole(mini: Profile) -> None:
    """Two messages without a blank are one run of characters, and the cut takes a marker apart."""
    limit = mini.facts.tokenizer.chunk_run or 0
    request = {"messages": [{"role": "system", "content": "x" * (limit - 37)}, {"role": "user", "content": "y" * 40}]}
    first = enumerate_prompts(mini, request, thinking=True)[0]
    assert first.ids == tuple(mini.encode_prompt(render_text(mini, request["messages"])))
    assert first.ids.count(mini.end_id) < 2, "the marker at the cut is lost, as on the server"


def test_what_a_session_repeats_is_encoded_once(mini: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_CACHE", segments._Cache())
    seen: list[str] = []
    encode = Profile.encode_prompt
    monkeypatch.setattr(Profile, "encode_prompt", lambda self, text: seen.append(text) or encode(self, text))
    turns: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for k in range(6):
        turns += [{"role": "user", "content": f"question {k}"}, {"role": "assistant", "content": f"answer {k}"}]
        enumerate_prompts(mini, {"messages": turns[:-1], "tools": [TOOL]}, thinking=True)
    assert len(seen) == len(set(seen)) and sum("question" in text for text in seen) == 6


def test_the_cache_forgets_what_was_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CACHED_CHARS", 1000)
    cache = segments._Cache()
    for k in range(30):
        cache.put(("t", f"{k:02}" + "x" * 98, "turn"), segments.EMPTY)
        cache.get(("t", "00" + "x" * 98, "turn"))
    kept = [text[:2] for _, text, _ in cache._kept]
    assert "00" in kept and "29" in kept and "10" not in kept and len(kept) <= 7


@pytest.mark.slow
def test_lines_of_a_declaration_are_encoded_apart_without_a_difference(tokenizers: Path) -> None:
    profile = load_profile("kimi-k2-instruct", tokenizers)
    path = needs(shared_data() / "wire" / "recorded-k2-0905.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        tools = {json.dumps(json.loads(line)["request"].get("tools") or []) for line in file}
    for text in sorted(tools):
        for form in tool_forms(PromptForm("compact_json"))[::7]:
            declared = declaration(json.loads(text), form) if text != "[]" else ""
            assert list(segments._by_lines(profile, declared)) == profile.encode_prompt(declared)


def test_tools_that_are_left_out_or_asked_for_in_the_old_way_are_forms(mini: Profile) -> None:
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}], "tools": [TOOL], "tool_choice": "none"}
    plain = tuple(mini.encode_prompt(render_text(mini, request["messages"])))
    left_out = next(c for c in enumerate_prompts(mini, request, thinking=True) if c.ids == plain)
    assert left_out.forms == ("omitted/reasoning_kept/arguments_as_sent",)
    unasked = next(c for c in enumerate_prompts(mini, {**request, "tool_choice": "auto"}, thinking=True) if c.ids == plain)
    assert left_out.prior > 10 * unasked.prior
    legacy = {"messages": request["messages"], "functions": [TOOL["function"]]}
    declared = {c.ids for c in enumerate_prompts(mini, {**request, "tool_choice": "auto"}, thinking=True)}
    assert {c.ids for c in enumerate_prompts(mini, legacy, thinking=True)} == declared


def test_a_style_that_changes_nothing_leads_to_the_same_prompt_as_the_one_it_equals(mini: Profile) -> None:
    """A provider that writes arguments anew is known by that "as sent" is ruled out; a row whose arguments are spaced already is its all the
    same, though "compact" would change them."""
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"path": "a/b"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
    ]
    candidates = enumerate_prompts(mini, {"messages": messages}, thinking=True)
    words = {frozenset(form.split("/")[2] for form in c.forms) for c in candidates}
    assert words == {frozenset({"arguments_as_sent", "arguments_spaced"}), frozenset({"arguments_compact"})}
    own = candidates[0]
    assert is_open(own, frozenset({"arguments_as_sent"})) and not is_open(
        own, frozenset({"arguments_as_sent", "arguments_spaced"})
    )


def test_reasoning_of_closed_loops_is_kept_in_a_form_of_its_own(mini: Profile) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": " why"},
        {"role": "user", "content": "more"},
    ]
    candidates = enumerate_prompts(mini, {"messages": messages}, thinking=True)
    kept = tuple(mini.encode_prompt(render_text(mini, messages, preserve_thinking=True)))
    assert [c.forms[0].split("/")[1] for c in candidates if c.ids == kept] == ["reasoning_all"]


def test_arrays_of_objects_have_three_spellings_in_typescript() -> None:
    items = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"l": {"type": "array", "items": items}}}}}
    assert "  l?: Array<{\n    x: string\n  }>\n" in declare_tools([tool])
    assert "  l?: Array<{\n  x: string\n}>\n" in declare_tools([tool], arrays="flat")
    assert "  l?: Array<{\n    x: string\n}>\n" in declare_tools([tool], arrays="loose")


def test_a_profile_may_say_that_all_history_reasoning_is_kept(mini: Profile) -> None:
    keeping = replace(mini, facts=mini.facts.changed(template={"history": "all"}))
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": " why"},
        {"role": "user", "content": "more"},
    ]
    kept = tuple(mini.encode_prompt(render_text(mini, messages, preserve_thinking=True)))
    plain = tuple(mini.encode_prompt(render_text(mini, messages)))
    first, *others = enumerate_prompts(keeping, {"messages": messages}, thinking=True)
    assert first.ids == kept and first.prior == 1.0 and plain in {c.ids for c in others}
    assert is_rendering(keeping, {"messages": messages}, kept, thinking=True, forms=first.forms)
    assert not is_rendering(keeping, {"messages": messages}, plain, thinking=True, forms=first.forms)


ODD: list[dict[str, Any]] = [
    {"messages": [1]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": None}]}]},
    {"messages": [{"role": "user", "content": "q"}], "tools": ["x"]},
    {"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function": "f"}]},
    {"messages": "q"},
]


@pytest.mark.parametrize("request_", ODD)
def test_a_request_that_is_no_chat_is_refused_in_one_line_or_rendered(mini: Profile, request_: dict[str, Any]) -> None:
    try:
        assert enumerate_prompts(mini, request_, thinking=True)
    except ExactError as error:
        assert "\n" not in str(error) and str(error)


def test_a_developers_message_that_is_the_systems_takes_the_place_of_the_default_one(mini: Profile) -> None:
    """A template with a default system message writes none where the conversation begins with one, whatever name its role had."""
    asking = replace(mini, facts=mini.facts.changed(template={"default_system": "You are a test."}))
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "q"}]
    spelled = [{**messages[0], "role": "system"}, messages[1]]
    as_system = {form: c.ids for c in enumerate_prompts(asking, {"messages": messages}, thinking=True) for form in c.forms}
    [name] = [form for form in as_system if "developer_system" in form and "system_none" not in form]
    assert as_system[name] == tuple(asking.encode_prompt(render_text(asking, spelled, thinking=True)))
