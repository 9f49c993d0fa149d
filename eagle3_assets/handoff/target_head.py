"""`handoff/target_head`: all that a trainer needs of the target beside its states: head, embedding, final norm and a flat configuration.

Belongs here: picking these three tensors out of a checkpoint, under the names of a plain text model, and the configuration that goes with them.
Does not belong here: states, rows, the drafter's own shape (`recipes.py`).

4.7 GB in place of 595 for Kimi K2.5, and no key names to know: wrappers (`language_model.`, `model.language_model.`) and nested configurations
(`text_config`) are flat here. Both trainers take the folder as their target: speculators looks tensors up by their suffix, SpecForge's TargetHead
by `lm_head.weight` in an index file (it refuses a checkpoint without one).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.swap import replaced_folder
from eagle3_assets.errors import StateError
from eagle3_assets.states.target.target_head import HEADS, TIED, files_by_tensor, is_tied, read_tensor
from eagle3_assets.states.target.weights import model_fingerprint, weights_folder
from eagle3_assets.store import Manifest, Store, commit, is_current, read_json

NAME: Final = "target_head"
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
NORMS: Final = ("model.norm.weight", "language_model.model.norm.weight", "model.language_model.norm.weight")
VERSION: Final = 1
# of a configuration: what belongs to the whole checkpoint or to code that nobody runs here
LEFT_OUT: Final = ("auto_map", "quantization_config", "vision_config", "text_config", "_name_or_path", "tie_word_embeddings")
# model types that transformers only knows by remote code, and the class of its own that has the same configuration (Moonshot's K2 and K2.5
# text models are DeepSeek-V3 with other sizes: their config.json's auto_map points to a copy of that class)
SAME_AS: Final[Mapping[str, str]] = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}
ARCHITECTURES: Final[Mapping[str, str]] = {"deepseek_v3": "DeepseekV3ForCausalLM"}


def write_target_head(campaign: Campaign, store: Store) -> Manifest:
    """Write the folder unless it is current; returns its manifest. Raises StateError where the checkpoint lacks one of the tensors."""
    target = store.handoff(NAME)
    inputs = {"code": VERSION, "model": model_fingerprint(campaign)}
    if (current := is_current(target, inputs)) is not None:
        return current
    source = weights_folder(campaign)
    where = files_by_tensor(source)
    embedding = _named(source, where, TIED, "an embedding")
    head = embedding if is_tied(source) and not any(name in where for name in HEADS) else _named(source, where, HEADS, "a head")
    names = {HEAD: head, EMBEDDING: embedding, NORM: _named(source, where, NORMS, "a final norm")}
    with replaced_folder(target) as folder:
        _write_tensors(folder, {name: read_tensor(where[found], found) for name, found in names.items()})
        config = flat_config(json.loads((source / CONFIG).read_bytes()))
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    size = (target / WEIGHTS).stat().st_size
    return commit(target, files=sorted(target.iterdir()), inputs=inputs, numbers={"bytes": size, "taken_from": names})


def _named(source: Path, where: Mapping[str, Path], names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in where:
            return name
    raise StateError(
        f"{source}: holds {what} under none of the names {', '.join(names)}; give the whole checkpoint as target.weights"
    )


def _write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    for name, tensor in tensors.items():
        if not tensor.dtype.is_floating_point:
            raise StateError(f"{name} of the target is {tensor.dtype}: a quantised head or embedding cannot be handed on")
    # a tied head is written twice: a trainer that looks for it must find it
    save_file({name: t.clone().contiguous() for name, t in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(tensors, WEIGHTS)}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's configuration alone, under a model type that transformers knows without remote code."""
    text = {**config, **(config.get("text_config") or {})}
    flat = {name: value for name, value in text.items() if name not in LEFT_OUT}
    flat["model_type"] = SAME_AS.get(flat["model_type"], flat["model_type"])
    known = ARCHITECTURES.get(flat["model_type"])
    flat["architectures"] = [known] if known else flat.get("architectures", [])
    flat["tie_word_embeddings"] = False
    return flat


def read_config(store: Store) -> dict[str, Any]:
    """The flat configuration of the committed folder. Raises StoreError where it is missing or damaged."""
    config: dict[str, Any] = read_json(store.handoff(NAME) / CONFIG, otherwise="materialize the hand-off again")
    return config


def target_folder(campaign: Campaign, store: Store) -> Path:
    """Where head and embedding of the target are read: the hand-off's folder where it is current, else the checkpoint itself."""
    folder = store.handoff(NAME)
    current = is_current(folder, {"code": VERSION, "model": model_fingerprint(campaign)})
    return folder if current is not None else weights_folder(campaign)
