"""`Reconstruction`: ids with their evidence. Only the type lives here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The ids that the evidence supports best.

    `input_ids` = prompt ids as the server saw them, then response ids; `loss_spans` half-open spans of ids that the target
    generated (unshifted); `survivors` the other full id sequences that the evidence leaves open; `residual` rebuilt minus billed
    {prompt, completion, reasoning}, None where nothing was billed; `hypotheses` {tried, surviving, distinct}.
    """

    input_ids: tuple[int, ...]
    prompt_len: int
    loss_spans: tuple[tuple[int, int], ...]
    grade: str
    p_exact: float
    p_basis: str
    residual: dict[str, int | None]
    hypotheses: dict[str, int]
    reasons: tuple[str, ...] = ()
    survivors: tuple[tuple[int, ...], ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
