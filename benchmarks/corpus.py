"""The corpus at full size: 40,000 samples, 138 M ids, merged, deduplicated, shuffled and written in both forms; `datasets` beside it.

    python -m benchmarks.corpus [FOLDER] [--scale 1.0] [--tokenizers DIR] [--without-datasets]

FOLDER keeps the token files (made once, by this command; about 1 GB at scale 1) and the corpora. Lengths are those of the real campaign:
2,800 trajectories of 16 K ids, the longest 300 K, and seven datasets of answers with a lognormal length. Ids are real ones: the Python
sources of this interpreter through Kimi's encoder where its files are at hand, cut into pieces of 32 to 256 ids and drawn at random, so
that text is text within a piece and no two rows share more than a piece by chance. Without those files: Zipf-distributed ids, which pack
worse. 1 % of the rows are exact copies and 2 % near copies (every 80th id changed) of other rows: the build must drop exactly those.

Every measurement is a process of its own: wall and CPU seconds, peak memory (mapped pages included). Two builds, with one and with two
threads and the second over shuffled inputs, must give the same bytes. `datasets` loads the same files, concatenates, shuffles with a seed,
flattens the indices and saves; it removes no duplicates. Random rows: 5,000 numbers, ids copied, page cache warm, best of five rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.corpus.merge import TokenFile, build_corpus
from eagle3_assets.corpus.verify_corpus import judge_corpus
from eagle3_assets.errors import Eagle3Error
from eagle3_assets.exact.sample_row import SCHEMA
from eagle3_assets.store import Store, digest_file
from eagle3_assets.targets.tokenizer import load_profile

VOCAB = 163_840
POOL_IDS = 12_000_000
COPIES, NEAR_COPIES = 0.01, 0.02
# name, rows, mean ids, spread of the lognormal, share of the row that is prompt
DATASETS = (("a1_deepswekimi", 2_800, 16_036, 0.55, 0.5), *((f"b{k}_answers", 5_314, 2_513, 0.65, 0.1) for k in range(2, 9)))
READS, ROUNDS = 5_000, 5
Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]


def campaign() -> Campaign:
    source = {"kind": "jsonl", "path": "rows.jsonl"}
    datasets = tuple(
        {"name": name, "backend": "import", "source": source, "mapping": {"kind": "messages"}, "rows": max(1, rows)}
        for name, rows, *_ in DATASETS
    )
    return Campaign.model_validate(
        {
            "campaign": {"name": "corpus-benchmark", "seed": 7},
            "target": {
                "model": "moonshotai/kimi-k2.5", "profile": "kimi-k2.5", "weights": "embedded", "num_hidden_layers": 61, "hidden_size": 7168,
                "vocab_size": VOCAB,
            },
            "server": {"kind": "embedded"},
            "routing": {"max_price_completion": 2.6},
            "budget": {"campaign_usd": 100.0},
            "sampling": {},
            "dataset": datasets,
            "corpus": {"shards": 80, "validation_share": 0.02},
            "vocab": {"draft_vocab_size": 32_000},
        }
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- the token files
def make_files(folder: Path, scale: float, tokenizers: Path | None) -> None:
    """Write tokens/<dataset>/<shard>.parquet and facts.json (what was planted), unless they are there."""
    if (folder / "facts.json").exists():
        return
    chance = np.random.default_rng(11)
    pool, kind = _pool(tokenizers)
    facts: dict[str, Any] = {"rows": 0, "tokens": 0, "copies": 0, "near_copies": 0, "ids": kind, "longest": 0}
    for name, rows, mean, spread, prompt in DATASETS:
        count = max(16, round(rows * scale))
        lengths = np.maximum(_lengths(chance, count, mean, spread), 120)
        if name.startswith("a1"):
            lengths[0] = round(300_000 * min(1.0, 4 * scale))
        for k, shard in enumerate(SHARDS):
            some = lengths[k :: len(SHARDS)]
            ids, planted = _rows(chance, pool, some)
            path = folder / "tokens" / name / f"{shard}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(chance, name, shard, ids, prompt), path, compression="zstd")
            for key, n in {"rows": len(ids), "tokens": sum(map(len, ids)), **planted}.items():
                facts[key] += n
        facts["longest"] = max(facts["longest"], int(lengths.max()))
        print(f"made {name}: {count:,} rows", file=sys.stderr)
    (folder / "facts.json").write_text(json.dumps(facts))


def _lengths(chance: np.random.Generator, rows: int, mean: float, spread: float) -> Ints:
    drawn = chance.lognormal(0.0, spread, rows)
    lengths: Ints = (drawn * mean / drawn.mean()).astype(np.int64)
    return lengths


def _pool(tokenizers: Path | None) -> tuple[Ids, str]:
    """Real ids where Kimi's files are at hand, else Zipf's."""
    try:
        profile = load_profile("kimi-k2.5", tokenizers / "kimi-k2.5" if tokenizers else None)
        texts: list[int] = []
        for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
            if path.stat().st_size < 400_000:
                texts.extend(profile.encode(path.read_text(encoding="utf-8", errors="ignore")))
            if len(texts) >= POOL_IDS:
                break
        return np.array(texts, dtype=np.int32), f"{len(texts):,} ids of Python sources through {profile.name}"
    except (Eagle3Error, OSError) as error:
        print(f"no tokenizer files ({error}): Zipf-distributed ids", file=sys.stderr)
        drawn = np.random.default_rng(5).zipf(1.3, POOL_IDS)
        return (drawn % (VOCAB - 1000)).astype(np.int32), "Zipf-distributed ids"


def _rows(chance: np.random.Generator, pool: Ids, lengths: Ints) -> tuple[list[Ids], dict[str, int]]:
    """The ids of one file's rows, and how many of them were planted as copies."""
    rows: list[Ids] = []
    planted = {"copies": 0, "near_copies": 0}
    for n in lengths.tolist():
        draw = chance.random() if len(rows) else 1.0
        if draw < COPIES + NEAR_COPIES:
            row = rows[int(chance.integers(len(rows)))].copy()
            if draw >= COPIES:
                row[40::80] = (row[40::80] + 1 + chance.integers(0, 99, len(row[40::80]))) % 160_000
            planted["copies" if draw < COPIES else "near_copies"] += 1
        else:
            pieces = chance.integers(32, 257, n // 32 + 1)
            starts = chance.integers(0, len(pool) - 256, len(pieces))
            row = np.concatenate(
                [pool[a : a + m] for a, m in zip(starts.tolist(), pieces.tolist(), strict=True)][: n // 100 + 2]
            )[:n]
        rows.append(row)
    return rows, planted


def _table(chance: np.random.Generator, dataset: str, shard: str, ids: list[Ids], prompt_share: float) -> pa.Table:
    lengths = np.array([len(r) for r in ids])
    spread = 0.5 + lengths * 2_654_435_761 % 1000 / 1000  # by length, so that a near copy has the prompt of its original
    prompt = np.maximum(1, (lengths * prompt_share * spread).astype(np.int64))
    grades = [
        "I" if dataset.startswith("a1") else str(g) for g in chance.choice(["B1", "A2", "C1"], len(ids), p=[0.8, 0.18, 0.02])
    ]
    survivors = [[np.roll(r, 1)] if g == "C1" else [] for r, g in zip(ids, grades, strict=True)]
    names = [hashlib.blake2b(f"{dataset}{shard}{i}".encode(), digest_size=16).hexdigest() for i in range(len(ids))]
    spans = [[{"start": int(p), "end": int(n)}] for p, n in zip(prompt, lengths, strict=True)]
    n = len(ids)
    values: dict[str, Any] = {
        "sample_id": names, "turn": [0] * n, "attempt": [1] * n, "dataset": [dataset] * n, "shard": [shard] * n,
        "source": ["openrouter"] * n, "provider": ["Alpha"] * n, "model": ["moonshotai/kimi-k2.5"] * n,
        "generation_id": [f"gen-{s}" for s in names], "input_ids": ids, "prompt_len": prompt, "loss_spans": spans, "grade": grades,
        "survivors": survivors, "p_exact": [0.999] * n, "p_basis": ["simulated"] * n, "evidence": ['{"basis":"bill"}'] * n,
        "reasons": [[]] * n, "billed_prompt": prompt, "billed_completion": lengths - prompt, "billed_reasoning": [None] * n,
        "cost_usd": [0.003] * n, "finish_reason": ["stop"] * n, "native_finish_reason": ["stop"] * n, "temperature": [1.0] * n,
        "top_p": [0.95] * n, "max_tokens": [16_384] * n, "tokenizer_sha256": ["t" * 64] * n, "template_sha256": ["c" * 64] * n,
        "wire_sha256": [hashlib.sha256(s.encode()).hexdigest() for s in names],
    }  # fmt: skip
    return pa.table({f.name: pa.array(values[f.name], f.type) for f in SCHEMA}, schema=SCHEMA)


def token_files(folder: Path) -> list[TokenFile]:
    return [
        TokenFile(name, shard, path, digest_file(path))
        for name, *_ in DATASETS
        for shard in SHARDS
        for path in [folder / "tokens" / name / f"{shard}.parquet"]
    ]


# ---------------------------------------------------------------------------------------------------- one measurement, one process
def build(folder: Path, threads: int, shuffled: bool) -> dict[str, Any]:
    """Our build. Threads: of Arrow and DuckDB; the platform has none of its own."""
    import duckdb

    pa.set_cpu_count(threads)
    pa.set_io_thread_count(threads)
    duckdb.default_connection().execute(f"SET threads = {threads}")
    files = token_files(folder)
    if shuffled:
        random.Random(3).shuffle(files)
    store = Store(folder / f"ours-{threads}")
    with timed() as spent:
        manifest = build_corpus(campaign(), store, files)
    numbers = dict(manifest.numbers)
    stated = json.loads((store.corpus / "manifest.json").read_bytes())
    parts = [p["tokens"] for p in stated["parts"]]
    sizes = {name: facts["bytes"] for name, facts in stated["files"].items()}
    archive = sum(size for name, size in sizes.items() if name.startswith("part-"))
    return {
        **spent, "digest": stated["digest"], "rows": numbers["rows"], "dropped": numbers["dropped"], "tokens": numbers["tokens"],
        "max_over_mean": max(parts) * len(parts) / sum(parts), "parts": len(parts), "splits": numbers["splits"],
        "archive_bytes_per_token": archive / numbers["tokens"],
        "training_bytes_per_token": (sum(sizes.values()) - archive) / numbers["tokens"],
    }  # fmt: skip


def judge(folder: Path) -> dict[str, Any]:
    with timed() as spent:
        verdicts = judge_corpus(Store(folder / "ours-2"))
    return {**spent, "failed": [v.check for v in verdicts if not v.passed]}


def their_build(folder: Path) -> dict[str, Any]:
    """`datasets`: concatenate, shuffle, flatten, save."""
    import datasets

    datasets.disable_progress_bars()
    cache = folder / "datasets-cache"
    with timed() as spent:
        parts = [datasets.Dataset.from_parquet(str(f.path), columns=["sample_id", "input_ids", "loss_spans"], cache_dir=str(cache))
                 for f in token_files(folder)]  # fmt: skip
        whole = datasets.concatenate_datasets(parts).shuffle(seed=7).flatten_indices()
        whole.save_to_disk(str(folder / "theirs"))
    size = sum(p.stat().st_size for p in (folder / "theirs").rglob("*") if p.is_file())
    shutil.rmtree(cache, ignore_errors=True)
    return {**spent, "rows": len(whole), "bytes": size}


def read_ours(folder: Path) -> dict[str, Any]:
    corpus = corpora.open(folder / "ours-2" / "corpus")
    return _reads(len(corpus), lambda i: corpus[i].input_ids)


def read_theirs(folder: Path) -> dict[str, Any]:
    import datasets

    rows = datasets.load_from_disk(str(folder / "theirs")).with_format("numpy", columns=["input_ids"])
    return _reads(len(rows), lambda i: rows[i]["input_ids"])


def _reads(rows: int, ids: Any) -> dict[str, float]:
    """Best of five rounds, microseconds a row, ids copied: on the clock, and of the processor (others may use the machine)."""
    numbers = np.random.default_rng(5).integers(0, rows, READS).tolist()
    walls, cpus = [], []
    for _ in range(ROUNDS + 1):  # the first one warms the page cache
        wall, cpu = time.perf_counter(), time.process_time()
        for i in numbers:
            np.array(ids(i))
        walls.append((time.perf_counter() - wall) / READS * 1e6)
        cpus.append((time.process_time() - cpu) / READS * 1e6)
    return {"us_per_row": min(walls[1:]), "cpu_us_per_row": min(cpus[1:])}


class timed:
    """Wall and CPU seconds and peak memory of the process so far."""

    def __enter__(self) -> dict[str, float]:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        self.spent: dict[str, float] = {}
        return self.spent

    def __exit__(self, *exc: object) -> None:
        self.spent["wall_s"] = time.perf_counter() - self.wall
        self.spent["cpu_s"] = time.process_time() - self.cpu
        status = Path("/proc/self/status").read_text()  # not ru_maxrss: a child inherits its parent's
        self.spent["peak_mb"] = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


MEASUREMENTS = {
    "build with 2 threads": lambda folder: build(folder, 2, shuffled=False),
    "build with 1 thread, shuffled inputs": lambda folder: build(folder, 1, shuffled=True),
    "all checks": judge,
    "datasets": their_build,
    "random row": read_ours,
    "random row of datasets": read_theirs,
}


def measured(folder: Path, without: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in MEASUREMENTS:
        if name in without:
            continue
        command = [sys.executable, "-m", "benchmarks.corpus", str(folder), "--only", name]
        threads = "1" if "1 thread" in name else "2"
        env = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "datasets-cache"),
        }
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {json.dumps(found)}", file=sys.stderr)
        yield name, found


def report(facts: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    ours, one = found["build with 2 threads"], found["build with 1 thread, shuffled inputs"]
    dropped = ours["dropped"]
    lines = [
        f"{facts['rows']:,} rows, {facts['tokens']:,} ids ({facts['ids']}), longest row {facts['longest']:,}",
        f"planted {facts['copies']} copies and {facts['near_copies']} near copies; dropped {dropped}; kept {ours['rows']:,} rows",
        f"{ours['parts']} parts, max/mean {ours['max_over_mean']:.4f}; split {ours['splits']}",
        "",
        f"| {'':36} | wall s | CPU s | peak MB |",
        "| --- | --- | --- | --- |",
    ]
    for name in ("build with 2 threads", "build with 1 thread, shuffled inputs", "all checks", "datasets"):
        if name in found:
            r = found[name]
            lines.append(f"| {name:36} | {r['wall_s']:6.1f} | {r['cpu_s']:5.1f} | {r['peak_mb']:7,.0f} |")
    lines += [
        "",
        f"same bytes: {ours['digest'] == one['digest']} ({ours['digest']})",
        f"checks that fail: {found['all checks']['failed'] or 'none'}",
        f"bytes a token: archive {ours['archive_bytes_per_token']:.3f}, training form {ours['training_bytes_per_token']:.3f}",
        f"random row: {found['random row']['us_per_row']:.1f} us ({found['random row']['cpu_us_per_row']:.1f} of CPU)",
    ]
    if "datasets" in found:
        read, theirs = found["random row"], found["random row of datasets"]
        times = {k: theirs[k] / read[k] for k in ("us_per_row", "cpu_us_per_row")}
        lines.append(
            f"random row of datasets: {theirs['us_per_row']:.1f} us ({theirs['cpu_us_per_row']:.1f} of CPU), {times['us_per_row']:.1f} times ours "
            f"({times['cpu_us_per_row']:.1f}); {found['datasets']['bytes'] / facts['tokens']:.3f} bytes a token"
        )
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, nargs="?", default=Path("data/benchmark-corpus"))
    options.add_argument("--scale", type=float, default=1.0, help="share of the 40,000 samples")
    options.add_argument("--tokenizers", type=Path, help="folder that holds kimi-k2.5/ (default: the data root's)")
    options.add_argument("--without-datasets", action="store_true")
    options.add_argument("--only", choices=MEASUREMENTS, help="one measurement, as JSON (what the command itself starts)")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.only:
        print(json.dumps(MEASUREMENTS[given.only](given.folder)))
        return
    make_files(given.folder, given.scale, given.tokenizers)
    without = {"datasets", "random row of datasets"} if given.without_datasets else set()
    found = dict(measured(given.folder, without))
    print(report(json.loads((given.folder / "facts.json").read_text()), found))


if __name__ == "__main__":
    main()
