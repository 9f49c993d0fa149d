"""The target's final norm, stored beside the states: post-norm states are made at export (the way back does not exist).

Belongs here: the type, its file `final_norm.safetensors`, applying it, and recognising states that have been through it already.
Does not belong here: which trainer wants it (`layers.NUMBERINGS`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3_assets.errors import StateError
from eagle3_assets.store import write_bytes

if TYPE_CHECKING:
    import torch

FILE_NAME = "final_norm.safetensors"
KIND = "rms"
POSTNORM_RMS = 2e-2  # |rms(h / w) - 1| of a normed token: 0 in exact arithmetic, a few 1e-3 after bf16 rounding


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """RMS norm: y = w * x / sqrt(mean(x^2) + eps). `weight` fp32 [H] (widened from the model's dtype, without loss)."""

    weight: npt.NDArray[np.float32]
    eps: float

    def apply(self, states: torch.Tensor) -> torch.Tensor:
        """Post-norm states [..., H]: computed in fp32, cast back to the dtype of `states` (as Llama, Qwen3, DeepSeek-V3 do)."""
        import torch

        x = states.to(torch.float32)
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = torch.from_numpy(self.weight).to(states.device)
        return (weight * normed.to(states.dtype)).to(states.dtype)


def save_final_norm(path: Path, norm: FinalNorm) -> None:
    """Atomically write the file; equal norms give equal bytes."""
    from safetensors.numpy import save

    # one key: the library writes several in an order of its own, and the bytes would differ from run to run
    metadata = {"final_norm": json.dumps({"kind": KIND, "eps": norm.eps})}
    write_bytes(path, save({"weight": np.ascontiguousarray(norm.weight, dtype=np.float32)}, metadata=metadata))


def load_final_norm(path: Path) -> FinalNorm:
    """Read the file. Raises StateError naming it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as handle:
            facts, weight = json.loads((handle.metadata() or {})["final_norm"]), handle.get_tensor("weight")
        if facts["kind"] != KIND:
            raise StateError(f"{path}: final norm of kind {facts['kind']!r}, expected {KIND!r}; extract these states again")
        return FinalNorm(weight, float(facts["eps"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: cannot be read ({error}); extract these states again") from None


def normed_share(states: npt.NDArray[np.float32], norm: FinalNorm) -> float:
    """Share of tokens of `states` [T, H] that look post-norm: divided by the weight, their root mean square is 1.

    A pre-norm state has no reason to be there; near 1.0 over many tokens means the states went through the norm already.
    """
    weight = np.abs(norm.weight)
    solid = weight > 1e-3 * weight.max()  # dividing by a dead channel only amplifies rounding
    if not solid.any() or not len(states):
        return 0.0
    rms = np.sqrt(np.mean((states[:, solid] / norm.weight[solid]) ** 2, axis=-1))
    return float(np.mean(np.abs(rms - 1.0) < POSTNORM_RMS))
