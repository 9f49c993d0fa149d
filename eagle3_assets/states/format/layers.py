"""The one layer convention, and how it reads in other programs' numberings.

Belongs here: the names E_k and final_prenorm, constants, defaults, the table of consumers, the refusal of an unknown convention.
Does not belong here: tensors, hooks (`extractors/`), applying a norm (`final_norm.py`), writing a trainer's files (`handoff`).

E_k is the input of decoder layer k, which is the output of layer k-1 and transformers' `hidden_states[k]`, for k = 0..N-1.
`final_prenorm` is the output of layer N-1 before the final norm. `hidden_states[N]` of transformers is NOT that: it is post-norm
(proved bitwise on Llama, Qwen3 and DeepSeek-V3: docs/research/hidden-states.md#1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_assets.errors import StateError

CONVENTION = "E_k=input_of_decoder_layer_k"
FINAL = "prenorm"
KNOWN_CONVENTIONS = frozenset({(CONVENTION, FINAL)})
SLOTS = ("low", "mid", "high", "final_prenorm")


@dataclass(frozen=True, slots=True)
class Numbering:
    """How one consumer counts layers: its number for E_k is k + `offset`.

    `final` is what it wants as last hidden state (None: it takes none from disk, or we do not know).
    `first_id`: the numbering holds only when the lowest translated number is this one.
    """

    consumer: str
    offset: int
    means: str
    final: Literal["prenorm", "postnorm"] | None
    source: str
    first_id: int | None = None


NUMBERINGS: dict[str, Numbering] = {
    n.consumer: n
    for n in (
        Numbering(
            "transformers", 0, "input of layer k", "postnorm", "measured: hidden_states[k]; hidden_states[N] = norm(final)"
        ),
        Numbering("eagle", 0, "input of layer k", None, "SafeAILab/EAGLE eagle/traineagle3/modeling_llama_kv.py L1139"),
        Numbering(
            "vllm",
            0,
            "input of layer k; id N is the final state",
            "prenorm",
            "vllm docs/features/speculative_decoding/extract_hidden_states.md, interfaces.py EagleModelMixin; measured on 0.32",
        ),
        Numbering(
            "speculators",
            0,
            "input of layer k (through vLLM)",
            "prenorm",
            "speculators 0.9 models/eagle3/core.py L253, train/data.py L295",
        ),
        Numbering(
            "specforge",
            -1,
            "output of layer k",
            "postnorm",
            "SpecForge a6b6b02 specforge/algorithms/model_providers.py resolve_eagle_capture_layers; spec-capture.patch",
        ),
        # SGLang adds 1 to ids that it is given only when the first is 1 (sglang#25454)
        Numbering(
            "sglang",
            -1,
            "output of layer k",
            None,
            "sglang python/sglang/srt/models/llama.py set_eagle3_layers_to_capture; sglang#25454",
            first_id=1,
        ),
        Numbering(
            "modelopt_hf",
            -1,
            "output of layer k",
            "postnorm",
            "Model-Optimizer collect_hidden_states/compute_hidden_states_hf.py, speculative/plugins/hf_eagle.py L58",
        ),
        # the same flag as above, passed to vLLM unshifted
        Numbering(
            "modelopt_vllm",
            0,
            "input of layer k",
            "prenorm",
            "Model-Optimizer collect_hidden_states/compute_hidden_states_vllm.py",
        ),
        Numbering("torchspec", -1, "output of layer k", None, "TorchSpec 6f21829 torchspec/utils/misc.py"),
        Numbering("deepspec", -1, "output of layer k", None, "DeepSpec afdfa7c data/target_cache_dataset.py (forward hooks)"),
        Numbering("angelslim", -1, "output of layer k", None, "AngelSlim 67394ce (forward hooks)"),
    )
}


def check_layers(layers: Sequence[int], num_hidden_layers: int) -> None:
    """Refuse layers that are not E_k of this model, in rising order, each once. Raises StateError."""
    if not layers or any(not 0 <= k < num_hidden_layers for k in layers):
        raise StateError(
            f"layers {list(layers)}: E_k needs 0 <= k < {num_hidden_layers} (the model's layers); set extraction.layers"
        )
    if list(layers) != sorted(set(layers)):
        raise StateError(f"layers {list(layers)}: expected rising numbers, each once (low < mid < high); set extraction.layers")


def require_prenorm(final: str) -> None:
    """Refuse any other final state than the one before the norm. Raises StateError."""
    if final != FINAL:
        raise StateError(f"final = {final!r}: the final state is stored before the norm ({FINAL!r}); apply final_norm at export")


def require_convention(convention: object, final: object, where: str) -> None:
    """Refuse states whose convention this program does not know. Raises StateError naming `where`."""
    if (convention, final) not in KNOWN_CONVENTIONS:
        raise StateError(
            f"{where}: layer convention {convention!r} with final {final!r} is unknown, expected {CONVENTION!r} with {FINAL!r}; "
            "extract these states again (guessing would shift every layer by one, silently)"
        )


def numbering_of(consumer: str) -> Numbering:
    """The consumer's row of the table. Raises StateError for an unknown one."""
    if consumer not in NUMBERINGS:
        raise StateError(f"layer numbering of {consumer!r} is unknown; known: {', '.join(sorted(NUMBERINGS))}")
    return NUMBERINGS[consumer]


def translate(layers: Sequence[int], *, to: str, num_hidden_layers: int) -> tuple[int, ...]:
    """E_k numbers in the numbering of consumer `to`. Raises StateError where that consumer cannot say them."""
    check_layers(layers, num_hidden_layers)
    numbering = numbering_of(to)
    ids = tuple(k + numbering.offset for k in layers)
    if ids[0] < 0:
        raise StateError(f"E_{layers[0]} has no number in {to} ({numbering.means}): its lowest is E_{-numbering.offset}")
    if numbering.first_id is not None and ids[0] != numbering.first_id:
        raise StateError(
            f"E_{layers[0]} as lowest layer cannot be stated safely to {to} (it counts '{numbering.means}' only when the "
            f"first id is {numbering.first_id}: {numbering.source}); use E_{numbering.first_id - numbering.offset} as lowest"
        )
    return ids


def translate_back(ids: Sequence[int], *, of: str, num_hidden_layers: int) -> tuple[int, ...]:
    """A consumer's numbers as E_k. Raises StateError as `translate` does."""
    layers = tuple(k - numbering_of(of).offset for k in ids)
    translate(layers, to=of, num_hidden_layers=num_hidden_layers)
    return layers
