"""`handoff/target_head` and the recipes: the target's tensors under plain names, whatever wrapper they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_assets.errors import StateError
from eagle3_assets.handoff.recipes import DEFAULT, cut_of, draft_layer, recipe_of
from eagle3_assets.handoff.target_head import flat_config, read_config, target_folder, write_target_head
from eagle3_assets.installed import kimi_mini_weights
from eagle3_assets.store import Store, is_current, manifest_path
from eagle3_assets_tests.handoff.answers import mini_campaign

# the text part of Kimi K2.5's config.json (MoonshotAI/Kimi-K2.5): what a drafter's shape follows from
K25 = {
    "model_type": "kimi_k2", "hidden_size": 7168, "vocab_size": 163_840, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 64,
    "intermediate_size": 18_432, "kv_lora_rank": 512, "v_head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 50_000.0,
    "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}, "max_position_embeddings": 262_144,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "architectures": ["DeepseekV3ForCausalLM"],
    "quantization_config": {"quant_method": "compressed-tensors"},
}  # fmt: skip


def checkpoint(folder: Path, prefix: str, *, tied: bool = False, nested: bool = False) -> Path:
    """kimi-mini's three tensors in a wrapper's names, and its configuration nested as a wrapper's is."""
    folder.mkdir(parents=True)
    ours = load_file(kimi_mini_weights() / "model.safetensors")
    tensors = {
        f"{prefix}model.embed_tokens.weight": ours["model.embed_tokens.weight"],
        f"{prefix}model.norm.weight": ours["model.norm.weight"],
    }
    if not tied:
        tensors[f"{prefix}lm_head.weight"] = ours["lm_head.weight"]
    save_file({name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors")
    config = json.loads((kimi_mini_weights() / "config.json").read_bytes()) | {"tie_word_embeddings": tied}
    raw: dict[str, Any] = {"model_type": "kimi_k25", "text_config": config, "vision_config": {"x": 1}} if nested else config
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(("prefix", "nested"), [("", False), ("language_model.", True)])
def test_the_folder_has_plain_names_and_a_flat_configuration(tmp_path: Path, prefix: str, nested: bool) -> None:
    source = checkpoint(tmp_path / "weights", prefix, nested=nested)
    campaign, store = mini_campaign(target={"weights": str(source)}), Store(tmp_path / "root")
    write_target_head(campaign, store)
    folder = store.handoff("target_head")
    found, ours = load_file(folder / "model.safetensors"), load_file(kimi_mini_weights() / "model.safetensors")
    assert set(found) == {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}
    assert all(torch.equal(found[name], ours[name]) for name in found)
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    assert index["weight_map"] == dict.fromkeys(found, "model.safetensors")
    config = read_config(store)
    assert (config["model_type"], config["hidden_size"]) == ("deepseek_v3", 192) and "text_config" not in config
    from transformers import AutoConfig

    assert AutoConfig.from_pretrained(folder).hidden_size == 192  # known without remote code


def test_a_tied_head_is_written_so_that_a_trainer_finds_one(tmp_path: Path) -> None:
    campaign = mini_campaign(target={"weights": str(checkpoint(tmp_path / "weights", "", tied=True))})
    store = Store(tmp_path / "root")
    write_target_head(campaign, store)
    found = load_file(store.handoff("target_head") / "model.safetensors")
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    assert read_config(store)["tie_word_embeddings"] is False


def test_it_is_written_once_and_anew_for_other_weights(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "weights", "")
    campaign, store = mini_campaign(target={"weights": str(source)}), Store(tmp_path / "root")
    first = write_target_head(campaign, store)
    assert write_target_head(campaign, store).created == first.created and target_folder(campaign, store) == store.handoff(
        "target_head"
    )
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"] + 1}, source / "model.safetensors")
    assert target_folder(campaign, store) == source  # a hand-off of other weights is not read
    assert write_target_head(campaign, store).digest != first.digest
    assert is_current(store.handoff("target_head"), first.inputs) is None and manifest_path(store.handoff("target_head")).exists()


def test_a_checkpoint_without_one_of_them_is_refused_in_one_line(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "weights", "")
    tensors = load_file(source / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(StateError, match="holds a final norm under none of the names"):
        write_target_head(mini_campaign(target={"weights": str(source)}), Store(tmp_path / "root"))


def test_kimi_k25_gets_the_published_shape_and_recipe() -> None:
    """TorchSpec configs/draft_models/kimi_k25_eagle3.json: 64 heads of 128, 12,288 wide, YaRN x64; 20,000 ids, 4 steps, 5e-5."""
    flat = flat_config({"model_type": "kimi_k25", "text_config": K25})
    assert "auto_map" not in flat and "quantization_config" not in flat and flat["model_type"] == "deepseek_v3"
    layer, recipe = draft_layer(flat), recipe_of(flat)
    assert (layer["num_attention_heads"], layer["num_key_value_heads"], layer["head_dim"]) == (64, 64, 128)
    assert layer["intermediate_size"] == 12_288 and layer["rope_scaling"]["factor"] == 64.0 and layer["rope_theta"] == 50_000.0
    assert (recipe.length, recipe.ttt_steps, recipe.learning_rate) == (20_000, 4, 5e-5) and "TorchSpec" in recipe.source


def test_another_target_gets_its_own_heads_and_the_default_recipe() -> None:
    qwen = {"model_type": "qwen3", "hidden_size": 4096, "vocab_size": 151_936, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 12_288, "rms_norm_eps": 1e-6, "rope_theta": 1e6}  # fmt: skip
    layer = draft_layer(qwen)
    assert (layer["num_attention_heads"], layer["num_key_value_heads"], layer["head_dim"]) == (32, 8, 128)
    assert recipe_of(qwen) is DEFAULT and layer["intermediate_size"] == 12_288


def test_a_cut_says_what_it_loses() -> None:
    cut = cut_of([10, 20, 40], 15)
    assert (cut.rows, cut.lost, cut.tokens) == (2, 30, 70)
    assert cut.words == "At 15 ids 2 rows are cut, which loses 30 of 70 tokens (42.9%)."
    assert cut_of([10], 15).words == "No row is longer than 15 ids: nothing is cut."
