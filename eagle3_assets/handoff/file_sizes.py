"""How large the trainers' own files of hidden states would be: known from rows and tokens, before anything is written.

Belongs here: that arithmetic (the plan asks it too, so nothing heavy is imported). Does not belong here: writing (`state_files.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from eagle3_assets.campaign import Campaign

# Bytes beside the vectors: a token (ids and mask), a file (header, archive). Measured on files of both kinds; a test holds it to 3 %.
OVERHEAD: Mapping[str, tuple[int, int]] = {"speculators": (8, 160), "specforge": (16, 2400)}
_VECTORS, _BYTES = 4, {"bfloat16": 2, "float32": 4}


def export_bytes(campaign: Campaign, *, rows: int, tokens: int, trainer: str) -> int:
    """Bytes of one trainer's own files ("speculators" or "specforge") over so many rows and tokens: three layers and the final state of
    each token, ids, mask, headers. They are written only where `[handoff] files` names the trainer."""
    a_token, a_row = OVERHEAD[trainer]
    return tokens * (_VECTORS * campaign.target.hidden_size * _BYTES[campaign.extraction.dtype] + a_token) + rows * a_row
