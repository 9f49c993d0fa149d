"""Claims about names of models: what a gateway adds to a name is no other model, what the weights add is."""

from __future__ import annotations

import pytest

from eagle3_assets.model_names import is_same_model, plain_name


@pytest.mark.parametrize(
    "name",
    [
        "moonshotai/kimi-k2.5",
        "moonshotai/kimi-k2.5:nitro",
        "moonshotai/kimi-k2.5:floor",
        "moonshotai/kimi-k2.5:exacto",
        "moonshotai/kimi-k2.5:online",
        "moonshotai/kimi-k2.5:free",
        "moonshotai/kimi-k2.5-0127",
        "moonshotai/kimi-k2.5-20260127:free",
        "moonshotai/kimi-k2.5-2026-01-27",
        "openrouter/moonshotai/kimi-k2.5",
        "accounts/fireworks/models/kimi-k2p5",
        "moonshotai/Kimi-K2.5-TEE",
        "publishers/moonshotai/models/kimi-k2.5-maas",
        "@cf/moonshotai/kimi-k2.5",
        " Kimi-K2.5 ",
    ],
)
def test_spellings_of_one_model_are_the_same(name: str) -> None:
    assert is_same_model("moonshotai/kimi-k2.5", name) and is_same_model(name, "kimi-k2.5")


@pytest.mark.parametrize(
    "name",
    [
        "kimi-k2.6",
        "kimi-k2.5-code",
        "kimi-k3",
        "kimi-k2",
        "kimi-k2-thinking",
        "claude-sonnet-4.5",
        "accounts/fireworks/models/kimi-k2p6",
        "",
    ],
)
def test_other_weights_are_another_model(name: str) -> None:
    assert not is_same_model("moonshotai/kimi-k2.5", name)


def test_two_releases_of_one_name_differ_and_no_release_means_either() -> None:
    assert not is_same_model("kimi-k2-0711", "moonshotai/Kimi-K2-Instruct-0905")
    assert is_same_model("kimi-k2", "moonshotai/Kimi-K2-Instruct-0905:groq")
    assert is_same_model("kimi-k2.5-0127", "kimi-k2.5-20260127")
    assert plain_name("moonshotai/kimi-k2-0905-preview") == ("kimi-k2", "0905")
