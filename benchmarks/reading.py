"""From a journal to judged rows: CPU of one row, this code beside an older checkout, in one run.

    python -m benchmarks.reading FOLDER --profile kimi-k2.5 --tokenizers DIR [--beside CHECKOUT] [--shards 2] [--sessions 60]

Two worlds, made once in FOLDER and used again. `rented`, `engine` and `given` are shards of `benchmarks.full_size` (40,000 answers of 3,460
ids: six datasets of ten, two and one). `sessions` are agent trajectories as A1 has them: tools, some thirty turns with reasoning, calls and
results, 16,000 ids, imported as text. Every measurement is a process of its own that reads one shard to warm up and then times the others:
decode, rebuild, quarantine, table, verdicts, Parquet. `--beside` runs the same in another checkout (7bd227c has the last code that read an
answer several times), first the one, then the other, shard by shard. Besides CPU the table says what the encoder alone needs to encode each
row's ids once: nothing that checks ids against text can be cheaper.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import orjson

WORLDS = {"rented": "b3_magicoder", "engine": "b1_glaive", "given": "a1_deepswekimi", "sessions": "a1_sessions"}
SHARES = {"rented": 0.6975, "engine": 0.2325, "given": 0.07}  # of the 40,000 answers
REAL_SESSIONS = 2_800
SESSION_TURNS = 30
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} in the repository under work",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "file"}, "text": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
    for name in ("open_file", "edit_file", "search", "run_tests", "submit")
]


class Cost(NamedTuple):
    """`encoding`: milliseconds of the tokenizer alone for one row."""

    rows: int
    ms_a_row: float
    encoding: float
    peak_mb: float
    grades: str


# ------------------------------------------------------------------------------------------------ the worlds
def make_sessions(folder: Path, profile: Any, campaign: Any, count: int, tokens: int, shards: Sequence[str]) -> None:
    """`count` imported trajectories of about `tokens` ids in each shard of `folder`."""
    from benchmarks.full_size import _text
    from eagle3_assets.wire.journal import Journal
    from eagle3_assets.wire.wire_answer import WireAnswer

    for shard in shards:
        if (folder / shard).exists():
            continue
        with Journal.open(folder / shard) as journal:
            for k in range(count):
                chance = random.Random(f"{shard} {k}")

                def words(n: float, chance: random.Random = chance) -> str:
                    return _text(profile, max(1, int(n)), chance)

                share = tokens / SESSION_TURNS / 1.1
                messages: list[dict[str, Any]] = [
                    {"role": "system", "content": "You mend programs. " + words(200)},
                    {"role": "user", "content": words(share)},
                ]
                for turn in range(SESSION_TURNS):
                    name = chance.choice(TOOLS)["function"]["name"]  # type: ignore[index]
                    call = f"functions.{name}:{turn}"
                    arguments = orjson.dumps({"path": words(4), "text": words(share * 0.2)}).decode()
                    messages.append(
                        {
                            "role": "assistant",
                            "content": words(share * 0.1),
                            "reasoning_content": words(share * 0.3),
                            "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}],
                        }
                    )
                    messages.append({"role": "tool", "tool_call_id": call, "content": words(share * 0.35)})
                message = {"role": "assistant", "content": words(share * 0.3), "reasoning_content": words(share * 0.6)}
                body = {
                    "object": "chat.completion",
                    "model": campaign.target.model,
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                }
                name = hashlib.sha256(f"{shard} {k}".encode()).hexdigest()[:32]
                request = {"model": campaign.target.model, "messages": messages, "tools": TOOLS}
                answer = WireAnswer(
                    name, name, 0, 1, "a1_sessions", shard, "import", request, 200, orjson.dumps(body), "finished",
                    model=campaign.target.model, started_at=1.8e9, finished_at=1.8e9, cost_usd=0.0,
                )  # fmt: skip
                journal.append(answer)


def make_worlds(root: Path, given: argparse.Namespace) -> list[str]:
    from benchmarks.full_size import campaign_of, write_beginning, write_shard
    from eagle3_assets.campaign import SHARDS
    from eagle3_assets.store import Store, read_manifest
    from eagle3_assets.targets.tokenizer import load_profile

    store, campaign, shards = Store(root), campaign_of(given.profile, given.samples), list(SHARDS[: given.shards])
    write_beginning(campaign, store)
    for world, dataset in WORLDS.items():
        if world == "sessions":
            answers = store.answers(dataset, shards[0]).parent
            make_sessions(answers, load_profile(given.profile), campaign, given.sessions, 16_000, shards)
            continue
        for shard in shards:
            if read_manifest(store.tokens(dataset, shard)) is None:
                write_shard(campaign, store, dataset, shard, given.tokens)
    return shards


# ------------------------------------------------------------------------------------------------ one measurement
def measure(root: Path, profile_name: str, samples: int, world: str, shards: Sequence[str]) -> Cost:
    """In this process and the checkout it was started in. The first shard is read before time counts, and not counted."""
    sys.path.insert(0, str(Path.cwd()))
    read, profile, journal = _reader(root, profile_name, samples, WORLDS[world])
    folder = next(root.rglob("answers")) / WORLDS[world]
    read(folder / shards[0])
    shards = shards[1:]
    start, found = time.process_time(), [row for shard in shards for row in read(folder / shard)]
    spent = time.process_time() - start
    start = time.process_time()
    for shard in shards:
        for answer in journal.best(journal.read(folder / shard)).values():
            for text in _texts(answer):
                profile.encoding.encode_ordinary(text)
    encoding = time.process_time() - start
    start = time.process_time()
    for shard in shards:
        for answer in journal.best(journal.read(folder / shard)).values():
            sum(len(text) for text in _texts(answer))
    encoding -= time.process_time() - start
    grades = sorted({grade for grade, _ in found})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(len(found), 1e3 * spent / len(found), 1e3 * encoding / len(found), peak, "+".join(grades))


def _texts(answer: Any) -> Iterator[str]:
    messages = [*answer.request["messages"], orjson.loads(answer.body)["choices"][0]["message"]]
    for message in messages:
        yield from (message.get(key) or "" for key in ("content", "reasoning_content", "reasoning"))
        yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())


def _reader(root: Path, profile_name: str, samples: int, name: str) -> tuple[Callable[[Path], list[tuple[str, float]]], Any, Any]:
    """What reads one shard in this checkout, whichever it is: the steps of its tokens asset and of the check behind it."""
    from benchmarks.full_size import campaign_of

    campaign = campaign_of(profile_name, samples)
    dataset = campaign.dataset[0].model_copy(update={"name": name})
    target = root / "reading.parquet"
    try:
        from eagle3_assets.review.rows.shard_rows import judge_rows
    except ModuleNotFoundError:
        return _several_times(root, campaign, dataset, profile_name, target)
    from eagle3_assets.exact.providers.wire_profiles import learn
    from eagle3_assets.exact.rows import build_rows
    from eagle3_assets.exact.sample_row import write_table
    from eagle3_assets.exact.second_opinion.checker import Checker
    from eagle3_assets.review.rows.quarantine import rules_of
    from eagle3_assets.targets.tokenizer import load_profile
    from eagle3_assets.wire import journal

    profile = load_profile(profile_name)
    learned = learn(profile, _paid(root, journal))

    def once(shard: Path) -> list[tuple[str, float]]:
        answers = list(journal.best(journal.read(shard)).values())
        made = build_rows(profile, campaign, dataset, answers, learned)
        rules = rules_of(campaign, dataset, profile)
        rows, table, _ = judge_rows(made, answers, rules, Checker(profile, answers, thinking=True), profile.n_vocab)
        write_table(target, table)
        return [(row.grade, row.p_exact) for row in rows]

    return once, profile, journal


def _paid(root: Path, journal: Any) -> list[Any]:
    """The rented answers of the first shard, of which providers are learned."""
    return list(journal.best(journal.read(next(root.rglob("answers")) / WORLDS["rented"] / "00")).values())


def _several_times(root: Path, campaign: Any, dataset: Any, profile_name: str, target: Path) -> tuple[Any, Any, Any]:
    """The same with the module names of 7bd227c, as its `assets/tokens.py` and `checks/` did it."""
    from importlib import import_module

    def take(module: str, name: str) -> Any:
        return getattr(import_module(f"eagle3_assets.{module}"), name)

    build_rows, load_profile = take("exact.rows", "build_rows"), take("exact.tokenizer", "load_profile")
    write_rows, read_table = take("exact.sample_row", "write_rows"), take("exact.sample_row", "read_table")
    put_out, rules_of = take("review.quarantine", "put_out"), take("review.quarantine", "rules_of")
    checker_of, columns_of = take("exact.checker", "Checker"), take("review.columns", "Columns")
    wires_of, judge_tokens = take("review.wires", "wires_of"), take("review.invariants", "judge_tokens")
    journal, profile = import_module("eagle3_assets.collect.journal"), load_profile(profile_name)
    record = journal.WireAnswer
    known = {f.name for f in fields(record)}  # what was added to a record since is nothing to that code
    vars(journal)["WireAnswer"] = lambda **told: record(**{name: value for name, value in told.items() if name in known})

    learned = take("exact.wire_profiles", "learn")(profile, _paid(root, journal))

    def several(shard: Path) -> list[tuple[str, float]]:
        rows = build_rows(profile, campaign, dataset, journal.read(shard), learned, None)
        rules = rules_of(campaign, profile)
        rows = put_out(rows, journal.read(shard), rules)
        write_rows(target, rows)
        best, table = journal.best(journal.read(shard)), read_table(target)
        judge_tokens(
            table,
            finished_keys=set(best),
            n_vocab=profile.n_vocab,
            checker=checker_of(profile, best.values(), thinking=True),
            wires=wires_of(columns_of(table), best.values()),
            rules=rules,
        )
        return [(row.grade, row.p_exact) for row in rows]

    return several, profile, journal


def measured_in(checkout: Path, given: argparse.Namespace, root: Path, world: str, shards: Sequence[str]) -> Cost:
    """`measure` in a process of its own, with the code of `checkout`."""
    here = Path(__file__).resolve()
    told = [str(root), given.profile, str(given.samples), world, ",".join(shards)]
    command = [sys.executable, str(here), "--measure", *told]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{world} in {checkout.name}: {done.stderr[-2000:]}")
    return Cost(*orjson.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    if "--measure" in sys.argv:
        root, profile, samples, world, shards = sys.argv[sys.argv.index("--measure") + 1 :]
        sys.stdout.write(orjson.dumps(list(measure(Path(root), profile, int(samples), world, shards.split(",")))).decode() + "\n")
        return
    from benchmarks.full_size import options

    parser = options(__doc__)
    parser.add_argument("--beside", type=Path, help="an older checkout, measured in the same run")
    parser.add_argument("--shards", type=int, default=3, help="of sixteen; the first only warms up")
    parser.add_argument("--sessions", type=int, default=30, help="trajectories in each shard")
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ["EAGLE3_DATA"] = str(given.folder.resolve())
    if given.tokenizers and not (given.folder / "tokenizers").exists():
        (given.folder / "tokenizers").symlink_to(given.tokenizers.resolve())
    root = given.folder.resolve() / "reading"
    shards = make_worlds(root, given)
    here, ratios = Path(__file__).resolve().parents[1], {}
    print(
        f"{'world':10}{'rows':>6} {'grades':8}{'ms/row':>8}{'encoder':>9}{'peak MB':>9}"
        + "  beside: ms/row, peak MB, ratio" * bool(given.beside)
    )
    for world in given.worlds:
        now = measured_in(here, given, root, world, shards)
        line = f"{world:10}{now.rows:6} {now.grades:8}{now.ms_a_row:8.2f}{now.encoding:9.2f}{now.peak_mb:9.0f}"
        if given.beside:
            then = measured_in(given.beside.resolve(), given, root, world, shards)
            ratios[world] = (now, then)
            line += f"{then.ms_a_row:10.2f}{then.peak_mb:7.0f}{then.ms_a_row / now.ms_a_row:7.2f} x"
        print(line, flush=True)
    if set(SHARES) <= set(ratios):
        total = [sum(given.samples * SHARES[world] * ratios[world][k].ms_a_row for world in SHARES) / 1e3 for k in (0, 1)]
        print(f"{given.samples:,} answers: {total[0]:.0f} CPU s, beside {total[1]:.0f}: {total[1] / total[0]:.2f} x")
    if "sessions" in ratios:
        total = [REAL_SESSIONS * ratios["sessions"][k].ms_a_row / 1e3 for k in (0, 1)]
        print(f"{REAL_SESSIONS:,} sessions: {total[0]:.0f} CPU s, beside {total[1]:.0f}: {total[1] / total[0]:.2f} x")


if __name__ == "__main__":
    main()
