"""A stranger's log of nine provider habits, rebuilt by `eagle3 reconstruct --learn`: how many rows are usable, how many of them are right.

    python -m benchmarks.foreign_log --lines 4500                       # 500 answers of each habit, 50 to 400 tokens
    python -m benchmarks.foreign_log --lines 100000 --tokens 3500 --providers verbatim --no-ids    # time and memory
    python -m benchmarks.foreign_log --lines 3600 --seed 5 --id-lines 300 --workers 2 --json figures.json

The log is written with its truth beside it, the command runs as a process of its own, its lines are compared with the truth. Habits, texts,
ids and prompts come from `benchmarks/foreign`, which shares no code with the platform.

Belongs here: writing the log, running the command, comparing. Does not belong here: habits (`benchmarks/foreign/habits.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from benchmarks.foreign import cases, model
from benchmarks.foreign.habits import HABITS
from benchmarks.foreign.sent import DAY, Scene, body_of, verbatim

PROFILE = "kimi-k2.5"
SURE = ("A0", "A1", "A2", "B1", "B2", "R")
TOKENS_A_PART = 30  # of a text, on average
SPARE_CASES = 6000  # long answers are drawn once and sent again: writing 100,000 of them anew would take hours


@dataclass
class Figures:
    """One habit. `exact` of the sure rows, and of C1 beside the sum of their p."""

    grades: Counter[str] = field(default_factory=Counter)
    sure_exact: int = 0
    likely_exact: int = 0
    likely_p: float = 0.0

    @property
    def rows(self) -> int:
        return self.grades.total()

    @property
    def sure(self) -> int:
        return sum(self.grades[grade] for grade in SURE)


# ---------------------------------------------------------------------------------------------------- the log
def lines(args: argparse.Namespace, made: model.Model) -> Iterator[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """(habit, record, true ids), the habits in turn as a log has them, a second apart; answers with ids first."""
    rng = Random(args.seed)
    manner = dataclasses.replace(cases.Manner() if args.seed == 0 else cases.Manner.drawn(rng), keys=args.keys)
    names = [name for name in HABITS if args.providers is None or name in args.providers]
    size = max(3, round(args.tokens / TOKENS_A_PART)) if args.tokens else 3
    spare = (
        [cases.make_case(made, manner, rng, size=size) for _ in range(min(SPARE_CASES, args.id_lines + args.lines))]
        if args.tokens
        else []
    )
    for k in range(args.id_lines + args.lines):
        with_ids = k < args.id_lines
        name = "verbatim" if with_ids else names[k % len(names)]
        case = spare[k % len(spare)] if spare else cases.make_case(made, manner, rng)
        scene = Scene(case, made, rng, DAY + k)
        sent = (verbatim if with_ids else HABITS[name])(scene)
        provider = "Engine" if with_ids else name.title().replace(" ", "")
        body = body_of(sent, provider=provider, number=k, at=scene.at, with_ids=with_ids)
        record = {"id": f"{k}", "request": case.request, "response_body": json.dumps(body), "status": 200}
        yield "engine with ids" if with_ids else name, record, (*sent.prompt_ids, *sent.completion_ids)


# ---------------------------------------------------------------------------------------------------- the command
@dataclass(frozen=True)
class Run:
    """Seconds and the peak memory of the command and its workers together, MiB."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    said: str


def run(log: Path, out: Path, args: argparse.Namespace, folder: Path) -> Run:
    """`eagle3 reconstruct --learn` as a process of its own."""
    start = "from eagle3_assets.cli.main import main; main()"
    command = [sys.executable, "-c", start, "reconstruct", "--learn", "--tokenizer", str(folder), str(log)]
    command += ["--workers", str(args.workers)] if args.workers else []
    begun, peak = time.perf_counter(), 0.0
    with out.open("wb") as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        while process.poll() is None:
            peak = max(peak, memory_mib(process.pid))
            time.sleep(0.2)
        stderr.seek(0)
        said = stderr.read().decode()
    if process.returncode:
        raise SystemExit(f"eagle3 reconstruct ended with {process.returncode}: {said}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(time.perf_counter() - begun, used.ru_utime + used.ru_stime, peak, said)


def memory_mib(pid: int) -> float:
    """Memory of a process and its children, shared pages counted once (Linux; 0 elsewhere)."""
    total = 0
    for each in (pid, *children(pid)):
        try:
            fields = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in fields if line.startswith("Pss:"))
    return total / 1024


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


# ---------------------------------------------------------------------------------------------------- comparing
def compare(out: Path, truth: Path) -> dict[str, Figures]:
    """By habit, in order of the log."""
    figures: dict[str, Figures] = {}
    with out.open() as rebuilt, truth.open() as known:
        for line, told in zip(rebuilt, known, strict=True):
            row, true = json.loads(line), json.loads(told)
            assert row["id"] == true["id"], "the output is not in the order of the log"
            f = figures.setdefault(true["habit"], Figures())
            exact = row["input_ids"] == true["ids"]
            f.grades[row["grade"]] += 1
            f.sure_exact += exact and row["grade"] in SURE
            if row["grade"] == "C1":
                f.likely_exact += exact
                f.likely_p += row["p_exact"]
    return figures


def show(console: Console, figures: dict[str, Figures], ran: Run) -> None:
    table = Table(title="a log of nine habits, learned from itself")
    for column in ("habit", "rows", "A/B/R", "coverage", "exact of A/B/R", "C1", "C1 p", "C1 exact", "grades"):
        table.add_column(column, justify="left" if column in ("habit", "grades") else "right")
    for habit, f in figures.items():
        likely = f.grades["C1"]
        mean, share = (f"{value / likely:.3f}" if likely else "-" for value in (f.likely_p, float(f.likely_exact)))
        grades = " ".join(f"{grade} {n}" for grade, n in sorted(f.grades.items()))
        exact = f"{f.sure_exact}/{f.sure}"
        table.add_row(habit, str(f.rows), str(f.sure), f"{f.sure / f.rows:.1%}", exact, str(likely), mean, share, grades)
    console.print(table)
    rows, sure, exact = (sum(values) for values in zip(*((f.rows, f.sure, f.sure_exact) for f in figures.values()), strict=True))
    likely = max(1, sum(f.grades["C1"] for f in figures.values()))
    mean, share = (sum(values) / likely for values in zip(*((f.likely_p, f.likely_exact) for f in figures.values()), strict=True))
    console.print(f"A/B/R: {exact:,} of {sure:,} exact, coverage {sure / rows:.1%}; C1: mean p {mean:.3f}, exact {share:.3f}")
    console.print(ran.said, markup=False, highlight=False)
    console.print(
        f"{rows:,} lines in {ran.seconds:.1f} s ({1000 * ran.cpu_seconds / rows:.2f} ms CPU a line), peak memory {ran.peak_mib:,.0f} MiB; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.foreign_log",
        description=textwrap.dedent(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lines", type=int, default=4500)
    parser.add_argument("--id-lines", type=int, default=300, help="more lines, of an engine that returns ids")
    parser.add_argument("--no-ids", dest="id_lines", action="store_const", const=0, help="no line with ids")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, help="mean tokens of an answer; default some 200")
    parser.add_argument("--providers", type=lambda text: text.split(","), help="habits, divided by commas; default all nine")
    parser.add_argument(
        "--keys", choices=get_args(cases.Keys), default="mixed", help="the order in which all schemas list their keys"
    )
    parser.add_argument("--workers", type=int, help="of the command")
    parser.add_argument("--keep", type=Path, help="write log, truth and rows into this folder")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Figures]:
    args = parse(arguments)
    console = Console(width=max(180, Console().width))
    shared = Path(os.environ.get("EAGLE3_SHARED_DATA", Path(__file__).parents[1] / ".." / "shared" / "data")).resolve()
    folder = shared / "tokenizers" / PROFILE
    with tempfile.TemporaryDirectory() as name:
        place = args.keep or Path(name)
        place.mkdir(parents=True, exist_ok=True)
        log, truth, out = (place / name for name in ("log.jsonl", "truth.jsonl", "rows.jsonl"))
        begun, tokens = time.perf_counter(), 0
        with log.open("w") as written, truth.open("w") as told:
            for habit, record, ids in lines(args, model.load(folder)):
                written.write(json.dumps(record) + "\n")
                told.write(json.dumps({"id": record["id"], "habit": habit, "ids": ids}) + "\n")
                tokens += len(ids)
        written_s = time.perf_counter() - begun
        ran = run(log, out, args, folder)
        figures = compare(out, truth)
        mean_ids = tokens / max(1, args.lines + args.id_lines)
        console.print(f"log of {log.stat().st_size / 1e6:,.0f} MB, {mean_ids:.0f} ids a line, written in {written_s:.0f} s")
    show(console, figures, ran)
    if args.json:
        shown = {habit: vars(f) for habit, f in figures.items()}
        args.json.write_text(json.dumps({"habits": shown, "run": vars(ran)}, indent=1))
    return figures


if __name__ == "__main__":
    main()
