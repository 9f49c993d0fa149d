"""The committed model is DeepSeek-V3's architecture, small, loads anywhere, and its states lie where the names say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_mini import model as kimi_mini_model
from kimi_mini import tokenizer
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import world

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    return kimi_mini_model.load_model()


@pytest.fixture(scope="module")
def ids():
    """Two conversations of the world, cut to the same length."""
    rows = [world.make_row(world.held_out_episode(4, k, "fix")).ids for k in range(2)]
    length = min(map(len, rows))
    return torch.tensor([row[:length] for row in rows])


def test_the_weights_are_small_and_what_the_card_says():
    facts = kimi_mini_model.describe()
    assert facts["bytes"] <= 10_000_000
    assert 4_000_000 < facts["parameters"] < 4_500_000
    measured = json.loads((kimi_mini_model.MODEL_FOLDER / "evaluation.json").read_text())
    assert measured["model_sha256"] == facts["sha256"], "the figures of the card are those of another model"


def test_stored_are_bfloat16_and_a_router_in_float32():
    from safetensors import safe_open

    with safe_open(kimi_mini_model.MODEL_FOLDER / kimi_mini_model.WEIGHTS_FILE, "pt") as file:
        dtypes = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    router = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert router == {f"model.layers.{k}.mlp.gate.{name}" for k in range(1, 8) for name in ("weight", "e_score_correction_bias")}
    assert all(dtype == torch.bfloat16 for name, dtype in dtypes.items() if name not in router)


def test_loaded_are_the_same_numbers_in_float32(model):
    from safetensors.torch import load_file

    stored = load_file(kimi_mini_model.MODEL_FOLDER / kimi_mini_model.WEIGHTS_FILE)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.equal(model.lm_head.weight, stored["lm_head.weight"].float())
    assert torch.equal(
        model.model.layers[3].mlp.experts.down_proj[5], stored["model.layers.3.mlp.experts.5.down_proj.weight"].float()
    )
    assert torch.equal(
        model.model.layers[1].mlp.gate.e_score_correction_bias, stored["model.layers.1.mlp.gate.e_score_correction_bias"]
    )


def test_inputs_of_the_eight_layers_are_hidden_states_and_the_last_is_before_the_norm(model, ids):
    inputs, outputs = {}, {}
    layers = model.model.layers
    handles = [
        layer.register_forward_pre_hook(lambda _, args, kwargs, k=k: inputs.__setitem__(k, args[0]), with_kwargs=True)
        for k, layer in enumerate(layers)
    ]
    handles.append(layers[-1].register_forward_hook(lambda _, args, out: outputs.__setitem__("last", out)))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    assert len(layers) == 8 and len(states) == 9
    assert all(torch.equal(inputs[k], states[k]) for k in range(8))
    assert torch.equal(model.model.norm(outputs["last"]), states[8])
    assert not torch.allclose(outputs["last"], states[8], rtol=0.1)
    distances = [float((states[k + 1] - states[k]).norm() / states[k].norm()) for k in range(7)]
    assert min(distances) > 0.05, "a state of the neighbouring layer is another state"


@pytest.mark.slow
def test_routing_uses_every_expert_in_every_layer_and_the_bias_changes_the_choice(model):
    long = torch.tensor([token for k in range(12) for token in world.make_row(world.held_out_episode(6, k)).ids])[None]
    chosen = []
    handles = [
        layer.mlp.gate.register_forward_hook(lambda _, args, out: chosen.append(out[2])) for layer in model.model.layers[1:]
    ]
    biases = [layer.mlp.gate.e_score_correction_bias for layer in model.model.layers[1:]]
    with torch.no_grad():
        model(long)
        kept = [bias.clone() for bias in biases]
        [bias.zero_() for bias in biases]
        model(long)
        [bias.copy_(old) for bias, old in zip(biases, kept, strict=True)]
    for handle in handles:
        handle.remove()
    assert [set(each.flatten().tolist()) for each in chosen[:7]] == [set(range(8))] * 7
    assert any(
        not torch.equal(with_bias.sort()[0], without.sort()[0]) for with_bias, without in zip(chosen[:7], chosen[7:], strict=True)
    )
    assert not hasattr(model.model.layers[0].mlp, "gate"), "the first layer is dense"


@pytest.mark.slow
def test_token_by_token_with_a_cache_equals_the_full_forward(model, ids):
    short = ids[:, :60]
    with torch.no_grad():
        full = model(short).logits
        cache, steps = None, []
        for position in range(short.shape[1]):
            out = model(short[:, position : position + 1], cache=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    alone = torch.cat(steps, dim=1)
    assert torch.allclose(alone, full, atol=1e-3)
    assert torch.equal(alone.argmax(-1), full.argmax(-1))


@pytest.mark.slow
def test_saving_and_loading_keeps_weights_and_logits(model, ids, tmp_path: Path):
    again = kimi_mini_model.load_model()
    figures = kimi_mini_model.save_model(again, tmp_path)
    assert figures["sha256"] == kimi_mini_model.weights_sha256()
    loaded = kimi_mini_model.load_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_a_broken_folder_is_one_readable_line(tmp_path: Path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((kimi_mini_model.MODEL_FOLDER / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:100_000])
    with pytest.raises(KimiMiniError, match="cannot be loaded as Kimi-mini") as error:
        kimi_mini_model.load_model(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(KimiMiniError, match="cannot be loaded"):
        kimi_mini_model.load_model(tmp_path / "nowhere")


def test_weights_damaged_without_changing_their_size_are_refused(tmp_path: Path):
    for file in kimi_mini_model.MODEL_FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-500:-100] = b"\xff" * 400
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(KimiMiniError, match=r"model\.safetensors: is not the file that training\.json names"):
        kimi_mini_model.load_model(tmp_path)


@pytest.mark.slow
def test_bfloat16_keeps_the_router_in_float32(ids):
    model = kimi_mini_model.load_model(dtype="bfloat16")
    kept = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.float32}
    assert kept == {f"model.layers.{k}.mlp.gate.{name}" for k in range(1, 8) for name in ("weight", "e_score_correction_bias")}


def test_the_configs_eos_is_kimis_trap_and_generation_ends_at_im_end(model):
    specials = tokenizer.special_tokens()
    assert model.config.eos_token_id == specials["[EOS]"]
    assert model.generation_config.eos_token_id == specials["<|im_end|>"]
    assert (model.config.n_group, model.config.topk_group, model.config.first_k_dense_replace) == (1, 1, 1)
    assert model.config.num_nextn_predict_layers == 0
    assert model.config.rope_parameters["rope_theta"] == 50_000.0


def test_nothing_heavy_loads_with_the_room():
    rooms = "bank, chat, model, tokenizer"
    workshop = "demo_data, evaluate, judge, make_bank, spelling, train, train_tokenizer, world, __main__"
    heavy = "print({'torch', 'transformers', 'tokenizers', 'pyarrow'} & sys.modules.keys())"
    code = f"import sys; from kimi_mini import {rooms}; from kimi_mini_workshop import {workshop}; {heavy}"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "set()"


def test_the_room_at_run_time_loads_nothing_of_the_workshop():
    code = (
        "import sys; from openrouter_standin.answers import load; from kimi_mini import bank, model, tokenizer; "
        "print(sorted(name for name in sys.modules if name.startswith('kimi_mini_workshop')))"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
