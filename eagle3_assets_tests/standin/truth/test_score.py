"""Scoring compares ids with truth, and says where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.cli.main import run
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.store import Store
from openrouter_standin.truth.score import score

BLANK: dict[str, Any] = {
    "sample_id": "s", "turn": 0, "attempt": 0, "shard": "00", "model": None, "loss_spans": (), "survivors": (), "p_exact": 1.0,
    "p_basis": "simulated", "evidence": "{}", "reasons": (), "billed_prompt": None, "billed_completion": None,
    "billed_reasoning": None, "cost_usd": None, "finish_reason": None, "native_finish_reason": None, "temperature": None,
    "top_p": None, "max_tokens": None, "tokenizer_sha256": "", "template_sha256": "", "wire_sha256": "",
}  # fmt: skip


def row(
    dataset: str, grade: str, provider: str | None, generation_id: str | None, prompt: list[int], completion: list[int]
) -> SampleRow:
    return SampleRow(
        **BLANK,
        dataset=dataset,
        source="openrouter" if provider else "import",
        provider=provider,
        generation_id=generation_id,
        input_ids=(*prompt, *completion),
        prompt_len=len(prompt),
        grade=grade,
    )


def write_truth(folder: Path, *truths: tuple[str, list[int], list[int]]) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"generation_id": i, "prompt_ids": p, "completion_ids": c}, separators=(",", ":")) for i, p, c in truths]
    (folder / "truth.jsonl").write_text("\n".join(lines) + "\n" + '{"generation_id":"gen-torn","prom')


@pytest.fixture
def scored(store: Store) -> dict[str, Any]:
    write_truth(store.standin, ("gen-1", [1, 2], [3, 4]), ("gen-2", [1], [3, 4]), ("gen-3", [1], [9]), ("gen-unused", [1], [1]))
    one, two = store.tokens("b3", "00"), store.tokens("b3", "01")
    write_rows(
        one,
        [
            row("b3", "B1", "Verbatim", "gen-1", [1, 2], [3, 4]),  # right
            row("b3", "B1", "Injector", "gen-2", [8], [3, 4]),  # completion right, prompt wrong
            row("b3", "C1", "Injector", "gen-3", [1], [9, 9]),  # wrong
        ],
    )
    write_rows(two, [row("b3", "B1", "Verbatim", "gen-elsewhere", [1], [1])])
    write_rows(store.tokens("a1", "00"), [row("a1", "I", None, None, [1], [2])])
    return score(store.standin, sorted((store.root / "tokens").glob("*/*.parquet")))


def test_rows_are_counted_by_dataset_grade_and_provider(scored: dict[str, Any]) -> None:
    b3 = scored["datasets"]["b3"]
    assert {k: b3[k] for k in ("rows", "no_truth", "exact", "completion_exact")} == {
        "rows": 4, "no_truth": 1, "exact": 1, "completion_exact": 2,
    }  # fmt: skip
    assert b3["exact_share"] == pytest.approx(1 / 3)
    assert (b3["grades"]["B1"]["rows"], b3["grades"]["B1"]["exact"]) == (3, 1)
    assert (b3["grades"]["C1"]["exact"], b3["grades"]["C1"]["exact_share"]) == (0, 0.0)
    assert (b3["providers"]["Injector"]["completion_exact"], b3["providers"]["Injector"]["exact"]) == (1, 0)
    assert scored["total"]["rows"] == 5


def test_imported_rows_have_no_truth_and_no_share(scored: dict[str, Any]) -> None:
    a1 = scored["datasets"]["a1"]
    assert (a1["rows"], a1["no_truth"], a1["exact_share"]) == (1, 1, None)
    assert list(a1["providers"]) == ["(import)"]


def test_the_command_prints_a_table_and_json(scored: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standin", "score", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == scored
    assert run(["standin", "score"]) == 0
    shown = capsys.readouterr().out
    assert "Injector" in shown and "33.33 %" in shown


def test_without_tokens_the_command_says_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standin", "score"]) == 1
    assert "no stand-in has answered here" in capsys.readouterr().err
    store.standin.mkdir(parents=True)
    (store.standin / "truth.jsonl").touch()
    assert run(["standin", "score"]) == 1
    assert "materialize tokens" in capsys.readouterr().err


def test_a_file_that_is_no_tokens_file_is_one_line(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.tokens("b3", "00")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not parquet")
    store.standin.mkdir(parents=True)
    (store.standin / "truth.jsonl").touch()
    assert run(["standin", "score"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(path) in err
