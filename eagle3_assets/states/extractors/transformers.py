"""The `transformers` engine: the target in this process, pre-hooks on exactly the modules whose input is wanted.

Belongs here: capturing: rows packed end to end, hooks that copy into a preallocated buffer, the base model only (no lm_head, no
logits, no cache). Does not belong here: loading (`loading.py`), attention (`packed_attention.py`), files, judging the result
(`self_test.py`), other engines.

Measured against `output_hidden_states=True` with logits: 37 MB instead of 332 MB above the model, 2.0-2.4 x the tokens
a CPU second (docs/research/hidden-states.md#1 and #2; `benchmarks/states.py` measures it again).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.batches import packs, padded_batches
from eagle3_assets.states.extractors.interface import Captured
from eagle3_assets.states.extractors.loading import find_text_model, load_text_model, require_target
from eagle3_assets.states.extractors.packed_attention import can_pack, packing
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.format.layers import check_layers, require_prenorm
from eagle3_assets.states.target.weights import model_fingerprint

if TYPE_CHECKING:
    import torch

Ids = npt.NDArray[np.int64]


class TransformersExtractor:
    """An `Extractor` (see `interface.py`) over a loaded model.

    `batch_tokens`: tokens of a forward pass; None runs one row at a time. Rows are packed where the architecture's attention allows
    it, else sorted by length and padded on the right (a causal model needs no mask for that). `stored_dtype`: what the states are
    cast to inside the hook.
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

        text: Any = find_text_model(model)
        self._model: Any = text.eval()
        config: Any = self._model.config
        embedding: Any = text.get_input_embeddings()
        self._device: torch.device = embedding.weight.device
        self._last_device: torch.device = next(text.norm.parameters()).device
        self._stored_dtype: torch.dtype = getattr(torch, stored_dtype)
        self._batch_tokens = batch_tokens
        self._packed = batch_tokens is not None and can_pack(self._model)
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
        """Load the campaign's target onto `extraction.device` (or over `extraction.devices`). Raises StateError."""
        model, revision = load_text_model(campaign)
        extractor = cls(
            model,
            name=campaign.target.model,
            revision=revision,
            fingerprint=model_fingerprint(campaign),
            batch_tokens=campaign.extraction.batch_tokens,
            stored_dtype=campaign.extraction.dtype,
        )
        require_target(campaign, extractor.describe())
        return extractor

    def describe(self) -> dict[str, Any]:
        """See `Extractor.describe`."""
        import torch
        import transformers

        if self._batch_tokens is None:
            batching = "one row at a time"
        else:
            batching = f"{'packed' if self._packed else 'right-padded'}, {self._batch_tokens} tokens"
        return {
            **self._facts,
            "num_hidden_layers": self._n_layers,
            "hidden_size": self._hidden_size,
            "vocab_size": self._vocab_size,
            "device": " ".join(dict.fromkeys((str(self._device), str(self._last_device)))),
            "batching": batching,
            # packed rows gain nothing from a choice among more of them: a window is one pass
            "window_tokens": self._batch_tokens if self._packed else None,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        """See `Extractor.capture`. Memory: one buffer of sum(T) x (L+1) x H in the stored dtype, and one batch's activations."""
        import torch

        require_prenorm(final)
        check_layers(layers, self._n_layers)
        rows: list[Ids] = [np.asarray(ids, dtype=np.int64) for ids in token_lists]
        for row in rows:
            self._require_ids(row)
        lengths = [len(row) for row in rows]
        shape = (sum(lengths), len(layers) + 1, self._hidden_size)
        buffer = torch.empty(shape, dtype=self._stored_dtype, pin_memory=self._last_device.type == "cuda")
        captured: list[Captured | None] = [None] * len(rows)
        start = 0
        with packing(self._loaded()) if self._packed else contextlib.nullcontext():
            for batch in packs(lengths, self._batch_tokens or 1) if self._packed else padded_batches(lengths, self._batch_tokens):
                views = []
                for i in batch:
                    views.append(buffer[start : start + lengths[i]])
                    start += lengths[i]
                ids = self._run(batch, rows, layers, views)
                for i, view, echoed in zip(batch, views, ids, strict=True):
                    captured[i] = Captured(view, echoed)
        if self._last_device.type == "cuda":
            torch.cuda.synchronize(self._last_device)
        return [c for c in captured if c is not None]

    def _run(
        self, batch: Sequence[int], rows: Sequence[Ids], layers: Sequence[int], out: Sequence[torch.Tensor]
    ) -> list[tuple[int, ...]]:
        """One forward pass over `batch` into `out`; returns the ids that were run, row by row."""
        import torch

        lengths = [len(rows[i]) for i in batch]
        if self._packed:
            ids = torch.from_numpy(np.concatenate([rows[i] for i in batch]))[None]
            positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None]
            arguments: dict[str, Any] = {"position_ids": positions.to(self._device), "row_lengths": tuple(lengths)}
            starts = np.cumsum([0, *lengths[:-1]])
            self._forward(ids, arguments, layers, [(0, int(s), n) for s, n in zip(starts, lengths, strict=True)], out)
            return [tuple(ids[0, s : s + n].tolist()) for s, n in zip(starts, lengths, strict=True)]
        ids = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
        for b, i in enumerate(batch):
            ids[b, : lengths[b]] = torch.from_numpy(rows[i])
        self._forward(ids, {}, layers, [(b, 0, n) for b, n in enumerate(lengths)], out)
        return [tuple(ids[b, :n].tolist()) for b, n in enumerate(lengths)]

    def _forward(
        self,
        ids: torch.Tensor,
        arguments: dict[str, Any],
        layers: Sequence[int],
        cuts: Sequence[tuple[int, int, int]],
        out: Sequence[torch.Tensor],
    ) -> None:
        """One pass of the base model over `ids` [B, T]. `cuts`: (batch row, first token, tokens) of each row; `out` its states."""
        import torch

        model = self._loaded()
        modules = [model.layers[k] for k in layers] + [model.norm]
        fired = [0] * len(modules)
        # On a GPU states gather there and cross over once a row; on a CPU the hook writes where they stay
        on_gpu = self._last_device.type != "cpu"
        targets = [torch.empty_like(o, device=self._last_device) for o in out] if on_gpu else out
        with contextlib.ExitStack() as stack, torch.inference_mode():
            for slot, module in enumerate(modules):
                stack.enter_context(_input_hook(module, _copier(slot, cuts, targets, fired)))
            model(input_ids=ids.to(self._device), use_cache=False, **arguments)
        if fired != [1] * len(modules):
            raise StateError(
                f"{self._facts['architecture']}: hooks on layers {list(layers)} and the final norm ran {fired} times in one "
                "pass, expected once each; this architecture is not supported by the transformers engine"
            )
        if on_gpu:
            for view, target in zip(out, targets, strict=True):
                view.copy_(target, non_blocking=True)

    def reference_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """See `Extractor.reference_states`: transformers' own `output_hidden_states=True` and own attention, one row."""
        import torch

        row = np.asarray(token_ids, dtype=np.int64)
        self._require_ids(row)
        model = self._loaded()
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

    def _loaded(self) -> Any:
        if self._model is None:
            raise StateError("the extractor is closed; open another one")
        return self._model

    def _require_ids(self, row: Ids) -> None:
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


def _copier(
    slot: int, cuts: Sequence[tuple[int, int, int]], out: Sequence[torch.Tensor], fired: list[int]
) -> Callable[[torch.Tensor], None]:
    """Copies a module's input into slot `slot` of every row. A reference kept instead would hold the whole batch."""

    def copy(hidden: torch.Tensor) -> None:
        fired[slot] += 1
        for (row, start, length), target in zip(cuts, out, strict=True):
            target[:, slot].copy_(hidden[row, start : start + length])

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
