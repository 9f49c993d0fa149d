"""Acceptance of a campaign's drafter as one document, and what is judged of it.

Belongs here: reading campaign and checkpoint, the two drafters that are measured (as trained, and untrained), verdicts. Does not belong here: how
acceptance is measured (`acceptance.py`), layout (`page.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from eagle3_assets.accept.acceptance import WAYS, Decoding, figures, headline, measure
from eagle3_assets.accept.checkpoint import load_checkpoint
from eagle3_assets.accept.drafts import Tree
from eagle3_assets.accept.layer import Drafter
from eagle3_assets.accept.stored_rows import final_norm, stored_rows
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.handoff.target_head import target_folder
from eagle3_assets.review.verdicts.table import verdict
from eagle3_assets.review.verdicts.verdict import Verdict
from eagle3_assets.states.target.target_head import TargetHead, load_embedding, load_head
from eagle3_assets.store import Store, read_json, write_bytes, write_json

VERSION = 1
DOCUMENT, PAGE, PICTURE = "acceptance.json", "acceptance.html", "acceptance.png"


def build_acceptance(
    campaign: Campaign,
    store: Store,
    checkpoint: Path,
    how: Decoding,
    *,
    split: str = "validation",
    on_rows: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """The document (plain JSON) of a checkpoint over the rows of `split`.

    Raises StateError: no such rows, no drafter of this target, of other layers than are stored.
    """
    folder = target_folder(campaign, store)
    head = load_head(campaign, final_norm(store), how.device, folder)
    embedding = load_embedding(campaign, folder)
    loaded = load_checkpoint(checkpoint, embedding, num_hidden_layers=campaign.target.num_hidden_layers)
    if loaded.layers is not None and loaded.layers != campaign.layers:
        named = ", ".join(f"E_{k}" for k in loaded.layers)
        raise StateError(
            f"{checkpoint}: reads {named}, stored are {', '.join(f'E_{k}' for k in campaign.layers)}; extract the layers that it reads "
            "([extraction] layers), or give a drafter that was trained on these"
        )
    drafter = loaded.drafter.to(how.device)
    tally = measure(drafter, stored_rows(campaign, store, split), head, how, on_rows=on_rows)
    found = figures(tally)
    if not found:
        raise StateError(
            f"{store.corpus}: no {split} row has two generated ids to draft; set corpus.validation_share (0.01 in a large campaign) and make the "
            "corpus again, or measure on --split train, which flatters a drafter that was trained on these rows"
        )
    way = headline(found)
    fresh = untrained(drafter, embedding, head).to(how.device)
    floor = figures(measure(fresh, stored_rows(campaign, store, split), head, how, ways=(way,)))[way]["all"]
    return {
        "version": VERSION,
        "campaign": campaign.name,
        "target": campaign.target.model,
        "checkpoint": {"name": checkpoint.name, "made_by": loaded.made_by, "xxh3": loaded.xxh3},
        "split": split,
        "rows": tally.rows,
        "chain": how.chain,
        "tree": None if how.tree is None else {"topk": how.tree.topk, "steps": how.tree.steps, "nodes": how.tree.nodes},
        "ways": found,
        "headline": way,
        "untrained": floor,
        "stored_ids": {"compared": tally.compared, "most_probable": tally.likely, "outside_nucleus": tally.outside_nucleus},
    }  # fmt: skip


def untrained(like: Drafter, embedding: torch.Tensor, head: TargetHead) -> Drafter:
    """A drafter of the same shape and draft vocabulary with fresh weights: what any trained one must beat."""
    fresh = Drafter(like.shape, like.d2t.cpu())
    fresh.initialise(0)
    with torch.no_grad():
        if like.shape.hidden == embedding.shape[1]:
            fresh.embed_tokens.weight.copy_(embedding)
            fresh.lm_head.weight.copy_(head.weight.cpu().float()[fresh.target_ids(torch.arange(like.shape.draft_vocab))])
    return fresh.eval().requires_grad_(False)


def judge_acceptance(document: Mapping[str, Any]) -> list[Verdict]:
    """Checks of the asset `acceptance`."""
    way, floor = document["headline"], document["untrained"]
    whole, datasets = document["ways"][way]["all"], document["ways"][way]["groups"]["dataset"]
    low, high = whole["low"], floor["high"]
    above = whole["tau"] > floor["tau"] and (low is None or high is None or low > high)
    said = f"{WAYS[way]}: {interval(whole)}; an untrained drafter: {interval(floor)}"
    behind = {name: group for name, group in datasets.items() if group["high"] is not None and group["high"] < whole["tau"]}
    worst = "; ".join(f"{name}: {interval(group)}" for name, group in behind.items())
    message = worst or f"{len(datasets)} datasets reach {whole['tau']:.2f} within their intervals"
    return [
        verdict("acceptance", "above_untrained", above, said, numbers={"tau": whole["tau"], "untrained": floor["tau"]}),
        verdict(
            "acceptance", "no_dataset_behind", not behind, message, numbers={"behind": len(behind), "tau": whole["tau"]}, examples=tuple(behind)
        ),
    ]  # fmt: skip


def interval(group: Mapping[str, Any]) -> str:
    """A figure for people."""
    if group["low"] is None:
        return f"{group['tau']:.2f} (one conversation, no interval)"
    return f"{group['tau']:.2f} ({group['low']:.2f} to {group['high']:.2f})"


def write_acceptance(folder: Path, document: Mapping[str, Any]) -> list[Path]:
    """`acceptance.json`, `acceptance.html`, `acceptance.png` under `folder`; returns the paths."""
    from eagle3_assets.accept.page import draw, render_html

    png = draw(document)
    checks = [
        {"check": v.check, "passed": v.passed, "severity": v.severity, "message": v.message} for v in judge_acceptance(document)
    ]
    write_json(folder / DOCUMENT, document)
    write_bytes(folder / PAGE, render_html(document, checks, png).encode())
    write_bytes(folder / PICTURE, png)
    return [folder / name for name in (DOCUMENT, PAGE, PICTURE)]


def read_acceptance(folder: Path) -> dict[str, Any]:
    """Raises StoreError for a missing or damaged file, StateError for one of another version."""
    document: dict[str, Any] = read_json(folder / DOCUMENT, otherwise="materialize acceptance again")
    if document.get("version") != VERSION:
        raise StateError(
            f"{folder / DOCUMENT}: version {document.get('version')}, expected {VERSION}; materialize acceptance again"
        )
    return document


def decoding_of(campaign: Campaign) -> Decoding:
    """What the campaign's [drafter] table asks for; a chain of three and a small tree without one."""
    table = campaign.drafter
    if table is None:
        return Decoding(3, Tree(4, 3, 12))
    return Decoding(table.chain, None if table.tree is None else Tree(*table.tree), device=table.device)
