"""`eagle3 accept`: acceptance length of a drafter from stored states, without serving anything.

Belongs here: options, the table. Does not belong here: measuring (`accept`). The asset `acceptance` computes the same.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import Eagle3Error
from eagle3_assets.store import Store


def command(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="folder of a drafter (speculators, SpecForge); default: the campaign's own")
    ] = None,
    chain: Annotated[
        int | None, typer.Option(min=1, max=32, metavar="K", help="drafts of a chain; default: [drafter] chain, else 3")
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(
            metavar="TOPK,STEPS,NODES", help="a tree of drafts; 0 leaves trees out; default: [drafter] tree, else 4,3,12"
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train or validation: which rows")] = "validation",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, ...")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="write the HTML page there")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all figures as JSON")] = False,
) -> None:
    """Ids that the target gets out of one verification (τ), over rows that no drafter was trained on: chains and trees, greedy and sampled, by
    dataset, grade, position in the answer and context length.

    \b
    eagle3 accept                                   the campaign's own drafter
    eagle3 accept runs/7/checkpoint_best            one that was trained elsewhere
    eagle3 accept CHECKPOINT --tree 8,5,63 --page acceptance.html
    """
    from eagle3_assets.accept.page import draw, render_html
    from eagle3_assets.accept.report import build_acceptance, decoding_of, judge_acceptance
    from eagle3_assets.accept.training_record import find_checkpoint

    campaign = load_campaign()
    store = Store.of(campaign)
    if split not in ("train", "validation"):
        raise typer.BadParameter(f"{split!r}; expected train or validation", param_hint="--split")
    how = decoding_of(campaign)
    how = dataclasses.replace(how, chain=chain or how.chain, device=_device(device or how.device))
    if tree is not None:
        how = dataclasses.replace(how, tree=_tree(tree))
    if checkpoint is None and not store.drafter.is_dir():
        raise Eagle3Error(
            f"{store.drafter}: there is no drafter of this campaign; give the folder of one: eagle3 accept CHECKPOINT"
        )
    folder = (
        checkpoint
        if checkpoint is not None and (checkpoint / "config.json").is_file()
        else find_checkpoint(checkpoint or store.drafter)
    )
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("acceptance")
        document = build_acceptance(
            campaign, store, folder, how, split=split, on_rows=lambda n: progress.update(task, description=f"{n} rows")
        )
    verdicts = judge_acceptance(document)
    if page is not None:
        checks = [{"check": v.check, "passed": v.passed, "severity": v.severity, "message": v.message} for v in verdicts]
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render_html(document, checks, draw(document)), encoding="utf-8")
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        _print(document)
        for v in verdicts:
            print(f"{'passes' if v.passed else 'FAILS '} {v.check}: {v.message}")
        if page is not None:
            print(f"page: {page}")


def _tree(text: str) -> Any:
    from eagle3_assets.accept.drafts import Tree

    if text == "0":
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise typer.BadParameter(f"{text!r}; expected TOPK,STEPS,NODES, e.g. 4,3,12, or 0", param_hint="--tree")
    return Tree(*(int(p) for p in parts))


def _device(name: str) -> str:
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise Eagle3Error(f"--device {name}: cannot be used here ({str(error).splitlines()[0][:120]}); take cpu") from None
    return name


def _print(document: dict[str, Any]) -> None:
    from eagle3_assets.accept.acceptance import WAYS
    from eagle3_assets.accept.report import interval

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("τ (95 %)", "drafts accepted", "verifications"):
        table.add_column(name, justify="right", no_wrap=True)

    def line(name: str, group: dict[str, Any]) -> None:
        table.add_row(name, interval(group), ", ".join(f"{r:.0%}" for r in group["rates"]), f"{group['verifications']:,.0f}")

    for way, found in document["ways"].items():
        line(WAYS[way], found["all"])
    line("an untrained drafter", document["untrained"])
    for facet, groups in document["ways"][document["headline"]]["groups"].items():
        table.add_section()
        for value, group in groups.items():
            line(f"{facet}: {value}", group)
    Console().print(table)
