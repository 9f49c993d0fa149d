"""Claims about models that often sample other ids than the encoder's: their providers are decided, and p_exact says how many rows are right."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.prompt_side.render import render_prompt
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.exact.search.reconstruction import Reconstruction
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.synthetic import sentences

pytestmark = pytest.mark.slow  # its worlds take seconds

# As measured on SmolLM2-135M: regions an id at temperature 1 and 0.7
HOT, COOL = 7.2e-3, 1.65e-3


@pytest.fixture(scope="module", params=["kimi-mini", "qwen3-instruct-2507"])
def profile(request: pytest.FixtureRequest, mini: Profile) -> Profile:
    """A model with reasoning, and one without any."""
    if request.param == "kimi-mini":
        return mini
    tokenizers: Path = request.getfixturevalue("tokenizers")
    return load_profile(request.param, tokenizers)


@dataclass
class Server:
    """A verbatim server of a model that leaves the encoder's path at `rate` an id: it cuts an id in two, or moves the border between
    two."""

    profile: Profile
    rng: random.Random
    texts: list[str]
    name: str = "P"
    answers: list[WireAnswer] = field(default_factory=list)
    truths: list[tuple[int, ...]] = field(default_factory=list)

    def sample(self, text: str, rate: float) -> list[int]:
        ids, out, at = self.profile.encode(text), [], 0
        while at < len(ids):
            width = 1
            ways: list[list[int]] = []
            if self.rng.random() < rate:
                width = 2 if self.rng.random() < 0.25 and at + 1 < len(ids) else 1
                ways = self.other_cuts(ids[at : at + width])
                if not ways and width == 2:
                    width, ways = 1, self.other_cuts(ids[at : at + 1])
            out += self.rng.choice(ways) if ways else ids[at : at + width]
            at += width
        return out

    def other_cuts(self, ids: list[int]) -> list[list[int]]:
        """The bytes of one id or two as two other ids."""
        data, known, found = self.profile.decode_bytes(ids), self.profile.encoding, []
        for cut in range(1, len(data)):
            try:
                pair = [known.encode_single_token(data[:cut]), known.encode_single_token(data[cut:])]
            except KeyError:
                continue
            if pair != ids:
                found.append(pair)
        return found

    def answer(self, n: int, rate: float, *, with_ids: bool = False, **settings: float) -> None:
        """One of some 9 n ids."""
        k = len(self.answers)
        reasons = self.profile.opened_by == "prompt"
        pieces = [self.rng.choice(self.texts) for _ in range(n)]
        reasoning, content = (" ".join(pieces[: n // 2]), " ".join(pieces[n // 2 :])) if reasons else ("", " ".join(pieces))
        ids = [*self.sample(reasoning, rate), self.profile.special("</think>")] if reasons else []
        ids += [*self.sample(content, rate), self.profile.end_id]
        messages = [{"role": "user", "content": f"question {k}"}]
        prompt = render_prompt(self.profile, messages)
        message = {"role": "assistant", "reasoning": reasoning or None, "content": content}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        body: dict[str, Any] = {
            "provider": self.name,
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
        }
        if with_ids:
            body["prompt_token_ids"], choice["token_ids"] = list(prompt), ids
        made: dict[str, Any] = {
            "request_id": f"{self.name}{k}",
            "sample_id": f"{self.name}{k:030x}",
            "turn": 0,
            "attempt": 1,
            "dataset": "b3_magicoder",
            "shard": "00",
            "source": "engine" if with_ids else "openrouter",
            "request": {"messages": messages, **settings},
            "status": 200,
            "body": json.dumps(body).encode(),
            "outcome": "finished",
            "provider": None if with_ids else self.name,
        }
        self.answers.append(WireAnswer(**made))
        self.truths.append((*prompt, *ids))


def rebuilt(server: Server, learned: dict[str, Any]) -> list[tuple[Reconstruction, bool]]:
    out = []
    for answer, truth in zip(server.answers, server.truths, strict=True):
        entry = entry_of(learned, server.name)
        found = reconstruct(server.profile, answer.request, parse_fields(answer.body), entry, source=answer.source)
        out.append((found, found.input_ids == truth))
    return out


SETTINGS = ((HOT, {"temperature": 1.0, "top_p": 1.0}), (COOL, {"temperature": 0.7, "top_p": 1.0}))


@pytest.fixture(scope="module")
def world(profile: Profile) -> tuple[Server, list[tuple[Reconstruction, bool]], dict[str, Any]]:
    """160 rows with ids, and 600 of a provider, half of each at either temperature."""
    rng, texts = random.Random("noncanonical"), sentences(profile, 80, neutral=None)
    engine, provider = Server(profile, rng, texts, "(engine)"), Server(profile, rng, texts)
    for k in range(160):
        rate, settings = SETTINGS[k % 2]
        engine.answer(rng.randint(2, 24), rate, with_ids=True, **settings)
    for k in range(600):
        rate, settings = SETTINGS[k % 2]
        provider.answer(rng.randint(2, 24), rate, **settings)
    learned = learn(profile, [*engine.answers, *provider.answers])
    assert all(found.grade == "A0" for found, _ in rebuilt(engine, learned)), "ids of a server are believed, canonical or not"
    assert {found.evidence["canonical"] for found, _ in rebuilt(engine, learned)} == {True, False}
    return provider, rebuilt(provider, learned), learned


World = tuple[Server, list[tuple[Reconstruction, bool]], dict[str, Any]]


def test_a_model_that_is_often_not_canonical_does_not_make_its_provider_hopeless(world: World) -> None:
    entry = world[2]["providers"]["P"]
    assert entry["cannot_be_exact"] is None and entry["decided"], entry["why"]
    assert entry["explained"] < 0.9 * entry["rows"], "a fixed share of bills, near to one, would have refused it"


def test_p_exact_is_the_exact_share_at_each_temperature(world: World) -> None:
    server, rows, _ = world
    for _, settings in SETTINGS:
        part = [
            row
            for row, answer in zip(rows, server.answers, strict=True)
            if answer.request["temperature"] == settings["temperature"]
        ]
        met = [(found, right) for found, right in part if found.grade in ("B1", "C1", "R")]
        claimed = sum(found.p_exact for found, _ in met) / len(met)
        exact = sum(right for _, right in met) / len(met)
        # hardly any of these cuts keeps the count, and the prior says that a quarter does: a little too modest, never too sure
        assert exact - 0.07 <= claimed <= exact + 0.02, settings


def test_rows_are_b1_where_they_may_be_believed_and_those_are_right(world: World) -> None:
    _, rows, _ = world
    sure = [(found, right) for found, right in rows if found.grade == "B1"]
    assert len(sure) >= 0.3 * len(rows)
    assert sum(right for _, right in sure) >= sum(found.p_exact for found, _ in sure) - 0.025 * len(sure)


def test_a_row_that_meets_no_bill_says_how_often_that_is_the_models_own_doing(world: World) -> None:
    _, rows, _ = world
    misfits = [found for found, _ in rows if found.grade == "Q"]
    assert misfits and any("are spelled as no encoder does" in reason for found in misfits for reason in found.reasons)
