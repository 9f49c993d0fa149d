"""The target model's head alone: stored final states in, logits out, a chunk at a time. Any engine's states will do.

Belongs here: finding the head's weight in the checkpoint, running it over a row. Does not belong here: what the logits say
(`on_policy.py`), the layers below (`extractors/`).

Memory: the head (V x H in the target's dtype: 2.35 GB for Kimi K2.5 in bf16) and CHUNK_VALUES logits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.token_figures import Scores, token_scores
from eagle3_assets.states.target.weights import weights_folder

if TYPE_CHECKING:
    import torch

HEADS = ("lm_head.weight", "language_model.lm_head.weight")  # text models; Kimi K2.5 and other wrappers
TIED = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
CHUNK_VALUES = 1 << 26  # logits in flight: 256 MiB in fp32


@dataclass(frozen=True, slots=True)
class TargetHead:
    """`weight` [V, H] on the device that scores; `norm` is the final norm that stands before it."""

    weight: torch.Tensor
    norm: FinalNorm

    def logits(self, prenorm: torch.Tensor) -> torch.Tensor:
        """[..., V] fp32 logits of pre-norm final states [..., H]: normed in fp32, multiplied in the head's dtype."""
        import torch

        hidden = self.norm.apply(prenorm.to(self.weight.device, torch.float32)).to(self.weight.dtype)
        return (hidden @ self.weight.T).to(torch.float32)

    def score(
        self,
        prenorm: torch.Tensor,
        ids: npt.NDArray[np.int64],
        loss_mask: npt.NDArray[np.uint8],
        *,
        temperature: float,
        top_p: float,
    ) -> Scores:
        """Figures of the generated ids of one row. `prenorm` [T, H] final states, `ids` [T], `loss_mask` [T] (1 on generated ids).

        The state at t - 1 predicts the id at t; a generated id at place 0 has no predictor and is left out.
        """
        import torch

        positions = np.flatnonzero(np.asarray(loss_mask[1:])).astype(np.int32) + 1
        wanted = torch.from_numpy(np.asarray(ids, dtype=np.int64)[positions]).to(self.weight.device)
        rows = max(1, CHUNK_VALUES // self.weight.shape[0])
        pieces: list[dict[str, torch.Tensor]] = []
        with torch.inference_mode():
            for a in range(0, len(positions), rows):
                places = torch.from_numpy(positions[a : a + rows].astype(np.int64) - 1)
                logits = self.logits(prenorm[places])
                pieces.append(token_scores(logits, wanted[a : a + rows], temperature=temperature, top_p=top_p))
        return Scores(positions.astype(np.int32), **_joined(pieces))


def _joined(pieces: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    from eagle3_assets.states.target.token_figures import TILTS

    if not pieces:
        empty = np.zeros(0, dtype=np.float32)
        names = ("logprob", "log_q", "entropy", "variance", "mass_above")
        return {**dict.fromkeys(names, empty), "tilts": np.zeros((0, len(TILTS)), dtype=np.float32)}
    return {name: np.concatenate([piece[name].to("cpu").numpy() for piece in pieces]) for name in pieces[0]}


def load_head(campaign: Campaign, norm: FinalNorm, device: str | None = None, folder: Path | None = None) -> TargetHead:
    """The head of `target.weights` (or of `folder`, a checkpoint too), in the target's dtype, on `device` (default: extraction.device). Only
    that tensor is read.

    Raises StateError where the checkpoint holds none.
    """
    import torch

    folder = folder or weights_folder(campaign)
    where = files_by_tensor(folder)
    names = [n for n in HEADS if n in where] or [n for n in TIED if n in where and is_tied(folder)]
    if not names:
        raise StateError(
            f"{folder}: holds no head (looked for {', '.join(HEADS)}, or tied embeddings); the model's verdict needs one: "
            "set extraction.verdict_share = 0 to go without"
        )
    weight = _read_matrix(campaign, where, names[0])
    dtype: torch.dtype = getattr(torch, campaign.target.dtype)
    return TargetHead(weight.to(device or campaign.extraction.device, dtype), norm)


def load_embedding(campaign: Campaign, folder: Path | None = None) -> torch.Tensor:
    """[V, H] float32 of `target.weights`, or of `folder`. Raises StateError where the checkpoint holds none."""
    folder = folder or weights_folder(campaign)
    where = files_by_tensor(folder)
    for name in TIED:
        if name in where:
            return _read_matrix(campaign, where, name).float()
    raise StateError(f"{folder}: holds no embedding (looked for {', '.join(TIED)}); give the whole checkpoint as target.weights")


def _read_matrix(campaign: Campaign, where: dict[str, Path], name: str) -> torch.Tensor:
    weight = read_tensor(where[name], name)
    if weight.ndim != 2 or weight.shape[1] != campaign.target.hidden_size:
        raise StateError(f"{where[name]}: {name} has shape {tuple(weight.shape)}, expected (V, {campaign.target.hidden_size})")
    if not weight.dtype.is_floating_point:
        raise StateError(f"{where[name]}: {name} is {weight.dtype}: a quantised head or embedding is not supported")
    return weight


def files_by_tensor(folder: Path) -> dict[str, Path]:
    from safetensors import SafetensorError, safe_open

    found: dict[str, Path] = {}
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            return {name: folder / file for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as handle:
                found.update(dict.fromkeys(handle.keys(), file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise StateError(f"{folder}: its safetensors files cannot be read ({error}); fetch the weights again") from None
    return found


def is_tied(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(f"{folder / 'config.json'}: cannot be read ({error}); fetch the weights again") from None
    return bool({**config, **config.get("text_config", {})}.get("tie_word_embeddings", False))


def read_tensor(file: Path, name: str) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as handle:
            tensor: torch.Tensor = handle.get_tensor(name)
            return tensor
    except (OSError, SafetensorError) as error:
        raise StateError(f"{file}: cannot be read ({error}); fetch the weights again") from None
