"""Claims about what a person is told without looking: each finding once, to the address that was given, which is never shown whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import dagster as dg
import pytest

from eagle3_assets import gate, notices
from eagle3_assets.assets import sensors
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import WireError
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import tokens
from eagle3_assets.store import Store, commit, write_json


@pytest.fixture
def heard() -> Iterator[tuple[str, list[str]]]:
    """An address on loopback, and the texts that were posted to it."""
    texts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts.append(body["text"])
            self.send_response(500 if "refuse" in self.path else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", texts
    server.shutdown()
    thread.join()
    server.server_close()


def stopped(campaign: Campaign, store: Store, shard: str) -> None:
    """A tokens file whose filed verdict stops data."""
    artifact = Artifact(tokens.STAGE, campaign, store, "b3_magicoder", shard)
    artifact.path.parent.mkdir(parents=True, exist_ok=True)
    write_json(artifact.path, {"shard": shard})
    commit(artifact.path, files=[artifact.path], inputs={}, numbers={})
    gate.file_verdicts(artifact, [verdict("tokens", "loss_mask", False, "a span starts inside the prompt")])


def test_a_check_that_stops_data_is_told_once_and_a_second_shard_again(
    campaign: Campaign, store: Store, heard: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, texts = heard
    monkeypatch.setenv(notices.WEBHOOK, f"{address}/secret-path")
    sensor = next(s for s in sensors.build(campaign) if s.name == "notices")
    stopped(campaign, store, "03")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance)
        for _ in range(2):
            sensor(context)
        assert texts == ["tokens b3_magicoder 03: check loss_mask stops data: a span starts inside the prompt"]
        stopped(campaign, store, "07")
        sensor(context)
    assert len(texts) == 2 and "b3_magicoder 07" in texts[1]


def test_an_address_that_refuses_is_an_error_without_its_path(heard: tuple[str, list[str]]) -> None:
    address, _ = heard
    with pytest.raises(WireError) as refused:
        notices.tell(f"{address}/refuse/secret", "hello")
    assert "answered 500" in str(refused.value) and "secret" not in str(refused.value)
    with pytest.raises(WireError, match="expected an http or https address"):
        notices.tell("file:///etc/passwd", "hello")


def test_a_campaign_with_nothing_made_has_nothing_to_tell(campaign: Campaign, store: Store) -> None:
    assert notices.find_notices(campaign, store) == []
