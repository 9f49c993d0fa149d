"""One claim: whatever stands in an answer's body, its shard is written, and the row is well formed and out, or right."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import read_table, to_table, write_table
from eagle3_assets.exact.second_opinion.checker import Checker
from eagle3_assets.review.invariants import judge_tokens
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.quarantine import rules_of
from eagle3_assets.review.rows.shard_rows import judge_rows
from eagle3_assets.review.rows.wires import wires_of
from eagle3_assets.store import write_json
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.synthetic import Provider, Truth

BODIES = 500
# as JSON text, so that every use is a value of its own
VALUES = ["null", "true", "-1", "0", "1e308", "NaN", "1" + "0" * 30, '""', '"\\ud800"', '"x\\udfff"', '"\\ufffd"', "[]", "{}", "[null]",
          "[{}]", '{"a": 1}', '"functions.f:0"', '"stop"', '"length"', '"tool_calls"', '"error"', "[1, 2, 3]", "[1000000000000]", '["a"]',
          "[[1]]", '{"text": "\\ud800"}', '[{"type": "text", "text": "\\ud800"}]', '"{\\"a\\": \\"\\\\ud800\\"}"', "2147483648",
          "2147483647"]  # fmt: skip
KEYS = ["id", "index", "provider", "model", "reasoning", "reasoning_content", "reasoning_details", "refusal", "logprobs", "error", "x_groq",
        "native_finish_reason", "token_ids", "prompt_token_ids", "tool_calls", "function", "arguments", "name", "cost"]  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    return [place for key, child in inner for place in ((*path, key), *_places(child, (*path, key)))]


def _damaged(chance: random.Random, body: dict[str, Any]) -> bytes:
    """One to four places get another value, or a key that does not belong there."""
    for _ in range(chance.randint(1, 4)):
        *above, last = chance.choice(_places(body) or [("id",)])
        holder: Any = body
        for key in above:
            holder = holder[key]
        key = chance.choice(KEYS) if isinstance(holder, dict) and chance.random() < 0.3 else last
        holder[key] = json.loads(chance.choice(VALUES))
    text = json.dumps(body).encode()
    return b"data: " + text + b"\n\ndata: [DONE]\n\n" if chance.random() < 0.1 else text


def _answers(mini: Profile) -> list[WireAnswer]:
    chance, out = random.Random("hostile bodies"), []
    calling = Truth(content="", calls=(("f", '{"a": 1}'),), finish="tool_calls")
    for k in range(BODIES):
        provider = Provider(mini, bends=chance.choice(["verbatim", "injects", "strips"]), foreign_ids=chance.random() < 0.3)
        made = provider.answer(
            chance.choice([Truth(), calling, Truth(finish="length", closed=False, content="")]),
            with_ids=chance.random() < 0.4,
            source=chance.choice(["openrouter", "engine", "import"]),
            provider=chance.choice([None, "P"]),
        )
        body = _damaged(chance, json.loads(made.body))
        out.append(dataclasses.replace(made, body=body, sample_id=f"{k:032x}"))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("learned", [True, False])
def test_no_body_stops_its_shard_or_leaks_a_wrong_row(mini: Profile, campaign: Campaign, tmp_path: Path, learned: bool) -> None:
    answers = _answers(mini)
    profiles = learn(mini, answers)
    write_json(tmp_path / "wire_profiles.json", profiles)
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), answers, profiles if learned else None)
    rules, checker = rules_of(campaign, campaign.dataset_named("b3_magicoder"), mini), Checker(mini, answers)
    rows, table, at_once = judge_rows(rows, answers, rules, checker, mini.n_vocab)  # as the asset does
    write_table(tmp_path / "00.parquet", table)
    assert [row.sample_id for row in rows] == [answer.sample_id for answer in answers]
    assert len({row.grade for row in rows}) >= 3, "damage is neither everything nor nothing"
    keys = {answer.key for answer in answers}
    assert read_table(tmp_path / "00.parquet").equals(to_table(rows))
    wires = wires_of(Columns(table), answers)
    found = judge_tokens(table, n_vocab=mini.n_vocab, finished_keys=keys, checker=checker, wires=wires, rules=rules)
    assert found == at_once, "judged while made and judged from files are one verdict"
    broken = [v.message for v in found if v.check in ("structure", "lineage") and not v.passed]
    assert broken == [] and [v.message for v in found if v.numbers.get("not_quarantined")] == []
