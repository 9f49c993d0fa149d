"""How quick is the viewer at full size? A made-up root of 40,000 rows, every filter, every sort, full-text search, one row.

    python benchmarks/view.py                          # 40,000 rows of 3,450 ids, with journals: 1.4 GB of disk, some minutes
    python benchmarks/view.py --rows 4000 --ids 300    # a try
    python benchmarks/view.py --root DIR               # keep the root there, and use it again

Goal: any filter or sort under 300 ms, each asked through the server as the page asks it (HTTP, JSON, facets of all columns). The rows are
windows of this repository's own docs, in ids of kimi-mini; grades, providers, reasons and bills are drawn. Printed: seconds until the table is
there, until search is there, the median and the slowest of each kind of question, and the memory of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.campaign import SHARDS, load_campaign
from eagle3_assets.exact.sample_row import SCHEMA
from eagle3_assets.store import Store, commit
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.view.columns import COLUMNS, FACETS, NUMBERS
from eagle3_assets.view.library import Library
from eagle3_assets.view.roots import Root
from eagle3_assets.view.server import bind, serve
from eagle3_assets.wire.journal import encode_line, segments
from eagle3_assets.wire.wire_answer import WireAnswer

DATASETS = tuple(f"b{k}_made" for k in range(9))
PROVIDERS = tuple(f"Provider {k}" for k in range(14))
GRADES, SHARES = ("A0", "B1", "C1", "R", "D", "Q"), (0.2, 0.68, 0.07, 0.02, 0.01, 0.02)
REASONS = (
    "open: 2 id sequences meet the bill",
    "completion_equals_bill: no hypothesis fits",
    "grammar: position 7",
    "canonical: a doubt",
)
GOAL_S = 0.3
WORDS = ("one wrong id", "hypothesis", "zzz nowhere", "e", "def render_prompt", "the bill counts")


def make_root(store: Store, rows: int, mean_ids: int, *, journals: bool) -> None:
    """Write tokens files (and journals) of `rows` rows."""
    profile, draw = load_profile("kimi-mini"), np.random.default_rng(7)
    docs = "\n".join(path.read_text("utf-8") for path in sorted(Path(__file__).parents[1].glob("docs/*.md")))
    words = np.array(profile.encode(docs), dtype=np.int32)
    each = max(1, rows // (len(DATASETS) * len(SHARDS)))
    for dataset in DATASETS:
        for shard in SHARDS:
            table = _table(profile, draw, words, dataset, shard, each, mean_ids)
            path = store.tokens(dataset, shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path, compression="zstd")
            commit(path, files=[path], inputs={}, numbers={"rows": each})
            if journals:
                _journal(store, profile, table, dataset, shard)


def _table(profile: Profile, draw: Any, words: Any, dataset: str, shard: str, rows: int, mean_ids: int) -> pa.Table:
    lengths = np.clip(draw.lognormal(np.log(mean_ids) - 0.5, 1.0, rows), 8, 60_000).astype(np.int64)
    starts = draw.integers(0, max(1, len(words) - 1), rows)
    ids = np.concatenate([np.resize(np.roll(words, -int(s))[:n], n) for s, n in zip(starts, lengths, strict=True)])
    ids[np.cumsum(lengths) - 1] = profile.end_id
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    prompt = np.maximum(2, (lengths * draw.uniform(0.05, 0.5, rows)).astype(np.int64))
    grades, providers = draw.choice(GRADES, rows, p=SHARES), draw.choice(PROVIDERS, rows)
    off = np.where(grades == "Q", draw.integers(-4, 5, rows), 0)
    evidence = json.dumps({"basis": "bill", "profile": profile.name, "spacing": "verbatim", "reading": "keep keep keep keep|end", "edits": {},
                           "convention": {"completion": 0, "prompt": 0}, "thinking": True, "posterior": 0.99})  # fmt: skip
    columns: dict[str, Any] = {
        "sample_id": [f"{draw.integers(2**63):016x}{k:016x}" for k in range(rows)], "turn": [0] * rows, "attempt": [1] * rows,
        "dataset": [dataset] * rows, "shard": [shard] * rows, "source": ["openrouter"] * rows, "provider": providers.tolist(),
        "model": ["kimi-mini"] * rows, "generation_id": [None] * rows, "input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids)),
        "prompt_len": prompt, "grade": grades.tolist(), "survivors": [[]] * rows, "p_exact": draw.beta(60, 1, rows), "p_basis": ["simulated"] * rows,
        "loss_spans": [[{"start": int(p), "end": int(n)}] for p, n in zip(prompt, lengths, strict=True)], "evidence": [evidence] * rows,
        "reasons": [[str(draw.choice(REASONS))] if g in ("C1", "D", "Q") else [] for g in grades], "billed_prompt": prompt,
        "billed_completion": lengths - prompt - off, "billed_reasoning": [None] * rows, "cost_usd": (lengths * 2e-6).tolist(),
        "finish_reason": draw.choice(["stop", "tool_calls", "length"], rows).tolist(), "native_finish_reason": ["stop"] * rows,
        "temperature": [1.0] * rows, "top_p": [0.95] * rows, "max_tokens": [32_768] * rows,
    }  # fmt: skip
    columns |= {name: ["0" * 64] * rows for name in ("tokenizer_sha256", "template_sha256", "wire_sha256")}
    return pa.Table.from_arrays([_as_array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _as_array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _journal(store: Store, profile: Profile, table: pa.Table, dataset: str, shard: str) -> None:
    """Records as long as the answers are: what reading them costs, without the locks and syncs of buying them."""
    folder = store.answers(dataset, shard)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "segment-000.jsonl").open("wb") as handle:
        for row in table.select(["sample_id", "provider", "input_ids", "prompt_len", "billed_completion"]).to_pylist():
            text = profile.decode(row["input_ids"][row["prompt_len"] : -1])
            body = json.dumps(
                {"choices": [{"index": 0, "finish_reason": "stop", "message": {"reasoning": "", "content": text}}]}
            ).encode()
            request = {"messages": [{"role": "user", "content": profile.decode(row["input_ids"][: row["prompt_len"]])}]}
            handle.write(encode_line(WireAnswer(
                request_id=row["sample_id"], sample_id=row["sample_id"], turn=0, attempt=1, dataset=dataset, shard=shard, source="openrouter",
                request=request, status=200, body=body, outcome="finished", provider=row["provider"], started_at=1.79e9, finished_at=1.79e9 + 9,
                cost_usd=1e-4, completion_tokens=row["billed_completion"],
            )))  # fmt: skip
    commit(folder, files=segments(folder), inputs={}, numbers={"selected": table.num_rows})


# ---------------------------------------------------------------------------------------------------- questions
def questions(first: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, address) of everything a person may do with the table."""
    for column in COLUMNS:
        yield "sort", f"rows?sort={column.name}"
        yield "sort", f"rows?sort=-{column.name}"
    for name in FACETS:
        for value, _ in first["facets"][name][:4]:
            yield "filter", f"rows?{name}={quote(value)}"
            yield "filter", f"rows?not.{name}={quote(value)}&sort=-length"
    for name in NUMBERS:
        yield "filter", f"rows?{name}.min=1&sort={name}"
    yield "filter", "rows?grade=Q&grade=C1&provider=Provider%203&failing=yes&sort=p_exact"
    yield "filter", "rows?id=7"
    yield "page", "rows?offset=39000"
    for words in WORDS:
        yield "search", f"rows?q={quote(words)}"
        yield "search and filter", f"rows?q={quote(words)}&grade=B1&sort=-length"
    key = quote(first["rows"][0]["key"], safe="")
    yield "one row", f"row?key={key}"
    yield "one row", f"tokens?key={key}&start=0"
    yield "one row", f"raw?key={key}&which=response&start=0"
    yield "neighbours", f"neighbours?key={key}&sort=-p_exact"
    yield "providers", "providers?"
    yield "campaign", "campaign?"


def ask(url: str) -> Any:
    with urllib.request.urlopen(url) as response:
        return json.load(response)


def measure(url: str, tries: int) -> dict[str, list[tuple[float, str]]]:
    """Kind -> [(the median of `tries`, in seconds, and the address)]."""
    found: dict[str, list[tuple[float, str]]] = {}
    for kind, address in questions(ask(f"{url}api/rows?")):
        taken = []
        for _ in range(tries):
            started = time.perf_counter()
            ask(f"{url}api/{address}")
            taken.append(time.perf_counter() - started)
        found.setdefault(kind, []).append((statistics.median(taken), address))
    return found


def run(store: Store, tries: int) -> int:
    started = time.perf_counter()
    library = Library({"made": Root("made", store, load_campaign("demo"))})
    rows, ids = library.catalogue().ask("SELECT count(*), sum(length) FROM rows")[0]
    print(f"table of {rows:,} rows and {ids:,} ids after {time.perf_counter() - started:.1f} s", flush=True)
    library.reader().wait()
    print(f"journals and texts read after {time.perf_counter() - started:.1f} s", flush=True)
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    address: list[str] = []

    def on_ready(url: str) -> None:
        address.append(url)
        ready.set()

    listening = bind(0)
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(library, listening, stop, on_ready)))
    thread.start()
    ready.wait()
    found = measure(address[0], tries)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    late = 0
    for kind, lines in found.items():
        slowest, where = max(lines)
        middle = statistics.median(seconds for seconds, _ in lines)
        print(f"{kind:>18}: {len(lines):3} asked, median {1000 * middle:6.0f} ms, slowest {1000 * slowest:6.0f} ms ({where})")
        late += sum(seconds > GOAL_S for seconds, _ in lines) if kind in ("sort", "filter", "page") else 0
    print(
        f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB; {late} filters or sorts over {1000 * GOAL_S:.0f} ms"
    )
    return int(late > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--ids", type=int, default=3_450, help="mean ids of a row")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--no-journals", action="store_true")
    parser.add_argument("--root", type=Path, help="where the root is, or is to be")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = Store((asked.root or Path(scratch)) / "made")
        os.environ["EAGLE3_DATA"] = str(store.root.parent)
        if not store.root.exists():
            started = time.perf_counter()
            make_root(store, asked.rows, asked.ids, journals=not asked.no_journals)
            print(f"made in {time.perf_counter() - started:.0f} s", flush=True)
        return run(store, asked.tries)


if __name__ == "__main__":
    raise SystemExit(main())
