"""Worlds outside the hypothesis space: is anything accepted that is wrong? One provider a world, its mechanism in no reading.

    python -m benchmarks.foreign_worlds                                  # all worlds, some minutes
    python -m benchmarks.foreign_worlds --worlds "bill up to 4,NFKC"     # names, or parts of names
    python -m benchmarks.foreign_worlds --rows 300 --seed 7 --workers 2 --json worlds.json --examples 3

Each world is learned together with providers of ordinary habits and an engine that returns ids, so that the model's own habits are known.
The claim: no decided falsehood; of the rows graded A, B or R at most 1 % are wrong. `changed` is the share of rows whose text, ids or bill
are not what the model wrote; `silent` the share whose text as it stands meets the bill and is wrong: nothing in such a row can be seen.

Belongs here: learning, rebuilding, comparing with the truth. Does not belong here: texts, truth and mechanisms (`benchmarks/foreign`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.foreign import cases, model
from benchmarks.foreign.bills import BILLS
from benchmarks.foreign.habits import HABITS, ORDINARY, Mechanism
from benchmarks.foreign.rewriting import REWRITING
from benchmarks.foreign.sent import DAY, Scene, body_of, verbatim
from eagle3_assets.exact.providers.wire_profiles import entry_of, learn
from eagle3_assets.exact.search.reconstruct import reconstruct
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

PROFILE = "kimi-k2.5"
PROVIDER = "World"
SURE = ("A0", "A1", "A2", "B1", "B2", "R")
MOST_WRONG = 0.01
SEEN_NOWHERE = 0.9
OUTSIDE: dict[str, Mechanism] = BILLS | REWRITING
# `--worlds` finds the learnable habits too: what the same figures look like inside the hypotheses
KNOWN: dict[str, Mechanism] = OUTSIDE | {f"habit: {name}": mechanism for name, mechanism in HABITS.items()}


@dataclass(frozen=True)
class Told:
    """An answer as it came, with the ids that it really was."""

    answer: WireAnswer
    truth: tuple[int, ...]


@dataclass
class Figures:
    """One world. `sure`: rows of A, B and R; `likely`: rows of C1, with the sum of their p and how many are right."""

    world: str
    rows: int = 0
    decided: bool = False
    reading: str = ""
    why: str = ""
    explained: int = 0
    changed: int = 0
    silent: int = 0
    sure: int = 0
    sure_wrong: int = 0
    likely: int = 0
    likely_right: int = 0
    likely_p: float = 0.0
    right_quarantined: int = 0
    grades: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def cannot_be_seen(self) -> bool:
        """Whether counts show nothing of what the mechanism does, row by row or over all."""
        return self.silent >= SEEN_NOWHERE * self.changed > 0

    @property
    def fails(self) -> bool:
        return self.sure_wrong > MOST_WRONG * self.sure


def shared_data() -> Path:
    return Path(os.environ.get("EAGLE3_SHARED_DATA", Path(__file__).parents[1] / ".." / "shared" / "data")).resolve()


@functools.cache
def tools() -> tuple[Profile, model.Model]:
    folder = shared_data() / "tokenizers" / PROFILE
    return load_profile(PROFILE, folder), model.load(folder)


# ---------------------------------------------------------------------------------------------------- making answers
def tell(
    mechanism: Mechanism, provider: str, rows: int, manner: cases.Manner, seed: str, *, with_ids: bool = False
) -> list[Told]:
    """`rows` answers of one provider, a minute and a bit apart."""
    _, made = tools()
    rng = Random(seed)
    return [
        _told(
            mechanism, Scene(cases.make_case(made, manner, rng), made, rng, DAY + 97.0 * k), provider, k, seed, with_ids=with_ids
        )
        for k in range(rows)
    ]


def _told(mechanism: Mechanism, scene: Scene, provider: str, number: int, seed: str, *, with_ids: bool) -> Told:
    sent = mechanism(scene)
    body = body_of(sent, provider=provider, number=number, at=scene.at, with_ids=with_ids)
    answer = WireAnswer(
        request_id=f"{provider}-{number}",
        sample_id=f"{seed}:{number}",
        turn=0,
        attempt=1,
        dataset="b3_magicoder",
        shard="00",
        source="engine" if with_ids else "openrouter",
        request=scene.case.request,
        status=200,
        body=json.dumps(body).encode(),
        outcome="finished",
        provider=provider,
        model="moonshotai/kimi-k2.5",
        finished_at=scene.at,
    )
    return Told(answer, (*sent.prompt_ids, *sent.completion_ids))


@functools.lru_cache(maxsize=2)
def background(rows: int, id_rows: int, seed: int) -> tuple[WireAnswer, ...]:
    """Ordinary providers, and a server that returns ids."""
    manner = manner_of(seed)
    told = [found for name, habit in ORDINARY.items() for found in tell(habit, name, rows, manner, f"{seed}:{name}")]
    told += tell(verbatim, "Engine", id_rows, manner, f"{seed}:engine", with_ids=True)
    return tuple(found.answer for found in told)


def manner_of(seed: int) -> cases.Manner:
    return cases.Manner() if seed == 0 else cases.Manner.drawn(Random(seed))


# ---------------------------------------------------------------------------------------------------- measuring
def measure(world: str, args: argparse.Namespace) -> Figures:
    """Learn one world beside the ordinary ones, rebuild its rows, compare."""
    begun = time.perf_counter()
    profile, _ = tools()
    told = tell(KNOWN[world], PROVIDER, args.rows, manner_of(args.seed), f"{args.seed}:{world}")
    learned = learn(profile, [*background(args.background, args.id_rows, args.seed), *(found.answer for found in told)])
    entry = entry_of(learned, PROVIDER)
    figures = Figures(world, rows=len(told))
    if entry is not None:
        figures.decided, figures.why = bool(entry.get("decided")), str(entry.get("why"))
        figures.reading, figures.explained = str(entry.get("reading")), int(entry.get("explained") or 0)
    for found in told:
        _judge(profile, entry, found, figures, args.examples)
    figures.seconds = time.perf_counter() - begun
    return figures


def _judge(profile: Profile, entry: dict[str, Any] | None, told: Told, figures: Figures, examples: int) -> None:
    answer = told.answer
    fields = parse_fields(answer.body, answer.content_type)
    row = reconstruct(profile, answer.request, fields, entry, source=answer.source, at=answer.finished_at)
    right = row.input_ids == told.truth
    standing = _standing(fields, answer.request)
    counts = fields.billed_prompt, fields.billed_completion
    figures.changed += standing is None or (*standing[0], *standing[1]) != told.truth or counts != tuple(map(len, standing))
    figures.silent += standing is not None and counts == tuple(map(len, standing)) and (*standing[0], *standing[1]) != told.truth
    figures.grades[row.grade] += 1
    if row.grade in SURE:
        figures.sure += 1
        figures.sure_wrong += not right
        if not right and len(figures.examples) < examples:
            figures.examples.append(_example(row.grade, row.p_exact, row.input_ids, told.truth, row.evidence))
    elif row.grade == "C1":
        figures.likely += 1
        figures.likely_right += right
        figures.likely_p += row.p_exact
    else:
        figures.right_quarantined += right


def _standing(fields: Any, request: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """(prompt, completion) of the answer taken as it stands, by this benchmark's own encoder; None for ids of calls that are not the
    model's."""
    _, made = tools()
    thinking = (request.get("reasoning") or {}).get("enabled", True)
    prompt = model.prompt_ids(made, request["messages"], request.get("tools", ()), thinking=thinking)
    ids = [*made.encode(fields.reasoning or ""), model.THINK_END] if thinking else []
    ids += made.encode(fields.content or "")
    if fields.tool_calls:
        ids.append(model.SECTION)
        for call in fields.tool_calls:
            ids += [model.CALL, *made.encode(call.id), model.ARGUMENT, *made.encode(call.arguments), model.CALL_END]
        ids.append(model.SECTION_END)
    return prompt, ids if fields.finish_reason == "length" else [*ids, model.END]


def _example(grade: str, p: float, ours: Sequence[int], truth: Sequence[int], evidence: dict[str, Any]) -> str:
    profile, _ = tools()
    at = next((k for k, (a, b) in enumerate(zip(ours, truth, strict=False)) if a != b), min(len(ours), len(truth)))
    near = [[profile.token_name(token) for token in ids[max(0, at - 2) : at + 3]] for ids in (ours, truth)]
    return f"{grade} {p:.3f} at {at} of {len(truth)}: ours {near[0]}, true {near[1]}; {evidence.get('reading')} {evidence.get('edits')}"


# ---------------------------------------------------------------------------------------------------- command
def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.foreign_worlds",
        description=textwrap.dedent(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--worlds", help="names or parts of names, divided by commas; default all that lie outside the hypotheses"
    )
    parser.add_argument("--rows", type=int, default=200, help="of the world's provider")
    parser.add_argument("--background", type=int, default=100, help="rows of each ordinary provider")
    parser.add_argument("--id-rows", type=int, default=300, help="rows with server ids")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--examples", type=int, default=0, help="print so many wrong rows of each world")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--list", action="store_true", help="print the names of the worlds")
    return parser.parse_args(arguments)


def asked(worlds: str | None) -> list[str]:
    """The worlds that `--worlds` names; a word that names none is an error."""
    if worlds is None:
        return list(OUTSIDE)
    out: list[str] = []
    for word in filter(None, map(str.strip, worlds.split(","))):
        found = [word] if word in KNOWN else [name for name in KNOWN if word.lower() in name.lower()]
        if not found:
            raise SystemExit(f"no world is called {word!r}; --list shows their names")
        out += [name for name in found if name not in out]
    return out


def show(console: Console, measured: Iterable[Figures], examples: int) -> list[Figures]:
    """Print the table; returns the figures."""
    done = list(measured)
    table = Table(title="worlds outside the hypotheses: nothing wrong may be sure", show_lines=False)
    for column in (
        "world",
        "rows",
        "changed",
        "silent",
        "decided",
        "explained",
        "A/B/R",
        "wrong",
        "C1",
        "C1 p",
        "C1 exact",
        "right in Q/D",
        "s",
    ):
        table.add_column(column, justify="left" if column == "world" else "right", no_wrap=True)
    for f in done:
        mean, share = (f"{value / f.likely:.2f}" if f.likely else "-" for value in (f.likely_p, float(f.likely_right)))
        cells = [
            f.rows,
            f"{f.changed / f.rows:.0%}",
            f"{f.silent / f.rows:.0%}",
            "yes" if f.decided else "no",
            f.explained,
            f.sure,
        ]
        cells += [
            f"{f.sure_wrong} !" if f.fails else f.sure_wrong,
            f.likely,
            mean,
            share,
            f.right_quarantined,
            f"{f.seconds:.1f}",
        ]
        table.add_row(f.world, *map(str, cells), style="red" if f.fails else None)
    console.print(table)
    for f in done:
        for example in f.examples[:examples]:
            console.print(f"{f.world}: {example}", markup=False, highlight=False)
    failing = [f"{f.world}{' (counts show nothing)' if f.cannot_be_seen else ''}" for f in done if f.fails]
    sure, wrong = sum(f.sure for f in done), sum(f.sure_wrong for f in done)
    console.print(
        f"{len(done)} worlds, {sum(f.decided for f in done)} decided; {sure} rows in A/B/R, {wrong} wrong; more than 1 % wrong in "
        f"{len(failing)}{': ' + ', '.join(failing) if failing else ''}; {sum(f.seconds for f in done):.0f} s"
    )
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where the claim does not hold."""
    args = parse(arguments)
    console = Console(width=max(160, Console().width))
    if args.list:
        console.print("\n".join(KNOWN), markup=False)
        return 0
    names = asked(args.worlds)
    if args.workers > 1:
        with ProcessPoolExecutor(args.workers) as pool:
            done = show(console, pool.map(functools.partial(measure, args=args), names), args.examples)
    else:
        done = show(console, (measure(name, args) for name in names), args.examples)
    if args.json:
        args.json.write_text(json.dumps([vars(f) for f in done], indent=1))
    return int(any(f.fails for f in done))


if __name__ == "__main__":
    raise SystemExit(main())
