"""Claims about learning from a log: the habits of its providers come out of it, however it is read, and each row is judged by its time."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.cli.main import run
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.logs import log_learning
from eagle3_assets.exact.logs.log_learning import Drawn, draw, learn_log, with_prior
from eagle3_assets.exact.logs.log_rows import LogReader, LogRebuilder
from eagle3_assets.exact.logs.log_workers import BATCH, rebuild
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.providers.test_wire_profiles import world
from eagle3_assets_tests.exact.synthetic import Provider, Truth


def lines_of(answers: Sequence[WireAnswer], **more: Any) -> list[bytes]:
    return [
        json.dumps({"id": str(k), "request": a.request, "response_body": a.body.decode(), **more}).encode()
        for k, a in enumerate(answers)
    ]


@pytest.fixture(scope="module")
def injecting(mini: Profile) -> Provider:
    return world(mini, writes=True, bends="injects", neutral=None)


def out_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.mark.slow
def test_a_log_alone_gives_b1_rows_and_says_what_it_learned(
    injecting: Provider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(lines_of(injecting.answers)))
    command = [
        "reconstruct",
        "--profile",
        "kimi-mini",
        "--learn",
        "--save-wire-profiles",
        str(tmp_path / "wire.json"),
        str(tmp_path / "log"),
    ]
    assert run(command) == 0
    rows, said = out_of(capsys)
    assert {row["grade"] for row in rows} == {"B1"} and [tuple(row["input_ids"]) for row in rows] == injecting.truths
    assert "P (kimi-mini" in said and "decided" in said and f"B1 {len(rows)}" in said and "expected exact" in said
    assert (
        run(["reconstruct", "--profile", "kimi-mini", "--wire-profiles", str(tmp_path / "wire.json"), str(tmp_path / "log")]) == 0
    )
    again, _ = out_of(capsys)
    assert again == rows


def test_standard_input_is_read_twice(
    injecting: Provider, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines_of(injecting.answers)))))
    assert run(["reconstruct", "--profile", "kimi-mini", "--learn", "--workers", "1"]) == 0
    rows, _ = out_of(capsys)
    assert {row["grade"] for row in rows} == {"B1"} and len(rows) == len(injecting.answers)


def test_a_pipe_is_read_twice_and_a_missing_file_is_one_line(
    injecting: Provider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"\n".join(lines_of(injecting.answers)),))
    writer.start()
    assert run(["reconstruct", "--profile", "kimi-mini", "--learn", "--workers", "1", str(pipe)]) == 0
    writer.join()
    rows, _ = out_of(capsys)
    assert {row["grade"] for row in rows} == {"B1"} and len(rows) == len(injecting.answers)
    assert run(["reconstruct", "--profile", "kimi-mini", "--learn", str(tmp_path / "nowhere")]) == 1
    said = capsys.readouterr().err.strip()
    assert "nowhere" in said and "\n" not in said


@pytest.mark.slow
def test_workers_change_neither_rows_nor_their_order(injecting: Provider) -> None:
    lines = [*lines_of(injecting.answers), b"garbage", *lines_of(injecting.answers)]
    assert len(lines) > 2 * BATCH
    rebuilder = LogRebuilder(LogReader("kimi-mini"))
    alone, together = (list(rebuild(rebuilder, iter(lines), workers)) for workers in (1, 2))
    assert alone == together and [json.loads(row.line)["id"] for row in together][: len(injecting.answers)] == [
        str(k) for k in range(len(injecting.answers))
    ]


def test_a_provider_that_the_log_does_not_name_gets_the_name_given(injecting: Provider) -> None:
    unnamed = []
    for line in lines_of(injecting.answers):
        record = json.loads(line)
        body = json.loads(record["response_body"])
        del body["provider"]
        unnamed.append(json.dumps({**record, "response_body": json.dumps(body)}).encode())
    for given, key in (("Mine", "Mine"), (None, "(openrouter)")):
        reader = LogReader("kimi-mini", provider=given)
        (learned,) = learn_log(reader, lambda: iter(unnamed), draw(reader, lambda: iter(unnamed)), [])
        assert list(learned["providers"]) == [key] and learned["providers"][key]["decided"]


@pytest.mark.slow
def test_a_provider_that_changed_is_judged_by_its_own_window(mini: Profile) -> None:
    before = world(mini, writes=True, bends="injects", neutral=None)
    after = world(mini, writes=True, bends="verbatim", neutral=None)
    lines = []
    for k, line in enumerate([*lines_of(before.answers), *lines_of(after.answers)]):
        record = json.loads(line)
        body = {**json.loads(record["response_body"]), "created": 1_770_000_000 + 60 * k}
        lines.append(json.dumps({**record, "response_body": json.dumps(body)}).encode())
    random.Random(0).shuffle(lines)
    reader = LogReader("kimi-mini")
    (learned,) = learn_log(reader, lambda: iter(lines), draw(reader, lambda: iter(lines)), [])
    assert len(learned["providers"]["P"]["windows"]) == 2
    truths = {(a.body): truth for p in (before, after) for a, truth in zip(p.answers, p.truths, strict=True)}
    rows = {json.loads(line)["response_body"]: LogRebuilder(reader, [learned]).row(line, 1) for line in lines}
    undated = {
        json.dumps({k: v for k, v in json.loads(body).items() if k != "created"}).encode(): row for body, row in rows.items()
    }
    sure = [row for row in undated.values() if row["grade"] == "B1"]
    assert len(sure) >= 0.9 * len(undated)
    assert all(tuple(row["input_ids"]) == truths[body] for body, row in undated.items() if row["grade"] == "B1")


def test_rows_that_failed_or_that_another_model_answered_teach_nothing(injecting: Provider) -> None:
    reader = LogReader("kimi-mini")
    broken = lines_of(injecting.answers, status=502)
    other = [
        json.dumps({**json.loads(line), "request": {**json.loads(line)["request"], "model": "kimi-k3"}}).encode()
        for line in broken
    ]
    lines = [*broken, *other, b"garbage"]
    drawn = draw(reader, lambda: iter(lines))
    assert drawn.records == len(lines) and not drawn.seen


def test_of_a_large_log_an_even_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_learning, "MOST", {False: 100, True: 10})
    drawn = Drawn()
    for number in range(5000):
        drawn.add(("kimi-mini", "P", False, False), number)
    (kept,) = drawn.numbers().values()
    assert len(kept) == 100 and drawn.seen.total() == 5000
    assert 25 <= sum(number < 2500 for number in kept) <= 75


def test_a_prior_keeps_what_the_log_cannot_tell() -> None:
    decided = {"rows": 50, "decided": True, "reading": "keep"}
    prior: dict[str, Any] = {"providers": dict.fromkeys(("Old", "P", "Few", "Open", "Changed"), decided)}
    learned: dict[str, Any] = {
        "version": 3,
        "model": {},
        "providers": {
            "P": {"rows": 200, "decided": True, "reading": "join"},
            "Few": {"rows": 2},
            "New": {"rows": 2},
            "Open": {"rows": 30, "decided": False, "readings": [{"name": "join"}, {"name": "keep"}]},
            "Changed": {"rows": 30, "decided": False, "readings": [{"name": "join"}]},
        },
    }
    merged = with_prior(learned, prior)
    rows = {name: entry["rows"] for name, entry in merged["providers"].items()}
    assert rows == {"Old": 50, "P": 200, "Few": 50, "New": 2, "Open": 50, "Changed": 30}
    assert merged["version"] == 3


def test_a_prior_knows_the_models_habits_for_a_log_that_shows_none(mini: Profile) -> None:
    """Texts that no count tells: what the file's rows with ids say of the model decides the log's provider."""
    with_ids = Provider(mini, name="(engine)")
    for k in range(60):
        with_ids.answer(Truth(f" thought {k}", f" answer {k}"), with_ids=True, source="engine", provider=None)
    stripping = world(mini, writes=True, bends="strips", neutral=True)
    reader, lines = LogReader("kimi-mini"), lines_of(stripping.answers)

    def learned(prior: list[dict[str, Any]]) -> dict[str, Any]:
        (found,) = learn_log(reader, lambda: iter(lines), draw(reader, lambda: iter(lines)), prior)
        return found

    other = world(mini, writes=True, bends="verbatim", neutral=None)
    prior = learn(mini, [*with_ids.answers, *(replace(a, provider="Other") for a in other.answers)])
    alone, informed = learned([]), learned([prior])
    assert not alone["providers"]["P"]["decided"] and informed["providers"]["P"]["decided"], informed["providers"]["P"]["why"]
    assert informed["model"]["sampling"]["rows_with_ids"] == 60 and "Other" in informed["providers"]


def test_a_prior_of_another_target_is_refused_by_the_learner(mini: Profile) -> None:
    with pytest.raises(ExactError, match="was learned for kimi-k2-thinking"):
        learn(mini, [], prior={"profile": "kimi-k2-thinking", "tokenizer_sha256": "0"})


def test_a_prior_of_another_target_is_kept_beside(injecting: Provider, mini: Profile) -> None:
    reader, lines = LogReader("kimi-mini"), lines_of(injecting.answers)
    other = {"version": 3, "profile": "kimi-k2-thinking", "tokenizer_sha256": "0", "providers": {}, "model": {}}
    found = learn_log(reader, lambda: iter(lines), draw(reader, lambda: iter(lines)), [other])
    assert [learned["profile"] for learned in found] == ["kimi-mini", "kimi-k2-thinking"]


def test_an_answer_without_a_time_teaches_without_one(mini: Profile) -> None:
    (line,) = lines_of([Provider(mini).answer(Truth())])
    read = LogReader("kimi-mini").read(line)
    assert read.exchange.at is None and log_learning.as_answer(read, 1).finished_at == 0.0


def test_options_that_do_not_go_together_are_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconstruct", "--save-wire-profiles", str(tmp_path / "x"), "y"]) == 2
    assert run(["reconstruct", "--alias", "nonsense", "--profile", "kimi-mini", "y"]) == 2
    assert "NAME=MODEL" in capsys.readouterr().err
