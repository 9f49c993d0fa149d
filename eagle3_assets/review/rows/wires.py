"""What came over the wire for each row of a tokens table: the second input of the invariants, beside the rows.

Belongs here: `Wire` and lining answers up with rows. Does not belong here: judging (`row_invariants.py`, `content.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.review.rows.content import packed_ratio
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.wire_answer import WireAnswer


@dataclass(frozen=True)
class Wire:
    """One answer as it came. `sha256` is of the body's bytes, `seconds` from request to last byte, `provider` and `model` as the
    journal names them (the body's own are in `fields`)."""

    fields: Fields
    request: Mapping[str, Any]
    attempt: int
    sha256: str
    provider: str | None
    model: str | None
    seconds: float

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text that the model wrote: reasoning, content, then names and arguments of calls."""
        calls = (text for call in self.fields.tool_calls for text in (call.name, call.arguments))
        return (self.fields.reasoning or "", self.fields.content or "", *calls)

    @cached_property
    def packed(self) -> float:
        """The smallest packed share of any window of any text: two limits are held against it, and packing is dear."""
        return min(map(packed_ratio, self.texts))


def wires_of(columns: Columns, answers: Iterable[WireAnswer]) -> list[Wire | None]:
    """The answer behind each row, None where the journal holds no such attempt."""
    keys = zip(columns.sample_ids, columns.integers("turn").tolist(), columns.integers("attempt").tolist(), strict=True)
    wanted = {key: i for i, key in enumerate(keys)}
    out: list[Wire | None] = [None] * len(columns)
    for answer in answers:
        place = wanted.get((answer.sample_id, answer.turn, answer.attempt))
        if place is not None and answer.outcome == "finished":
            out[place] = wire_of(answer)
    return out


def wire_of(answer: WireAnswer) -> Wire:
    return Wire(
        fields=answer.fields,
        request=answer.request,
        attempt=answer.attempt,
        sha256=answer.body_sha256,
        provider=answer.provider,
        model=answer.model,
        seconds=max(0.0, answer.finished_at - answer.started_at),
    )
