"""SpecForge, as it is on PyPI, reads what we hand on: token rows, references to our parts, files of its own, vocabulary, configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from eagle3_assets import corpus as corpora
from eagle3_assets import states
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.vocab import count_supervised
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.state_files import files_folder, write_state_files
from eagle3_assets.handoff.tokens import export_tokens
from eagle3_assets.installed import kimi_mini_weights
from eagle3_assets_tests.handoff.answers import Place

pytestmark = pytest.mark.trainers

MAX_LENGTH = 4096


def read_all(place: Place, folder: Path, batch_size: int = 3) -> list[dict[str, Any]]:
    """Every batch that SpecForge's offline reader, feature store and loader make of a folder, as its trainer would get them."""
    from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer
    from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    refs = OfflineManifestReader(str(folder), max_len=MAX_LENGTH, validate_files=True).read()
    loader = FeatureDataLoader(
        LocalFeatureStore("test"), refs=refs, batch_size=batch_size, collate_fn=build_offline_collator(),
        per_sample_transform=build_offline_normalizer(MAX_LENGTH), drop_last=False, strategy="eagle3", num_workers=2,
    )  # fmt: skip
    return [batch.tensors for batch in loader]


def check_rows(place: Place, batches: list[dict[str, Any]]) -> None:
    """Row by row: ids, unshifted mask (SpecForge itself clears the last place), aux side by side, target after the norm, once."""
    import torch

    rows = MappedRows(place.store.handoff("specforge"))
    opened = {key: states.open(place.store.states(key)) for key in corpora.open(place.store.corpus).parts}
    stored = {(r.sample_id, r.turn): (r, s.final_norm) for s in opened.values() for r in s}
    i = 0
    for batch in batches:
        for k in range(len(batch["input_ids"])):
            length = int(batch["attention_mask"][k].sum())
            row, norm = stored[rows[i].sample_id, rows[i].turn]
            mask = row.loss_mask.copy()
            mask[-1] = 0
            assert length == len(row.input_ids) and np.array_equal(batch["input_ids"][k, :length].numpy(), row.input_ids)
            assert np.array_equal(batch["loss_mask"][k, :length].reshape(-1).numpy(), mask)
            assert torch.equal(batch["hidden_state"][k, :length], row.hidden_states[:, :3].flatten(1))
            assert torch.equal(batch["target"][k, :length], norm.apply(row.hidden_states[:, 3]))
            i += 1
    assert i == len(rows) == len(corpora.open(place.store.corpus))


def test_its_reader_store_and_loader_read_every_row_in_place(greedy: Place) -> None:
    check_rows(greedy, read_all(greedy, greedy.store.handoff("specforge") / "train"))


def test_it_reads_every_row_from_files_of_its_own(greedy: Place) -> None:
    asking = Campaign.model_validate(
        {**greedy.campaign.model_dump(exclude={"path"}), "handoff": {"files": ("specforge",), "file_bytes": 10**9}}
    )
    write_state_files(asking, greedy.store, "specforge")
    check_rows(greedy, read_all(greedy, files_folder(greedy.store, "specforge") / "train"))


def test_its_order_of_files_is_the_order_of_rows(greedy: Place) -> None:
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    files = list_feature_files(str(greedy.store.handoff("specforge") / "train"))
    assert [int(Path(f).stem.split("_")[1]) for f in files] == list(range(len(files)))


def test_token_rows_are_taken_as_they_are_without_a_tokenizer(greedy: Place) -> None:
    from specforge.data.prompt_builder import prepare_prompt_tasks

    export_tokens(greedy.campaign, greedy.store)
    tasks = prepare_prompt_tasks(
        str(greedy.store.handoff_tokens / "tokens.jsonl"), None, chat_template=None, max_length=MAX_LENGTH, is_preformatted=False,
        train_only_last_turn=False, cache_dir=None, cache_key=None, num_proc=1,
    )  # fmt: skip
    found = Counter((tuple(t["payload"]["input_ids"]), tuple(t["payload"]["loss_mask"])) for t in tasks)
    wanted = Counter((tuple(map(int, p.input_ids)), tuple(map(int, p.loss_mask))) for p in corpora.open(greedy.store.corpus))
    assert found == wanted


def test_it_counts_our_rows_as_we_do_and_its_function_gives_our_map(greedy: Place) -> None:
    import torch
    from specforge.data.preprocessing import process_token_dict_to_mappings
    from specforge.training.vocab_mapping import count_effective_feature_tokens

    campaign = greedy.campaign
    n, v = campaign.vocab.draft_vocab_size, campaign.target.vocab_size
    counts = count_supervised(corpora.open(greedy.store.corpus), v)
    found = count_effective_feature_tokens(str(greedy.store.handoff("specforge") / "train"), target_vocab_size=v)
    assert found == {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    ours = torch.load(greedy.store.handoff("specforge") / "vocab_mapping.pt", weights_only=True)
    # fed by id its stable order breaks ties by the lower id, as ours does; fed in the order of the files, only what is covered is equal
    ascending = Counter({i: found[i] for i in sorted(found)})
    d2t, t2d = process_token_dict_to_mappings(ascending, n, v)
    assert torch.equal(d2t, ours["d2t"]) and torch.equal(t2d, ours["t2d"])
    _, as_read = process_token_dict_to_mappings(found, n, v)
    assert counts[as_read.numpy()].sum() == counts[ours["t2d"].numpy()].sum() and int(as_read.sum()) == n


def test_its_draft_model_loads_our_vocabulary_and_layer_ids_mean_outputs(greedy: Place) -> None:
    import torch
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    folder = greedy.store.handoff("specforge")
    raw = json.loads((folder / "draft.json").read_bytes())
    assert [k + 1 for k in raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"]] == list(greedy.campaign.layers)
    config = LlamaConfig(**raw, pad_token_id=0)
    draft: Any = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
    draft.load_vocab_mapping(str(folder / "vocab_mapping.pt"))
    assert torch.equal(draft.d2t.cpu(), torch.from_numpy(np.load(greedy.store.vocab_map / "d2t.npy")))


def test_our_configuration_is_one_that_it_accepts(greedy: Place, tmp_path: Path) -> None:
    from specforge.config.schema import Config

    folder = greedy.store.handoff("specforge")
    text = (folder / "train.yaml").read_text()
    assert "<" not in text
    config = Config.model_validate(yaml.safe_load(text))
    assert config.data.hidden_states_path == "train" and config.data.max_length >= max(
        len(p.input_ids) for p in corpora.open(greedy.store.corpus)
    )


def test_a_hand_off_that_was_moved_gets_its_references_anew(
    greedy: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("rows.json", "final_norm.npy"):
        (moved / name).write_bytes((greedy.store.handoff("specforge") / name).read_bytes())
    monkeypatch.setenv("EAGLE3_STATES", str(greedy.store.hidden_states))
    done = subprocess.run(
        [sys.executable, "-m", "eagle3_assets.handoff.specforge_rows", str(moved)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{len(MappedRows(moved))} references")
    check_rows(greedy, read_all(greedy, moved / "train"))


def test_its_target_head_is_read_from_our_folder_under_the_names_that_we_write(greedy: Place) -> None:
    """With validation rows too, for which it wants an interval; no key name and no path is left to the user."""
    import torch
    from safetensors.torch import load_file
    from specforge.config.schema import Config
    from specforge.modeling.target.target_utils import TargetEmbeddingsAndHead

    from eagle3_assets.handoff.specforge_export import _train_yaml
    from eagle3_assets.handoff.target_head import read_config

    folder = greedy.store.handoff("specforge")
    table = MappedRows(folder).table
    numbers = {"splits": {"train": 1, "validation": 1}}
    config = Config.model_validate(yaml.safe_load(_train_yaml(greedy.campaign, table, numbers, read_config(greedy.store))))
    head = TargetEmbeddingsAndHead.from_pretrained(
        str(folder / config.model.target_model_path), embed_key=config.model.embedding_key, lm_head_key=config.model.lm_head_key,
        device="cpu", dtype=torch.float32,
    )  # fmt: skip
    ours = load_file(kimi_mini_weights() / "model.safetensors")
    assert torch.equal(head.lm_head.weight.detach(), ours["lm_head.weight"].float())
    assert torch.equal(head.embed_tokens.weight.detach(), ours["model.embed_tokens.weight"].float())
