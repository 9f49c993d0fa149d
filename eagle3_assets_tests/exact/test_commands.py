"""Claims about `eagle3 reconstruct` and `eagle3 show`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli.main import run
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.exact.show import as_html, as_rich, pieces_of, survivor_lines, visible
from eagle3_assets.store import Store
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets_tests.exact.conftest import RECORDED
from eagle3_assets_tests.exact.synthetic import Provider, Truth

KEYS = ["id", "input_ids", "prompt_len", "loss_spans", "grade", "p_exact", "residual", "hypotheses", "reasons", "evidence"]


def lines_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_recorded_lines_come_out_in_the_promised_shape(
    tokenizers: Path, recorded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reconstruct", "--profile", "kimi-k2.5", "--tokenizer", str(tokenizers), str(RECORDED)]) == 0
    rows = lines_of(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [row["id"] for row in recorded]
    assert all(list(row) == KEYS for row in rows)
    for row in rows:
        assert set(row["residual"]) == {"prompt", "completion", "reasoning"}
        assert set(row["hypotheses"]) == {"tried", "surviving", "distinct"}
        assert all(0 <= start < end <= len(row["input_ids"]) for start, end in row["loss_spans"])


def test_the_table_shows_every_row_with_its_residuals(
    tokenizers: Path, recorded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reconstruct", "--tokenizer", str(tokenizers), "--table", str(RECORDED)]) == 0
    out = capsys.readouterr().out
    assert "no template" not in out and "kimi/tool_streaming#1" in out and "completion" in out


def test_a_bad_line_is_a_quarantined_row_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"request": {"messages": [{"role": "user", "content": "q"}]}, "response_body": "<html>bad gateway</html>"}
    odd_messages = {"id": "odd", "request": {"messages": [1]}, "response_body": "{}"}
    bad = [
        "garbage",
        "[1]",
        json.dumps({"id": "a"}),
        json.dumps(odd_messages),
        json.dumps({"id": "b", "status": 502, **good}),
        "\xff",
        "[" * 9999,
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(bad) + "\n", encoding="latin-1")
    assert run(["reconstruct", "--profile", "kimi-mini", str(tmp_path / "in.jsonl")]) == 0
    rows = lines_of(capsys.readouterr().out)
    assert len(rows) == len(bad) and {row["grade"] for row in rows} == {"Q"} and all(row["reasons"] for row in rows)
    assert rows[4]["id"] == "b" and rows[4]["reasons"][0] == "HTTP status 502"
    assert all(list(row) == KEYS for row in rows)


@pytest.mark.slow
def test_wire_profiles_lift_a_log_line_to_b1(mini: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets_tests.exact.providers.test_wire_profiles import world

    provider = world(mini, writes=True, bends="injects", neutral=None)
    (tmp_path / "wire.json").write_text(json.dumps(learn(mini, provider.answers)))
    log = [{"id": str(k), "request": a.request, "response_body": a.body.decode()} for k, a in enumerate(provider.answers)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(line) for line in log))
    command = ["reconstruct", "--profile", "kimi-mini", str(tmp_path / "in.jsonl")]
    run(command)
    assert {row["grade"] for row in lines_of(capsys.readouterr().out)} == {"C1"}
    run([*command, "--wire-profiles", str(tmp_path / "wire.json")])
    rows = lines_of(capsys.readouterr().out)
    assert {row["grade"] for row in rows} == {"B1"} and [tuple(row["input_ids"]) for row in rows] == provider.truths


@pytest.mark.parametrize(
    "arguments", [["--tokenizer", "nowhere"], ["--profile", "nonsense"], ["missing.jsonl", "--profile", "kimi-mini"]]
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["reconstruct", *arguments]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# ---------------------------------------------------------------------------------------------------- show
@pytest.fixture
def row(mini: Profile, campaign: Campaign, store: Store) -> SampleRow:
    """One row on disk whose text tries to break out."""
    provider = Provider(mini)
    answer = provider.answer(
        Truth(reasoning=" the user\x1b]0;owned\x07", content="<script>alert(1)</script> 😀"), provider="<b>P"
    )
    rows = build_rows(mini, campaign, campaign.dataset_named("b3_magicoder"), [answer], None)
    ids = rows[0].input_ids
    row = dataclasses.replace(rows[0], survivors=((*ids[: rows[0].prompt_len], *ids[rows[0].prompt_len + 1 :]),))
    write_rows(store.tokens("b3_magicoder", "00"), [row])
    return row


def test_show_finds_a_row_by_its_first_digits_and_escapes_what_the_model_wrote(
    row: SampleRow, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", row.sample_id[:6]]) == 0
    out = capsys.readouterr().out
    assert "\\x1b" in out and "\x07" not in out and "]0;owned" in out and "\x1b]0" not in out
    assert "C1" in out and "evidence" in out and "survivor 1" in out


def test_show_writes_a_page_without_scripts(row: SampleRow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["show", row.sample_id, "--dataset", "b3_magicoder", "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text and "<b>P" not in text and "\x1b" not in text and "&lt;b&gt;P" in text
    assert 'class="marker s"' in text and "http" not in text.replace("https://", "http://").split("Evidence")[0]
    assert json.loads(json.dumps(text)) == text and capsys.readouterr().out.startswith(str(page))


def test_show_says_what_it_did_not_find(row: SampleRow, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "ffff"]) == 1
    assert "no token row starts with 'ffff'" in capsys.readouterr().err


def test_pieces_name_markers_and_mark_the_loss(row: SampleRow, mini: Profile) -> None:
    pieces = pieces_of(mini, row)
    assert [piece.token_id for piece in pieces] == list(row.input_ids)
    assert [piece.supervised for piece in pieces] == [k >= row.prompt_len for k in range(len(pieces))]
    assert {piece.text for piece in pieces if piece.kind == "marker"} >= {"<|im_end|>", "</think>", "<think>"}
    assert survivor_lines(mini, row) and as_rich(mini, row).plain and as_html(mini, row)


def test_visible_text_holds_no_control_characters() -> None:
    assert visible("a\x1b[0m\n\u202e\u200b\x9b") == "a\\x1b[0m\\n\\u202e\\u200b\\x9b"
