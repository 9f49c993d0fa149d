"""`eagle3 push`: hand-offs (or any artifact) to a hub repository or an object store; a dry run unless `--yes`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from eagle3_assets import gate, stages
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.handoff.push import Parcel, PushPlan, parcels_of, plan_push, push
from eagle3_assets.store import Manifest, Store, require

SHOWN = 20
PUSHABLE = ("handoff/tokens", "handoff/speculators", "handoff/specforge", "corpus", "vocab_map", "hidden_states")


def command(
    destination: Annotated[str, typer.Argument(help="hf://datasets/ORG/NAME, s3://BUCKET/PATH, gs://…, file:///PATH")],
    what: Annotated[
        list[str] | None, typer.Option(metavar="ARTIFACT", help=f"any of {', '.join(PUSHABLE)}; default handoff/tokens")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="send; without it nothing is written anywhere")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the list for machines")] = False,
) -> None:
    """Send hand-offs to a hub repository or an object store: a dry run unless --yes; an interrupted push goes on where it stopped.

    \b
    eagle3 push hf://datasets/me/kimi-tokens                    what would be sent, and where
    eagle3 push hf://datasets/me/kimi-tokens --yes              send it (the repository must exist)
    eagle3 push s3://bucket/run1 --what handoff/speculators --what hidden_states --yes
    """
    names = list(dict.fromkeys(what or ["handoff/tokens"]))
    for name in names:
        if name not in PUSHABLE:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(PUSHABLE)}", param_hint="--what")
    campaign = load_campaign()
    store = Store.of(campaign)
    flat = len(names) == 1 and names[0] != "hidden_states"
    plan = plan_push(destination, parcels_of(store, _manifests(campaign, store, names), flat=flat), store)
    if as_json and not yes:
        print(json.dumps(_as_json(plan), indent=2))
    elif not as_json:
        show(plan)
    if not yes:
        if not as_json:
            print("nothing was sent: this was a dry run; add --yes to send")
        return
    sent = _send(plan, store)
    if as_json:
        print(json.dumps({**_as_json(plan), "sent": sent}, indent=2))
    else:
        print(f"{len(plan.to_send)} files, {sent:,} bytes sent to {destination}")


def _manifests(campaign: Campaign, store: Store, names: list[str]) -> list[Manifest]:
    """Committed, current, and past their blocking checks. Raises GateError or StoreError."""
    found = []
    for artifact in stages.artifacts(campaign, store):
        if "/".join(artifact.key) in names:
            gate.require_current(artifact)
            gate.require(artifact, verify=False)  # hashed while it is sent
            found.append(require(artifact.path, made_by="/".join(artifact.key)))
    if not found:
        raise StoreError(f"{store.root}: there is nothing of {', '.join(names)} yet; materialize it first")
    return found


def show(plan: PushPlan) -> None:
    for parcel in plan.to_send[:SHOWN]:
        print(f"{parcel.bytes:>16,}  {parcel.name}")
    if len(plan.to_send) > SHOWN:
        print(f"{'…':>16}  and {len(plan.to_send) - SHOWN:,} more")
    print(
        f"{plan.bytes_to_send:>16,}  bytes in {len(plan.to_send):,} files to {plan.destination}; {len(plan.there):,} files are there already"
    )
    for names, what in (
        (plan.overwritten, "that no push of ours sent lie there and would be overwritten"),
        (plan.left, "of earlier pushes stay there beside these; remove those that are of an older state"),
    ):
        if names:
            print(f"{'NOTE':>16}  {len(names):,} files {what}: {', '.join(names[:5])}{' …' if names[5:] else ''}")
    print(f"{'credentials':>16}  {plan.credentials}")


def _as_json(plan: PushPlan) -> dict[str, Any]:
    def listed(parcels: tuple[Parcel, ...]) -> list[dict[str, Any]]:
        return [{"name": p.name, "bytes": p.bytes, "xxh3": p.xxh3} for p in parcels]

    return {
        "destination": plan.destination,
        "bytes": plan.bytes_to_send,
        "credentials": plan.credentials,
        "to_send": listed(plan.to_send),
        "there": listed(plan.there),
        "overwritten": list(plan.overwritten),
        "left": list(plan.left),
    }


def _send(plan: PushPlan, store: Store) -> int:
    columns = (TextColumn("push"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("push", total=plan.bytes_to_send)
        return push(plan, store, on_bytes=lambda n: progress.advance(task, n))
