"""A drafter on disk: written and read without a change, refused in one line where it is none of this target."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle3_assets.accept.acceptance import Decoding, figures, measure
from eagle3_assets.accept.checkpoint import load_checkpoint, save_checkpoint
from eagle3_assets.accept.layer import Drafter
from eagle3_assets.errors import StateError
from eagle3_assets_tests.accept.conftest import Trained

VERIFIER = {"name_or_path": "", "architectures": ["DeepseekV3ForCausalLM"]}


@pytest.fixture
def saved(trained: Trained, tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "c", trained.drafter, layers=trained.place.campaign.layers, verifier=VERIFIER, tokens=3)
    return tmp_path / "c"


def load(folder: Path, trained: Trained) -> Drafter:
    return load_checkpoint(folder, trained.drafter.embed_tokens.weight, num_hidden_layers=8).drafter


@pytest.mark.slow
def test_what_was_saved_is_what_is_read(trained: Trained, saved: Path) -> None:
    loaded = load_checkpoint(saved, trained.drafter.embed_tokens.weight, num_hidden_layers=8)
    assert loaded.layers == trained.place.campaign.layers
    before, after = trained.drafter.state_dict(), loaded.drafter.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_specforges_names_and_configuration_give_the_same_figures(trained: Trained, saved: Path) -> None:
    """`midlayer`, a flat configuration, ids that count outputs of layers, no embedding in the file."""
    from safetensors.torch import load_file, save_file

    raw, theirs = json.loads((saved / "config.json").read_bytes()), saved.with_name("specforge")
    theirs.mkdir()
    flat = {
        **raw["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": raw["draft_vocab_size"],
    }
    flat["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in trained.place.campaign.layers]}
    (theirs / "config.json").write_text(json.dumps(flat))
    tensors = {name.replace("layers.0.", "midlayer."): t for name, t in load_file(saved / "model.safetensors").items()}
    tensors.pop("embed_tokens.weight")
    save_file(tensors, theirs / "model.safetensors")
    loaded = load_checkpoint(theirs, trained.drafter.embed_tokens.weight, num_hidden_layers=8)
    assert loaded.layers == trained.place.campaign.layers and loaded.made_by == "LlamaForCausalLMEagle3"
    both = [
        figures(measure(d, trained.validation, trained.head, Decoding(3)))["sampled_chain"]
        for d in (loaded.drafter, trained.drafter)
    ]
    assert both[0] == both[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speculators_model_type": "dflash", "architectures": ["DFlash"]}, "describes dflash"),
        ({"transformer_layer_config": {"model_type": "deepseek_v3"}}, "its layer is of type 'deepseek_v3'"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "cannot be read as a drafter"),
        ({"draft_vocab_size": 7}, "says draft_vocab_size 7"),
    ],
)
def test_what_is_no_drafter_of_eagle3_is_refused_in_one_line(
    trained: Trained, saved: Path, change: dict[str, object], said: str
) -> None:
    raw = json.loads((saved / "config.json").read_bytes())
    (saved / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(StateError, match=said) as caught:
        load(saved, trained)
    assert "\n" not in str(caught.value)


def test_a_drafter_of_another_target_and_damage_are_refused(trained: Trained, saved: Path) -> None:
    with pytest.raises(StateError, match="a drafter of another target"):
        load_checkpoint(saved, torch.zeros(100, 192), num_hidden_layers=8)
    (saved / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(StateError, match=r"model\.safetensors: cannot be read"):
        load(saved, trained)
    shutil.rmtree(saved)
    with pytest.raises(StateError, match=r"holds no config\.json"):
        load(saved, trained)


def test_the_switches_of_eagle_3_1_change_what_is_computed(trained: Trained) -> None:
    """Norms of each state, normed states fed back, a window: each is there and each matters."""
    from eagle3_assets.accept.batch import make_batch
    from eagle3_assets.accept.drafts import starts_of

    batch = make_batch([trained.validation[0].row])
    starts = starts_of(batch)

    def second_draft(**switches: object) -> torch.Tensor:
        drafter = Drafter(replace(trained.drafter.shape, **switches), trained.drafter.d2t)  # type: ignore[arg-type]
        drafter.load_state_dict(trained.drafter.state_dict(), strict=False)
        return list(drafter.chain(batch, 2, starts))[1].detach()

    plain = second_draft()
    for switch in (
        {"fc_norm": True},
        {"norm_output": True},
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"window": 4},
    ):
        assert not torch.allclose(plain, second_draft(**switch), atol=1e-3), switch
    assert torch.allclose(plain, second_draft(window=10_000))
