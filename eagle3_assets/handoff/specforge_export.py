"""`handoff/specforge`: references to our parts in SpecForge's folder layout, its vocabulary map and a configuration to start from.

Belongs here: what lies in the folder. Does not belong here: what a reference becomes in the trainer (`specforge_rows.py`), self-contained
feature files (`state_files.py`), which rows may go (`policy.py`).

    train/rows_*/data_*.ckpt, validation/...   one reference a row; data.hidden_states_path, data.eval_hidden_states_path
    vocab_mapping.pt                           {"d2t": int64 [N] offsets, "t2d": bool [V]}; model.vocab_mapping_path
    draft.json, train.yaml                     the layer ids in SpecForge's numbering (outputs of layers), the training configuration
    rows.json, final_norm.npy                  where in hidden_states/ a row lies; the norm that is applied when it is read
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.corpus.swap import replaced_folder
from eagle3_assets.corpus.vocab import read_vocab_map
from eagle3_assets.handoff import target_head
from eagle3_assets.handoff.card import write_card
from eagle3_assets.handoff.mapped_rows import read_table
from eagle3_assets.handoff.recipes import Cut, cut_of, draft_layer, recipe_of
from eagle3_assets.handoff.row_table import write_row_table
from eagle3_assets.handoff.specforge_rows import write_references
from eagle3_assets.handoff.state_files import guard_files, write_state_files
from eagle3_assets.states.format.layers import translate
from eagle3_assets.store import Manifest, Store, commit

NAME: Final = "specforge"
EVAL_INTERVAL: Final = 1000  # steps
CARD, VOCABULARY, DRAFT, CONFIG = "README.md", "vocab_mapping.pt", "draft.json", "train.yaml"


def export_specforge(campaign: Campaign, store: Store, *, commit_inputs: Mapping[str, Any] | None = None) -> Manifest:
    """Write `handoff/specforge/`, swap it in and commit it; then, where `[handoff] files` asks, its self-contained feature files.

    Raises as `export_speculators` does.
    """
    corpus, target = open_corpus(store.corpus), store.handoff(NAME)
    target_head.write_target_head(campaign, store)
    config = target_head.read_config(store)
    with replaced_folder(target) as folder:
        numbers = write_row_table(campaign, store, corpus, folder, f"handoff/{NAME}")
        numbers["files_bytes"] = guard_files(campaign, store, NAME, numbers)
        table = read_table(folder)
        _write_references(folder, target)
        _write_vocabulary(campaign, store, folder)
        (folder / DRAFT).write_bytes(orjson.dumps(draft_config(campaign, table, config), option=orjson.OPT_INDENT_2))
        (folder / CONFIG).write_text(_train_yaml(campaign, table, numbers, config))
        write_card(folder / CARD, campaign, corpus.manifest, numbers, what="Hidden states for SpecForge", use=_use(table, config))
    numbers["files"] = write_state_files(campaign, store, NAME)
    default = {"corpus": corpus.digest, "grades": list(campaign.handoff.grades)}
    # the references are not listed one by one: rows.json says all that is in them, and the check opens them
    files = [path for path in target.iterdir() if path.is_file()]
    return commit(target, files=files, inputs=commit_inputs if commit_inputs is not None else default, numbers=numbers)


def _write_references(folder: Path, home: Path) -> None:
    write_references(folder, home)
    for path in sorted(folder.rglob("*")):  # the swap syncs the folder's own files only
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def _write_vocabulary(campaign: Campaign, store: Store, folder: Path) -> None:
    import torch

    maps = read_vocab_map(campaign, store)
    torch.save({"d2t": torch.from_numpy(maps.d2t), "t2d": torch.from_numpy(maps.t2d)}, folder / VOCABULARY)


def draft_config(campaign: Campaign, table: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """`model.draft_model_config`: the layer by the target's configuration, vocabulary and layer ids by what is stored."""
    ids = translate(table["layers"], to="specforge", num_hidden_layers=table["num_hidden_layers"])
    return {
        **draft_layer(config),
        "architectures": ["LlamaForCausalLMEagle3"],
        "vocab_size": campaign.target.vocab_size,
        "draft_vocab_size": campaign.vocab.draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True},
    }


def _cut(table: Mapping[str, Any], config: Mapping[str, Any]) -> Cut:
    lengths = [end - start for *_, start, end, _ in table["rows"]]
    return cut_of(lengths, min(recipe_of(config).length, max(2, *lengths)))


def _train_yaml(campaign: Campaign, table: Mapping[str, Any], numbers: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    validation = "  eval_hidden_states_path: validation\n" if numbers["splits"]["validation"] else ""
    recipe, cut = recipe_of(config), _cut(table, config)
    # SpecForge 0.2 refuses one without the other
    evaluated = f"  eval_interval: {EVAL_INTERVAL}\n" if validation else ""
    return (
        "# SpecForge 0.2, offline EAGLE-3. Paths are relative to this folder.\n"
        f"# {recipe.source}. {cut.words}\n"
        f"run_id: {campaign.name}\noutput_dir: out\n"
        f"model:\n  target_model_path: ../{target_head.NAME}\n"
        f"  draft_model_config: {DRAFT}\n  embedding_key: {target_head.EMBEDDING}\n  lm_head_key: {target_head.HEAD}\n"
        f"  vocab_mapping_path: {VOCABULARY}\n  torch_dtype: {table['dtype']}\n"
        f"data:\n  hidden_states_path: train\n{validation}  max_length: {cut.length}\n"
        f"training:\n  strategy: eagle3\n  num_epochs: {recipe.epochs}\n  batch_size: 1\n"
        f"  learning_rate: {recipe.learning_rate:g}\n  ttt_length: {recipe.ttt_steps}\n{evaluated}"
        "deployment:\n  mode: local_colocated\n"
    )


def _use(table: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    return [
        "SpecForge's layout of feature files, each of them a reference of a kilobyte: the states stay where they are (`hidden_states/` of the "
        "data root, or where `$EAGLE3_STATES` says) and are read in place, each row's ids compared at each read. `torch.load` of a reference "
        "calls `eagle3_assets.handoff.specforge_rows`, so the trainer's environment needs the eagle3_assets repository on `PYTHONPATH`. Where "
        "this folder was moved or fetched to: `python -m eagle3_assets.handoff.specforge_rows .` writes them anew. From this folder:",
        "```\nspecforge train --config train.yaml\n```",
        "`hidden_state` is after the final norm (applied when a row is read: fp32 inside, cast back), `aux_hidden_state` low, mid, high side by "
        "side; the layer ids of `draft.json` count outputs of layers. `loss_mask` is unshifted. SpecForge sorts paths as strings: the numbers "
        f"are padded, so its order is that of `rows.json`. {_cut(table, config).words} Recipe: {recipe_of(config).source}. `../{target_head.NAME}` "
        "holds all that the trainer needs of the target. "
        "`d2t` holds offsets: target id = i + d2t[i].",
    ]
