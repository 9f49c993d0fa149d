"""The `transformers` engine: the target in this process, pre-hooks on exactly the modules whose input is wanted.

Belongs here: loading the base model (no lm_head, no logits, no cache), finding its decoder layers and final norm, capturing.
Does not belong here: files, judging the result (`self_test.py`), other engines.

Measured against `output_hidden_states=True` with logits: 37 MB instead of 332 MB above the model, 1.7-2.1 x the tokens
a CPU second (hidden-states.md, sections 1 and 2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.interface import Captured
from eagle3_assets.states.final_norm import FinalNorm
from eagle3_assets.states.layers import check_layers
from eagle3_assets.states.weights import EMBEDDED, model_fingerprint, weights_folder

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


class TransformersExtractor:
    """An `Extractor` (see `interface.py`) over a loaded model.

    `batch_tokens`: padded tokens a forward pass, rows sorted by length and padded on the right (a causal model needs no mask
    for that); None runs one row at a time. `stored_dtype`: what the states are cast to inside the hook.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        name: str,
        revision: str | None,
        fingerprint: str,
        batch_tokens: int | None = None,
        stored_dtype: str = "bfloat16",
    ) -> None:
        import torch

        self._model: torch.nn.Module | None = find_text_model(model).eval()
        config: Any = self._model.config
        embedding: Any = self._model.get_input_embeddings()  # type: ignore[operator]
        self._device = embedding.weight.device
        self._stored_dtype: torch.dtype = getattr(torch, stored_dtype)
        self._batch_tokens = batch_tokens
        self._n_layers = int(config.num_hidden_layers)
        self._hidden_size = int(config.hidden_size)
        self._vocab_size = int(embedding.num_embeddings)
        self._max_positions = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._facts = {
            "engine": "transformers",
            "model": name,
            "revision": revision,
            "fingerprint": fingerprint,
            "architecture": type(self._model).__name__,
            "dtype": str(embedding.weight.dtype).removeprefix("torch."),
            "attention": getattr(config, "_attn_implementation", None),
        }

    @classmethod
    def of(cls, campaign: Campaign) -> TransformersExtractor:
        """Load the campaign's target onto `extraction.device`. Raises StateError."""
        model, revision = _load(campaign)
        try:
            model.to(campaign.extraction.device)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise StateError(
                f"{campaign.path}: extraction.device = {campaign.extraction.device!r} cannot be used "
                f"({str(error).splitlines()[0]}); use 'cpu' or a device that this torch build sees"
            ) from None
        extractor = cls(
            model,
            name=campaign.target.model,
            revision=revision,
            fingerprint=model_fingerprint(campaign),
            # On a CPU batching gains 5 % and costs bit-equality with a single row (hidden-states.md, section 2)
            batch_tokens=None if campaign.extraction.device == "cpu" else campaign.extraction.batch_tokens,
            stored_dtype=campaign.extraction.dtype,
        )
        _require_target(campaign, extractor.describe())
        return extractor

    def describe(self) -> dict[str, Any]:
        """See `Extractor.describe`."""
        import torch
        import transformers

        return {
            **self._facts,
            "num_hidden_layers": self._n_layers,
            "hidden_size": self._hidden_size,
            "vocab_size": self._vocab_size,
            "device": str(self._device),
            "batching": "one row at a time" if self._batch_tokens is None else f"right-padded, {self._batch_tokens} tokens",
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        """See `Extractor.capture`. Memory: one buffer of sum(T) x (L+1) x H in the stored dtype, and one batch's activations."""
        import torch

        if final != "prenorm":
            raise StateError(
                f"final = {final!r}: the final state is stored before the norm ('prenorm'); apply final_norm at export"
            )
        check_layers(layers, self._n_layers)
        rows = [np.asarray(ids, dtype=np.int64) for ids in token_lists]
        for row in rows:
            self._require_ids(row)
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        buffer = torch.empty(int(starts[-1]), len(layers) + 1, self._hidden_size, dtype=self._stored_dtype)
        views = [buffer[starts[i] : starts[i + 1]] for i in range(len(rows))]
        echoed: list[tuple[int, ...]] = [()] * len(rows)
        for batch in _batches([len(row) for row in rows], self._batch_tokens):
            padded = torch.zeros(len(batch), len(rows[batch[0]]), dtype=torch.int64)
            for slot, i in enumerate(batch):
                padded[slot, : len(rows[i])] = torch.from_numpy(rows[i])
            self._forward(padded, layers, [views[i] for i in batch])
            for slot, i in enumerate(batch):
                echoed[i] = tuple(padded[slot, : len(rows[i])].tolist())
        return [Captured(view, ids) for view, ids in zip(views, echoed, strict=True)]

    def _forward(self, padded: torch.Tensor, layers: Sequence[int], out: list[torch.Tensor]) -> None:
        """One pass of the base model over `padded` [B, T]; row b's states land in out[b] [T_b, L+1, H]."""
        import torch

        model: Any = self._loaded()
        modules = [model.layers[k] for k in layers] + [model.norm]
        fired = [0] * len(modules)
        with contextlib.ExitStack() as stack, torch.inference_mode():
            for slot, module in enumerate(modules):
                stack.enter_context(_input_hook(module, _copier(slot, out, fired)))
            model(input_ids=padded.to(self._device), use_cache=False)
        if fired != [1] * len(modules):
            raise StateError(
                f"{self._facts['architecture']}: hooks on layers {list(layers)} and the final norm ran {fired} times in one "
                "pass, expected once each; this architecture is not supported by the transformers engine"
            )

    def reference_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """See `Extractor.reference_states`: transformers' own `output_hidden_states=True`."""
        import torch

        row = np.asarray(token_ids, dtype=np.int64)
        self._require_ids(row)
        model: Any = self._loaded()
        with torch.inference_mode():
            output = model(input_ids=torch.from_numpy(row)[None].to(self._device), use_cache=False, output_hidden_states=True)
        return torch.stack([h[0].to("cpu", torch.float32) for h in output.hidden_states])

    def final_norm(self) -> FinalNorm:
        """See `Extractor.final_norm`. Raises StateError for anything but a plain RMS norm."""
        import torch

        norm: Any = self._loaded().norm
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        if eps is None or getattr(norm, "bias", None) is not None:
            raise StateError(f"{type(norm).__name__}: expected an RMS norm with weight and epsilon as final norm; not supported")
        return FinalNorm(norm.weight.detach().to("cpu", torch.float32).numpy().copy(), float(eps))

    def close(self) -> None:
        """Drop the model."""
        self._model = None

    def _loaded(self) -> torch.nn.Module:
        if self._model is None:
            raise StateError("the extractor is closed; open another one")
        return self._model

    def _require_ids(self, row: np.ndarray[Any, Any]) -> None:
        if not len(row):
            raise StateError("a row without tokens cannot be extracted; the corpus should not hold one")
        low, high = int(row.min()), int(row.max())
        if low < 0 or high >= self._vocab_size:
            raise StateError(
                f"token id {high if high >= self._vocab_size else low} is outside {self._facts['model']}'s vocabulary of "
                f"{self._vocab_size}; target.weights and target.profile do not belong together"
            )
        if self._max_positions and len(row) > self._max_positions:
            raise StateError(
                f"a row of {len(row)} tokens is longer than {self._facts['model']}'s {self._max_positions} positions; "
                "set corpus.max_length"
            )


def _batches(lengths: Sequence[int], batch_tokens: int | None) -> Iterator[list[int]]:
    """Indices a forward pass, longest first (the first pass needs the most memory); at least one row each."""
    if batch_tokens is None:
        yield from ([i] for i in range(len(lengths)))
        return
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _copier(slot: int, out: list[torch.Tensor], fired: list[int]) -> Callable[[torch.Tensor], None]:
    """Copies a module's input into slot `slot` of every row. A reference kept instead would hold the whole padded batch."""

    def copy(hidden: torch.Tensor) -> None:
        fired[slot] += 1
        for row, target in enumerate(out):
            target[:, slot].copy_(hidden[row, : len(target)])

    return copy


@contextlib.contextmanager
def _input_hook(module: torch.nn.Module, take: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Calls `take` with the module's hidden-state input, given by position or by name."""

    def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        take(args[0] if args else kwargs["hidden_states"])

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


# ---------------------------------------------------------------------------------------------------- loading
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


def _load(campaign: Campaign) -> tuple[torch.nn.Module, str | None]:
    """(model, revision). `revision` is a hub snapshot's commit, None for a folder."""
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
    revision = folder.name if folder.parent.name == "snapshots" else None
    return model, revision


def _require_target(campaign: Campaign, facts: dict[str, Any]) -> None:
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
