"""The model is the same bits on every call, and a state taken at the wrong place shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_assets.kimi_mini import model as kimi_mini_model

torch = pytest.importorskip("torch")

# The weights are exact multiples of 2**-23, scaled and shifted in IEEE float32: the same on every machine.
FINGERPRINT = "60e4bb8135d52a2e1d9d0994f295ce87ca627f55ae2c97ea1a73fb9956fbf737"


@pytest.fixture(scope="module")
def model():
    return kimi_mini_model.build_model()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 4_352, (2, 40), generator=torch.Generator().manual_seed(1))


def test_two_builds_are_identical_and_leave_the_random_state_alone(model):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = kimi_mini_model.build_model()
    assert torch.equal(before, torch.get_rng_state())
    first, second = model.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_fingerprint_is_pinned_and_knows_seed_and_dtype():
    plain = kimi_mini_model.describe()
    assert plain["fingerprint"] == FINGERPRINT
    assert plain["parameters"] == 5_049_280
    others = {kimi_mini_model.describe(seed=1)["fingerprint"], kimi_mini_model.describe(dtype="bfloat16")["fingerprint"]}
    assert len(others | {FINGERPRINT}) == 3


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
    assert min(distances) > 0.1, "a state of the neighbouring layer is another state"


def test_no_norm_is_the_identity_up_to_scale(model):
    norms = [tensor for name, tensor in model.state_dict().items() if "norm" in name]
    assert len(norms) == 8 * 4 + 1
    assert all(float(tensor.std()) > 0.2 for tensor in norms)


def test_routing_uses_every_expert_and_the_bias_changes_the_choice(model, ids):
    chosen = []
    handles = [
        layer.mlp.gate.register_forward_hook(lambda _, args, out: chosen.append(out[2])) for layer in model.model.layers[1:]
    ]
    biases = [layer.mlp.gate.e_score_correction_bias for layer in model.model.layers[1:]]
    with torch.no_grad():
        model(ids)
        kept = [bias.clone() for bias in biases]
        [bias.zero_() for bias in biases]
        model(ids)
        [bias.copy_(old) for bias, old in zip(biases, kept, strict=True)]
    for handle in handles:
        handle.remove()
    assert [set(each.flatten().tolist()) for each in chosen[:7]] == [set(range(8))] * 7
    assert any(
        not torch.equal(with_bias.sort()[0], without.sort()[0]) for with_bias, without in zip(chosen[:7], chosen[7:], strict=True)
    )
    assert not hasattr(model.model.layers[0].mlp, "gate"), "the first layer is dense"


def test_token_by_token_with_a_cache_equals_the_full_forward(model, ids):
    with torch.no_grad():
        full = model(ids).logits
        cache, steps = None, []
        for position in range(ids.shape[1]):
            out = model(ids[:, position : position + 1], cache=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    assert torch.allclose(torch.cat(steps, dim=1), full, atol=1e-3)


def test_saving_and_loading_keeps_weights_and_logits(model, ids, tmp_path: Path):
    from transformers import DeepseekV3ForCausalLM

    model.save_pretrained(tmp_path)
    loaded, info = DeepseekV3ForCausalLM.from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert kimi_mini_model.fingerprint(loaded) == FINGERPRINT
    loaded.set_experts_implementation("eager")
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-4)


def test_bfloat16_keeps_the_router_in_float32(ids):
    model = kimi_mini_model.build_model(dtype="bfloat16")
    kept = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.float32}
    assert kept == {f"model.layers.{k}.mlp.gate.{name}" for k in range(1, 8) for name in ("weight", "e_score_correction_bias")}
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()


def test_the_configs_eos_is_kimis_trap_and_generation_ends_at_im_end(model):
    assert model.config.eos_token_id == 4_097
    assert model.generation_config.eos_token_id == 4_098
    assert (model.config.n_group, model.config.topk_group, model.config.first_k_dense_replace) == (1, 1, 1)
    assert model.config.num_nextn_predict_layers == 0
    assert model.config.rope_parameters["rope_theta"] == 50_000.0


def test_nothing_heavy_loads_with_the_room():
    rooms = "bank, demo_data, model, spelling, tokenizer, world, __main__"
    heavy = "print({'torch', 'transformers', 'tokenizers', 'pyarrow'} & sys.modules.keys())"
    code = f"import sys; from eagle3_assets.kimi_mini import {rooms}; {heavy}"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "set()"
