"""speculators, as it is on PyPI, reads what we hand on: rows through prepare-data, states in place and from files, and learns from them."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets import states
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.vocab import count_supervised
from eagle3_assets.errors import StateError
from eagle3_assets.handoff import speculators_export
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.state_files import files_folder, write_state_files
from eagle3_assets.handoff.tokens import export_tokens
from eagle3_assets_tests.handoff.answers import Place

pytestmark = pytest.mark.trainers


def rows_of(place: Place) -> dict[tuple[int, ...], tuple[int, ...]]:
    """ids -> mask of every corpus row."""
    return {tuple(map(int, p.input_ids)): tuple(map(int, p.loss_mask)) for p in corpora.open(place.store.corpus)}


@pytest.fixture(scope="module")
def prepared(greedy: Place, verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `speculators prepare-data` makes of handoff/tokens."""
    from speculators.cli import app

    export_tokens(greedy.campaign, greedy.store)
    out = Path(tmp_path_factory.mktemp("prepared"))
    app(
        ["prepare-data", "--model", str(verifier), "--data", str(greedy.store.handoff_tokens / "tokens.jsonl"), "--output", str(out),
         "--seq-length", "4096", "--num-preprocessing-workers", "1", "--no-skip-token-freq"],
        standalone_mode=False,
    )  # fmt: skip
    return out


def test_prepare_data_passes_our_rows_through_with_ids_and_masks_equal(greedy: Place, prepared: Path) -> None:
    from datasets import load_from_disk

    dataset = load_from_disk(str(prepared)).with_format(None)
    wanted = rows_of(greedy)
    found = {tuple(row["input_ids"]): tuple(row["loss_mask"]) for row in dataset}
    assert found == wanted and len(dataset) == len(corpora.open(greedy.store.corpus))


def test_our_arrow_dataset_is_what_prepare_data_saves(greedy: Place, prepared: Path) -> None:
    import torch
    from datasets import load_from_disk

    ours, theirs = (load_from_disk(str(path)) for path in (greedy.store.handoff("speculators"), prepared))
    assert ours.features == theirs.features and ours.format["type"] == theirs.format["type"] == "torch"

    def content(dataset: Any) -> Counter[tuple[Any, ...]]:
        return Counter((tuple(r["input_ids"]), tuple(r["loss_mask"]), r["seq_len"]) for r in dataset.with_format(None))

    assert content(ours) == content(theirs)
    frequencies = [torch.load(path / "token_freq.pt") for path in (greedy.store.handoff("speculators"), prepared)]
    assert frequencies[0] == frequencies[1]


def arrow_dataset(place: Place, transfer: Any, **settings: Any) -> Any:
    from speculators.train.data import ArrowDataset

    return ArrowDataset(
        max_len=4096, datapath=place.store.handoff("speculators"), transfer=transfer, on_missing="raise", **settings
    )


def check_items(place: Place, dataset: Any) -> None:
    """Every item equals its row's stored states: three aux side by side, the last before the norm, ids and mask."""
    import torch

    rows = MappedRows(place.store.handoff("speculators"))
    assert len(dataset) == len(rows) == len(corpora.open(place.store.corpus))
    stored = {
        (r.sample_id, r.turn): r for key in corpora.open(place.store.corpus).parts for r in states.open(place.store.states(key))
    }
    for i in range(len(dataset)):
        item, row = dataset[i], stored[rows[i].sample_id, rows[i].turn]
        assert torch.equal(item["hidden_states"], row.hidden_states[:, :3].flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], row.hidden_states[:, 3])
        assert np.array_equal(item["input_ids"].numpy(), row.input_ids) and np.array_equal(
            item["loss_mask"].numpy(), row.loss_mask
        )


def test_its_dataset_reads_every_row_through_our_transfer(greedy: Place) -> None:
    from hs_connectors import HiddenStatesBackend

    from eagle3_assets.handoff import speculators_transfer

    backend = HiddenStatesBackend.registry[speculators_transfer.BACKEND]
    transfer = backend.from_train_args(Namespace(), str(greedy.store.handoff("speculators")))
    check_items(greedy, arrow_dataset(greedy, transfer))


def test_its_dataset_reads_every_row_from_files_of_its_own(greedy: Place) -> None:
    from hs_connectors import FileTransfer
    from speculators.data_generation.offline import check_hidden_states

    asking = Campaign.model_validate(
        {**greedy.campaign.model_dump(exclude={"path"}), "handoff": {"files": ("speculators",), "file_bytes": 10**9}}
    )
    made = write_state_files(asking, greedy.store, "speculators")
    transfer = FileTransfer(files_folder(greedy.store, "speculators"))
    assert made["files"] == len(MappedRows(greedy.store.handoff("speculators")))
    check_items(greedy, arrow_dataset(greedy, transfer))
    for i in range(made["files"]):
        row = MappedRows(greedy.store.handoff("speculators"))[i]
        cached = transfer.get_cached(i)
        assert cached is not None
        check_hidden_states(cached, row.input_ids.tolist())


def test_states_of_other_rows_raise_in_its_loader_where_it_would_only_warn(greedy: Place, tmp_path: Path) -> None:
    from eagle3_assets.handoff.speculators_transfer import Eagle3Transfer

    table = json.loads((greedy.store.handoff("speculators") / "rows.json").read_bytes())
    for name in greedy.store.handoff("speculators").iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    table["rows"][0], table["rows"][1] = table["rows"][1], table["rows"][0]  # Arrow and states in another order
    table["states"] = str(greedy.store.hidden_states)
    (tmp_path / "rows.json").write_text(json.dumps(table))
    with pytest.raises(StateError, match=r"row 0 .* has another input_ids in Arrow than its states have"):
        arrow_dataset(greedy, Eagle3Transfer(tmp_path))[0]


def test_a_few_real_steps_of_its_model_lower_the_loss(greedy: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our printed command, from the hand-off's folder, with nothing of the target but `target_head`.

    Parsed by its own configuration; its loaders over our backend; its draft model; its loss; AdamW.

    Its `Trainer` asks for an accelerator, so the loop is ours.
    """
    import torch
    from hs_connectors import HiddenStatesBackend
    from speculators.model import SpeculatorModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.cli import build_draft_model, parse_vocab_mappings
    from speculators.train.config import TrainConfig
    from speculators.train.dataloader import create_train_val_loaders

    from eagle3_assets.handoff import speculators_transfer  # noqa: F401  # registers the backend

    folder = greedy.store.handoff("speculators")
    monkeypatch.chdir(folder)
    command = speculators_export.read_train_command(folder)
    extra = ["--hidden-states-dtype", "float32", "--draft-attn-impl", "sdpa", "--loss-implementation", "eager",
             "--num-workers", "0", "--optimizer", "adamw", "--save-path", str(tmp_path)]  # fmt: skip
    args = Namespace(**TrainConfig.resolve([*command, *extra]).flatten())
    assert args.hidden_states_backend == "eagle3" and list(args.target_layer_ids) == list(greedy.campaign.layers)
    d2t, t2d, size = parse_vocab_mappings(args)
    assert size == greedy.campaign.vocab.draft_vocab_size
    assert np.array_equal(d2t.numpy(), np.load(greedy.store.vocab_map / "d2t.npy"))

    torch.manual_seed(0)
    model: Any = build_draft_model(args, SpeculatorModel.registry["eagle3"], t2d, d2t, size)
    loader, _ = create_train_val_loaders(
        data_path=args.data_path, total_seq_len=args.total_seq_len, hidden_states_dtype=torch.float32,
        transfer=HiddenStatesBackend.registry["eagle3"].from_train_args(args, args.data_path), vllm_endpoint=args.vllm_endpoint,
        on_missing=args.on_missing, verifier_name_or_path=args.verifier_name_or_path, request_timeout=None, max_retries=0,
        generation_validation_retries=0, max_consecutive_generation_failures=1,
        hidden_size=greedy.campaign.target.hidden_size, num_target_layers=3, num_workers=0, prefetch_factor=None,  # type: ignore[arg-type]
        preprocess=shift_batch, train_data_ratio=args.train_data_ratio, seed=0,
    )  # fmt: skip
    train_arguments, _ = model.get_trainer_kwargs(**vars(args))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for _ in range(3):
        for batch in loader:
            tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
            _, loss, _ = model(**tensors, **train_arguments)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    third = max(1, len(losses) // 3)
    assert len(losses) >= 9 and np.isfinite(losses).all()
    assert np.mean(losses[-third:]) < 0.8 * np.mean(losses[:third]), losses


def test_our_launcher_registers_the_backend_before_its_options_are_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eagle3_assets.handoff.train_speculators", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "eagle3" in done.stdout.replace("\n", " ").split("--hidden-states-backend", 1)[1][:200]


def test_the_transfer_needs_none_of_the_platform(greedy: Place) -> None:
    """In a trainer's environment there is no dagster, no duckdb and no pydantic of ours to count on."""
    folder = greedy.store.handoff("speculators")
    code = (
        "import sys\nfrom eagle3_assets.handoff.mapped_rows import MappedRows\n"
        f"rows = MappedRows({str(folder)!r}); rows[0].hidden_states; rows.post_norm(rows[0].hidden_states[:, -1])\n"
        "from eagle3_assets.handoff.specforge_rows import FeatureRow\n"
        "ours = {m for m in sys.modules if m.startswith('eagle3_assets')}\n"
        "print(sorted(ours), sorted({'dagster', 'duckdb', 'pyarrow', 'orjson', 'xxhash', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["eagle3_assets", "eagle3_assets.errors", "eagle3_assets.handoff", "eagle3_assets.handoff.mapped_rows",
             "eagle3_assets.handoff.specforge_rows"]  # fmt: skip
    assert done.stdout.strip() == f"{names} []"


def test_its_own_vocabulary_function_gives_our_map(greedy: Place) -> None:
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    campaign = greedy.campaign
    counts = count_supervised(corpora.open(greedy.store.corpus), campaign.target.vocab_size)
    frequency = {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    d2t, t2d = build_vocab_mappings_from_distribution(frequency, campaign.vocab.draft_vocab_size, campaign.target.vocab_size)
    for name, found in (("d2t", d2t), ("t2d", t2d)):
        ours = np.load(greedy.store.handoff("speculators") / f"{name}-{campaign.vocab.draft_vocab_size}.npy")
        assert ours.dtype == found.numpy().dtype and np.array_equal(ours, found.numpy())


def test_a_drafter_of_ours_is_one_of_its_own_and_drafts_the_same(greedy: Place, tmp_path: Path) -> None:
    """Its model, loaded by itself from our checkpoint: the same ids, step by step, over stored rows."""
    import torch
    from speculators import SpeculatorModelConfig
    from speculators.models.eagle3 import Eagle3DraftModel

    from eagle3_assets.accept.batch import make_batch
    from eagle3_assets.accept.checkpoint import save_checkpoint
    from eagle3_assets.accept.drafts import starts_of
    from eagle3_assets.accept.stored_rows import final_norm, stored_rows
    from eagle3_assets.accept.training import Settings, fresh_drafter, train
    from eagle3_assets.corpus.vocab import read_vocab_map
    from eagle3_assets.states.target.target_head import load_embedding, load_head

    campaign, target = greedy.campaign, greedy.store.handoff("target_head")
    head = load_head(campaign, final_norm(greedy.store), folder=target)
    d2t = torch.from_numpy(read_vocab_map(campaign, greedy.store).d2t)
    drafter = fresh_drafter(load_embedding(campaign, target), head, d2t, Settings(epochs=1))
    rows = [stored.row for stored in stored_rows(campaign, greedy.store, "train")][:12]
    train(drafter, rows, head, Settings(epochs=2, batch_tokens=256))
    verifier = {"name_or_path": str(target), "architectures": ["DeepseekV3ForCausalLM"]}
    save_checkpoint(tmp_path, drafter, layers=campaign.layers, verifier=verifier, tokens=3)
    config = SpeculatorModelConfig.from_pretrained(tmp_path)
    config.transformer_layer_config._attn_implementation = "sdpa"
    theirs = Eagle3DraftModel.from_pretrained(tmp_path, config=config, torch_dtype=torch.float32).eval()
    theirs.load_verifier_weights()
    batch = make_batch(rows[:3])
    starts = starts_of(batch)
    with torch.no_grad():
        ours = [logits.argmax(-1) for logits in drafter.chain(batch, 3, starts)]
        found = theirs(
            hidden_states=batch.features[None], input_ids=batch.ids[None], document_ids=batch.documents[None],
            position_ids=batch.positions[None], loss_mask=batch.supervised.float()[None], ttt_steps=3,
        )  # fmt: skip
    for k, (mine, other) in enumerate(zip(ours, found, strict=True)):
        inside = (batch.supervised & batch.supervised.roll(-k))[starts]  # start and end of the draft in one answer
        assert inside.sum() > 20 and torch.equal(mine[inside], other[0, starts][inside])
