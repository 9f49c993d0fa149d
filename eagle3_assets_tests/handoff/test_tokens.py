"""The pre-tokenised hand-off: the rows that may go, exactly as the corpus holds them, with a card that says what they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.handoff import tokens
from eagle3_assets.handoff.tokens import export_tokens, judge_handoff_tokens
from eagle3_assets.store import Store, read_manifest
from eagle3_assets_tests.review.made_rows import make_row, quarantined, tiny_campaign, write_tokens

ROWS = [
    *(make_row(i) for i in range(10)),
    make_row("spans", response=10, loss_spans=((5, 8), (11, 15)), turn=2),
    make_row("a0", grade="A0", source="engine"),
    make_row("c1", grade="C1", p_exact=0.99),
    make_row("imported", grade="I", source="import", dataset="a1_deepswekimi", provider=None),
    quarantined("q", "grammar"),
]


def trusting(trusted: bool, **tables: Any) -> Campaign:
    plain = tiny_campaign(**tables)
    datasets = tuple({**d.model_dump(), "trusted": trusted and d.name == "a1_deepswekimi"} for d in plain.dataset)
    return tiny_campaign(**tables, dataset=datasets)


def corpus_of(campaign: Campaign, store: Store, rows: list[SampleRow] = ROWS) -> corpora.Corpus:
    build_corpus(campaign, store, [write_tokens(store, "b3_magicoder", "00", rows)])
    return corpora.open(store.corpus)


def lines_of(store: Store) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store.handoff_tokens / "tokens.jsonl").read_text().splitlines()]


def test_rows_are_handed_on_as_the_corpus_holds_them(tmp_path: Path) -> None:
    campaign, store = trusting(True), Store(tmp_path)
    corpus = corpus_of(campaign, store)
    numbers = export_tokens(campaign, store).numbers
    lines = lines_of(store)
    assert numbers["rows"] == len(lines) == 13 and numbers["refused"] == {"awaits_model_verdict": 1}
    packs = [p for p in corpus if p.grade != "C1"]
    for line, pack in zip(lines, packs, strict=True):
        assert line["id"] == f"{pack.sample_id}/{pack.turn}" and line["dataset"] == pack.dataset and line["grade"] == pack.grade
        assert line["input_ids"] == pack.input_ids.tolist() and line["loss_mask"] == pack.loss_mask.tolist()
        assert len(line["input_ids"]) == len(line["loss_mask"]) and set(line["loss_mask"]) <= {0, 1} and 1 in line["loss_mask"]
    assert numbers["tokens"] == sum(len(line["input_ids"]) for line in lines)
    assert numbers["supervised_tokens"] == sum(sum(line["loss_mask"]) for line in lines)
    assert judge_handoff_tokens(campaign, store)[0].passed


def test_imports_go_on_only_where_the_source_is_trusted_by_name(tmp_path: Path) -> None:
    campaign, store = trusting(False), Store(tmp_path)
    corpus_of(campaign, store)
    numbers = export_tokens(campaign, store).numbers
    assert numbers["refused"] == {"awaits_model_verdict": 1, "import_not_trusted": 1}
    assert not [line for line in lines_of(store) if line["grade"] == "I"]


def test_the_final_grade_policy_is_the_campaigns(tmp_path: Path) -> None:
    campaign, store = trusting(True, handoff={"grades": ("A0", "C1")}), Store(tmp_path)
    corpus_of(campaign, store)
    numbers = export_tokens(campaign, store).numbers
    assert numbers["rows"] == 1 and numbers["refused"] == {"awaits_model_verdict": 1, "grade_not_admitted": 12}


def test_a_row_without_supervised_ids_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    corpus = corpus_of(tiny_campaign(), store)
    silent = next(p for p in corpus if p.grade == "B1")
    empty = type(silent)(**{**{n: getattr(silent, n) for n in silent.__slots__}, "loss_mask": silent.loss_mask * 0})
    assert tokens.refusal(tiny_campaign(), empty) == "nothing_supervised" and tokens.refusal(tiny_campaign(), silent) is None


def test_nothing_to_hand_on_is_one_readable_line(tmp_path: Path) -> None:
    campaign, store = trusting(True, handoff={"grades": ("R",)}), Store(tmp_path)
    corpus_of(campaign, store)
    with pytest.raises(
        CorpusError, match=r"none of 14 corpus rows may be handed on \(1 awaits_model_verdict, 13 grade_not_admitted\)"
    ):
        export_tokens(campaign, store)
    assert not store.handoff_tokens.exists()


@pytest.mark.slow
def test_the_folder_holds_no_other_json_and_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    contents = []
    for name in "ab":
        store = Store(tmp_path / name)
        corpus_of(tiny_campaign(), store)
        committed = export_tokens(tiny_campaign(), store, commit_inputs={"corpus": name})
        assert committed.inputs == {"corpus": name} and read_manifest(store.handoff_tokens, verify=True) is not None
        contents.append({p.name: p.read_bytes() for p in store.handoff_tokens.iterdir()})
    assert contents[0] == contents[1] and set(contents[0]) == {"tokens.jsonl", "README.md"}


def test_a_failed_export_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store)
    export_tokens(campaign, store)
    before = {p.name: p.read_bytes() for p in store.handoff_tokens.iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens, "write_card", full)
    with pytest.raises(Exception, match="no space left"):
        export_tokens(campaign, store)
    assert {p.name: p.read_bytes() for p in store.handoff_tokens.iterdir()} == before
    assert [p.name for p in store.handoff_tokens.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[0]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0].replace('"input_ids":[', '"input_ids":[1,'), *lines[1:]],
        lambda lines: [lines[0].replace('"loss_mask":[0', '"loss_mask":[1'), *lines[1:]],
        lambda lines: [line.replace('"grade":"B1"', '"grade":"A0"', 1) for line in lines],
        lambda lines: ["{torn", *lines[1:]],
        lambda lines: ["[]", *lines[1:]],
    ],
)
def test_a_line_that_differs_from_its_row_is_found(tmp_path: Path, change: Any) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store)
    export_tokens(campaign, store)
    path = store.handoff_tokens / "tokens.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    found = judge_handoff_tokens(campaign, store)[0]
    assert found.stops and found.check == "rows_match_corpus"


def test_validation_rows_are_kept_out_of_what_the_trainers_read(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(corpus={"validation_share": 0.3}), Store(tmp_path)
    corpus = corpus_of(campaign, store, [make_row(i) for i in range(40)])
    numbers = export_tokens(campaign, store).numbers
    packed = gzip.decompress((store.handoff_tokens / "validation.jsonl.gz").read_bytes()).splitlines()
    held_out = {f"{p.sample_id}/{p.turn}" for p in corpus if p.split == "validation"}
    assert {json.loads(line)["id"] for line in packed} == held_out and 0 < len(held_out) < 40
    assert {line["id"] for line in lines_of(store)} == {f"{p.sample_id}/{p.turn}" for p in corpus} - held_out
    assert numbers["splits"] == {"train": 40 - len(held_out), "validation": len(held_out)}
    # speculators reads every .json and .jsonl below a folder
    assert [p.name for p in store.handoff_tokens.rglob("*") if p.suffix in (".json", ".jsonl")] == ["tokens.jsonl"]
    assert judge_handoff_tokens(campaign, store)[0].passed
    whole = (store.handoff_tokens / "validation.jsonl.gz").read_bytes()
    (store.handoff_tokens / "validation.jsonl.gz").write_bytes(gzip.compress(b"\n".join(packed[1:]) + b"\n"))
    assert judge_handoff_tokens(campaign, store)[0].stops
    (store.handoff_tokens / "validation.jsonl.gz").write_bytes(whole[:10] + b"\xff" * 20 + whole[30:])  # no deflate stream
    assert judge_handoff_tokens(campaign, store)[0].stops


def test_a_missing_export_fails_its_check(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store)
    assert "cannot be read" in judge_handoff_tokens(campaign, store)[0].message


def test_the_card_tells_provenance_grades_licences_and_what_was_left_out(tmp_path: Path) -> None:
    campaign, store = trusting(True), Store(tmp_path)
    corpus = corpus_of(campaign, store)
    export_tokens(campaign, store)
    card = (store.handoff_tokens / "README.md").read_text()
    assert card.startswith("---\n") and "13 rows" in card and corpus.digest in card
    for part in ("a1\\_deepswekimi | rows.jsonl | local | MIT | import | 1",
                 "| B1 | one surviving hypothesis, edges known | 11 |",
                 "| I | imported without a bill | 1 |", "awaits_model_verdict",
                 "| quarantined | dropped from the corpus: grade Q: no hypothesis fits, or an invariant failed | 1 |",
                 "temperature 1.0, top_p 0.95"):  # fmt: skip
        assert part in card
    assert "b8_sweagent" not in card.replace("\\", "") and str(tmp_path) not in card


def test_the_card_is_one_that_the_hub_reads(tmp_path: Path) -> None:
    """Front matter with name, size and which file is which split; the exactness of each grade; how to load it."""
    import yaml

    campaign, store = trusting(True), Store(tmp_path)
    corpus_of(campaign, store)
    numbers = export_tokens(campaign, store).numbers
    card = (store.handoff_tokens / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["size_categories"] == ["n<1K"] and facts["pretty_name"] == f"Pre-tokenised answers of {campaign.target.model}"
    named = {d["split"]: d["path"] for d in facts["configs"][0]["data_files"]}
    assert named.keys() == {split for split, n in numbers["splits"].items() if n}
    assert all((store.handoff_tokens / path).is_file() for path in named.values())
    assert "load_dataset" in body and all(
        f"| {g} | " in body and f"| {numbers['p_exact'][g]:.2%} |" in body
        for d in numbers["datasets"].values()
        for g in d["grades"]
    )
