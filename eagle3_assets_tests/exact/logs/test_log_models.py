"""Claims about the model that answered: another one than was asked for, or one that no profile knows, never gives trusted ids."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.logs.log_models import choose_profile
from eagle3_assets.exact.logs.log_rows import LogReader, LogRebuilder
from eagle3_assets.exact.providers.wire_profiles import wire_profile_fault
from eagle3_assets.targets.profile_facts import profile_for_model
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets_tests.conftest import needs, shared_data
from eagle3_assets_tests.exact.synthetic import Provider, Truth


@pytest.mark.parametrize(
    ("asked", "answered", "profile"),
    [
        (None, None, "kimi-mini"),
        ("kimi-mini", None, "kimi-mini"),
        ("moonshotai/kimi-k2.5:nitro", "moonshotai/kimi-k2.5-0127", "kimi-k2.5"),
        ("kimi-k2.6", "accounts/fireworks/models/kimi-k2p6", "kimi-k2.5"),
        ("openrouter/auto", "moonshotai/kimi-k2-thinking", "kimi-k2-thinking"),
        ("", "moonshotai/kimi-k2.5", "kimi-k2.5"),
    ],
)
def test_the_same_model_under_another_name_is_read_with_its_profile(asked: Any, answered: Any, profile: str) -> None:
    choice = choose_profile("kimi-mini", asked, answered, {})
    assert choice.profile == profile and choice.fault is None


@pytest.mark.parametrize(
    "name",
    [
        "moonshotai/kimi-k3",
        "kimi-k2.7-code",
        "anthropic/claude-sonnet-4.5",
        "kimi-k2.5-distill-qwen-7b",
        "kimi-k2.50",
        "x",
        "kimi-latest",
    ],
)
def test_a_model_that_no_profile_knows_has_none_and_the_reason_names_those_there_are(name: str) -> None:
    choice = choose_profile("kimi-k2.5", name, name, {})
    assert choice.profile is None and name in str(choice.fault) and "kimi-k2-thinking (for kimi-k2-thinking)" in str(choice.fault)
    assert profile_for_model(name) is None


def test_another_model_than_was_asked_for_is_named_with_it() -> None:
    choice = choose_profile("kimi-k2.5", "moonshotai/kimi-k2.5", "moonshotai/kimi-k2.6-20260420", {})
    assert choice.fault == "model: moonshotai/kimi-k2.5 was asked for and moonshotai/kimi-k2.6-20260420 answered"


def test_a_name_of_ones_own_stands_for_what_its_owner_says() -> None:
    assert choose_profile("kimi-mini", "prod-eu", "prod-eu", {}).profile is None
    choice = choose_profile("kimi-mini", "prod-eu", "prod-eu", {"prod-eu": "kimi-k2.5"})
    assert (choice.profile, choice.fault) == ("kimi-k2.5", None)


def test_the_shared_faults_never_claim_ids() -> None:
    path = needs(shared_data() / "wire" / "faults" / "03_other_model.jsonl")
    rebuilder = LogRebuilder(LogReader("kimi-k2.5", shared_data() / "tokenizers"))
    rows = [rebuilder.row(line, k) for k, line in enumerate(path.read_bytes().splitlines())]
    assert {row["grade"] for row in rows} == {"Q"} and all(row["p_exact"] == 0 for row in rows)
    named = ("claude-sonnet-4.5", "kimi-k3", "kimi-k2.6-20260420")
    assert all(
        "moonshotai/kimi-k2.5" in row["reasons"][0] and name in row["reasons"][0] for row, name in zip(rows, named, strict=True)
    )


def test_habits_of_another_target_are_refused_and_the_row_says_so(mini: Profile, tmp_path: Path) -> None:
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets_tests.exact.providers.test_wire_profiles import world

    provider = world(mini, writes=True, bends="injects", neutral=None)
    learned = learn(mini, provider.answers)
    line = json.dumps({"request": provider.answers[0].request, "response_body": provider.answers[0].body.decode()}).encode()
    reader = LogReader("kimi-mini")
    assert LogRebuilder(reader, [learned]).row(line, 1)["grade"] == "B1"
    others: list[tuple[dict[str, str], str]] = [
        ({"profile": "kimi-k2-thinking"}, "learned for kimi-k2-thinking"),
        ({"tokenizer_sha256": "0" * 64}, "other tokenizer files"),
    ]
    for other, words in others:
        row = LogRebuilder(reader, [{**learned, **other}]).row(line, 1)
        assert row["grade"] == "C1" and any(words in reason for reason in row["reasons"])
    assert LogRebuilder(reader, [{**learned, "profile": "x"}, learned]).row(line, 1)["grade"] == "B1"
    assert wire_profile_fault(learned, dataclasses.replace(mini, tokenizer_sha256="1" * 64)) is not None


def test_a_row_of_another_model_keeps_its_ids_and_loses_its_grade(mini: Profile) -> None:
    answer = Provider(mini).answer(Truth())
    body = {**json.loads(answer.body), "model": "kimi-mini"}
    line = json.dumps({"request": {**answer.request, "model": "kimi-k2.5"}, "response": body}).encode()
    row = LogRebuilder(LogReader("kimi-k2.5")).row(line, 1)
    assert (
        row["grade"] == "Q" and row["input_ids"] and row["reasons"][0].startswith("model: kimi-k2.5 was asked for and kimi-mini")
    )
