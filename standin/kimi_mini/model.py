"""Kimi-mini's weights: a DeepSeek-V3-class model (MLA + MoE) of four million parameters, trained on the world, in the repository.

Belongs here: its configuration, the committed folder (transformers' own format), loading and saving it, its fingerprint. Does not
belong here: training (`train`), sampling (`sampler`), hidden states (`states`). torch and transformers are imported inside functions.
The committed weights are bfloat16 (router weights and biases float32). **The reference model is these weights run in float32.**
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kimi_mini.errors import KimiMiniError
from kimi_mini.tokenizer import DATA, N_VOCAB, special_tokens

if TYPE_CHECKING:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

Dtype = Literal["float32", "bfloat16"]
MODEL_FOLDER = DATA / "model"
WEIGHTS_FILE, TRAINING_FILE = "model.safetensors", "training.json"
MAX_POSITIONS = 4_096

# docs/research/kimi-mini.md#1. The defaults of transformers are those of the 671B model, so every field that shapes the
# network is stated; `topk_method`, `scoring_func`, `moe_layer_freq` ... are no fields there (accepted and ignored) and stay out.
ARCHITECTURE: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "max_position_embeddings": MAX_POSITIONS,
}
# Kept in float32 whatever the dtype: transformers' own `_keep_in_fp32_modules_strict` for this class.
_FLOAT32_ALWAYS = ("mlp.gate.weight", "e_score_correction_bias")


def config() -> DeepseekV3Config:
    """The configuration. `eos_token_id` is [EOS], as K2.5's own config has it: NOT the end of a turn (docs/design.md#rule-1)."""
    from transformers import DeepseekV3Config

    ids = special_tokens()
    # "eager" experts: a plain loop; "batched_mm" is 20 times slower on a CPU (docs/research/kimi-mini.md#1)
    implementation: dict[str, Any] = {"attn_implementation": "sdpa", "experts_implementation": "eager"}
    return DeepseekV3Config(
        **ARCHITECTURE,
        **implementation,
        bos_token_id=ids["[BOS]"],
        eos_token_id=ids["[EOS]"],
        pad_token_id=ids["[PAD]"],
        dtype="float32",
        architectures=["DeepseekV3ForCausalLM"],
    )


def fresh_model(seed: int = 0) -> DeepseekV3ForCausalLM:
    """An untrained float32 model from `seed`: where training starts. Global random state untouched.

    As transformers initialises it, but for the embedding: unit variance in place of 0.02. With 0.02 the first steps bury what tells one
    name from another under what names have in common, and copying a name is not learned (README, Training).
    """
    import torch
    from transformers import DeepseekV3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DeepseekV3ForCausalLM(config())
        torch.nn.init.normal_(model.model.embed_tokens.weight)
    model.generation_config = generation_config()
    return model


def generation_config() -> GenerationConfig:
    """Ends at `<|im_end|>`, samples as Kimi's card says (T = 1.0, top_p = 0.95)."""
    from transformers import GenerationConfig

    ids = special_tokens()
    return GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=ids["[BOS]"],
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["[PAD]"],
        do_sample=True,
        temperature=1.0,
        top_p=0.95,
    )


def save_model(model: DeepseekV3ForCausalLM, folder: Path = MODEL_FOLDER) -> dict[str, Any]:
    """Write the folder that `load_model`, transformers and inference engines read: weights rounded to bfloat16, the router kept in
    float32 (`model.to(bfloat16)` would round its bias too). The given model is rounded as well. Returns figures."""
    import torch

    for name, parameter in model.named_parameters():
        if not name.endswith(_FLOAT32_ALWAYS):
            parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    return {"folder": str(folder), "bytes": (folder / WEIGHTS_FILE).stat().st_size, "sha256": weights_sha256(folder)}


def load_model(folder: Path = MODEL_FOLDER, dtype: Dtype = "float32") -> DeepseekV3ForCausalLM:
    """The committed model (or another such folder) in eval mode on the CPU. Raises KimiMiniError where the folder is not one."""
    import torch
    from transformers import DeepseekV3ForCausalLM

    remedy = "restore it from the repository, or train it: python -m kimi_mini_workshop train"
    if (folder / TRAINING_FILE).exists() and json.loads((folder / TRAINING_FILE).read_bytes())["model_sha256"] != weights_sha256(
        folder
    ):
        raise KimiMiniError(f"{folder / WEIGHTS_FILE}: is not the file that {TRAINING_FILE} names by its sha256; {remedy}")
    try:
        loaded: Any = DeepseekV3ForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            experts_implementation="eager",
        )
    except Exception as error:  # transformers and safetensors raise their own kinds for a broken file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise KimiMiniError(f"{folder}: cannot be loaded as Kimi-mini ({reason}); {remedy}") from None
    model: DeepseekV3ForCausalLM
    model, info = loaded
    if info["missing_keys"]:
        raise KimiMiniError(
            f"{folder}: lacks {len(info['missing_keys'])} tensors, e.g. {sorted(info['missing_keys'])[0]}; {remedy}"
        )
    model.eval()  # type: ignore[no-untyped-call]
    return model


def weights_sha256(folder: Path = MODEL_FOLDER) -> str:
    """Of the weights file, hex."""
    try:
        return hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    except OSError as error:
        raise KimiMiniError(
            f"{folder / WEIGHTS_FILE}: cannot be read ({error.strerror}); restore it from the repository"
        ) from None


def describe() -> dict[str, Any]:
    """Facts of the committed model, without loading it."""
    from safetensors import safe_open

    with safe_open(MODEL_FOLDER / WEIGHTS_FILE, "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (a handle, not a mapping)
    parameters = sum(_product(shape) for shape in shapes)
    stated = json.loads((MODEL_FOLDER / "config.json").read_bytes())
    return {
        "model": "eagle3/kimi-mini",
        "class": stated["architectures"][0],
        "parameters": parameters,
        "bytes": (MODEL_FOLDER / WEIGHTS_FILE).stat().st_size,
        "sha256": weights_sha256(),
        **ARCHITECTURE,
    }


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
