"""The hand-offs of hidden states: rows read in place equal the stored ones, in both trainers' conventions, and nothing else is served."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from eagle3_assets import corpus as corpora
from eagle3_assets import states
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.corpus.vocab import build_vocab_map
from eagle3_assets.errors import CorpusError, StateError, StoreError
from eagle3_assets.handoff.arrow_dataset import read_arrow_rows
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.specforge_export import export_specforge
from eagle3_assets.handoff.specforge_rows import FeatureRow, references
from eagle3_assets.handoff.speculators_export import export_speculators, train_command, train_ratio
from eagle3_assets.handoff.target_head import read_config
from eagle3_assets.handoff.tokens import export_tokens
from eagle3_assets.handoff.verify_export import judge_export
from eagle3_assets.states.format.layers import translate_back
from eagle3_assets.states.partition import write_partition
from eagle3_assets.states.verdict.on_policy_table import SCHEMA
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE
from eagle3_assets.store import Store, commit, read_manifest
from eagle3_assets_tests.handoff.answers import Place
from eagle3_assets_tests.review.made_rows import VOCAB, make_row, tiny_campaign, write_tokens
from eagle3_assets_tests.states.conftest import FormulaEngine, H, N

pytestmark = pytest.mark.slow  # its worlds take seconds

LAYERS = (2, 4, 6)


def small_campaign(**tables: Any) -> Campaign:
    target = {"num_hidden_layers": N, "hidden_size": H, "vocab_size": VOCAB, **tables.pop("target", {})}
    extraction = {"layers": LAYERS, "part_bytes": 1 << 16, **tables.pop("extraction", {})}
    return tiny_campaign(target=target, extraction=extraction, **tables)


def small_place(root: Path, campaign: Campaign | None = None, rows: list[Any] | None = None) -> Place:
    """Corpus, map and formula states of a few rows: quick, and with several parts."""
    campaign, store = campaign or small_campaign(corpus={"validation_share": 0.25}), Store(root)
    rows = rows if rows is not None else [make_row(i, prompt=5 + i, response=8 + i % 7) for i in range(24)]
    build_corpus(campaign, store, [write_tokens(store, "b3_magicoder", "00", rows)])
    build_vocab_map(campaign, store, [])
    corpus = corpora.open(store.corpus)
    engine = FormulaEngine(stored_dtype=getattr(torch, campaign.extraction.dtype))
    for key in corpus.parts:
        write_partition(campaign, store, key, corpus.part(key), engine)
    return Place(campaign, store)


@pytest.fixture(scope="module", params=["bfloat16", "float32", "lossless"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    settings = {"compress": "lossless"} if request.param == "lossless" else {"dtype": request.param}
    campaign = small_campaign(corpus={"validation_share": 0.25}, extraction=settings)
    place = small_place(tmp_path_factory.mktemp(request.param) / "tiny", campaign)
    export_speculators(campaign, place.store)
    export_specforge(campaign, place.store)
    return place


def stored(place: Place) -> dict[tuple[str, int], tuple[Any, Any]]:
    """(sample_id, turn) -> (row of the states' own reader, final norm)."""
    opened = [states.open(place.store.states(key)) for key in corpora.open(place.store.corpus).parts]
    return {(row.sample_id, row.turn): (row, s.final_norm) for s in opened for row in s}


def in_order(place: Place) -> list[Pack]:
    corpus = corpora.open(place.store.corpus)
    return [p for split in ("train", "validation") for p in corpus if p.split == split]


# ---------------------------------------------------------------------------------------------------- what is served
@pytest.mark.parametrize("trainer", ["speculators", "specforge"])
def test_rows_are_served_in_place_training_rows_first(small: Place, trainer: str) -> None:
    rows, wanted, held = MappedRows(small.store.handoff(trainer)), in_order(small), stored(small)
    assert len(rows) == len(wanted) == 24 and 0 < rows.train_rows < 24
    for i, pack in enumerate(wanted):
        row, (state, norm) = rows[i], held[pack.sample_id, pack.turn]
        assert (row.sample_id, row.turn) == (pack.sample_id, pack.turn) and (i < rows.train_rows) == (pack.split == "train")
        assert np.array_equal(row.input_ids, pack.input_ids) and np.array_equal(row.loss_mask, pack.loss_mask)
        assert torch.equal(row.hidden_states, state.hidden_states)
        assert torch.equal(rows.post_norm(row.hidden_states[:, 3]), norm.apply(state.hidden_states[:, 3]))


def test_reading_in_place_copies_nothing_and_writes_nothing(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny")
    export_specforge(place.campaign, place.store)
    before = {p: p.read_bytes() for p in place.store.hidden_states.rglob("*.safetensors")}
    rows = MappedRows(place.store.handoff("specforge"))
    first, again = rows[0].hidden_states, rows[0].hidden_states
    assert first.data_ptr() == again.data_ptr() and rows[0].raw.base is not None
    aux = FeatureRow(str(rows.folder), 0)["aux_hidden_state"]
    assert aux.shape == (1, len(first), 3 * H) and aux._is_view()
    first.zero_()  # a trainer may write into what it is given
    assert {p: p.read_bytes() for p in before} == before


def test_rows_are_cheap_to_pickle(small: Place) -> None:
    rows = pickle.loads(pickle.dumps(MappedRows(small.store.handoff("speculators"))))
    assert len(pickle.dumps(rows)) < 500 and len(rows[3].input_ids)


def test_the_arrow_dataset_holds_the_same_rows_for_torch(small: Place) -> None:
    from datasets import load_from_disk

    folder = small.store.handoff("speculators")
    wanted = in_order(small)
    for (ids, mask), pack in zip(read_arrow_rows(folder), wanted, strict=True):
        assert np.array_equal(ids, pack.input_ids) and np.array_equal(mask, pack.loss_mask)
    dataset = load_from_disk(str(folder))
    assert dataset.format["type"] == "torch" and dataset.column_names == ["input_ids", "loss_mask", "seq_len"]
    assert [int(n) for n in dataset["seq_len"]] == [len(p.input_ids) for p in wanted]
    assert dataset[5]["input_ids"].dtype == torch.int64 and np.array_equal(dataset[5]["input_ids"].numpy(), wanted[5].input_ids)


def test_references_become_specforges_rows_by_its_own_call(small: Place) -> None:
    folder = small.store.handoff("specforge")
    wanted, held, paths = in_order(small), stored(small), references(folder, MappedRows(folder).table)
    assert [str(p) for p in paths] == sorted(str(p) for p in folder.rglob("*.ckpt")) and all(
        p.stat().st_size < 2048 for p in paths
    )
    for path, pack in zip(paths, wanted, strict=True):
        row, (state, norm) = torch.load(path, weights_only=False, mmap=True), held[pack.sample_id, pack.turn]
        assert path.is_relative_to(folder / pack.split) and set(row) == {
            "input_ids",
            "loss_mask",
            "hidden_state",
            "aux_hidden_state",
        }
        assert row["input_ids"].dtype == row["loss_mask"].dtype == torch.int64
        assert np.array_equal(row["input_ids"].numpy(), pack.input_ids) and np.array_equal(
            row["loss_mask"].numpy(), pack.loss_mask
        )
        assert torch.equal(row["aux_hidden_state"][0], torch.cat([state.hidden_states[:, k] for k in range(3)], dim=-1))
        assert torch.equal(row["hidden_state"][0], norm.apply(state.hidden_states[:, 3]))


@pytest.mark.parametrize("rows", [1, 9, 2000, 2001, 40_000])
def test_specforges_string_order_is_the_order_of_rows_at_any_number(rows: int) -> None:
    every = max(1, rows // 500)
    table = {"train_rows": rows, "rows": [None] * rows}
    paths = [str(p) for p in references(Path("x"), table)][::every]
    assert paths == sorted(paths) and len(set(paths)) == len(paths)


# ---------------------------------------------------------------------------------------------------- conventions
def test_layer_ids_are_told_in_each_trainers_numbering(small: Place) -> None:
    table = MappedRows(small.store.handoff("speculators")).table
    command = train_command(small.campaign, table, read_config(small.store))
    at = command.index("--target-layer-ids") + 1
    assert [int(k) for k in command[at : at + 3]] == list(LAYERS) and not command[at + 3].isdigit()  # without the last state
    ids = json.loads((small.store.handoff("specforge") / "draft.json").read_bytes())["eagle_config"][
        "eagle_aux_hidden_state_layer_ids"
    ]
    assert ids == [k - 1 for k in LAYERS] and translate_back(ids, of="specforge", num_hidden_layers=N) == LAYERS


def test_exported_layers_are_those_that_transformers_calls_so(greedy: Place) -> None:
    """By the model itself: E_k is hidden_states[k]; SpecForge's id k is what layer k puts out; the last is before, or after, the norm."""
    from kimi_mini.model import load_model

    model = load_model()
    outputs: dict[int, Any] = {}
    for k, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda _m, _i, out, k=k: outputs.__setitem__(k, out[0] if isinstance(out, tuple) else out))
    draft = json.loads((greedy.store.handoff("specforge") / "draft.json").read_bytes())
    ids = draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    row = MappedRows(greedy.store.handoff("speculators"))[0]
    with torch.inference_mode():
        told = model(torch.from_numpy(row.input_ids.astype(np.int64))[None], output_hidden_states=True)
    given = row.hidden_states.float()
    for slot, k in enumerate(greedy.campaign.layers):
        distances = {j: float((told.hidden_states[j][0] - given[:, slot]).norm()) for j in (k - 1, k, k + 1)}
        assert distances[k] * 20 < min(distances[k - 1], distances[k + 1]), distances
        assert torch.equal(outputs[ids[slot]], told.hidden_states[k])
    final = FeatureRow(str(greedy.store.handoff("specforge")), 0)["hidden_state"][0].float()
    assert float((told.hidden_states[-1][0] - final).norm()) < 0.01 * float(final.norm())  # post-norm, as transformers' last is
    assert float((outputs[len(model.model.layers) - 1][0] - given[:, 3]).norm()) < 0.01 * float(given[:, 3].norm())


@pytest.mark.parametrize(("train", "rows"), [(1, 2), (2, 3), (39_999, 40_000), (7, 19), (33_333, 40_001), (1, 40_000)])
def test_the_training_ratio_cuts_exactly_behind_the_training_rows(train: int, rows: int) -> None:
    ratio = train_ratio(train, rows)
    assert ratio is not None and int(rows * float(f"{ratio:.9g}")) == train and 0 < ratio < 1
    assert train_ratio(rows, rows) is None


def test_vocabulary_files_have_the_names_and_types_that_the_trainers_load(small: Place) -> None:
    d2t, t2d = (np.load(small.store.vocab_map / f"{name}.npy") for name in ("d2t", "t2d"))
    n = small.campaign.vocab.draft_vocab_size
    ours = [np.load(small.store.handoff("speculators") / f"{name}-{n}.npy") for name in ("d2t", "t2d")]
    theirs = torch.load(small.store.handoff("specforge") / "vocab_mapping.pt", weights_only=True)
    for found in (ours, [theirs["d2t"].numpy(), theirs["t2d"].numpy()]):
        assert np.array_equal(found[0], d2t) and found[0].dtype == np.int64
        assert np.array_equal(found[1], t2d) and found[1].dtype == np.bool_
    frequency = torch.load(small.store.handoff("speculators") / "token_freq.pt", weights_only=True)
    supervised = np.concatenate([p.input_ids[p.loss_mask == 1] for p in in_order(small)])
    assert frequency == {int(i): int(n) for i, n in zip(*np.unique(supervised, return_counts=True), strict=True)}


def test_a_full_vocabulary_needs_no_map_for_speculators(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny", small_campaign(vocab={"draft_vocab_size": VOCAB}))
    export_speculators(place.campaign, place.store)
    export_specforge(place.campaign, place.store)
    assert not list(place.store.handoff("speculators").glob("d2t*"))
    table = MappedRows(place.store.handoff("speculators")).table
    assert "--draft-vocab-size" not in train_command(place.campaign, table, read_config(place.store))
    assert not torch.load(place.store.handoff("specforge") / "vocab_mapping.pt", weights_only=True)["d2t"].any()
    assert {v.check: v.passed for v in judge_export(place.campaign, place.store, "speculators")}["vocabulary_and_layers"]


# ---------------------------------------------------------------------------------------------------- refusals
def test_states_made_again_are_noticed_at_every_read(tmp_path: Path) -> None:
    """Two rows of equal length change places: sizes, shapes and offsets stay, only the ids tell."""
    place = small_place(tmp_path / "tiny", small_campaign(), [make_row(i) for i in range(24)])
    export_speculators(place.campaign, place.store)
    shard = corpora.open(place.store.corpus).parts[0]
    packs = corpora.open(place.store.corpus).part(shard)
    shutil.rmtree(place.store.states(shard))
    engine = FormulaEngine(stored_dtype=torch.bfloat16)
    write_partition(place.campaign, place.store, shard, [packs[1], packs[0], *packs[2:]], engine)
    rows = MappedRows(place.store.handoff("speculators"))
    for i in (0, 1):
        with pytest.raises(
            StateError, match=rf"are not those of row {i} .* the states were made again; materialize this hand-off again"
        ):
            rows[i]
    assert len(rows[2].input_ids) == 13
    verdicts = {v.check: v for v in judge_export(place.campaign, place.store, "speculators")}
    assert verdicts["rows_match_corpus"].stops


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"convention": "output_of_layer"}, "guessing would shift every layer by one"),
        ({"final": "postnorm"}, "guessing would shift every layer by one"),
        ({"version": 7}, "expected"),
        ({"dtype": "float8"}, "float32"),
    ],
)
def test_a_table_of_another_convention_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    place = small_place(tmp_path / "tiny")
    export_speculators(place.campaign, place.store)
    path = place.store.handoff("speculators") / "rows.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(StateError, match=said):
        MappedRows(path.parent)
    assert all(v.stops for v in judge_export(place.campaign, place.store, "speculators"))


def test_states_elsewhere_are_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small_place(tmp_path / "tiny")
    export_speculators(place.campaign, place.store)
    place.store.hidden_states.rename(tmp_path / "mounted")
    with pytest.raises(StateError, match="EAGLE3_STATES"):
        MappedRows(place.store.handoff("speculators"))[0]
    monkeypatch.setenv("EAGLE3_STATES", str(tmp_path / "mounted"))
    assert len(MappedRows(place.store.handoff("speculators"))[0].input_ids)


def test_corpus_rows_without_states_or_of_other_ids_stop_the_export(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny")
    corpus = corpora.open(place.store.corpus)
    shard = corpus.parts[0]
    other = list(corpus.part(shard))
    ids = other[0].input_ids.copy()
    ids[0] ^= 1
    other[0] = Pack(**{**{n: getattr(other[0], n) for n in other[0].__slots__}, "input_ids": ids})
    write_partition(place.campaign, place.store, shard, other, FormulaEngine(stored_dtype=torch.bfloat16))
    with pytest.raises(StateError, match="states of other ids than the corpus row"):
        export_specforge(place.campaign, place.store)
    write_partition(place.campaign, place.store, shard, corpus.part(shard)[1:], FormulaEngine(stored_dtype=torch.bfloat16))
    with pytest.raises(StateError, match="holds no states of"):
        export_speculators(place.campaign, place.store)
    assert not place.store.handoff("specforge").exists() and not place.store.handoff("speculators").exists()


def test_nothing_to_hand_on_is_one_readable_line(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny", small_campaign(handoff={"grades": ("R",)}))
    with pytest.raises(
        CorpusError, match=r"handoff/specforge: none of 24 corpus rows may be handed on \(24 grade_not_admitted\)"
    ):
        export_specforge(place.campaign, place.store)


# ---------------------------------------------------------------------------------------------------- the model's verdict
def with_verdict(place: Place, grades: dict[str, str], winner: tuple[str, Any] | None = None, stale: bool = False) -> None:
    """`on_policy.parquet` in every part, as extraction commits it: a final grade a row; `winner`'s states are of other ids than its row."""
    corpus = corpora.open(place.store.corpus)
    for part in corpus.manifest["parts"]:
        packs, folder = corpus.part(part["key"]), place.store.states(part["key"])
        won = [bool(winner and p.sample_id == winner[0]) for p in packs]
        chosen = [dataclasses.replace(p, input_ids=winner[1]) if w and winner else p for p, w in zip(packs, won, strict=True)]
        engine = FormulaEngine(stored_dtype=torch.bfloat16)
        write_partition(place.campaign, place.store, part["key"], chosen, engine, corpus_part_digest=part["content"])
        rows = [
            {
                "sample_id": p.sample_id, "dataset": p.dataset, "provider": "Alpha", "grade": p.grade, "candidates": 2, "winner": int(w),
                "final_grade": grades.get(p.sample_id, p.grade), "turn": p.turn, "tokens": int(p.loss_mask.sum()), "reasons": [],
                "posterior": 1.0, "log_probs": [], "judged": True, "input_ids": p.input_ids.tolist() if w else None,
                "loss_mask": p.loss_mask.tolist() if w else None,
            }
            for p, w in zip(chosen, won, strict=True)
        ]  # fmt: skip
        path = folder / VERDICTS_FILE
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
        states_manifest = read_manifest(folder)
        assert states_manifest is not None
        commit(path, files=[path], inputs={"states": "of others" if stale else states_manifest.digest})


def test_the_models_verdict_decides_grade_and_ids(tmp_path: Path) -> None:
    waiting, sunk, plain = (make_row(name, grade=grade, p_exact=0.99) for name, grade in (("w", "C1"), ("s", "B1"), ("p", "B1")))
    place = small_place(tmp_path / "tiny", small_campaign(), [waiting, sunk, plain])
    before = export_tokens(place.campaign, place.store)
    assert before.numbers["refused"] == {"awaits_model_verdict": 1}
    ids = np.array(waiting.input_ids, dtype=np.uint32)
    ids[7] ^= 3  # the survivor that won
    with_verdict(place, {waiting.sample_id: "B2", sunk.sample_id: "Q"}, winner=(waiting.sample_id, ids))
    after = export_tokens(place.campaign, place.store)
    assert after.numbers["refused"] == {"grade_not_admitted": 1} and after.numbers["rows"] == 2
    lines = [json.loads(line) for line in (place.store.handoff_tokens / "tokens.jsonl").read_text().splitlines()]
    won = next(line for line in lines if line["id"] == f"{waiting.sample_id}/0")
    assert won["grade"] == "B2" and won["input_ids"] == ids.tolist()
    numbers = export_speculators(place.campaign, place.store).numbers
    assert numbers["rows"] == 2 and {r.sample_id for r in map(MappedRows(place.store.handoff("speculators")).__getitem__, range(2))} == {
        waiting.sample_id, plain.sample_id,
    }  # fmt: skip
    assert {v.check: v.passed for v in judge_export(place.campaign, place.store, "speculators")}["rows_match_corpus"]


def test_a_verdict_on_other_states_is_none(tmp_path: Path) -> None:
    waiting, plain = make_row("w", grade="C1", p_exact=0.99), make_row("p")
    place = small_place(tmp_path / "tiny", small_campaign(), [waiting, plain])
    with_verdict(place, {waiting.sample_id: "B2"}, stale=True)
    assert export_tokens(place.campaign, place.store).numbers["refused"] == {"awaits_model_verdict": 1}
    with_verdict(place, {waiting.sample_id: "B2"})
    assert export_tokens(place.campaign, place.store).numbers["refused"] == {}


def test_a_flipped_bit_in_the_verdicts_hands_nothing_on(tmp_path: Path) -> None:
    waiting = make_row("w", grade="C1", p_exact=0.99)
    place = small_place(tmp_path / "tiny", small_campaign(), [waiting, make_row("p")])
    with_verdict(place, {waiting.sample_id: "B2"})
    shard = corpora.open(place.store.corpus).by_sample_id(waiting.sample_id)[0].part
    path = place.store.states(shard) / VERDICTS_FILE
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="checksum differs from"):
        export_tokens(place.campaign, place.store)


# ---------------------------------------------------------------------------------------------------- moved, copied, linked
def load(path: Path) -> Any:
    return torch.load(path, weights_only=False, mmap=True)


def test_a_reference_serves_the_table_that_it_was_written_for_and_no_other(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny")
    export_specforge(place.campaign, place.store)
    copy = tmp_path / "elsewhere" / "handoff" / "specforge"
    shutil.copytree(place.store.handoff("specforge"), copy)
    reference = next(copy.glob("train/rows_*/data_*3.ckpt"))
    assert load(reference).folder == str(place.store.handoff("specforge"))  # the same rows: nothing to tell apart
    fewer = place.campaign.model_copy(update={"corpus": place.campaign.corpus.model_copy(update={"validation_share": 0.5})})
    again = small_place(tmp_path / "tiny", fewer)  # the hand-off is made again there: other sides of the split
    export_specforge(again.campaign, again.store)
    with pytest.raises(StateError, match=r"another table was referred to.*specforge_rows FOLDER"):
        load(reference)
    shutil.rmtree(again.store.handoff("specforge"))
    with pytest.raises(StateError, match=r"a reference leads here.*was the hand-off moved\?"):
        load(reference)


def test_hand_offs_on_another_disk_find_the_states_where_they_are(tmp_path: Path) -> None:
    place = small_place(tmp_path / "data" / "tiny")
    (tmp_path / "far" / "away" / "disk").mkdir(parents=True)
    (place.store.root / "handoff").symlink_to(tmp_path / "far" / "away" / "disk")
    export_speculators(place.campaign, place.store)
    rows = MappedRows(place.store.handoff("speculators"))
    assert rows.states.resolve() == place.store.hidden_states.resolve() and len(rows) == 24


# ---------------------------------------------------------------------------------------------------- swap, check
def test_an_export_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3_assets.handoff import specforge_export

    place = small_place(tmp_path / "tiny")
    export_specforge(place.campaign, place.store)
    before = {p: p.read_bytes() for p in place.store.handoff("specforge").rglob("*") if p.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(specforge_export, "write_card", full)
    with pytest.raises(Exception, match="no space left"):
        export_specforge(place.campaign, place.store)
    assert {p: p.read_bytes() for p in place.store.handoff("specforge").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("damage", ["missing", "another row", "extra", "not one of ours"])
def test_a_damaged_reference_is_found(tmp_path: Path, damage: str) -> None:
    place = small_place(tmp_path / "tiny")
    export_specforge(place.campaign, place.store)
    folder = place.store.handoff("specforge")
    paths = references(folder, MappedRows(folder).table)
    if damage == "missing":
        paths[3].unlink()
    elif damage == "another row":
        shutil.copy(paths[4], paths[3])
    elif damage == "extra":
        shutil.copy(paths[3], paths[3].with_name("data_9999.ckpt"))
    else:
        torch.save({"input_ids": torch.zeros(3)}, paths[3])
    found = {v.check: v for v in judge_export(place.campaign, place.store, "specforge")}["rows_match_corpus"]
    assert found.stops and str(paths[3].parent) in found.message


@pytest.mark.parametrize("trainer", ["speculators", "specforge"])
def test_a_changed_vocabulary_or_layer_id_is_found(tmp_path: Path, trainer: Any) -> None:
    place = small_place(tmp_path / "tiny")
    folder = place.store.handoff(trainer)
    if trainer == "speculators":
        export_speculators(place.campaign, place.store)
        np.save(folder / "d2t-64.npy", np.arange(64))  # ids where offsets belong
        said = "d2t differs"
    else:
        export_specforge(place.campaign, place.store)
        draft = json.loads((folder / "draft.json").read_bytes())
        draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(LAYERS)  # one too high: our own numbering
        (folder / "draft.json").write_text(json.dumps(draft))
        said = "names outputs of layers"
    found = {v.check: v for v in judge_export(place.campaign, place.store, trainer)}["vocabulary_and_layers"]
    assert found.stops and said in found.message


def test_a_table_that_points_beside_the_states_is_found(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny")
    export_speculators(place.campaign, place.store)
    path = place.store.handoff("speculators") / "rows.json"
    table = json.loads(path.read_bytes())
    for part in table["parts"]:
        part["at"]["hidden_states"] = [part["at"]["hidden_states"][0] - 2, part["at"]["hidden_states"][1] - 2]  # one bf16 early
    path.write_text(json.dumps(table))
    found = {v.check: v for v in judge_export(place.campaign, place.store, "speculators")}["rows_match_corpus"]
    assert found.stops and "has other states than are stored" in found.message


def test_an_arrow_row_that_differs_is_found(tmp_path: Path) -> None:
    place = small_place(tmp_path / "tiny")
    export_speculators(place.campaign, place.store)
    path = next(place.store.handoff("speculators").glob("*.arrow"))
    content = bytearray(path.read_bytes())
    ids = in_order(place)[2].input_ids
    at = content.index(np.asarray(ids[:4], dtype="<i8").tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    found = {v.check: v for v in judge_export(place.campaign, place.store, "speculators")}["rows_match_corpus"]
    assert found.stops and in_order(place)[2].sample_id in found.message


def test_the_cards_tell_how_to_train(small: Place) -> None:
    card = (small.store.handoff("speculators") / "README.md").read_text()
    assert (
        "python -m eagle3_assets.handoff.train_speculators" in card
        and "--train-data-ratio" in card
        and "before the final norm" in card
    )
    card = (small.store.handoff("specforge") / "README.md").read_text()
    assert "specforge train --config train.yaml" in card and "after the final norm" in card and "outputs of layers" in card
    assert str(small.store.root) not in card
    assert "eval_hidden_states_path: validation" in (small.store.handoff("specforge") / "train.yaml").read_text()
