"""The journal beside plain JSONL: appending in groups, and opening again after a crash; in one run.

    python benchmarks/journal.py                     # 8,000 records of 14 KB, groups of 256
    python benchmarks/journal.py --records 2000 --rounds 1

`raw` is what docs/research/perf-baselines.md#4 measured as the fastest store: `orjson.dumps` of four fields a record, one `write`
and one `fdatasync` a group. `ours` appends the whole record (request, headers, money, body as received, checksum), handed to the
system one by one, fsynced by the same groups. Making the records is outside the clock, serialising them inside. Bodies are real
JSON of 14 KB.

Resume: the journal is opened as a run opens it (lock, checksums, every record taken into account, money reconciled with the ledger).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from collector import a_body
from collector_clients import Workload, a_campaign

LEAST_RATE, MOST_RESUME_MS = 0.8, 50.0
BODIES = 256


def answers(count: int) -> list[object]:
    """`count` records as the collector makes them; bodies repeat, ids do not."""
    from eagle3_assets.wire.wire_answer import WireAnswer

    chance = random.Random(7)
    bodies = [a_body(n, chance, scale=0.8) for n in range(BODIES)]
    costs = [json.loads(body)["usage"]["cost"] for body in bodies]
    work = Workload("", 1, 1, (0, 0), Path())
    return [
        WireAnswer(
            request_id=f"{n:032x}-0-1-{n:010x}", sample_id=f"{n:032x}", turn=0, attempt=1, dataset="b3_magicoder", shard="00",
            source="openrouter", request=work.payload(0), status=200, body=bodies[n % BODIES], outcome="finished",
            headers={"content-type": "application/json"}, provider="Chutes", model="moonshotai/kimi-k2.5-0127",
            generation_id=f"gen-{n}", started_at=1.5e9 + n, finished_at=1.5e9 + n + 60, cost_usd=costs[n % BODIES], completion_tokens=3_000,
        )
        for n in range(count)
    ]  # fmt: skip


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """(wall, CPU) seconds, with Python's cycle collector as a run sets it."""
    from eagle3_assets.collect.run.cycle_collector import rarely_collected

    with rarely_collected():
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - wall, time.process_time() - cpu


def write_raw(path: Path, records: list[object], group: int) -> None:
    import orjson

    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for at in range(0, len(records), group):
        lines = [orjson.dumps(record) + b"\n" for record in records[at : at + group]]
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fdatasync(fd)
    os.close(fd)


def write_ours(folder: Path, records: list[object], group: int) -> None:
    from eagle3_assets.wire.journal import Journal

    with Journal.open(folder) as journal:
        for number, answer in enumerate(records, 1):
            journal.append(answer)  # type: ignore[arg-type]
            if number % group == 0:
                journal.sync()


def resume(folder: Path, ledger_path: Path) -> int:
    """Open the journal as a run does; returns how many answers it found."""
    from eagle3_assets.collect.money.ledger import Ledger
    from eagle3_assets.collect.run.filing import Filing
    from eagle3_assets.collect.run.progress import Meter
    from eagle3_assets.collect.run.shard_work import ShardJob, ShardWork

    campaign = a_campaign(2_000)
    work = ShardWork(ShardJob(campaign.dataset[0], "00", (), folder), 4)
    with Ledger(ledger_path, 1e6) as ledger, ExitStack() as journals:
        Filing([work], Meter(), lambda error: None, None).open(journals, ledger)
    return len(work._keys)


def one_round(records: list[object], plain: list[object], group: int) -> tuple[float, float, float]:
    """(records/s ours over raw, bytes/s ours over raw, CPU ms a 1,000 records to resume)."""
    count = len(records)
    with tempfile.TemporaryDirectory() as name:
        raw_path, folder, ledger = Path(name) / "raw.jsonl", Path(name) / "b3" / "00", Path(name) / "ledger.sqlite"
        raw_s, raw_cpu_s = timed(lambda: write_raw(raw_path, plain, group))
        our_s, our_cpu_s = timed(lambda: write_ours(folder, records, group))
        raw_bytes, our_bytes = raw_path.stat().st_size, sum(p.stat().st_size for p in folder.glob("segment-*"))
        found: list[int] = []
        _, first_cpu_s = timed(lambda: found.append(resume(folder, ledger)))
        _, again_cpu_s = timed(lambda: found.append(resume(folder, ledger)))
    if found != [count, count]:
        raise SystemExit(f"resume found {found} of {count} records")
    for what, wall_s, cpu_s, size in (("raw", raw_s, raw_cpu_s, raw_bytes), ("ours", our_s, our_cpu_s, our_bytes)):
        print(f"{what:5s}{count / wall_s:8.0f} records/s {size / wall_s / 1e6:7.0f} MB/s "
              f"{1e6 * cpu_s / count:6.1f} CPU ms per 1,000 {size / count:8.0f} bytes each")  # fmt: skip
    first_ms, again_ms = (1e6 * cpu_s / count for cpu_s in (first_cpu_s, again_cpu_s))
    print(f"resume {again_ms:5.1f} CPU ms per 1,000 records (the first time, with an empty ledger: {first_ms:.1f})", flush=True)
    return raw_s / our_s, our_bytes / our_s / (raw_bytes / raw_s), again_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=8_000)
    parser.add_argument("--group", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    records = answers(a.records)
    plain: list[object] = []
    for answer in records:
        whole = json.loads(answer.body)  # type: ignore[attr-defined]
        message = whole["choices"][0]["message"]
        plain.append({"id": answer.sample_id, "reasoning": message["reasoning"], "content": message["content"], "cost": 0.1})  # type: ignore[attr-defined]
    by_round = [one_round(records, plain, a.group) for _ in range(a.rounds)]
    rate, byte_rate, resume_ms = (statistics.median(values) for values in zip(*by_round, strict=True))
    for what, value, holds, target in (
        ("records/s, ours / raw", rate, rate >= LEAST_RATE, f">= {LEAST_RATE}"),
        ("bytes/s, ours / raw", byte_rate, byte_rate >= LEAST_RATE, f">= {LEAST_RATE}"),
        ("resume, CPU ms per 1,000", resume_ms, resume_ms <= MOST_RESUME_MS, f"<= {MOST_RESUME_MS:g}"),
    ):
        print(f"  {'holds' if holds else 'MISSES'}  {what}: {value:.3g} (target {target})")


if __name__ == "__main__":
    main()
