"""Claims about rewriting that no bill shows: what only one provider lacks, or has, is its server's doing; other prompts are not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from eagle3_assets.exact.providers.unlike_others import unlike_parts
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 120


@pytest.fixture(scope="module")
def texts(mini: Profile) -> list[str]:
    return sentences(mini, 4 * N, neutral=None)


def as_it_is(_: int, text: str) -> str:
    return text


def answered(
    mini: Profile,
    texts: list[str],
    name: str,
    sent: Callable[[str], str] | None = None,
    written: Callable[[int, str], str] = as_it_is,
) -> Provider:
    """N answers whose content the model wrote as `written(k, text)` and the server returned as `sent` of it; billed as written."""
    provider = Provider(mini, name=name)
    for k in range(N):
        truth = Truth(" " + texts[2 * k], " " + written(k, texts[2 * k + 1]))
        provider.answer(truth)
        if sent is not None:
            body = json.loads(provider.answers[-1].body)
            message = body["choices"][0]["message"]
            message["content"] = sent(message["content"])
            provider.answers[-1] = dataclasses.replace(provider.answers[-1], body=json.dumps(body).encode())
    return provider


def engine(mini: Profile, texts: list[str]) -> Provider:
    out = Provider(mini, name="(engine)")
    for k in range(3 * N):
        out.answer(Truth(" " + texts[k], " " + texts[(k + 1) % len(texts)]), with_ids=True, source="engine", provider=None)
    return out


def rebuilt(mini: Profile, provider: Provider, learned: dict[str, Any]) -> list[Reconstruction]:
    entry = entry_of(learned, provider.name)
    return [reconstruct(mini, a.request, parse_fields(a.body), entry, source="openrouter") for a in provider.answers]


def wrong_and_sure(provider: Provider, rows: list[Reconstruction]) -> int:
    sure = [(row, truth) for row, truth in zip(rows, provider.truths, strict=True) if row.grade in ("A1", "A2", "B1", "R")]
    return sum(row.input_ids[-len(truth) :] != truth for row, truth in sure)


def same_count(mini: Profile, change: Callable[[str], str], text: str) -> bool:
    """Whether a change keeps the number of ids, as the bill would have to."""
    return len(mini.encode(change(text))) == len(mini.encode(text))


def test_a_mark_that_a_server_takes_from_every_text_is_seen_without_a_missed_bill(mini: Profile, texts: list[str]) -> None:
    """Exclamation marks come as full stops: one id for one id. Every bill is met, no reading is contradicted."""

    def written(k: int, text: str) -> str:
        return text.rstrip(".") + "!" if k % 3 else text

    def calm(text: str) -> str:
        return text.replace("!", ".")

    assert all(same_count(mini, calm, " " + written(k, texts[2 * k + 1])) for k in range(N))
    calmed, others = (
        answered(mini, texts, "P", calm, written),
        [answered(mini, texts, f"Q{k}", written=written) for k in range(3)],
    )
    learned = learn(mini, [*calmed.answers, *(a for other in others for a in other.answers), *engine(mini, texts).answers])
    parts = [p for p in learned["providers"]["P"]["windows"][0]["damage_parts"] if p["fact"] == "text: '!'"]
    assert len(parts) == 1 and parts[0]["absent"] and parts[0]["share"] > 0.5
    rows = rebuilt(mini, calmed, learned)
    assert wrong_and_sure(calmed, rows) == 0
    assert {row.grade for row in rebuilt(mini, others[0], learned)} == {"B1"}


def test_a_filter_that_puts_one_word_for_another_is_seen_by_the_words(mini: Profile, texts: list[str]) -> None:
    """Answers that hold the word nobody else writes are in doubt; the others are not."""
    common, put = " market", " river"
    plain = [text.replace("river", "stone") for text in texts]

    def written(k: int, text: str) -> str:
        return text.rstrip(".") + common if k % 4 == 0 else text

    def filtered(text: str) -> str:
        return text.replace(common, put)

    strict, others = (
        answered(mini, plain, "P", filtered, written),
        [answered(mini, plain, f"Q{k}", written=written) for k in range(3)],
    )
    learned = learn(mini, [*strict.answers, *(a for other in others for a in other.answers), *engine(mini, plain).answers])
    rows = rebuilt(mini, strict, learned)
    assert wrong_and_sure(strict, rows) == 0
    untouched = [row for k, row in enumerate(rows) if common not in " " + written(k, plain[2 * k + 1])]
    assert len(untouched) > N / 2 and sum(row.grade == "B1" for row in untouched) > 0.9 * len(untouched)


def test_where_everything_differs_it_is_the_prompts_and_nothing_is_said(mini: Profile, texts: list[str]) -> None:
    """A provider that was asked for code only lacks ten things that prose has, and has ten others."""

    def code(k: int, text: str) -> str:
        return f"```\nfor i in range({k}):\n\tx[i] += {{}} % y # {text[:8]}\n\t@ ^ ~ ` <> $ = ;\n```"

    provider = answered(mini, texts, "P", written=code)
    others = [answered(mini, texts, f"Q{k}", written=lambda k, text: f'"{text}" ({k}), so: yes! ok?') for k in range(3)]
    learned = learn(mini, [*provider.answers, *(a for other in others for a in other.answers), *engine(mini, texts).answers])
    assert [p for p in learned["providers"]["P"]["windows"][0]["damage_parts"] if p["weight"] >= 0.3] == []


def test_nothing_is_said_of_a_provider_that_stands_alone(mini: Profile, texts: list[str]) -> None:
    assert unlike_parts([], [], rewrites_calls=False) is None
    provider = answered(mini, texts, "P")
    learned = learn(mini, [*provider.answers, *engine(mini, texts).answers])
    assert learned["providers"]["P"]["windows"][0]["damage_parts"] == []
