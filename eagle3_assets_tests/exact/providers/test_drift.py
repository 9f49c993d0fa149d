"""Claims about providers that change while answers come: within a hundred answers it is named what is another than before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.render import PromptForm
from eagle3_assets.exact.providers.drift import changes
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

BEFORE, BEHIND = 150, 100
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": SCHEMA}}]


def drifted(mini: Profile, change: Callable[[Provider], None], behind: int = BEHIND) -> dict[str, Any]:
    """What is learned of a provider that changes behind BEFORE answers, when so many more came."""
    texts, provider = sentences(mini, 2 * (BEFORE + BEHIND), neutral=None), Provider(mini)
    for k in range(BEFORE + behind):
        if k == BEFORE:
            change(provider)
        provider.answer(
            Truth(" " + texts[2 * k], " " + texts[2 * k + 1]),
            tools=TOOLS if k % 2 else None,
            finished_at=1_700_000_000.0 + 60 * k,
        )
    return learn(mini, provider.answers)


def _injects(provider: Provider) -> None:
    provider.bends = "injects"


def _leaves_the_end_out(provider: Provider) -> None:
    provider.counts_end = False


def _declares_json(provider: Provider) -> None:
    provider.form = PromptForm(tool_style="json")


@pytest.mark.parametrize(
    ("change", "named"),
    [(_injects, "whitespace of texts"), (_leaves_the_end_out, "bill of texts"), (_declares_json, "prompts with tools")],
)
def test_a_change_of_form_is_named_within_a_hundred_answers(
    mini: Profile, change: Callable[[Provider], None], named: str
) -> None:
    (found,) = changes(drifted(mini, change))
    assert found.provider == "P" and not found.stream and found.rows == (BEFORE, BEHIND)
    assert found.at == pytest.approx(1_700_000_000.0 + 60 * BEFORE)
    assert named in [part for part, _, _ in found.what] and named in found.words and "2023-11-15" in found.words


def test_a_provider_that_stays_as_it_is_has_not_changed(mini: Profile) -> None:
    assert changes(drifted(mini, lambda provider: None)) == [] == changes({})
