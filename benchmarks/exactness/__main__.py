"""How right the rebuilt token ids are: one command, one table for each question, and the claims of the issue at the end.

    python -m benchmarks.exactness                            # Kimi's real vocabulary, 300 answers of every provider, some 5 minutes
    python -m benchmarks.exactness --answers 60 --quick       # a look, half a minute: no identification, no placebo, no worlds
    python -m benchmarks.exactness --tokenizer kimi-mini      # kimi-mini's committed samples: really sampled, short
    python -m benchmarks.exactness --profiles mine.toml       # your stand-in profiles: we never saw them (docs/standin_keys.md)
    python -m benchmarks.exactness --json figures.json
    python -m benchmarks.exactness.speed                      # journal to Parquet, CPU, memory, beside `transformers`

Truth comes from the stand-in alone: it samples ids first, bends them through a provider's habits into text and a bill, and writes the
ids down where only this benchmark reads them. Bought by the platform's own attempt, kept in its journal, learned and rebuilt by its
own entry points. A row is exact when every id of prompt and completion is right.

Kimi's files: `tokenizers/kimi-k2.5` in $EAGLE3_SHARED_DATA (default ../shared/data).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console

from benchmarks.exactness import experiments, plain, rebuild, shows, tables, worlds
from benchmarks.exactness.judge import Judged, judge
from benchmarks.exactness.purchase import Purchase, buy, scaled
from benchmarks.exactness.questions import make_questions, mini_questions
from eagle3_assets.targets.tokenizer import Profile, load_profile
from openrouter_standin.profiles import Profiles, load_profiles, profiles_file

OWN_PROFILES = Path(__file__).parent / "profiles.toml"
STEPS = (10, 30, 100, 300)
HELD_OUT = 100
PLACEBO_ROWS = 30


def shared_data() -> Path:
    return Path(os.environ.get("EAGLE3_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def load(path: Path, tokenizer: str, answers: int, mean_tokens: int | None = None) -> tuple[Profiles, Profile, Path]:
    """(stand-in profiles with the asked source, tokenizer profile, folder that relative paths start at)."""
    file = profiles_file(path)
    profiles = load_profiles(path)
    if tokenizer == "kimi-mini":
        source = profiles.source.model_copy(update={"kind": "bank", "synthetic_logprobs": True})
        profile = load_profile("kimi-mini")
    else:
        own = load_profiles(OWN_PROFILES).source
        folder = shared_data() / "tokenizers" / "kimi-k2.5"
        replay = (profiles.source if profiles.source.kind == "replay" else own).replay
        changed = {"tokenizer": str(folder.resolve()), "mean_tokens": mean_tokens or replay.mean_tokens}
        source = own.model_copy(update={"replay": replay.model_copy(update=changed)})
        profile = load_profile("kimi-k2.5", folder.resolve())
    return scaled(profiles.model_copy(update={"source": source}), answers), profile, file.resolve().parent


def hopeless(purchase: Purchase) -> list[str]:
    """Providers whose bill or text cannot lead to ids: other tokenizers, estimates, lost text. To be named and quarantined."""
    out = []
    for name, provider in purchase.providers.items():
        if provider is None:
            continue
        lost = provider.text.stream.drop_delta_rate or provider.text.drop_delta_rate or provider.tag == "lossy"
        if provider.billing.counts_by != "ids" or provider.billing.count_noise or lost:
            out.append(name)
    return out


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness",
        description=textwrap.dedent(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--answers", type=int, default=300, help="of each provider")
    parser.add_argument("--engine-answers", type=int, help="of each engine (rows with ids); default 5 x --answers")
    parser.add_argument("--mean-tokens", type=int, help="of an answer; default as the profiles file says")
    parser.add_argument("--profiles", "--standin-profiles", type=Path, default=OWN_PROFILES, help="stand-in profiles file")
    parser.add_argument("--tokenizer", choices=("kimi", "kimi-mini"), default="kimi")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the tables of rows and the baseline only")
    parser.add_argument("--examples", type=int, default=0, help="print so many examples of each kind of error or low grade")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    console = Console(width=max(200, Console().width))
    profiles, profile, beside = load(args.profiles, args.tokenizer, args.answers, args.mean_tokens)
    per_engine = 5 * args.answers if args.engine_answers is None else args.engine_answers
    ask = mini_questions if args.tokenizer == "kimi-mini" else make_questions
    questions = ask(max(args.answers, per_engine), args.seed)
    with tempfile.TemporaryDirectory() as name:
        begun = time.perf_counter()
        purchase = buy(
            profiles, Path(name), questions, beside=beside, seed=args.seed, per_engine=per_engine, per_provider=args.answers
        )
        console.print(
            f"{len(purchase.truths):,} answers of {len(purchase.folders)} providers and engines bought in {time.perf_counter() - begun:.0f} s; "
            f"{sum(len(t.completion_ids) for t in purchase.truths.values()) / max(1, len(purchase.truths)):.0f} tokens each; tokenizer "
            f"{profile.name}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        report = measure(console, args, profiles, profile, purchase)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1, default=_plain_json))
    return report


def measure(
    console: Console, args: argparse.Namespace, profiles: Profiles, profile: Profile, purchase: Purchase
) -> dict[str, Any]:
    begun = time.perf_counter()
    learned = rebuild.learn(profile, rebuild.known_answers(purchase))
    learning_s = time.perf_counter() - begun
    clocks = {name: rebuild.Clock() for name in purchase.folders}
    rows: dict[str, list[Judged]] = {}
    for name in purchase.folders:
        made = rebuild.rows_of(profile, purchase.answers(name), learned, clocks[name])
        rows[name] = judge(name, made, purchase.truths, purchase.vocabulary)
    everything = [row for found in rows.values() for row in found]
    cannot = hopeless(purchase)
    console.print(f"learned in {learning_s:.1f} s ({1000 * learning_s / max(1, len(everything)):.2f} ms an answer)")
    tables.providers(console, rows, clocks)
    tables.grades(console, everything)
    tables.causes(console, [row for row in everything if row.grade == "C1"])
    tables.calibration(console, "reliability of p_exact, C1", [row for row in everything if row.grade == "C1"])
    tables.calibration(console, "reliability of p_exact, all but Q and D", [r for r in everything if r.grade not in ("Q", "D")])
    tables.risk(console, everything)
    tables.quarantine(console, everything, cannot)
    named = [name for name, provider in purchase.providers.items() if provider is not None]
    ends = (profile.end_id, plain.SEEDS_END if profile.n_vocab > plain.SEEDS_END else profile.n_vocab)
    right, seeds = ({n: plain.tally(profile, purchase.answers(n), purchase.truths, end=end) for n in named} for end in ends)
    tables.baseline(console, right, seeds, rows)
    if args.examples:
        shows.examples(console, rows, args.examples)
    found = shows.Measured(rows, clocks, learned, cannot, right, seeds)
    if not args.quick:
        found = dataclasses.replace(found, **_experiments(console, args, profiles, profile, purchase, learned))
    claims = shows.claims(found, purchase)
    tables.claims(console, claims)
    return found.as_json(claims)


def _experiments(
    console: Console, args: argparse.Namespace, profiles: Profiles, profile: Profile, purchase: Purchase, learned: dict[str, Any]
) -> dict[str, Any]:
    stage = rebuild.TextStage(profile, learned)
    named = [name for name, provider in purchase.providers.items() if provider is not None]
    wrong_bills = {name: experiments.placebo(stage, purchase.answers(name), PLACEBO_ROWS) for name in named}
    tables.wrong_bills(console, wrong_bills)
    steps = [step for step in STEPS if step < args.answers] or [max(1, args.answers // 2)]
    identified = experiments.identify(profile, purchase, steps, held_out=min(HELD_OUT, args.answers // 3))
    tables.identification(console, identified, steps)
    changing = [name for name in named if purchase.providers[name].change]  # type: ignore[union-attr]
    watched = [experiments.watch(profile, purchase, name, learned) for name in changing]
    tables.watched(console, watched)
    answers = min(150, args.answers)
    spaces = worlds.run(profile, profiles, purchase.vocabulary, purchase.root / "worlds", answers=answers, seed=args.seed)
    tables.leading_space(console, spaces)
    return {"placebo": wrong_bills, "identified": identified, "watched": watched, "worlds": spaces}


def _plain_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # asdict breaks a Counter
    return str(value)


if __name__ == "__main__":
    main()
