"""Claims about learning: the leading-space question is decided by data, or it stays undecided."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import TOKENIZERS, needs
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

WORLDS = [(writes, bends) for writes in (True, False) for bends in ("verbatim", "injects", "strips")]
N = 120


@pytest.fixture(scope="module", params=["kimi-mini", "kimi-k2.5"])
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile(request.param, None if request.param == "kimi-mini" else needs(TOKENIZERS))


def world(
    profile: Profile, *, writes: bool, bends: str, neutral: bool | None, n: int = N, name: str = "P", with_ids: bool = False
) -> Provider:
    """`n` answers of a model that writes a space in front of both fields or never does, through a provider that bends so."""
    provider = Provider(profile, name=name, bends=bends)
    texts = sentences(profile, 2 * n, neutral=neutral)
    front = " " if writes else ""
    for k in range(n):
        source: dict[str, Any] = {"source": "engine", "provider": None} if with_ids else {}
        provider.answer(Truth(front + texts[2 * k], front + texts[2 * k + 1]), with_ids=with_ids, **source)
    return provider


def graded(profile: Profile, provider: Provider, learned: dict[str, Any] | None) -> list[tuple[str, bool]]:
    """(grade, whether every id is right) of each answer."""
    out = []
    for answer, truth in zip(provider.answers, provider.truths, strict=True):
        found = reconstruct(
            profile, answer.request, parse_fields(answer.body), entry_of(learned, provider.name), source="openrouter"
        )
        out.append((found.grade, found.input_ids == truth))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("writes", "bends"), WORLDS)
def test_with_deciding_bills_every_world_reaches_b1_and_every_b1_is_right(profile: Profile, writes: bool, bends: str) -> None:
    provider = world(profile, writes=writes, bends=bends, neutral=None)
    learned = learn(profile, provider.answers)
    entry = learned["providers"]["P"]
    assert entry["decided"], entry["why"]
    expected = {"verbatim": "verbatim", "injects": "injected", "strips": "stripped_both" if writes else "verbatim"}[bends]
    assert entry["spacing"] == expected
    grades = graded(profile, provider, learned)
    assert sum(grade == "B1" for grade, _ in grades) >= 0.95 * N
    assert all(right for grade, right in grades if grade == "B1")


@pytest.mark.slow
@pytest.mark.parametrize(("writes", "bends"), [world for world in WORLDS if world != (True, "injects")])
def test_without_deciding_bills_no_row_is_better_than_c1(profile: Profile, writes: bool, bends: str) -> None:
    """Count-neutral fronts only. (Two spaces, where the model writes one and the server joins one, always cost a token.)"""
    provider = world(profile, writes=writes, bends=bends, neutral=True)
    learned = learn(profile, provider.answers)
    assert not learned["providers"]["P"]["decided"]
    grades = graded(profile, provider, learned)
    assert {grade for grade, _ in grades} == {"C1"}


@pytest.mark.slow
@pytest.mark.parametrize(("writes", "bends"), WORLDS)
def test_the_models_habit_known_from_server_ids_decides_a_provider_that_bills_cannot(
    profile: Profile, writes: bool, bends: str
) -> None:
    provider = world(profile, writes=writes, bends=bends, neutral=True)
    engine = world(profile, writes=writes, bends="verbatim", neutral=True, n=60, name="(engine)", with_ids=True)
    learned = learn(profile, [*provider.answers, *engine.answers])
    habit = learned["model"]["reasoning_lead"]
    assert habit["fields"] >= 60 and habit["with"] == habit["fields"] * writes and habit["known"]
    assert learned["providers"]["P"]["decided"], learned["providers"]["P"]["why"]
    grades = graded(profile, provider, learned)
    assert {grade for grade, _ in grades} == {"B1"} and all(right for _, right in grades)


@pytest.mark.slow
def test_a_habit_is_transferred_from_a_decided_provider(profile: Profile) -> None:
    shows = world(profile, writes=True, bends="verbatim", neutral=None, name="Shows")
    hides = world(profile, writes=True, bends="strips", neutral=True, name="Hides")
    alone = learn(profile, hides.answers)
    together = learn(profile, [*shows.answers, *hides.answers])
    assert not alone["providers"]["Hides"]["decided"] and together["providers"]["Hides"]["decided"]
    assert all(right for grade, right in graded(profile, hides, together) if grade == "B1")


@pytest.mark.slow
def test_a_mixed_habit_behind_a_stripping_provider_is_b1_only_where_the_bill_tells(profile: Profile) -> None:
    """The model writes the space in half of its answers and the server takes it away: only rows where the space has a price are known."""
    provider = Provider(profile, bends="strips")
    texts = sentences(profile, 4 * N, neutral=None)
    for k in range(2 * N):
        front = " " if k // 2 % 2 else ""
        provider.answer(Truth(front + texts[2 * k], front + texts[2 * k + 1]))
    learned = learn(profile, provider.answers)
    priced = [len(profile.encode(text)) != len(profile.encode(f" {text}")) for text in texts]
    for k, (grade, right) in enumerate(graded(profile, provider, learned)):
        if not (priced[2 * k] and priced[2 * k + 1]):
            assert grade != "B1", k
        assert right or grade != "B1"


def test_few_rows_decide_nothing(profile: Profile) -> None:
    provider = world(profile, writes=True, bends="verbatim", neutral=None, n=5)
    entry = learn(profile, provider.answers)["providers"]["P"]
    assert not entry["decided"] and "too few answers" in entry["why"]


def test_a_provider_that_does_not_bill_the_end_of_turn_is_recognised(profile: Profile) -> None:
    provider = Provider(profile, counts_end=False)
    texts = sentences(profile, 2 * N, neutral=None)
    for k in range(N):
        provider.answer(Truth(" " + texts[k], texts[-k]))
    learned = learn(profile, provider.answers)
    assert learned["providers"]["P"]["counts_end"] is False
    found = reconstruct(
        profile, provider.answers[0].request, parse_fields(provider.answers[0].body), entry_of(learned, "P"), source="openrouter"
    )
    assert found.residual["completion"] == 0 and found.evidence["convention"] == {"completion": -1, "prompt": 0}
    assert found.input_ids == provider.truths[0]


@pytest.mark.slow
def test_estimated_bills_are_named_and_never_decided(profile: Profile) -> None:
    provider = Provider(profile)
    for k, text in enumerate(sentences(profile, N, neutral=None)):
        provider.answer(Truth(" " + text, "Yes."), bill_shift=k % 9 - 4)
    entry = learn(profile, provider.answers)["providers"]["P"]
    assert not entry["decided"] and "no reading fits the bills" in entry["why"]


def test_the_prompt_form_of_a_provider_is_learned(mini: Profile) -> None:
    from eagle3_assets.exact.prompt_side.render import PromptForm

    provider = Provider(mini, form=PromptForm("compact_json"))
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "Ask f.", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    for text in sentences(mini, 20, neutral=None):
        provider.answer(Truth(" " + text, "Yes."), tools=tools)
    prompt = learn(mini, provider.answers)["providers"]["P"]["strata"]["tools"]["prompt"]
    assert prompt["form"].startswith("compact_json/") and "typescript" in prompt["ruled_out"]


def test_failed_answers_and_answers_without_a_bill_teach_nothing(mini: Profile) -> None:
    provider = Provider(mini)
    provider.answer(Truth(), no_usage=True)
    provider.answer(Truth(), outcome="failed")
    assert learn(mini, provider.answers)["providers"] == {}


def test_a_wire_profile_is_plain_json(mini: Profile) -> None:
    learned = learn(mini, world(mini, writes=True, bends="injects", neutral=None, n=30).answers)
    assert json.loads(json.dumps(learned, allow_nan=False)) == learned
    assert learned["version"] == 6 and learned["tokenizer_sha256"] == mini.tokenizer_sha256
    assert entry_of(learned, "nobody") is None and entry_of(None, "P") is None
