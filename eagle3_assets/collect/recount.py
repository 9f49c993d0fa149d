"""A lost ledger made whole: what every journal of the campaign says was paid.

Belongs here: which journals there are, whether any is missing, records -> payments. Does not belong here: the arithmetic and the
mark (`ledger.py`), the settling of single shards after a kill (`Ledger.reconcile`).

An emptied or deleted `ledger.sqlite` would let the whole budget be spent once more. A ledger without its mark is therefore filled
from all journals before anything is spent; with the mark, nothing is read. What killed processes had in flight is in no journal; it
is taken from their owner files (`owners.py`) where those are still beside the ledger, and the line of `recount` says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from eagle3_assets.collect.money.ledger import Ledger, Payment, to_pico
from eagle3_assets.collect.pilot.pilot import SCOPE
from eagle3_assets.collect.servers.openrouter import most_it_could_cost
from eagle3_assets.errors import StoreError
from eagle3_assets.store import MANIFEST_SUFFIX, read_json
from eagle3_assets.wire.journal import read, segments
from eagle3_assets.wire.wire_answer import WireAnswer

log = logging.getLogger(__name__)

WAIT_S, WAITS = 0.1, 20  # a process that starts at this moment has its owner file a little before its row in the ledger


def recount(ledger: Ledger, *, pilot: Path, pilot_figures: Path, answers: Path) -> str | None:
    """Fill a ledger that is not marked whole from the pilot's journal and every shard's of every dataset, those that left the
    campaign file included. Returns the line that says so (logged, too), None when nothing was to be filled in.

    `answers` is the folder of datasets; `pilot_figures` and the shards' folders have the manifests that name the segments there
    must be. Raises StoreError: a segment is missing or damaged, a price has no bound, a live process uses the lost ledger.
    """
    if ledger.is_whole:
        return None
    _require_alone(ledger)
    folders = [(SCOPE, pilot), *((shard.parent.name, shard) for shard in sorted(answers.glob("*/*")) if shard.is_dir())]
    for manifest in (_beside(pilot_figures), *sorted(answers.glob(f"*/*{MANIFEST_SUFFIX}"))):
        _require_segments(manifest)
    payments = [_payment(a, scope, folder) for scope, folder in folders for a in _paid(folder)]
    changed = ledger.take_over(payments)
    if not changed:
        return None
    total = ledger.totals().total
    line = (
        f"{ledger.path}: was new, emptied or older than its mark; counted again from {len(payments)} paid records of "
        f"{sum(1 for _, folder in folders if segments(folder))} journals: {total.spent_usd:.4f} USD spent, "
        f"{total.ambiguous_usd:.4f} USD held for answers whose price is not known; what a killed run had in flight is known only where "
        "its owner file is left: compare with the provider's bill"
    )
    log.warning(line)
    return line


def _require_alone(ledger: Ledger) -> None:
    for _ in range(WAITS):
        strangers = ledger.strangers()
        if not strangers:
            return
        time.sleep(WAIT_S)
    raise StoreError(
        f"{ledger.path}: is new, while a live process (pid {strangers[0].split('-')[0]}) still spends by the file that was here "
        "before; stop that process, then run again"
    )


def _beside(artifact: Path) -> Path:
    return artifact.with_name(artifact.name + MANIFEST_SUFFIX)


def _require_segments(manifest: Path) -> None:
    """Every segment that the manifest lists is there and not shorter. A later run may have appended to it."""
    raw = read_json(manifest) if manifest.exists() else {}
    files = raw.get("files") if isinstance(raw, dict) else None
    for name, facts in files.items() if isinstance(files, dict) else ():
        path = manifest.parent / name
        if not path.name.startswith("segment-"):
            continue
        found = path.stat().st_size if path.is_file() else -1
        if not isinstance(facts, dict) or not isinstance(facts.get("bytes"), int) or found < facts["bytes"]:
            raise StoreError(
                f"{path}: is missing or shorter than {manifest.name} says, and the ledger is new: what was paid cannot be "
                "counted; restore the segment or ledger.sqlite from a copy, then run again"
            )


def _paid(folder: Path) -> Iterator[WireAnswer]:
    return (a for a in read(folder) if a.source == "openrouter" and (a.cost_usd is None or a.cost_usd > 0))


def _payment(answer: WireAnswer, scope: str, folder: Path) -> Payment:
    if answer.cost_usd is not None:
        return Payment(answer.request_id, scope, to_pico(answer.cost_usd), is_settled=True)
    try:
        return Payment(answer.request_id, scope, to_pico(most_it_could_cost(answer.request)), is_settled=False)
    except ValueError:
        raise StoreError(
            f"{folder}: record {answer.request_id} has no known price and states no max_price, so the lost ledger cannot be "
            "counted again; restore ledger.sqlite from a copy, then run again"
        ) from None
