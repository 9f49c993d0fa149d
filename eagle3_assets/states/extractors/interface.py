"""`Extractor`: what every extraction engine must do, and `Captured`: what it gives back.

Belongs here: the contract. Does not belong here: an engine, batching, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from eagle3_assets.states.format.final_norm import FinalNorm


@dataclass(frozen=True, slots=True)
class Captured:
    """One row. `states` [T, L+1, H] on the CPU in the stored dtype (bf16 or fp32): E_k in the order asked, then the final one.

    `input_ids` are the ids the engine says it ran, length T: compared with what was sent, never trusted.
    """

    states: torch.Tensor
    input_ids: tuple[int, ...]


@runtime_checkable
class Extractor(Protocol):
    """An engine with a loaded model. All methods raise StateError with one line."""

    def describe(self) -> dict[str, Any]:
        """Plain JSON: engine, model, revision, fingerprint, dtype, num_hidden_layers (N), hidden_size (H), vocab_size, attention,
        device, batching, versions."""
        ...

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        """One `Captured` a list, in the order given. `layers` are E_k numbers (see `layers.py`)."""
        ...

    def reference_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[N+1, T, H] fp32: all of transformers' `hidden_states` of one row, by another way than `capture`.

        The yardstick of the self-test.
        """
        ...

    def final_norm(self) -> FinalNorm:
        """The model's final norm, which is stored with the states."""
        ...

    def close(self) -> None:
        """Free the model. Further calls are a mistake."""
        ...
