"""Claims about the recorded streams of real servers: deltas are whole ids, and where arguments left the encoder's path they say so
(docs/research/recorded-traffic.md#3-4)."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.exact.search.modes import Mode
from eagle3_assets.exact.search.proofs import Found, aligned_share, with_witnesses
from eagle3_assets.exact.search.selection import Case, Selection, frames_of, select
from eagle3_assets.exact.search.witnesses import Channel, stream_channels
from eagle3_assets.targets.grammar import assemble
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.conftest import TOKENIZERS, needs, shared_data

pytestmark = pytest.mark.slow  # its worlds take seconds

FILES = ("recorded-k2-0905.jsonl.gz", "recorded-2.jsonl.gz")


@dataclass(frozen=True)
class Row:
    """One recorded stream: its channels against the text as it stands, and what the witnesses make of its candidates."""

    provider: str
    billed: int | None
    channels: list[Channel]
    chosen: Selection
    found: Found | None
    length: int


def streams() -> Iterator[dict[str, Any]]:
    """Each recorded stream once; a recording stands in both files."""
    seen = set()
    for name in FILES:
        with gzip.open(needs(shared_data() / "wire" / name), "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["request"].get("stream") and row["id"] not in seen:
                    seen.add(row["id"])
                    yield row


@pytest.fixture(scope="module")
def rows(tokenizers: Path) -> list[Row]:
    out = []
    for row in streams():
        fields = parse_fields(row["response_body"].encode(), row.get("content_type") or "text/event-stream")
        thinks = "k2." in (fields.model or "").lower()
        profile = load_profile("kimi-k2.5" if thinks else "kimi-k2-instruct", TOKENIZERS)
        case = Case(profile, row["request"], fields, None, "openrouter", Mode(True, thinks, 0, 1.0))
        frames = frames_of(case)
        stands = frames[0].filled(*((text.lead, text.trail) for text in (frames[0].reasoning, frames[0].content)))
        chosen = select(case, frames)
        found = with_witnesses(case, chosen)
        length = len(assemble(profile, found.parts)) if found else 0
        provider = fields.provider or row.get("provider") or ""
        channels = stream_channels(profile, stands, fields) or []
        out.append(Row(provider, fields.billed_completion, channels, chosen, found, length))
    return out


def test_every_edge_of_every_text_is_an_edge_of_the_encoder(rows: list[Row]) -> None:
    texts = [channel for row in rows for channel in row.channels if not channel.in_arguments]
    assert len(texts) > 300 and sum(len(channel.canonical) for channel in texts) > 6_000
    assert sum(channel.off for channel in texts) == 0
    assert all(channel.ids == channel.canonical for channel in texts)


def test_the_streams_of_every_provider_are_aligned(rows: list[Row]) -> None:
    """By the edges of all its answers together; short arguments alone may not say it (Together's call of 13 characters in two deltas)."""
    by_provider: dict[tuple[str, bool], list[Channel]] = defaultdict(list)
    for row in rows:
        for channel in row.channels:
            by_provider[row.provider, channel.in_arguments].append(channel)
    shares = {key: aligned_share(channels) for key, channels in by_provider.items() if sum(c.edges for c in channels) >= 12}
    assert len(shares) > 15
    assert {key for key, share in shares.items() if share < 0.99} == set()


def test_ids_differ_from_the_encoders_in_arguments_only_and_at_these_providers(rows: list[Row]) -> None:
    arguments = [(row.provider, channel) for row in rows for channel in row.channels if channel.in_arguments]
    joints = Counter(provider for provider, channel in arguments if channel.off and channel.off == channel.joints)
    elsewhere = Counter(provider for provider, channel in arguments if channel.off > channel.joints)
    assert joints == {"Chutes": 28, "AtlasCloud": 2, "Together": 1}
    # a gateway's own cuts: `{` `}`, and `{"a":2,` `"b":3}` in one row of two calls
    assert set(elsewhere) <= {"SiliconFlow", "Together"} and elsewhere["SiliconFlow"] == 1


@pytest.mark.parametrize(("provider", "refuted"), [("Chutes", 28), ("AtlasCloud", 2), ("Together", 1)])
def test_where_deltas_refute_the_encoder_their_ids_meet_the_bill_and_are_taken(
    rows: list[Row], provider: str, refuted: int
) -> None:
    """In 3 of them the encoder's ids meet the bill, too; without the stream they would be believed."""
    left = [
        row for row in rows if row.provider == provider and any(c.in_arguments and c.off == c.joints > 0 for c in row.channels)
    ]
    assert len(left) == refuted and all(row.length == row.billed for row in left)
    for row in left:
        assert row.found is not None and row.found.p <= 0.99
        told = {channel.name: channel.ids for channel in row.channels}
        arguments = {f"tool:{k}": call.arguments for k, call in enumerate(row.found.parts.calls)}
        assert all(arguments[name] == ids for name, ids in told.items() if name in arguments)


def test_an_edge_that_only_a_gateway_can_have_made_does_not_turn_the_ids_and_is_said(rows: list[Row]) -> None:
    (row,) = [r for r in rows if r.provider == "SiliconFlow" and any(c.off for c in r.channels)]
    assert row.found is not None and row.found.witness == "" and row.found.parts == row.chosen.completions[0].parts
    assert row.found.p < 0.75 and row.found.rivals and "cut inside an id" in row.found.reason


def test_streams_that_agree_with_the_encoder_raise_what_is_believed_and_never_lower_it(rows: list[Row]) -> None:
    agreeing = [r for r in rows if r.found and r.chosen.completions and not any(c.refutes for c in r.channels)]
    assert len(agreeing) > 300
    assert all(row.found and row.found.p >= row.chosen.p - 1e-12 for row in agreeing)
    assert sum(bool(row.found and row.found.witness == "boundaries") for row in agreeing) > 200
