"""`eagle3 close`: what is there becomes the dataset (after a budget stop, or when some prompts will never be answered)."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store, write_json


def command(
    dataset: Annotated[str, typer.Argument(help="name of the dataset")],
    reopen: Annotated[bool, typer.Option(help="undo: the missing prompts are asked again by the next run")] = False,
) -> None:
    """Declare a dataset finished with what is there. Nothing is deleted; --reopen undoes it.

    \b
    eagle3 close b3_magicoder && eagle3 run
    """
    campaign = load_campaign()
    store = Store.of(campaign)
    path = store.closed(campaign.dataset_named(dataset).name)
    if reopen:
        path.unlink(missing_ok=True)
        print(f"{dataset} is open; `eagle3 run` asks what is missing")
        return
    if not any(path.parent.glob("*/segment-*")):
        raise StoreError(f"{path.parent}: {dataset} has no answers yet, so there is nothing to close; `eagle3 run` first")
    write_json(path, {"dataset": dataset, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    print(f"{dataset} is closed with what is there ({path}); `eagle3 run` goes on")
