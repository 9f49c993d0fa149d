"""`speculators train --hidden-states-backend eagle3`: our parts, read in place, through the package's own registry of transfers.

Runs inside the trainer's environment (numpy, torch, datasets, hs_connectors; this repository on PYTHONPATH). Importing it registers
the backend; `python -m eagle3_assets.handoff.train_speculators` does that before it hands over to the package.

Belongs here: `HiddenStatesTransfer` and its backend. Does not belong here: reading (`mapped_rows.py`), writing (`speculators_export.py`).

The slots are E_low, E_mid, E_high, final before the norm: the order and the norm that speculators expects (its numbering is ours).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from eagle3_assets.errors import StateError
from eagle3_assets.handoff.mapped_rows import TABLE_FILE, MappedRows

BACKEND = "eagle3"


class Eagle3Transfer(HiddenStatesTransfer):
    """Row i of the Arrow dataset in `data_path` with its states. Raises StateError where ids or mask of the two differ: the package
    itself would only warn, and train without the row."""

    def __init__(self, data_path: str | Path) -> None:
        self.data_path = Path(data_path)
        self.rows = MappedRows(self.data_path)
        self._dataset: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Eagle3Transfer, (self.data_path,)

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor] | None:
        """{"hidden_states" [T, 4, H] (a view of the mapped part), "token_ids" int64 [T]}."""
        from datasets import load_from_disk

        if self._dataset is None:
            self._dataset = load_from_disk(str(self.data_path)).with_format("numpy")
            if len(self._dataset) != len(self.rows):
                raise StateError(f"{self.data_path}: {len(self._dataset)} rows of Arrow, but {len(self.rows)} in {TABLE_FILE}")
        row, wanted = self.rows[file_idx], self._dataset[file_idx]
        for name, found in (("input_ids", row.input_ids), ("loss_mask", row.loss_mask)):
            if not np.array_equal(found, wanted[name]):
                raise StateError(
                    f"{self.data_path}: row {file_idx} ({row.sample_id} turn {row.turn}) has another {name} in Arrow than its states "
                    "have: one of the two was made again; materialize this hand-off again"
                )
        return {"hidden_states": row.hidden_states, "token_ids": torch.from_numpy(row.input_ids.astype(np.int64))}

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        raise StateError("the eagle3 backend reads stored states and generates none; train with --on-missing raise")


@HiddenStatesBackend.register(BACKEND)
class Eagle3Backend(HiddenStatesBackend):
    """No arguments of its own: `--data-path` is the hand-off's folder, $EAGLE3_STATES the states when they lie elsewhere."""

    @staticmethod
    def add_train_args(parser: Any) -> None:
        pass

    @staticmethod
    def add_launch_args(parser: Any) -> None:
        pass

    @staticmethod
    def from_train_args(args: Any, data_path: str) -> Eagle3Transfer:
        return Eagle3Transfer(data_path)

    @staticmethod
    def build_kv_transfer_config(args: Any) -> dict[str, Any]:
        raise StateError("the eagle3 backend reads stored states: no vLLM is launched for it")
