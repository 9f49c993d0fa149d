"""Every recorded OpenRouter answer of Kimi K2.5, played again by the stand-in, and compared byte for byte.

The stand-in sells the recorded model under the recorded provider's name and price, speaks Kimi's real tokenizer, and its bank holds the
one answer whose text was recorded; the request is the recorded one, unchanged. What may differ is in `DIFFERENCES`, each with its
reason; everything else (keys, their order, types, nulls, values, whitespace, the framing of a stream, its deltas) is the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import KEY, TRUTH_TOKEN, FakeAnswer, connected, settings, spell
from openrouter_standin.answers.source import Bank
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.bending import Billing, PromptBending
from openrouter_standin.schema.provider import Provider
from openrouter_standin.service.server import Standin
from openrouter_standin.truth.generation import Generator
from openrouter_standin.truth.ledger import Ledger
from openrouter_standin.vocabulary import Vocabulary

ROWS = ("simple#0", "tool#0", "tool#1", "tool_streaming#0", "tool_streaming#1")
PREFIX = re.compile(rb"(?:\n {9}\n)*")
COMMENT = b": OPENROUTER PROCESSING\n\n"
BATCH = b" as the location"
Rewrite = Callable[[bytes], bytes]


def _identity(raw: bytes) -> bytes:
    """Id and time of this very answer."""
    raw = re.sub(rb'"id":"gen-\d{10}-[0-9A-Za-z]{20}"', b'"id":"gen-"', raw)
    return re.sub(rb'"created":\d{10}\b', b'"created":0', raw)


def _waiting(raw: bytes) -> bytes:
    """As many keep-alives as the answer took time; one at least in both."""
    marks = PREFIX.match(raw)
    assert marks is not None
    if marks[0]:
        return raw[marks.end() - len(b"\n         \n") :]
    while raw.startswith(COMMENT * 2):
        raw = raw[len(COMMENT) :]
    return raw


def _numbers(raw: bytes) -> bytes:
    """The same amount of USD: JavaScript writes 0.00003036 where this writer writes 3.036e-5. Every JSON parser reads one number."""
    return re.sub(rb"(cost\":)([0-9.e-]+)", lambda m: m[1] + repr(float(m[2])).encode(), raw)


def _deltas(raw: bytes) -> bytes:
    """The one recorded delta of three tokens, in three: the provider or the network joined them. The stand-in joins by a draw of its own
    (`tokens_per_delta`, 1 here)."""
    if not raw.startswith(COMMENT):
        return raw
    apart = [
        [event.replace(BATCH, part) for part in re.findall(rb" \w+", BATCH)] if BATCH in event else [event]
        for event in events(raw)
    ]
    return b"".join(event for some in apart for event in some)


# what differs between a recorded answer and the one played again, why, and how the difference is taken out; nothing else does
DIFFERENCES: dict[str, tuple[str, Rewrite]] = {
    "id, created": ("they name this one answer and its second", _identity),
    "number of keep-alives": ("they tell how long the answer took", _waiting),
    "a delta of three tokens": ("of the provider's pace", _deltas),
    "spelling of costs": ("another JSON writer; the numbers are equal", _numbers),
}
# how the recorded provider counts and renders, as far as the row shows it: what is not the plain convention, and why
HABITS: dict[str, dict[str, Any]] = {
    # 202 tokens told of a text that has 203 ids with the end: the end is not counted (or one space is injected, the row cannot say)
    "simple#0": {"billing": Billing(counts_end=False)},
    # 108 and 110 prompt tokens told: the reasoning of the history was not rendered (with it there were 154)
    "tool#1": {"prompt": PromptBending(history_reasoning="dropped")},
    "tool_streaming#1": {"prompt": PromptBending(history_reasoning="dropped")},
}


def events(body: bytes) -> list[bytes]:
    """Of a stream; a whole body is one piece."""
    if not body.startswith(COMMENT):
        return [body]
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]


def told(row: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, str]], dict[str, Any]]:
    """(reasoning, content, calls as (id, name, arguments), last chunk or body) of a recorded answer."""
    body = row["response_body"].encode()
    if not row["request"].get("stream"):
        value = json.loads(body)
        message = value["choices"][0]["message"]
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
        return message["reasoning"], message["content"] or "", calls, value
    chunks = [json.loads(event[6:]) for event in events(body) if event.startswith(b"data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    parts: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        part = parts.setdefault(call["index"], [call.get("id"), call["function"].get("name"), ""])
        part[2] += call["function"]["arguments"]
    return (
        "".join(delta.get("reasoning") or "" for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
        [(id_, name, arguments) for id_, name, arguments in parts.values()],
        chunks[-1],
    )


def price(cost: float, tokens: int) -> Decimal:
    """USD per million, from what was charged."""
    return round(Decimal(str(cost)) / tokens * 10**6, 6).normalize()


def profiles_of(name: str, last: dict[str, Any]) -> Profiles:
    """The one provider that gave the recorded answer, at its price."""
    usage = last["usage"]
    cost = usage["cost_details"]
    provider = Provider(
        name=last["provider"],
        tag=last["provider"].lower(),
        price_prompt=price(cost["upstream_inference_prompt_cost"], usage["prompt_tokens"]),
        price_completion=price(cost["upstream_inference_completions_cost"], usage["completion_tokens"]),
        **HABITS.get(name, {}),
    )
    profiles = settings()
    model = profiles.model.model_copy(update={"slug": "moonshotai/kimi-k2.5", "dated_slug": last["model"]})
    return profiles.model_copy(update={"model": model, "provider": (provider,)})


def play(name: str, row: dict[str, Any], kimi: Vocabulary, folder: Path) -> tuple[int, dict[str, str], bytes]:
    """The stand-in's answer to the recorded request."""
    reasoning, content, calls, last = told(row)
    ids = spell(kimi, reasoning, content, *((id_, arguments) for id_, _, arguments in calls))
    profiles = profiles_of(name, last)
    answer = FakeAnswer(ids, tool_names=tuple(called for _, called, _ in calls))
    standin = Standin(
        Generator(profiles, kimi, Bank((answer,), kimi, profiles.source), "0"), Ledger(folder / "standin"), KEY, TRUTH_TOKEN
    )

    async def ask() -> tuple[int, dict[str, str], bytes]:
        async with connected(standin) as client:
            return await client.post(row["request"])

    return asyncio.run(ask())


def without_differences(raw: bytes, *, leaving: str = "") -> bytes:
    """What must be the same in both. `leaving`: a difference that stays in."""
    for name, (_, rewrite) in DIFFERENCES.items():
        if name != leaving:
            raw = rewrite(raw)
    return raw


def test_every_recorded_row_is_played(recorded: dict[str, Any]) -> None:
    assert tuple(sorted(recorded)) == ROWS


@pytest.mark.parametrize("name", ROWS)
def test_the_recorded_request_gets_the_recorded_answer_byte_for_byte(
    name: str, recorded: dict[str, Any], kimi: Vocabulary, tmp_path: Path
) -> None:
    row = recorded[name]
    status, headers, mine = play(name, row, kimi, tmp_path)
    real = row["response_body"].encode()
    assert (status, headers["content-type"]) == (row["status"], row["content_type"])
    assert events(without_differences(mine)) == events(without_differences(real))
    for wire in (mine, real):  # what is taken out above, has its form and says the same everywhere
        assert PREFIX.match(wire) or wire.startswith(COMMENT)
        ids, times = set(re.findall(rb'"id":"(gen-[^"]*)"', wire)), set(re.findall(rb'"created":(\d+)', wire))
        (generation_id,), (created,) = ids, times
        assert re.fullmatch(rb"gen-%b-[0-9A-Za-z]{20}" % created, generation_id)
    assert headers["x-generation-id"].encode() in mine


def test_no_difference_is_listed_that_is_not_there(recorded: dict[str, Any], kimi: Vocabulary, tmp_path: Path) -> None:
    """So the table is as short as it can be, and the comparison sees each of its lines."""
    needed = set()
    for name, row in recorded.items():
        mine, real = play(name, row, kimi, tmp_path / name.replace("#", "-"))[2], row["response_body"].encode()
        for difference in DIFFERENCES:
            if without_differences(mine, leaving=difference) != without_differences(real, leaving=difference):
                needed.add(difference)
    assert needed == set(DIFFERENCES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"refusal":null,', b""),
        (b'"refusal":null', b'"refusal":""'),
        (b'"index":0,"logprobs":null', b'"logprobs":null,"index":0'),
        (b'"is_byok":false', b'"is_byok": false'),
        (b'"completion_tokens":66', b'"completion_tokens":66.0'),
        (b'"content":null', b'"content":""'),
        (b'"cost":0.00016236', b'"cost":0.00016237'),
        (b"\n         \n{", b"{"),
    ],
)
def test_the_comparison_sees_a_key_a_null_an_order_a_space_a_type_and_a_cost(
    old: bytes, new: bytes, recorded: dict[str, Any]
) -> None:
    real = recorded["tool#0"]["response_body"].encode()
    assert old in real
    changed = real.replace(old, new) if old[:1] != b"\n" else real.lstrip()
    assert without_differences(changed) != without_differences(real)
