"""From journal to Parquet rows: CPU and wall time, memory, what encoding has of it; beside it the plain `transformers` route.

    python -m benchmarks.exactness.speed                       # 2,000 answers of some 3,450 tokens, one process, then two
    python -m benchmarks.exactness.speed --answers 40000 --keep DIR       # the whole campaign; making its journals takes 12 minutes

Answers are bought from the stand-in (Kimi's vocabulary, two providers: verbatim, injecting; a third with tools) and put into shards of
280, as a campaign of 40,000 answers in 9 x 16 shards has them. The wire profiles are learned before and known, as they are when the
`tokens` asset runs. A worker process then does what the asset does for each shard: read the journal, rebuild, write Parquet.

The peer, on the same journals in the same run: JSON, the model's own chat template (jinja) for the prompt, a `PreTrainedTokenizerFast` of
the same ranks for each field, ids of markers put in by hand, Parquet. It judges nothing. (Kimi's own tokenizer class is remote code and
not run.) Its ids are compared with ours where ours are the text as it stands.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.exactness import rebuild
from benchmarks.exactness.__main__ import OWN_PROFILES, shared_data
from benchmarks.exactness.purchase import buy, scaled
from benchmarks.exactness.questions import make_questions
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from openrouter_standin.profiles import load_profiles

MEAN_TOKENS, SHARD_ANSWERS, BANK = 3_500, 280, 2_000
BOUGHT_FROM = ("verbatim", "inject", "strip both")
CAMPAIGN_ANSWERS = 40_000


# ---------------------------------------------------------------------------------------------------- journals
def prepare(root: Path, answers: int, seed: int) -> tuple[int, int]:
    """Buy, learn, put into shards under root/shards; (completion tokens, bytes)."""
    profiles = load_profiles(OWN_PROFILES)
    folder = shared_data() / "tokenizers" / "kimi-k2.5"
    replay = profiles.source.replay.model_copy(
        update={"tokenizer": str(folder.resolve()), "mean_tokens": MEAN_TOKENS, "answers": min(answers, BANK)}
    )
    chosen = tuple(provider for provider in profiles.provider if provider.name in BOUGHT_FROM)
    source = profiles.source.model_copy(update={"replay": replay})
    each = -(-answers // len(chosen))
    profiles = scaled(profiles.model_copy(update={"source": source, "provider": chosen}), each)
    purchase = buy(profiles, root, make_questions(each, seed), beside=OWN_PROFILES.parent, seed=seed, with_truth=False)
    profile = load_profile("kimi-k2.5", folder.resolve())
    learned = rebuild.learn(profile, rebuild.known_answers(purchase, 300))
    (root / "wire_profiles.json").write_text(json.dumps(learned))
    with Journal.open(root / "warm") as few:
        for answer in purchase.answers(next(iter(purchase.folders)), 4):
            few.append(answer)
    left, shard, size, tokens = answers, -1, 0, 0
    kept: Journal | None = None
    for k, answer in enumerate(a for name in purchase.folders for a in journal.read(purchase.folders[name])):
        if left == 0:
            break
        if k % SHARD_ANSWERS == 0:
            shard += 1
            if kept is not None:
                kept.close()
            kept = Journal.open(root / "shards" / f"{shard:04d}")
        assert kept is not None
        kept.append(answer)
        size += len(answer.body)
        tokens += answer.completion_tokens or 0
        left -= 1
    if kept is not None:
        kept.close()
    return tokens, size


def prepared(root: Path, answers: int, seed: int) -> tuple[int, int]:
    """As `prepare`; what was made before in this folder, by the same numbers, is used again."""
    made, asked = root / "prepared.json", {"answers": answers, "seed": seed, "mean_tokens": MEAN_TOKENS}
    if made.exists() and (known := json.loads(made.read_bytes()))["asked"] == asked:
        return int(known["tokens"]), int(known["bytes"])
    tokens, size = prepare(root, answers, seed)
    made.write_text(json.dumps({"asked": asked, "tokens": tokens, "bytes": size}))
    return tokens, size


# ---------------------------------------------------------------------------------------------------- what a worker does
def ours(root: Path) -> tuple[Callable[[Path, Path], int], Callable[[], float]]:
    """What the `tokens` asset does with one shard, and the seconds that encoding took so far."""
    from eagle3_assets.exact.rows import build_rows
    from eagle3_assets.exact.sample_row import write_rows

    profile, encoding = rebuild.timed(load_profile("kimi-k2.5", (shared_data() / "tokenizers" / "kimi-k2.5").resolve()))
    learned = json.loads((root / "wire_profiles.json").read_bytes())
    made = rebuild.campaign(profile)

    def shard(folder: Path, out: Path) -> int:
        rows = build_rows(profile, made, made.dataset[0], journal.read(folder), learned)
        write_rows(out, rows)
        return len(rows)

    return shard, lambda: encoding.seconds


def peer_tokenizer(profile: Profile) -> Any:
    """The same ranks as a `PreTrainedTokenizerFast` with the control tokens as added ones."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter: Any = TikTokenConverter(vocab_file=None)  # type: ignore[no-untyped-call]
    ranks = {profile.encoding.decode_single_token_bytes(k): k for k in range(profile.n_base)}
    converter.load_tiktoken_bpe = lambda _: ranks
    vocab, merges = converter.extract_vocab_merges_from_model("")
    fast = tokenizers.Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(profile.facts.tokenizer.pattern), behavior="isolated")
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    fast.decoder = decoders.ByteLevel()
    names = [profile.token_name(k) for k in range(profile.n_base, profile.n_vocab)]
    fast.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=fast, clean_up_tokenization_spaces=False)


def plain_transformers(root: Path) -> tuple[Callable[[Path, Path], int], Callable[[], float]]:
    """The peer's shard, and the seconds that encoding took."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = (shared_data() / "tokenizers" / "kimi-k2.5").resolve()
    tokenizer = peer_tokenizer(load_profile("kimi-k2.5", folder))
    template = (folder / "chat_template.jinja").read_text()
    one = tokenizer.convert_tokens_to_ids
    close, section, end_of_section = one("</think>"), one("<|tool_calls_section_begin|>"), one("<|tool_calls_section_end|>")
    begin, argument, end, end_of_turn = (
        one(f"<|{name}|>") for name in ("tool_call_begin", "tool_call_argument_begin", "tool_call_end", "im_end")
    )
    spent = [0.0]

    def encode(text: str) -> list[int]:
        begun = time.thread_time()
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        spent[0] += time.thread_time() - begun
        return ids

    def response(message: dict[str, Any], thinking: bool) -> list[int]:
        ids = encode(message.get("reasoning") or "") + ([close] if thinking else []) + encode(message.get("content") or "")
        calls = message.get("tool_calls") or []
        if calls:
            ids.append(section)
            for call in calls:
                ids += [begin, *encode(call["id"]), argument, *encode(call["function"]["arguments"]), end]
            ids.append(end_of_section)
        return [*ids, end_of_turn]

    def shard(source: Path, out: Path) -> int:
        rows = []
        for answer in journal.best(journal.read(source)).values():
            body = json.loads(answer.body)
            request, thinking = answer.request, answer.request["reasoning"]["enabled"]
            begun = time.thread_time()
            prompt = tokenizer.apply_chat_template(
                request["messages"], tools=request.get("tools"), chat_template=template, add_generation_prompt=True,
                tokenize=True, return_dict=False, thinking=thinking,
            )  # fmt: skip
            spent[0] += time.thread_time() - begun
            ids = response(body["choices"][0]["message"], thinking)
            rows.append({"sample_id": answer.sample_id, "input_ids": [*prompt, *ids], "prompt_len": len(prompt)})
        schema = pa.schema([("sample_id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("prompt_len", pa.int32())])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), out, compression="zstd")
        return len(rows)

    return shard, lambda: spent[0]


ROUTES = {"ours": ours, "transformers": plain_transformers}


def peak_mb() -> float:
    """Of this process alone: getrusage counts what the parent had before exec, too."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def work(route: str, root: Path, shards: Sequence[str]) -> dict[str, float]:
    """What one worker process measures of itself; starting and loading are told apart from the work."""
    loading = time.process_time()
    do, encoding = ROUTES[route](root)
    out = root / "rows" / route
    out.mkdir(parents=True, exist_ok=True)
    do(root / "warm", out / f"warm-{os.getpid()}.parquet")  # imports, tables that are made when first needed
    before, loading = encoding(), time.process_time() - loading
    begun, cpu, rows = time.perf_counter(), time.process_time(), 0
    for name in shards:
        rows += do(root / "shards" / name, out / f"{name}.parquet")
    return {
        "rows": rows,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - begun,
        "encoding_s": encoding() - before,
        "loading_s": loading,
        "peak_mb": peak_mb(),
    }


# ---------------------------------------------------------------------------------------------------- the run
def measure(route: str, root: Path, processes: int, shards: Sequence[str]) -> dict[str, float]:
    """Shards dealt over so many processes; sums, but for wall time (the whole) and memory (all at once)."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.exactness.speed", "--worker", route, "--root", str(root)]
    started = [
        subprocess.Popen([*command, "--shards", ",".join(shards[k::processes])], stdout=subprocess.PIPE, text=True)
        for k in range(processes)
    ]
    told = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a worker of {route} failed")
        told.append(json.loads(out.splitlines()[-1]))
    total = {name: sum(one[name] for one in told) for name in told[0]}
    return {
        **total,
        "wall_s": max(one["wall_s"] for one in told),
        "with_start_s": time.perf_counter() - begun,
        "processes": processes,
    }


def same_ids(root: Path) -> tuple[int, int]:
    """(rows whose ids the peer has too, rows of ours that are the text as it stands)."""
    import pyarrow.parquet as pq

    same = asked = 0
    for path in sorted((root / "rows" / "transformers").glob("0*.parquet"))[:8]:
        peer = {row["sample_id"]: row for row in pq.read_table(path).to_pylist()}
        for row in pq.read_table(root / "rows" / "ours" / path.name).to_pylist():
            if json.loads(row["evidence"]).get("spacing") == "verbatim" and row["finish_reason"] == "stop":
                asked += 1
                theirs = peer[row["sample_id"]]
                same += theirs["input_ids"][theirs["prompt_len"] :] == row["input_ids"][row["prompt_len"] :]
    return same, asked


def told(title: str, one: dict[str, float]) -> str:
    rows = one["rows"]
    whole = CAMPAIGN_ANSWERS * one["wall_s"] / rows / 60
    return (
        f"{title:38s} {1000 * one['cpu_s'] / rows:6.2f} CPU ms an answer, encoding {one['encoding_s'] / one['cpu_s']:4.0%}, "
        f"{rows / one['wall_s']:6.0f} answers/s, peak {one['peak_mb']:5.0f} MB in all, start {one['loading_s']:.1f} CPU s; "
        + (
            f"{rows:,.0f} answers in {one['with_start_s'] / 60:.1f} min"
            if rows >= CAMPAIGN_ANSWERS
            else f"so {CAMPAIGN_ANSWERS:,} in {whole:.1f} min"
        )
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=2_000)
    parser.add_argument("--peer-answers", type=int, default=840, help="of these, what the peer is given (and ours beside it)")
    parser.add_argument("--rounds", type=int, default=2, help="of the comparison, in turns; the least CPU of each counts")
    parser.add_argument("--keep", type=Path, help="make the journals in this folder, and use those that are there the next time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    for hidden in ("--worker", "--root", "--shards"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.worker:
        print(json.dumps(work(args.worker, Path(args.root), args.shards.split(","))))
        return {}
    with contextlib.ExitStack() as stack:
        root, begun = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory())), time.perf_counter()
        tokens, size = prepared(root, args.answers, args.seed)
        shards = sorted(path.name for path in (root / "shards").iterdir())
        print(
            f"{args.answers:,} answers of {tokens / args.answers:,.0f} tokens ({size / args.answers / 1024:.1f} KB), {tokens / 1e6:,.1f} M "
            f"together, in {len(shards)} shards, there after {time.perf_counter() - begun:.0f} s; load {os.getloadavg()[0]:.1f} on "
            f"{os.cpu_count()} cores",
            flush=True,
        )
        few = shards[: max(1, args.peer_answers // SHARD_ANSWERS)]
        turns = [(measure("ours", root, 1, few), measure("transformers", root, 1, few)) for _ in range(args.rounds)]
        found = {
            title: min((turn[k] for turn in turns), key=lambda one: one["cpu_s"])
            for k, title in enumerate(("ours, 1 process", "transformers, 1 process, same rows"))
        }
        same, asked = same_ids(root)
        for title, one in found.items():
            print(told(title, one), flush=True)
        title = f"ours, {args.processes} processes, everything"
        found[title] = measure("ours", root, args.processes, shards)
        print(told(title, found[title]))
        first, peer, _ = found.values()
        ratio = (peer["cpu_s"] / peer["rows"]) / (first["cpu_s"] / first["rows"])
        print(
            f"transformers / ours, CPU: {ratio:.1f} (target >= 3); {same} of {asked} of our verbatim rows have the peer's very ids"
        )
    report = {"measured": found, "ratio": ratio, "same_ids": [same, asked], "tokens_per_answer": tokens / args.answers}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    return report


if __name__ == "__main__":
    main()
