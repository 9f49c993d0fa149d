"""Loading the target as a transformers base model: no head, no random weights, on one device or over several.

Belongs here: from a folder to a model that is where it should be. Does not belong here: where the folder is (`weights.py`),
running the model (`transformers.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.target.weights import EMBEDDED, weights_folder

if TYPE_CHECKING:
    import torch

# Where the text model (with `layers` and `norm`) sits in what AutoModel returns: found by path, not by class.
# "" Llama, Qwen3, DeepSeek-V3; "language_model" Kimi K2.5, LLaVA, Qwen-VL; the rest: the same inside a ...ForCausalLM.
TEXT_MODEL_PATHS = (
    "",
    "language_model",
    "model",
    "model.language_model",
    "language_model.model",
    "text_model",
    "model.text_model",
)


def find_text_model(model: torch.nn.Module) -> torch.nn.Module:
    """The module that owns `layers` and `norm`. Raises StateError naming what was looked for."""
    import torch

    for path in TEXT_MODEL_PATHS:
        with contextlib.suppress(AttributeError):
            module = model.get_submodule(path)
            if isinstance(getattr(module, "layers", None), torch.nn.ModuleList) and isinstance(
                getattr(module, "norm", None), torch.nn.Module
            ):
                return module
    paths = ", ".join(p or "(itself)" for p in TEXT_MODEL_PATHS)
    raise StateError(
        f"{type(model).__name__}: found no module with `layers` and `norm` at {paths}; "
        "this architecture is not supported by the transformers engine"
    )


def load_text_model(campaign: Campaign) -> tuple[torch.nn.Module, str | None]:
    """(text model on its device or devices, revision). `revision` is a hub snapshot's commit, None for a folder. Raises StateError."""
    import torch
    from transformers import AutoModel

    dtype: torch.dtype = getattr(torch, campaign.target.dtype)
    folder = weights_folder(campaign)
    where = f"{campaign.path}: target.weights = {campaign.target.weights!r}"
    try:
        # AutoModel is the base model: an lm_head in the checkpoint is not read into memory
        with _quiet_report(progress=campaign.target.weights != EMBEDDED):
            model, info = AutoModel.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise StateError(f"{where}: {folder} cannot be loaded as a transformers model ({reason})") from None
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise StateError(
            f"{where}: {folder} lacks {len(missing)} tensors, e.g. {missing[0]}: transformers would invent them at random"
        )
    text = find_text_model(model).eval()
    devices = campaign.extraction.all_devices
    try:
        spread(text, devices)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise StateError(
            f"{campaign.path}: extraction.device = {', '.join(devices)!r} cannot be used "
            f"({str(error).splitlines()[0]}); use 'cpu' or a device that this torch build sees"
        ) from None
    return text, folder.name if folder.parent.name == "snapshots" else None


def split_layers(count: int, devices: Sequence[str]) -> list[str]:
    """The device of each decoder layer: contiguous blocks, as even as can be."""
    return [devices[k * len(devices) // count] for k in range(count)]


def spread(model: Any, devices: Sequence[str]) -> None:
    """Move a text model to `devices`: embedding and first block of layers on the first, last block and norm on the last.

    Layers behind the first device get a pre-hook which brings their inputs over, as a pipeline of one micro-batch does.
    """
    if len(devices) == 1:
        model.to(devices[0])
        return
    if len(set(devices)) != len(devices) or len(devices) > len(model.layers):
        raise ValueError(f"{len(devices)} devices for {len(model.layers)} layers: each once, and not more than layers")
    model.to(devices[0])
    places = split_layers(len(model.layers), devices)
    for layer, device in zip(model.layers, places, strict=True):
        layer.to(device)
        if device != devices[0]:  # positions are made on the first device and handed to every layer
            layer.register_forward_pre_hook(_bring_to(device), with_kwargs=True, prepend=True)
    model.norm.to(devices[-1])


def _bring_to(device: str) -> Any:
    import torch

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        if isinstance(value, tuple):
            return tuple(move(v) for v in value)
        return value

    def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(move(a) for a in args), {name: move(value) for name, value in kwargs.items()}

    return hook


@contextlib.contextmanager
def _quiet_report(*, progress: bool) -> Iterator[None]:
    """No report of the head that is left out on purpose (what is missing is checked here); no bar for eight megabytes."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not progress:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def require_target(campaign: Campaign, facts: dict[str, Any]) -> None:
    """The loaded model is the one that `[target]` states. Raises StateError."""
    target = campaign.target
    for key in ("num_hidden_layers", "hidden_size"):
        if facts[key] != getattr(target, key):
            raise StateError(
                f"{campaign.path}: target.{key} = {getattr(target, key)}, but the model at target.weights = {target.weights!r} "
                f"has {facts[key]}; one of the two is another model"
            )
    if facts["vocab_size"] < target.vocab_size:
        raise StateError(
            f"{campaign.path}: target.vocab_size = {target.vocab_size}, but the model at target.weights = {target.weights!r} "
            f"embeds only {facts['vocab_size']} ids; one of the two is another model"
        )
