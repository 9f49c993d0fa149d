"""`benchmarks/prompt_forms.py`: what it says of Parasail in the recorded log, and of lines that it cannot use."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from eagle3_assets_tests.conftest import needs, shared_data

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # a folder of scripts, no package

import prompt_forms  # noqa: E402


@pytest.mark.slow
def test_a_real_provider_is_one_line_a_month_and_odd_lines_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tokenizers = needs(shared_data() / "wire" / "recorded-k2-0905.jsonl.gz"), needs(shared_data() / "tokenizers")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [line for line in file if '\\"provider\\":\\"Parasail\\"' in line]
    foreign = {"request": {"model": "somebody/else", "messages": []}, "response_body": "{}", "content_type": "application/json"}
    log = tmp_path / "log.jsonl"
    log.write_text("".join([*lines, json.dumps(foreign) + "\n"]), encoding="utf-8")
    assert lines and prompt_forms.main([str(log), "--tokenizer", str(tokenizers)]) == 0
    out = capsys.readouterr().out
    months = [line for line in out.splitlines() if line.startswith("Parasail")]
    assert all("compact_json+unwrapped+strict" in line for line in months) and 3 <= len(months) <= 6
    total = re.search(r"one form explains (\d+) of (\d+) bills", out)
    assert total and int(total[2]) == len(lines) and int(total[1]) >= 0.8 * len(lines)
    assert "passed over: 1 (no profile)" in out
