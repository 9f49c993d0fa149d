"""What a model folder says without loading the model: sizes from config.json, the final norm, a reference of its first layers.

Belongs here: facts for engines whose model is in another process. Does not belong here: the folder's place (`weights.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.weights import weights_folder

if TYPE_CHECKING:
    import torch

# Llama, Qwen3, DeepSeek-V3; Kimi K2.5 and other wrappers; a checkpoint of the base model alone
NORMS = (
    "model.norm.weight",
    "language_model.model.norm.weight",
    "model.language_model.norm.weight",
    "language_model.norm.weight",
    "norm.weight",
)


def text_config(campaign: Campaign) -> dict[str, Any]:
    """config.json, or its `text_config` where the text model is one of several. Raises StateError."""
    path = weights_folder(campaign) / "config.json"
    try:
        config = json.loads(path.read_bytes())
        text: dict[str, Any] = config.get("text_config") or config
        for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
            if not isinstance(text[key], int):
                raise ValueError(f"{key} = {text[key]!r}")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise StateError(
            f"{path}: does not state the model's sizes ({error!r}); expected a config.json of transformers"
        ) from None
    return text


def read_final_norm(campaign: Campaign) -> FinalNorm:
    """The final norm's weight from the safetensors files and its epsilon from config.json. Raises StateError."""
    import torch
    from safetensors import SafetensorError, safe_open

    folder, eps = weights_folder(campaign), text_config(campaign).get("rms_norm_eps")
    if not isinstance(eps, float | int):
        raise StateError(f"{folder / 'config.json'}: rms_norm_eps = {eps!r}; expected the epsilon of an RMS norm as final norm")
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as handle:
                for name in NORMS:
                    if name in handle.keys():  # noqa: SIM118 (no container)
                        weight = handle.get_tensor(name).to(torch.float32).numpy()
                        return FinalNorm(np.ascontiguousarray(weight), float(eps))
        except (OSError, SafetensorError) as error:
            raise StateError(f"{file}: cannot be read ({error})") from None
    raise StateError(f"{folder}: none of its safetensors files holds the final norm ({', '.join(NORMS)})")


def _files(folder: Path) -> list[Path]:
    """The weight files, those first that the index names for a norm (a large checkpoint has a hundred)."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return [folder / table[name] for name in NORMS if name in table]
    return sorted(folder.glob("*.safetensors"))


def reference_of_first_layers(campaign: Campaign, ids: tuple[int, ...], layers: int) -> torch.Tensor:
    """[layers, T, H] fp32: E_0 .. E_(layers-1) of one row, by transformers with only that many decoder layers loaded (on the CPU)."""
    import torch
    from transformers import AutoConfig, AutoModel

    from eagle3_assets.states.extractors.loading import find_text_model

    folder = weights_folder(campaign)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        (getattr(config, "text_config", None) or config).num_hidden_layers = layers
        model = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, campaign.target.dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise StateError(f"{folder}: its first {layers} layers cannot be loaded for the self-test ({reason})") from None
    with torch.inference_mode():
        output: Any = find_text_model(model.eval())(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return torch.stack([h[0].float() for h in output.hidden_states[:layers]])  # the last one of all is post-norm: not among them
