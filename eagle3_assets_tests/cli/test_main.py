"""Claims about the command line: every user error is one line and the exit code of the design, never a traceback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import main
from eagle3_assets.store import Store


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in main.COMMANDS)


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "--help"]) == 0
    assert f"eagle3 {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args", [["nonsense"], ["run", "--nonsense"], ["run", "--until", "nonsense"], ["plan", "--approve", "much"]]
)
def test_wrong_usage_is_exit_2_without_a_traceback(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(args) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_broken_campaign_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[campaign\n")
    monkeypatch.setenv("EAGLE3_CAMPAIGN", str(bad))
    for command in (["status"], ["run"], ["plan"], ["close", "b3_magicoder"]):
        assert main.run(command) == 2
        (line,) = _lines(capsys)
        assert line.startswith(f"eagle3: {bad}: not valid TOML")


def test_plan_before_there_is_one_is_an_estimate_that_says_how_to_get_it_and_cannot_be_approved(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["plan"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "from the campaign file alone" in shown and "`eagle3 run --until plan`" in shown
    assert main.run(["plan", "--approve", "1"]) == 1
    (line,) = _lines(capsys)
    assert "run `eagle3 run --until plan`" in line


def test_closing_an_unknown_dataset_names_the_known_ones(
    store: Store, campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["close", "b9_nothing"]) == 2
    (line,) = _lines(capsys)
    assert all(d.name in line for d in campaign.dataset)


def test_there_is_nothing_to_close_before_there_are_answers(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["close", "b3_magicoder"]) == 1 and not store.closed("b3_magicoder").exists()
    assert "nothing to close" in capsys.readouterr().err


def test_close_and_reopen_are_seen_by_the_store(store: Store) -> None:
    segment = store.answers("b3_magicoder", "00") / "segment-000.jsonl"
    segment.parent.mkdir(parents=True)
    segment.touch()
    assert main.run(["close", "b3_magicoder"]) == 0 and store.closed("b3_magicoder").exists()
    assert main.run(["close", "--reopen", "b3_magicoder"]) == 0 and not store.closed("b3_magicoder").exists()


def test_status_of_an_empty_data_root_is_all_missing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stages"]["answers"] == {"missing": 64} and found["money"]["spent_usd"] == 0.0


def test_doctor_refuses_the_real_campaign_without_a_key(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_CAMPAIGN", "kimi-k2.5")
    assert main.run(["doctor", "--json"]) == 1
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)}
    assert found["key"]["level"] == "fail" and "OPENROUTER_API_KEY" in found["key"]["found"]


def test_alone_it_says_where_one_is_and_what_comes_next(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    shown = capsys.readouterr().out
    assert "campaign  demo" in shown and str(store.root.absolute()) in shown and "next  `eagle3 run`" in shown


def test_nothing_was_asked_is_not_nothing_is_missing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status"]) == 0
    shown = capsys.readouterr().out
    assert "every answer of b3_magicoder, b8_sweagent: its prompts are not made yet" in shown
    assert "hidden_states" in shown and "next  `eagle3 run`" in shown and "eagle3 view" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["recheck", "b3_magicoder", "--shard", "99"], "no shard named '99'; Shards are 00 to 15"),
        (["recheck", "b3_magicoder", "--shard", "3"], "did you mean 03?"),
        (["recheck", "--stage", "token"], "no stage named 'token'; did you mean tokens? Stages are tokenizer_probe"),
        (["requeue", "--reason", "wire_text", "--shard", "99"], "no shard named '99'"),
        (["statu"], "no command 'statu'; did you mean `eagle3 status`?"),
    ],
)
def test_a_name_that_is_not_there_is_an_error_that_lists_those_that_are(
    args: list[str], words: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(args) == 2
    assert words in capsys.readouterr().err


def test_checking_a_shard_that_was_never_made_is_no_success(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["recheck", "b3_magicoder", "--shard", "03"]) == 1
    assert "nothing with checks was made for b3_magicoder shard 03" in capsys.readouterr().err


def test_an_occupied_port_ends_the_ui_at_once(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.run(["ui", "--port", str(port)]) == 1
    assert f"port {port} of 127.0.0.1 is in use; give another: eagle3 ui --port" in capsys.readouterr().err
