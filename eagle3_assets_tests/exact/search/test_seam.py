"""Claims about the seam: what a model writes between its text and a tool section, and what is made of it where a parser cuts it off."""

from __future__ import annotations

from collections import Counter

import pytest

from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.edges import KEEP, Mechanism, mechanism_of
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.exact.search.wire_text import compare_text
from eagle3_assets.targets.grammar import split
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

N = 80


class CutsSeam(Provider):
    """A server whose parser cuts the text where a call begins, and strips what is left."""

    def bend(self, text: str, *, behind: bool) -> str:
        return text.rstrip() if behind else text


def fill(provider: Provider, *, seam: str, with_ids: bool = False, every: int = 2) -> Provider:
    """N answers of a model that ends texts as they are and writes `seam` in front of a call, also where it says nothing else."""
    texts = sentences(provider.profile, 2 * N, neutral=None)
    for k in range(N):
        calls = (("f", '{"a": 1}'),) if k % every == 0 else ()
        content = ("" if k % 4 == 0 else " " + texts[2 * k + 1]) + seam if calls else " " + texts[2 * k + 1]
        truth = Truth(" " + texts[2 * k], content, calls=calls, finish="tool_calls" if calls else "stop")
        changes = {"source": "engine", "provider": None} if with_ids else {}
        provider.answer(truth, with_ids=with_ids, **changes)
    return provider


def rebuilt(profile: Profile, provider: Provider, learned: dict[str, object]) -> list[tuple[Reconstruction, bool]]:
    out = []
    for answer, truth in zip(provider.answers, provider.truths, strict=True):
        entry = entry_of(learned, provider.name)
        found = reconstruct(profile, answer.request, parse_fields(answer.body), entry, source="openrouter")
        out.append((found, found.input_ids == truth))
    return out


@pytest.mark.parametrize("seam", ["\n\n", "\n"])
def test_what_the_model_writes_in_front_of_calls_is_learned_apart_and_put_back(mini: Profile, seam: str) -> None:
    provider, engine = fill(CutsSeam(mini), seam=seam), fill(Provider(mini, name="(engine)"), seam=seam, with_ids=True)
    learned = learn(mini, [*provider.answers, *engine.answers])
    model = learned["model"]
    assert model["content_seam"]["with"] == model["content_seam"]["fields"] >= N // 2 and model["content_trail"]["with"] == 0
    assert learned["providers"]["P"]["edges"]["content_trail"]["mechanism"] in ("seam", "strip")
    found = rebuilt(mini, provider, learned)
    assert all(right for _, right in found)
    assert Counter(one.grade for one, _ in found)["B1"] >= 0.9 * N
    for answer, (one, _) in zip(provider.answers, found, strict=True):  # and the review gets the wire's text back
        parts = split(mini, one.input_ids[one.prompt_len :], thinking=True, truncated=False)
        assert compare_text(mini, parts, parse_fields(answer.body), one.evidence) is None


def test_a_model_that_writes_nothing_there_gets_nothing_put_in(mini: Profile) -> None:
    provider, engine = fill(CutsSeam(mini), seam=""), fill(Provider(mini, name="(engine)"), seam="", with_ids=True)
    found = rebuilt(mini, provider, learn(mini, [*provider.answers, *engine.answers]))
    assert all(right for _, right in found) and not any(one.evidence["edits"] for one, _ in found)


def test_a_server_that_returns_the_seam_is_read_as_it_stands(mini: Profile) -> None:
    provider, engine = fill(Provider(mini), seam="\n\n"), fill(Provider(mini, name="(engine)"), seam="\n\n", with_ids=True)
    found = rebuilt(mini, provider, learn(mini, [*provider.answers, *engine.answers]))
    assert all(right and not one.evidence["edits"] for one, right in found)


def test_a_mechanism_at_the_seam_takes_nothing_from_other_texts() -> None:
    cut = Mechanism("seam", seam=(("\n\n", 0.9), ("", 0.1)))
    assert cut.runs("", lead=False, joins=False) == KEEP.runs("", lead=False, joins=False)
    assert cut.runs("", lead=False, joins=True) == cut.seam and cut.runs("\n", lead=False, joins=True) == ()
    both = Mechanism("strip", (("", 1.0),), seam=cut.seam)
    assert both.runs("", lead=False, joins=True) == cut.seam and both.runs("", lead=False, joins=False) == both.model
    assert [mechanism_of(one.as_json()) for one in (cut, both, KEEP)] == [cut, both, KEEP]
