"""A trained drafter on disk: config.json and model.safetensors, as speculators and SpecForge write them; ours is in speculators' format.

Belongs here: both configurations as one `Shape`, tensor names, what is refused. Does not belong here: the layer (`layer.py`), training.

What is not EAGLE-3 with one dense layer (P-EAGLE, DFlash, MTP, an MLA layer) is refused by name: its forward pass is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3_assets.accept.layer import Drafter, Shape
from eagle3_assets.errors import StateError
from eagle3_assets.store import digest_file, digest_json, write_bytes

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SPECULATORS, SPECFORGE = "Eagle3Speculator", "LlamaForCausalLMEagle3"
LAYER_TYPES = ("llama", "qwen3")
_LEFT_TO_THE_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")  # frozen copies that some savers keep
_INTRODUCED = "t2d"  # follows from d2t


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded drafter. `layers`: E_k numbers that it reads, low to high; None where its config does not say. `xxh3`: over its
    weight files."""

    drafter: Drafter
    layers: tuple[int, ...] | None
    made_by: str
    xxh3: str


def load_checkpoint(folder: Path, embedding: torch.Tensor, *, num_hidden_layers: int) -> Checkpoint:
    """Read `folder`; `embedding` [V, H] is the target's, used where the checkpoint has none of its own. Raises StateError: no drafter of
    EAGLE-3, of another target (vocabulary, hidden size), damaged, tensors that do not fit."""
    raw = _read_config(folder)
    made_by = next((name for name in (SPECULATORS, SPECFORGE) if name in raw.get("architectures", [])), "")
    if raw.get("speculators_model_type") == "eagle3":
        made_by = SPECULATORS
    if not made_by:
        kind = raw.get("speculators_model_type") or ", ".join(raw.get("architectures", [])) or "no architecture"
        raise StateError(
            f"{folder / CONFIG}: describes {kind}; acceptance is computed for EAGLE-3 drafters with a dense layer ({SPECULATORS}, {SPECFORGE})"
        )
    tensors = _read_tensors(folder)
    vocab, hidden = embedding.shape
    try:
        shape, layers = _shape(raw, made_by, tensors, num_hidden_layers)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{folder / CONFIG}: cannot be read as a drafter ({error}); give the folder that the trainer saved"
        ) from None
    if (shape.vocab, shape.target_hidden or shape.hidden) != (vocab, hidden):
        raise StateError(
            f"{folder}: drafts for {shape.vocab:,} ids and hidden size {shape.target_hidden or shape.hidden}, the target has {vocab:,} and "
            f"{hidden}: a drafter of another target"
        )
    offsets = tensors.get("d2t", torch.zeros(shape.draft_vocab, dtype=torch.int64))
    if len(offsets) != shape.draft_vocab:
        raise StateError(
            f"{folder / WEIGHTS}: d2t has {len(offsets):,} ids, its {CONFIG} says draft_vocab_size {shape.draft_vocab:,}; save the checkpoint again"
        )
    drafter = Drafter(shape, offsets)
    state = {name: t for name, t in tensors.items() if name not in (*_LEFT_TO_THE_TARGET, _INTRODUCED)}
    if "embed_tokens.weight" not in state and shape.hidden == hidden:
        state["embed_tokens.weight"] = embedding
    state.setdefault("d2t", drafter.d2t)
    try:
        drafter.load_state_dict({name: t if name == "d2t" else t.float() for name, t in state.items()})
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise StateError(f"{folder / WEIGHTS}: does not fit its own {CONFIG} ({said}); save the checkpoint again") from None
    return Checkpoint(
        drafter.eval().requires_grad_(False), layers, made_by, digest_json([digest_file(f) for f in _files(folder)])
    )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise StateError(
            f"{folder}: holds no {CONFIG}; give the folder that the trainer saved (speculators: .../checkpoint_best)"
        ) from None
    except (OSError, ValueError) as error:
        raise StateError(f"{folder / CONFIG}: cannot be read ({error}); save the checkpoint again") from None
    if not isinstance(raw, dict):
        raise StateError(f"{folder / CONFIG}: is no JSON object; save the checkpoint again")
    return raw


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = _files(folder)
    if not files:
        raise StateError(f"{folder}: holds no .safetensors file; give the folder that the trainer saved")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (OSError, SafetensorError, ValueError) as error:
            raise StateError(f"{file}: cannot be read ({error}); save the checkpoint again") from None
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}  # SpecForge's and EAGLE's name


def _shape(
    raw: Mapping[str, Any], made_by: str, tensors: Mapping[str, torch.Tensor], num_hidden_layers: int
) -> tuple[Shape, tuple[int, ...] | None]:
    from eagle3_assets.states.format.layers import translate_back

    layer = raw["transformer_layer_config"] if made_by == SPECULATORS else raw
    kind, count = layer.get("model_type", "llama"), layer.get("num_hidden_layers", 1)
    if kind not in LAYER_TYPES:
        raise ValueError(f"its layer is of type {kind!r}, expected one of {', '.join(LAYER_TYPES)}")
    if count != 1:
        raise ValueError(f"it has {count} layers, expected 1")
    if layer.get("attention_bias") or layer.get("mlp_bias"):
        raise ValueError("its projections have biases, expected none")
    if made_by == SPECFORGE and not raw.get("norm_output", True):
        raise ValueError("norm_output is false: a head without the norm before it is not supported")
    heads = int(layer["num_attention_heads"])
    ids = raw.get("eagle_aux_hidden_state_layer_ids") if made_by == SPECULATORS else None
    if made_by == SPECFORGE:
        ids = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    numbering = "speculators" if made_by == SPECULATORS else "specforge"
    layers = tuple(translate_back(ids, of=numbering, num_hidden_layers=num_hidden_layers)) if ids else None
    hidden = int(layer["hidden_size"])
    target_hidden = int(raw.get("target_hidden_size") or hidden)
    rope = layer.get("rope_parameters") or {
        "rope_type": "default", "rope_theta": layer.get("rope_theta", 10_000.0), **(layer.get("rope_scaling") or {}),
    }  # fmt: skip
    sliding = "sliding_attention" in (layer.get("layer_types") or [])
    shape = Shape(
        hidden=hidden,
        target_hidden=target_hidden,
        intermediate=int(layer["intermediate_size"]),
        heads=heads,
        kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // heads),
        vocab=int(layer["vocab_size"]),
        draft_vocab=int(raw.get("draft_vocab_size") or layer["vocab_size"]),
        aux=tensors["fc.weight"].shape[1] // target_hidden,
        eps=float(layer.get("rms_norm_eps", 1e-6)),
        rope=dict(rope),
        max_positions=int(layer.get("max_position_embeddings") or 2048),
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        norm_before_fc=bool(raw.get("norm_before_fc", False)),
        fc_norm=bool(raw.get("fc_norm", False)),
        norm_output=made_by == SPECULATORS and bool(raw.get("norm_output", False)),
        query_norm=kind == "qwen3",
        window=int(layer["sliding_window"]) if sliding and layer.get("sliding_window") else None,
    )
    return shape, layers


def save_checkpoint(folder: Path, drafter: Drafter, *, layers: tuple[int, ...], verifier: Mapping[str, Any], tokens: int) -> None:
    """Write a drafter of ours so that speculators and vLLM read it. `verifier`: architectures and name of the target; `tokens`: drafts a
    verification that it was trained for."""
    from safetensors.torch import save

    s = drafter.shape
    layer = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": s.hidden, "intermediate_size": s.intermediate,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "num_hidden_layers": 1,
        "vocab_size": s.vocab, "rms_norm_eps": s.eps, "rope_parameters": s.rope, "max_position_embeddings": s.max_positions,
        "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    config = {
        "architectures": [SPECULATORS],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": dict(verifier),
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": s.draft_vocab,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "norm_before_residual": s.norm_before_residual,
        "norm_before_fc": s.norm_before_fc,
        "fc_norm": s.fc_norm,
        "norm_output": s.norm_output,
        "target_hidden_size": s.target_hidden,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }  # fmt: skip
    state = {name: t.contiguous().cpu() for name, t in drafter.state_dict().items()}
    state["t2d"] = (drafter.inverse < s.draft_vocab).cpu()
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS, save(state, metadata={"format": "pt"}))
    write_bytes(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
