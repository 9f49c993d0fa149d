"""Claims about `eagle3 endpoints`: who may answer and why not, what was used; no name of a server is obeyed by a terminal."""

from __future__ import annotations

import json

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import main
from eagle3_assets.store import Store, commit, write_json
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.samples import a_snapshot, an_answer, an_endpoint

MARKUP = "[red]Odd[/red]"


@pytest.fixture
def snapshot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write_json(store.endpoints, {"snapshot": a_snapshot(an_endpoint(), an_endpoint(MARKUP, "odd/fp4", quantization="fp4"))})
    commit(store.endpoints, files=[store.endpoints], inputs={})


@pytest.mark.parametrize("args", [["endpoints"], ["endpoints", "--used"]])
def test_in_eighty_columns_every_name_can_be_read(
    args: list[str], snapshot: None, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with Journal.open(store.pilot_dir) as journal:
        for n in range(2):
            body = json.dumps({"choices": [{}], "usage": {"completion_tokens": 654_321}}).encode()
            journal.append(an_answer(n, body, provider="Chutes", cost_usd=12.5, finished_at=9.0))
    assert main.run(args) == 0
    shown = capsys.readouterr().out
    assert "Chutes" in shown and "…" not in shown


def test_before_there_is_a_snapshot_one_line_says_how_to_get_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["endpoints"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "endpoints" in line and "Traceback" not in line


def test_the_table_shows_taken_and_refused_with_the_reason(snapshot: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["endpoints"]) == 0
    shown = capsys.readouterr().out
    assert "chutes/int4" in shown and "taken" in shown and MARKUP in shown  # markup of a server is text
    assert "* odd/fp4 refused: quantization fp4 is not in routing.quantizations" in shown


def test_the_json_is_the_table_and_what_is_sent(snapshot: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["endpoints", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in found["endpoints"]] == ["taken", "refused"]
    assert found["provider_object"]["only"] == ["chutes/int4"] and found["stream"] is False


def test_used_counts_pilot_and_answers_and_shows_no_terminal_escapes(
    store: Store, campaign: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 10}}).encode()
    for folder in (store.pilot_dir, store.answers("b3_magicoder", "03")):
        with Journal.open(folder) as journal:
            journal.append(an_answer(1, body, provider="Chutes", cost_usd=0.25))
            journal.append(an_answer(2, b"{}", provider="\x1b[2JEvil", outcome="failed", reason="wrong_provider", cost_usd=0.0))
    assert main.run(["endpoints", "--used", "--json"]) == 0
    evil, chutes = json.loads(capsys.readouterr().out)["providers"]
    assert (chutes["answers"], chutes["tokens"], chutes["usd"]) == (2, 20, 0.5) and evil["errors"] == {"wrong_provider": 2}
    assert main.run(["endpoints", "--used"]) == 0
    shown = capsys.readouterr().out
    assert "Chutes" in shown and "wrong_provider: 2" in shown and "\x1b" not in shown


def test_used_before_the_first_answer_is_an_empty_table(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["endpoints", "--used", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"providers": []}
