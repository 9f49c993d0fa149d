"""`eagle3 verify`: stored hidden states against their checksums, the corpus, and, for a sample, the model itself."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import hidden_states
from eagle3_assets.store import Store, is_current


def command(
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="K", help="only this partition; may be repeated")
    ] = None,
    recompute: Annotated[int, typer.Option(min=0, metavar="N", help="rows of each partition to compute anew with the model")] = 0,
    seed: Annotated[int, typer.Option(help="which rows")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="the findings as JSON")] = False,
) -> None:
    """Read everything that hidden_states wrote: all bits, ids against the corpus, finite values, layers; name each bad part.

    \b
    eagle3 verify                                every partition (20 GB a second of CPU, so as quick as the disk)
    eagle3 verify --partition 00003              one
    eagle3 verify --recompute 3                  and three rows of each through the model again
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    keys = _keys(store, partition or [])
    console = Console(stderr=True)
    extractor: Any = None
    found: list[dict[str, Any]] = []
    columns = (
        TextColumn("verify"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    try:
        if recompute:
            from eagle3_assets.states.extractors import open_extractor

            extractor = open_extractor(campaign)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(keys))
            for key in keys:
                progress.update(task, description=f"partition {key}")
                found.append(verify_one(campaign, store, key, extractor, recompute, seed))
                progress.advance(task)
    finally:
        if extractor is not None:
            extractor.close()
    bad = [facts for facts in found if facts["problems"]]
    absent = [] if partition else [k for k in corpus_shards(store) if k not in keys]
    if as_json:
        print(json.dumps({"partitions": found, "absent": absent, "sound": not bad}, indent=2))
    else:
        _print(found)
        if absent:
            print(
                f"not there, so not looked at: {len(absent)} partitions of the corpus: {', '.join(absent[:10])}{' …' if absent[10:] else ''}"
            )
    if bad:
        raise typer.Exit(1)


def _keys(store: Store, asked: list[str]) -> list[str]:
    there = sorted(p.name for p in store.hidden_states.iterdir() if p.is_dir()) if store.hidden_states.is_dir() else []
    unknown = [k for k in asked if k not in there]
    if unknown:
        raise StateError(f"{store.hidden_states}: holds no partition {', '.join(unknown)}; it holds {', '.join(there) or 'none'}")
    if not there:
        raise StateError(f"{store.hidden_states}: holds no partition; materialize hidden_states first")
    return asked or there


def verify_one(
    campaign: Campaign, store: Store, key: str, extractor: Any = None, recompute: int = 0, seed: int = 0
) -> dict[str, Any]:
    """What is wrong with one partition and what was looked at, as plain JSON. Raises nothing of a user's making."""
    from eagle3_assets import corpus as corpora
    from eagle3_assets import states
    from eagle3_assets.states.care.recompute import choose_rows, recompute_rows
    from eagle3_assets.states.care.verify_states import verify_partition

    lines: list[dict[str, str]] = []

    def problem(check: str, part: str, message: str) -> None:
        lines.append({"check": check, "part": part, "message": message})

    try:
        packs = corpora.open(store.corpus).part(key)
    except Eagle3Error as error:
        packs = None
        problem("states_match_rows", "", f"cannot be held against the corpus: {error}")
    problems, seen = verify_partition(campaign, store, key, packs)
    for p in problems:
        problem(p.check, p.part, p.message)
    try:
        if packs is not None and not is_current(
            store.states(key), Artifact(hidden_states.STAGE, campaign, store, partition=key).inputs()
        ):
            problem("current", "", f"{store.states(key)}: {why_stale(campaign, store, key)}; materialize hidden_states again")
        rows = []
        if extractor is not None and not problems:
            opened = states.open(store.states(key))
            rows = recompute_rows(extractor, opened, choose_rows(opened, recompute, seed))
    except Eagle3Error as error:
        problem("recompute", "", str(error))
        rows = []
    for row in rows:
        if not row.agrees:
            problem("recompute", "", row.message)
    worst = max((d for row in rows for d in row.distances), default=None)
    return {"partition": key, **seen, "recomputed": len(rows), "worst_distance": worst, "problems": lines}


def why_stale(campaign: Campaign, store: Store, key: str) -> str:
    """Which of the things that decide a partition's content are other ones now."""
    from eagle3_assets.store import read_manifest

    manifest = read_manifest(store.states(key))
    if manifest is None:
        return "has no commit"
    now = Artifact(hidden_states.STAGE, campaign, store, partition=key).inputs()
    names = {"corpus_part": "its corpus part", "model": "the model's weights"}
    changed = [names.get(k, k) for k in now if manifest.inputs.get(k) != now[k]]
    return f"outdated: {', '.join(changed)} changed since" if changed else "outdated or damaged"


def _print(found: list[dict[str, Any]]) -> None:
    for facts in found:
        line = f"{facts['partition']}: {facts['rows']} rows, {facts['tokens']} tokens, {facts['bytes'] / 1e9:.3f} GB in {facts['parts']} parts"
        if facts["missing"]:
            line += f", {facts['missing']} rows left out (not finite)"
        if facts["recomputed"]:
            line += f", {facts['recomputed']} rows computed anew (worst distance {facts['worst_distance']:.2g})"
        print(f"{line}: {'sound' if not facts['problems'] else str(len(facts['problems'])) + ' problems'}")
        for problem in facts["problems"]:
            print(f"  {problem['check']}: {problem['message']}")
