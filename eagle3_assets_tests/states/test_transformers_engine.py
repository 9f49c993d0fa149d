"""The transformers engine against transformers' own `output_hidden_states`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.extractors.loading import find_text_model, split_layers
from eagle3_assets.states.extractors.self_test import relative_error, run_self_test
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.target.weights import HEAD_BYTES, model_fingerprint
from eagle3_assets_tests.states.conftest import CampaignMaker, N, V, make_packs, tiny_model

LAYERS = (2, N // 2, N - 3)
KINDS = ("llama", "qwen3", "deepseek_v3")


def rows(lengths: tuple[int, ...], seed: int = 0) -> list[tuple[int, ...]]:
    return [tuple(int(i) for i in p.input_ids) for p in make_packs(lengths, seed)]


ROWS = rows((5, 40, 17, 1, 33, 40, 8))


def engine(model: Any, **settings: Any) -> TransformersExtractor:
    options = {"name": "tiny", "revision": None, "fingerprint": "x", "stored_dtype": "float32", **settings}
    return TransformersExtractor(model, **options)


def naive(model: Any, ids: tuple[int, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(hidden_states, input of the final norm) by the whole ForCausalLM and `output_hidden_states=True`."""
    seen: list[torch.Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    handle.remove()
    return [h[0] for h in output.hidden_states], seen[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_single_rows_equal_output_hidden_states_bit_for_bit(kind: str) -> None:
    model = tiny_model(kind)
    for ids in rows((37, 1, 5)):
        hidden, prenorm = naive(model, ids)
        captured = engine(model).capture([ids], LAYERS)[0]
        assert captured.input_ids == ids
        assert captured.states.shape == (len(ids), 4, 64)
        for slot, k in enumerate(LAYERS):
            assert torch.equal(captured.states[:, slot], hidden[k]), (kind, k)
        assert torch.equal(captured.states[:, 3], prenorm)
        assert not torch.allclose(captured.states[:, 3], hidden[N]), "hidden_states[N] is post-norm"


def test_any_layer_can_be_captured_e0_and_the_last_included() -> None:
    model = tiny_model("llama")
    ids = rows((9,))[0]
    hidden, _ = naive(model, ids)
    layers = tuple(range(N))
    states = engine(model).capture([ids], layers)[0].states
    assert all(torch.equal(states[:, k], hidden[k]) for k in layers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
def test_packed_rows_equal_output_hidden_states_whatever_the_pack_and_the_order(
    kind: str, dtype: torch.dtype, limit: float
) -> None:
    model = tiny_model(kind, dtype)
    truth = {ids: naive(model, ids) for ids in ROWS}
    stored = str(dtype).removeprefix("torch.")
    for budget in (1000, 60, 1):  # all in one pass, several packs, one row a pass
        extractor = engine(model, batch_tokens=budget, stored_dtype=stored)
        assert extractor.describe()["batching"] == f"packed, {budget} tokens"
        for given in (ROWS, ROWS[::-1], ROWS[2:5]):
            captured = extractor.capture(given, LAYERS)
            assert [c.input_ids for c in captured] == given
            for ids, row in zip(given, captured, strict=True):
                hidden, prenorm = truth[ids]
                for slot, expected in enumerate([*(hidden[k] for k in LAYERS), prenorm]):
                    assert relative_error(row.states[:, slot], expected) <= limit, (kind, budget, slot)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_rows_equal_single_rows_whatever_their_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_assets.states.extractors.transformers.can_pack", lambda model: False)
    model = tiny_model(kind)
    alone = engine(model, batch_tokens=None)
    for given in (ROWS, ROWS[::-1]):
        batched = engine(model, batch_tokens=100).capture(given, LAYERS)
        assert [c.input_ids for c in batched] == given
        for ids, captured in zip(given, batched, strict=True):
            single = alone.capture([ids], LAYERS)[0].states
            for slot in range(4):
                assert relative_error(captured.states[:, slot], single[:, slot]) <= 1e-5


def test_a_sliding_window_is_kept_inside_each_packed_row() -> None:
    from transformers import AutoModelForCausalLM, MistralConfig

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=N, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=6, max_position_embeddings=512,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    extractor = engine(model, batch_tokens=1000)
    assert extractor.describe()["batching"].startswith("packed")
    for ids, row in zip(ROWS, extractor.capture(ROWS, LAYERS), strict=True):
        hidden, prenorm = naive(model, ids)
        assert relative_error(row.states[:, 2], hidden[LAYERS[2]]) <= 1e-5
        assert relative_error(row.states[:, 3], prenorm) <= 1e-5


def test_attention_with_a_term_that_packing_does_not_compute_is_run_padded_and_right() -> None:
    """Gemma 2 caps its attention scores; computing them without the cap would be wrong, silently."""
    from transformers import AutoModelForCausalLM, Gemma2Config

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=N, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=512, attn_logit_softcapping=1.0, query_pre_attn_scalar=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()  # type: ignore[no-untyped-call]
    extractor = engine(model, batch_tokens=100)
    assert extractor.describe()["batching"] == "right-padded, 100 tokens"
    for ids, row in zip(ROWS, extractor.capture(ROWS, LAYERS), strict=True):
        assert relative_error(row.states[:, 1], naive(model, ids)[0][LAYERS[1]]) <= 1e-5


def test_no_pass_exceeds_the_token_budget_and_long_rows_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    shapes: list[tuple[int, ...]] = []
    given = rows((10, 60, 100, 9, 30, 31))
    packed = engine(model, batch_tokens=64)
    monkeypatch.setattr("eagle3_assets.states.extractors.transformers.can_pack", lambda model: False)
    padded = engine(model, batch_tokens=64)
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    packed.capture(given, LAYERS)
    assert shapes == [(1, 100), (1, 60), (1, 61), (1, 19)], "a row above the budget runs alone; nothing is padded"
    shapes.clear()
    padded.capture(given, LAYERS)
    assert shapes[0] == (1, 100)
    assert all(b * t <= 64 for b, t in shapes[1:])
    assert sum(b for b, _ in shapes) == 6


def test_the_models_own_attention_is_put_back_after_a_capture_and_after_a_failed_one() -> None:
    model = tiny_model("llama")
    own = model.model.config._attn_implementation
    extractor = engine(model, batch_tokens=64)
    extractor.capture(ROWS, LAYERS)
    assert model.model.config._attn_implementation == own
    handle = model.model.layers[5].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("boom")))
    with pytest.raises(RuntimeError):
        extractor.capture(ROWS, LAYERS)
    handle.remove()
    assert model.model.config._attn_implementation == own


def test_layers_spread_over_devices_give_the_same_states(make_campaign: CampaignMaker, saved: Any) -> None:
    """Two names of one CPU stand for two devices: blocks, hooks and the last device are those of a real spread."""
    whole = open_extractor(make_campaign())
    spread = open_extractor(make_campaign(more='devices = ["cpu", "cpu:0"]\n'))
    assert split_layers(61, ("a", "b", "c")).count("b") in (20, 21)
    hooked = [bool(layer._forward_pre_hooks) for layer in spread._model.layers]  # type: ignore[attr-defined]
    assert hooked == [d == "cpu:0" for d in split_layers(N, ("cpu", "cpu:0"))]
    for a, b in zip(whole.capture(ROWS, LAYERS), spread.capture(ROWS, LAYERS), strict=True):
        assert torch.equal(a.states, b.states)
    with pytest.raises(StateError, match=r"extraction\.device = 'cpu, cpu' cannot be used .2 devices for 9 layers: each once"):
        open_extractor(make_campaign(more='devices = ["cpu", "cpu"]\n'))


def test_bf16_is_stored_as_the_rounding_of_the_fp32_states() -> None:
    model = tiny_model("qwen3")
    ids = rows((12,))[0]
    exact = engine(model).capture([ids], LAYERS)[0].states
    stored = engine(model, stored_dtype="bfloat16").capture([ids], LAYERS)[0].states
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored, exact.to(torch.bfloat16))


def test_neither_the_head_nor_a_cache_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("must not run")

    monkeypatch.setattr(model.lm_head, "forward", refuse)
    seen: list[Any] = []
    layer = model.model.layers[0]
    layer.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs.get("cache", kwargs.get("past_key_values"))), with_kwargs=True
    )
    engine(model).capture(rows((6,)), LAYERS)
    assert seen == [None]


def test_hooks_are_gone_after_a_capture_and_after_a_failed_one() -> None:
    model = tiny_model("llama")
    extractor = engine(model)
    extractor.capture(rows((6,)), LAYERS)
    model.model.layers[5].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("boom")))
    with pytest.raises(RuntimeError):
        extractor.capture(rows((6,)), LAYERS)
    assert not any(model.model.layers[k]._forward_pre_hooks for k in LAYERS)
    assert not model.model.norm._forward_pre_hooks


def test_the_text_model_of_a_vision_wrapper_is_found_by_path() -> None:
    inner = tiny_model("llama").model

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision_tower = torch.nn.Linear(2, 2)
            self.language_model = inner

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Wrapper()

    assert find_text_model(Wrapper()) is inner
    assert find_text_model(Outer()) is inner
    with pytest.raises(StateError, match="found no module with `layers` and `norm`"):
        find_text_model(torch.nn.Linear(2, 2))


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    model = tiny_model("deepseek_v3")
    model.save_pretrained(tmp_path / "model")
    return model


def test_a_folder_beside_the_campaign_is_loaded_and_passes_the_self_test(make_campaign: CampaignMaker, saved: Any) -> None:
    campaign = make_campaign()
    extractor = open_extractor(campaign)
    facts = extractor.describe()
    assert (facts["num_hidden_layers"], facts["hidden_size"], facts["vocab_size"], facts["dtype"]) == (N, 64, V, "float32")
    assert facts["fingerprint"] == model_fingerprint(campaign)
    assert facts["batching"] == "packed, 256 tokens"
    ids = rows((20,))[0]
    hidden, prenorm = naive(saved, ids)
    states = extractor.capture([ids], campaign.layers)[0].states
    assert torch.equal(states[:, 0], hidden[2])
    assert torch.equal(states[:, 3], prenorm)
    result = run_self_test(extractor, campaign.layers, "float32")
    assert [row["to_k"] for row in result["layers"]] == [0.0, 0.0, 0.0]
    extractor.close()
    with pytest.raises(StateError, match="closed"):
        extractor.capture([ids], campaign.layers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_architecture_passes_the_self_test_in_both_dtypes(kind: str, dtype: torch.dtype) -> None:
    model = tiny_model(kind, dtype)
    for stored in ("float32", "bfloat16"):
        result = run_self_test(engine(model, stored_dtype=stored, batch_tokens=64), LAYERS, stored)
        assert result["passed"] is True
        assert all(row["nearest"] == row["layer"] for row in result["layers"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": "./nowhere/at/all"}, r"target\.weights = '\./nowhere/at/all': no such folder"),
        ({"hidden_size": 128}, r"target\.hidden_size = 128, but the model at .* has 64"),
        ({"num_hidden_layers": 12}, r"target\.num_hidden_layers = 12, but the model at .* has 9"),
        ({"vocab_size": 1024}, r"target\.vocab_size = 1024, but the model at .* embeds only 512 ids"),
        ({"device": "cuda:7"}, r"extraction\.device = 'cuda:7' cannot be used"),
    ],
)
def test_a_wrong_target_is_one_line(make_campaign: CampaignMaker, saved: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message) as caught:
        open_extractor(make_campaign(**settings))
    assert "\n" not in str(caught.value)
    assert ".toml" in str(caught.value)


def test_a_folder_without_weights_or_of_unknown_type_is_one_line(make_campaign: CampaignMaker, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(StateError, match=r"holds no config\.json"):
        open_extractor(make_campaign())
    (folder / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(StateError, match="cannot be loaded as a transformers model") as caught:
        open_extractor(make_campaign())
    assert "\n" not in str(caught.value)
    with pytest.raises(StateError, match=r"holds no \.safetensors file"):
        model_fingerprint(make_campaign())


def test_a_checkpoint_that_lacks_a_tensor_is_refused_not_filled_with_random_numbers(
    make_campaign: CampaignMaker, saved: Any, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.4.self_attn.o_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(StateError, match=r"lacks 1 tensors, e\.g\. .*layers\.4\.self_attn\.o_proj"):
        open_extractor(make_campaign())


def test_ids_outside_the_vocabulary_and_rows_beyond_the_positions_are_refused() -> None:
    extractor = engine(tiny_model("llama", max_position_embeddings=16))
    for ids, message in [
        ((1, V), f"token id {V} is outside"),
        ((-1, 2), "token id -1 is outside"),
        (tuple(range(17)), "16 positions"),
    ]:
        with pytest.raises(StateError, match=message):
            extractor.capture([ids], LAYERS)
    with pytest.raises(StateError, match="without tokens"):
        extractor.capture([()], LAYERS)
    with pytest.raises(StateError, match="postnorm"):
        extractor.capture([(1, 2)], LAYERS, final="postnorm")


@pytest.mark.slow
def test_the_fingerprint_tells_models_and_dtypes_apart_and_nothing_else(
    make_campaign: CampaignMaker, saved: Any, tmp_path: Path
) -> None:
    first = model_fingerprint(make_campaign())
    assert first == model_fingerprint(make_campaign(part_bytes=1 << 20, batch_tokens=7)), (
        "settings of extraction are not the model"
    )
    assert first != model_fingerprint(make_campaign(model_dtype="bfloat16"))
    head = (tmp_path / "model" / "model.safetensors").read_bytes()[:HEAD_BYTES]
    with torch.no_grad():
        for parameter in saved.model.layers[4:].parameters():
            parameter.mul_(1.001)  # a fine-tune of the upper layers
    saved.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes()[:HEAD_BYTES] == head
    assert first != model_fingerprint(make_campaign())


def test_a_hub_id_is_taken_from_the_cache_and_its_commit_is_kept(
    make_campaign: CampaignMaker, saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshots" / ("c" * 40)
    saved.save_pretrained(snapshot)
    asked: list[Any] = []

    def snapshot_download(repo: str, **settings: Any) -> str:
        asked.append((repo, settings["revision"], settings.get("local_files_only")))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert open_extractor(make_campaign(weights="org/name@v1")).describe()["revision"] == "c" * 40
    assert set(asked) == {("org/name", "v1", True)}, "a cached snapshot needs no network"


def test_a_hub_id_that_cannot_be_fetched_is_one_line(make_campaign: CampaignMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(repo: str, **settings: Any) -> str:
        raise LocalEntryNotFoundError("cannot find it\nand a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(StateError, match="neither a folder beside the campaign file nor a hub model") as caught:
        open_extractor(make_campaign(weights="org/name"))
    assert "\n" not in str(caught.value)


def test_the_embedded_model_is_loaded_and_proves_itself(make_campaign: CampaignMaker) -> None:
    campaign = make_campaign(weights="embedded", num_hidden_layers=8, hidden_size=192, vocab_size=2304)
    extractor = open_extractor(campaign)
    result = run_self_test(extractor, campaign.layers, "float32")
    assert [row["nearest"] for row in result["layers"]] == [2, 4, 5]
    assert extractor.describe()["fingerprint"] == model_fingerprint(campaign)
