"""Claims about a provider's streams: whether its deltas are whole ids is learned from all of them, and used for each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.proofs import P_ALIGNED, share_of_streams
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.witnesses import Edges
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 40
Cut = Callable[[Profile, str], list[str]]


def by_id(profile: Profile, text: str) -> list[str]:
    return [profile.decode([token]) for token in profile.encode(text)]


def by_characters(profile: Profile, text: str) -> list[str]:
    return [text[k : k + 3] for k in range(0, len(text), 3)]


def streamed(profile: Profile, answer: WireAnswer, cut: Cut) -> WireAnswer:
    """The answer as server-sent events, its texts in pieces."""
    body = json.loads(answer.body)
    message = body["choices"][0]["message"]
    chunks = [
        {"choices": [{"index": 0, "delta": {name: piece}}]}
        for name in ("reasoning", "content")
        for piece in cut(profile, message[name])
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": body["usage"]})
    lines = [*(json.dumps({"provider": body["provider"], **chunk}) for chunk in chunks), "[DONE]"]
    return dataclasses.replace(
        answer,
        body="".join(f"data: {line}\n\n" for line in lines).encode(),
        headers={"content-type": "text/event-stream"},
        request={**answer.request, "stream": True},
    )


def streams_of(profile: Profile, name: str, cut: Cut) -> Provider:
    provider, texts = Provider(profile, name=name), sentences(profile, 2 * N, neutral=None)
    for k in range(N):
        provider.answers.append(streamed(profile, provider.answer(Truth(" " + texts[2 * k], " " + texts[2 * k + 1])), cut))
        del provider.answers[-2]
    return provider


def test_each_providers_share_of_aligned_streams_is_learned(mini: Profile) -> None:
    fine, coarse = streams_of(mini, "by id", by_id), streams_of(mini, "by characters", by_characters)
    whole = Provider(mini, name="whole")
    for text in sentences(mini, N, neutral=None):
        whole.answer(Truth(" " + text, " " + text))
    learned = learn(mini, [*fine.answers, *coarse.answers, *whole.answers])
    shares = {name: entry["windows"][0].get("aligned") for name, entry in learned["providers"].items()}
    assert shares["by id"] > 0.98 and shares["by characters"] < 0.1 and shares["whole"] is None
    # a text of a few ids has too few edges to say by itself what its stream is cut by
    short = Provider(mini, name="by id")
    answer = streamed(mini, short.answer(Truth(" so", " done")), by_id)
    fields = parse_fields(answer.body, answer.content_type)
    alone, known = (
        reconstruct(mini, answer.request, fields, entry_of(told, "by id"), source="openrouter") for told in (None, learned)
    )
    assert known.input_ids == alone.input_ids == short.truths[0] and known.p_exact > alone.p_exact


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_is_that_of_the_streams_and_silent_ones_change_nothing(share: float) -> None:
    aligned, cut, silent = (Edges(False, 9, 0, 0, 0.25),), (Edges(False, 9, 6, 0, 0.25),), (Edges(False, 0, 0, 0, 0.5),)
    streams = [aligned if k < 100 * share else cut for k in range(100)]
    found = share_of_streams(streams)
    assert found == pytest.approx(share, abs=0.035) and share_of_streams([*streams, *[silent] * 50, ()]) == found
    assert share_of_streams([silent, ()]) is None and share_of_streams([aligned]) == pytest.approx(P_ALIGNED, abs=0.05)


def test_a_model_that_often_leaves_the_path_is_no_gateway_that_cuts_words(mini: Profile) -> None:
    """One edge in thirty is off the encoder's path: at 7 ids in a thousand that is the model's own doing."""
    streams = [(Edges(False, 30, k % 3 == 0, 0, 0.25),) for k in range(60)]
    assert (share_of_streams(streams, off_in_text=7e-3) or 0.0) > 0.97
