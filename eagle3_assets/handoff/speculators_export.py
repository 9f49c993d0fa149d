"""`handoff/speculators`: its Arrow dataset and vocabulary files, and the table by which its trainer reads our parts in place.

Belongs here: what lies in the folder, the command line that trains from it. Does not belong here: reading inside the trainer
(`speculators_transfer.py`), the files in its own format (`state_files.py`), which rows may go (`policy.py`).

    data-*.arrow, state.json, dataset_info.json   input_ids, loss_mask, seq_len: as `prepare-data` would have saved them
    d2t-N.npy, t2d-N.npy, token_freq.pt           size-keyed names, as its trainer looks them up
    rows.json, final_norm.npy                     row i of Arrow -> where in hidden_states/ it lies
    draft.json, train.json                        the drafter's layer, the arguments of a training run
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.corpus.swap import replaced_folder
from eagle3_assets.corpus.vocab import read_vocab_map
from eagle3_assets.handoff import target_head
from eagle3_assets.handoff.arrow_dataset import write_arrow_dataset
from eagle3_assets.handoff.card import write_card
from eagle3_assets.handoff.mapped_rows import TABLE_FILE, MappedRows
from eagle3_assets.handoff.recipes import Cut, cut_of, draft_layer, recipe_of
from eagle3_assets.handoff.row_table import write_row_table
from eagle3_assets.handoff.state_files import guard_files, write_state_files
from eagle3_assets.progress import Step, publish
from eagle3_assets.states.format.layers import translate
from eagle3_assets.store import Manifest, Store, commit, digest_file, read_json

NAME: Final = "speculators"
CARD, DRAFT, COMMAND = "README.md", "draft.json", "train.json"


def export_speculators(campaign: Campaign, store: Store, *, commit_inputs: Mapping[str, Any] | None = None) -> Manifest:
    """Write `handoff/speculators/`, swap it in and commit it; then, where `[handoff] files` asks, its `hs_{i}.safetensors`.

    Raises CorpusError (no row may be handed on), StateError (states missing or of other rows), StoreError (files too large for the disk
    or for `[handoff] file_bytes`: nothing is written then).
    """
    corpus, target = open_corpus(store.corpus), store.handoff(NAME)
    target_head.write_target_head(campaign, store)
    with replaced_folder(target) as folder:
        numbers = write_row_table(campaign, store, corpus, folder, f"handoff/{NAME}")
        numbers["files_bytes"] = guard_files(campaign, store, NAME, numbers)
        rows = MappedRows(folder)
        counts = _write_arrow(campaign, folder, rows)
        _write_vocabulary(campaign, store, folder, counts)
        config = target_head.read_config(store)
        (folder / DRAFT).write_text(json.dumps(draft_layer(config), indent=2) + "\n")
        arguments = train_command(campaign, rows.table, config)
        (folder / COMMAND).write_text(json.dumps({"arguments": arguments}, indent=2) + "\n")
        use = _use(rows.table, config, arguments)
        write_card(folder / CARD, campaign, corpus.manifest, numbers, what="Hidden states for speculators", use=use)
    numbers["files"] = write_state_files(campaign, store, NAME)
    default = {"corpus": corpus.digest, "grades": list(campaign.handoff.grades)}
    files = [path for path in target.iterdir() if path.is_file()]
    return commit(target, files=files, inputs=commit_inputs if commit_inputs is not None else default, numbers=numbers)


def _write_arrow(campaign: Campaign, folder: Path, rows: MappedRows) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The dataset of all rows; returns how often each id is supervised, int64 [V], as `prepare-data` counts it."""
    counts = np.zeros(campaign.target.vocab_size, dtype=np.int64)

    def read(i: int) -> tuple[Any, Any]:
        row = rows[i]
        counts[:] += np.bincount(row.input_ids[row.loss_mask == 1], minlength=len(counts))
        if i % 100 == 0:
            publish(Step("handoff_speculators", i + 1, len(rows)))
        return row.input_ids, row.loss_mask

    lengths = [end - start for *_, start, end, _ in rows.table["rows"]]
    write_arrow_dataset(folder, lengths, read, digest_file(folder / TABLE_FILE))
    return counts


def _write_vocabulary(campaign: Campaign, store: Store, folder: Path, counts: np.ndarray[Any, Any]) -> None:
    """The trainer takes a map that is there by its size-keyed name, and would count one itself from `token_freq.pt`."""
    import torch

    torch.save({int(i): int(counts[i]) for i in np.flatnonzero(counts)}, folder / "token_freq.pt")
    n, maps = campaign.vocab.draft_vocab_size, read_vocab_map(campaign, store)
    if n < campaign.target.vocab_size:  # the full vocabulary needs no map: `--draft-vocab-size` is left out then
        np.save(folder / f"d2t-{n}.npy", maps.d2t)
        np.save(folder / f"t2d-{n}.npy", maps.t2d)


def train_ratio(train_rows: int, rows: int) -> float | None:
    """`--train-data-ratio` that cuts exactly behind the training rows: the trainer takes the first int(rows * ratio). None where the
    corpus has no validation rows (the trainer then cuts some off itself: it refuses a ratio of 1)."""
    return round((train_rows + 0.5) / rows, 9) if train_rows < rows else None


def train_command(campaign: Campaign, table: Mapping[str, Any], config: Mapping[str, Any], *, data_path: str = ".") -> list[str]:
    """The arguments of a training run from this folder. `config`: the target's flat configuration (`target_head`)."""
    n, v = campaign.vocab.draft_vocab_size, campaign.target.vocab_size
    ids = translate(table["layers"], to="speculators", num_hidden_layers=table["num_hidden_layers"])
    ratio = train_ratio(table["train_rows"], len(table["rows"]))
    recipe, cut = recipe_of(config), _cut(table, config)
    return [
        "--verifier-name-or-path", str(Path(data_path) / ".." / target_head.NAME), "--data-path", data_path,
        "--draft-config", str(Path(data_path) / DRAFT), "--speculator-type", "eagle3",
        "--hidden-states-backend", "eagle3", "--on-missing", "raise", "--target-layer-ids", *(str(k) for k in ids),
        *(["--draft-vocab-size", str(n)] if n < v else []),
        *(["--train-data-ratio", f"{ratio:.9g}"] if ratio is not None else []),
        "--total-seq-len", str(cut.length), "--ttt-steps", str(recipe.ttt_steps), "--lr", f"{recipe.learning_rate:g}",
        "--epochs", str(recipe.epochs),
        # EAGLE-3 masks nothing; without the option the trainer wants a tokenizer (speculators 0.9.0, train/utils.py resolve_mask_token_id)
        "--mask-token-id", str(config.get("pad_token_id") or 0),
    ]  # fmt: skip


def read_train_command(folder: Path) -> list[str]:
    """The arguments that the committed hand-off prints, for a process that starts in `folder`. Raises StoreError for a damaged file."""
    words: list[str] = read_json(folder / COMMAND, otherwise="materialize handoff/speculators again")["arguments"]
    return words


def _cut(table: Mapping[str, Any], config: Mapping[str, Any]) -> Cut:
    lengths = [end - start for *_, start, end, _ in table["rows"]]
    return cut_of(lengths, min(recipe_of(config).length, max(2, *lengths)))


def _use(table: Mapping[str, Any], config: Mapping[str, Any], arguments: list[str]) -> list[str]:
    command = " ".join(["python -m eagle3_assets.handoff.train_speculators", *arguments])
    return [
        "An Arrow dataset as `speculators prepare-data` saves it; the states stay where they are (`hidden_states/` of the data root, or "
        "where `$EAGLE3_STATES` says) and are read in place, each row's ids compared at each read. In the trainer's environment, with the "
        "eagle3_assets repository on `PYTHONPATH`, from this folder:",
        f"```\n{command}\n```",
        f"`../{target_head.NAME}` holds all that the trainer needs of the target. Length, steps of training-time test, rate and epochs: "
        f"{recipe_of(config).source}. {_cut(table, config).words} `--target-layer-ids` counts inputs of layers (E_k) and leaves the last state "
        "out; it is stored before the final norm. `d2t` holds offsets: target id = i + d2t[i].",
    ]
