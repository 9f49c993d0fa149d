"""One part as a piece of work, and who does it: an engine in this process, or a pool of workers elsewhere.

Belongs here: `PartJob`, `PartWriter` (what `partition.py` asks of either), doing a job with an engine.
Does not belong here: which parts there are (`partition.py`), the pool (`extractors/ray_pool.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.capture import ahead, capture_rows
from eagle3_assets.states.extractors.interface import Extractor
from eagle3_assets.states.extractors.self_test import run_self_test
from eagle3_assets.states.format.disk import require_low_water
from eagle3_assets.states.format.part import PartSpec, write_part
from eagle3_assets.states.format.state_part import StatePart

if TYPE_CHECKING:
    import torch

    from eagle3_assets.states.format.final_norm import FinalNorm

WINDOW_BATCHES = 4  # rows reach an engine that pads in windows of this many batches, so that it can sort them by length
ROWS_AHEAD = 64


@dataclass(frozen=True, slots=True)
class PartJob:
    """Everything that one part needs but an engine. Plain values: it may travel to another process.

    `allowed_missing`: rows that may be left out before the job gives up. `batch_tokens`: as the campaign says.
    """

    number: int
    path: Path
    spec: PartSpec
    packs: Sequence[Pack]
    fingerprint: str
    batch_tokens: int
    low_water_bytes: int
    allowed_missing: int


Report = Callable[[int], None]


def job_tokens(job: PartJob) -> int:
    """Tokens of a part as planned."""
    return sum(len(pack.input_ids) for pack in job.packs)


class PartWriter(Protocol):
    """Who writes parts. All methods raise StateError with one line."""

    def describe(self) -> dict[str, Any]:
        """As `Extractor.describe`."""
        ...

    def prove(self, layers: Sequence[int], stored_dtype: str) -> dict[str, Any]:
        """The self-test's figures; raises StateError where an engine fails it. Nothing is written before this."""
        ...

    def final_norm(self) -> FinalNorm:
        """As `Extractor.final_norm`."""
        ...

    def write_parts(self, jobs: Sequence[PartJob], report: Report) -> Iterator[tuple[int, StatePart]]:
        """(number, part) of each job as it is committed, in any order; `report` gets tokens as they come."""
        ...

    def close(self) -> None:
        """Free models and workers."""
        ...


class InProcess:
    """A `PartWriter` over an engine in this process: one part after the other."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor

    def describe(self) -> dict[str, Any]:
        """See `PartWriter.describe`."""
        return self._extractor.describe()

    def prove(self, layers: Sequence[int], stored_dtype: str) -> dict[str, Any]:
        """See `PartWriter.prove`."""
        return run_self_test(self._extractor, layers, stored_dtype)

    def final_norm(self) -> FinalNorm:
        """See `PartWriter.final_norm`."""
        return self._extractor.final_norm()

    def write_parts(self, jobs: Sequence[PartJob], report: Report) -> Iterator[tuple[int, StatePart]]:
        """See `PartWriter.write_parts`."""
        for job in jobs:
            yield job.number, write_job(self._extractor, job, report)

    def close(self) -> None:
        """See `PartWriter.close`."""
        self._extractor.close()


def write_job(extractor: Extractor, job: PartJob, report: Report) -> StatePart:
    """Capture the job's rows and commit its part. Raises StateError, StoreError (full disk)."""
    facts = extractor.describe()
    if facts["fingerprint"] != job.spec.model_fingerprint:
        raise StateError(
            f"hidden_states {job.spec.shard}: the engine holds model {facts['fingerprint']}, expected {job.spec.model_fingerprint}: "
            "the weights changed, or another machine has other ones"
        )
    window = facts.get("window_tokens") or WINDOW_BATCHES * job.batch_tokens

    def guard() -> None:
        require_low_water(job.path.parent, job.low_water_bytes)

    captured = capture_rows(extractor, job.spec, job.packs, window, guard)
    # On a CPU a thread ahead would only take the cores from the model
    states = captured if facts["device"] == "cpu" else ahead(captured, ROWS_AHEAD)
    return write_part(job.path, job.spec, job.packs, _watched(states, job, report), job.fingerprint)


def _watched(states: Iterator[torch.Tensor | str], job: PartJob, report: Report) -> Iterator[torch.Tensor | str]:
    """The same, reporting each row, and giving up when too many are left out."""
    missing: list[str] = []
    for pack, row in zip(job.packs, states, strict=True):
        if isinstance(row, str):
            missing.append(f"{pack.sample_id} turn {pack.turn}: {row}")
            if len(missing) > job.allowed_missing:
                raise StateError(
                    f"hidden_states {job.spec.shard}: {len(missing)} rows are not finite, {job.allowed_missing} may be left out; the last "
                    f"is {missing[-1]}; look at the model's dtype and at these rows"
                )
        yield row
        report(len(pack.input_ids))
