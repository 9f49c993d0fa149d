"""`Pack`: one corpus row as the next rooms see it. Only the type lives here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Pack:
    """One training row. `input_ids` uint32 [length] and `loss_mask` uint8 [length] (unshifted) may be views of a mapped file.

    `split` is "train" or "validation". A `truncated` row was cut at corpus.max_length: its last id ends nothing.
    """

    index: int
    sample_id: str
    turn: int
    dataset: str
    grade: str
    part: str
    input_ids: npt.NDArray[np.uint32]
    loss_mask: npt.NDArray[np.uint8]
    split: str = "train"
    truncated: bool = False
