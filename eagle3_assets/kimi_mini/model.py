"""Kimi-mini's weights: a DeepSeek-V3-class model (MLA + MoE) of five million parameters, built from a seed on every call.

Belongs here: its configuration, its seeded random weights, its fingerprint. Does not belong here: hidden states (`states`),
sampling. torch and transformers are imported inside functions only.
The weights are random, so its answers are noise; its shapes, norms, routing and cache are those of the real architecture.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Literal

from eagle3_assets.kimi_mini.tokenizer import N_VOCAB, special_tokens

if TYPE_CHECKING:
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

Dtype = Literal["float32", "bfloat16"]
MAX_POSITIONS = 8_192
N_LAYERS = 8

# Research note kimi-mini section 1. The defaults of transformers are those of the 671B model, so every field that shapes the
# network is stated; `topk_method`, `scoring_func`, `moe_layer_freq` ... are no fields there (accepted and ignored) and stay out.
ARCHITECTURE: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 192,
    "num_hidden_layers": N_LAYERS,
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
    """The configuration. `eos_token_id` is [EOS], as K2.5's own config has it: NOT the end of a turn (design rule 6.1)."""
    from transformers import DeepseekV3Config

    ids = special_tokens()
    # "eager" experts: a plain loop; "batched_mm" is 20 times slower on a CPU (research note kimi-mini 1)
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


def _uniform(seed: int, name: str, count: int) -> torch.Tensor:
    """`count` float32 numbers in [-1, 1), multiples of 2**-23: exact on every machine, and not dependent on the other tensors."""
    import numpy as np
    import torch

    key = int.from_bytes(hashlib.sha256(f"kimi-mini/{seed}/{name}".encode()).digest()[:16], "big")
    raw = np.random.Philox(key=key).random_raw(count)  # the raw stream of a bit generator never changes between numpy versions
    return torch.from_numpy(((raw >> np.uint64(40)).astype(np.int64) - 2**23).astype(np.float32) * np.float32(2.0**-23))


def _centre_and_reach(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Where a tensor's numbers lie: centre ± reach.

    Norm weights are spread around 1 so that a state taken on the wrong side of a norm differs; router biases are not zero so that
    they change which experts are chosen.
    """
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.05
    if len(shape) == 1:
        return 1.0, 0.5
    if name.endswith("embed_tokens.weight"):
        return 0.0, 1.0
    return 0.0, math.sqrt(3.0 / shape[-1]) * (2.0 if name == "lm_head.weight" else 1.0)


def build_model(seed: int = 0, dtype: Dtype = "float32") -> DeepseekV3ForCausalLM:
    """The model with the weights of `seed`, in eval mode, on the CPU. The same bits on every call; global random state untouched.

    bfloat16 rounds the float32 weights (router weights and biases stay float32). `generation_config` ends at `<|im_end|>`.
    """
    import torch
    from transformers import DeepseekV3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        model = DeepseekV3ForCausalLM(config())
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            centre, reach = _centre_and_reach(name, tuple(tensor.shape))
            values = centre + reach * _uniform(seed, name, tensor.numel())
            tensor.copy_(values.view(tensor.shape))
        if dtype == "bfloat16":
            for name, parameter in model.named_parameters():
                if not name.endswith(_FLOAT32_ALWAYS):
                    parameter.data = parameter.data.to(torch.bfloat16)
            model.config.dtype = torch.bfloat16
    model.generation_config = _generation_config()
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _generation_config() -> GenerationConfig:
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


def fingerprint(model: DeepseekV3ForCausalLM) -> str:
    """sha256 over the architecture and every tensor's name, dtype, shape and bytes, in name order."""
    import torch

    digest = hashlib.sha256(json.dumps(ARCHITECTURE, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(seed: int = 0, dtype: Dtype = "float32") -> dict[str, Any]:
    """Facts of the model, for manifests: architecture, seed, dtype, number of parameters and fingerprint (builds the model)."""
    model = build_model(seed, dtype)
    return {
        "model": "eagle3/kimi-mini",
        "class": type(model).__name__,
        "weights": "random",
        "seed": seed,
        "dtype": dtype,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "fingerprint": fingerprint(model),
        **ARCHITECTURE,
    }
