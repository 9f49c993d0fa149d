"""Claims about what a request says: a prior for the mode in every spelling, and the oddities that a reason can name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.request_facts import (
    declared_tools,
    keeps_all_thinking,
    request_oddities,
    thinking_prior,
    wants_thinking,
)
from eagle3_assets.targets.tokenizer import Profile

OFF: list[dict[str, Any]] = [
    {"reasoning": {"enabled": False}},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"max_tokens": 0}},
    {"reasoning_effort": "none"},
    {"thinking": {"type": "disabled"}},
    {"thinking": False},
    {"chat_template_kwargs": {"thinking": False}},
]
ON: list[dict[str, Any]] = [
    {"reasoning": {"enabled": True}},
    {"reasoning": {"effort": "high"}},
    {"reasoning": {"max_tokens": 2000}},
    {"reasoning_effort": "low"},
    {"thinking": {"type": "enabled", "keep": "all"}},
    {"chat_template_kwargs": {"thinking": True}},
]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("request_", "mode"), [*((r, False) for r in OFF), *((r, True) for r in ON)])
def test_every_spelling_is_understood_also_under_extra_body(
    mini: Profile, request_: dict[str, Any], mode: bool, inside: bool
) -> None:
    request_ = {"extra_body": request_} if inside else request_
    (first, share), (second, rest) = thinking_prior(request_, mini, default=not mode)
    assert (first, second) == (mode, not mode) and share > 0.9 and share + rest == pytest.approx(1.0)
    assert wants_thinking(request_, default=not mode) is mode


@pytest.mark.parametrize("request_", [{"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_another_models_switch_leaves_both_modes_open(mini: Profile, request_: dict[str, Any]) -> None:
    """K2.5 knows `thinking` only (cloudflare/workers-sdk#13239): the server may have ignored the word."""
    prior = dict(thinking_prior(request_, mini))
    assert prior[False] > prior[True] > 0.3


def test_a_request_for_json_may_turn_thinking_off(mini: Profile) -> None:
    plain, asked = dict(thinking_prior({}, mini)), dict(thinking_prior({"response_format": {"type": "json_object"}}, mini))
    assert asked[False] > plain[False] > 0 and asked[True] > asked[False]


def test_a_model_with_one_mode_has_no_prior_for_the_other(mini: Profile) -> None:
    never = replace(mini, facts=mini.facts.changed(reasoning={"opened_by": "never"}))
    always = replace(mini, facts=mini.facts.changed(reasoning={"instant": False}))
    for request in ({}, *OFF, *ON):
        assert thinking_prior(request, never) == ((False, 1.0),) and thinking_prior(request, always) == ((True, 1.0),)


def test_kept_reasoning_is_asked_for_in_two_words() -> None:
    assert keeps_all_thinking({"thinking": {"type": "enabled", "keep": "all"}})
    assert keeps_all_thinking({"extra_body": {"chat_template_kwargs": {"preserve_thinking": True}}})
    assert not keeps_all_thinking({"thinking": {"type": "enabled"}})


def test_legacy_functions_are_tools() -> None:
    assert declared_tools({"functions": [{"name": "f"}]}) == [{"type": "function", "function": {"name": "f"}}]
    assert declared_tools({"tools": [], "functions": []}) is None


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice"),
        ({"reasoning": {"exclude": True}}, "excluded"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "{"}]}, "beginning of the answer"),
        ({"functions": [{"name": "f"}]}, "legacy functions"),
        ({"messages": [{"role": "user", "content": "q", "name": "bob"}]}, "name"),
        ({"messages": [{"role": "developer", "content": "q"}]}, "developer"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image"),
        ({"response_format": {"type": "json_schema"}}, "JSON"),
    ],
)
def test_what_servers_treat_in_more_ways_than_one_is_said(request_: dict[str, Any], word: str) -> None:
    assert any(word in line for line in request_oddities(request_))
    assert request_oddities({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function"}]}) == []
