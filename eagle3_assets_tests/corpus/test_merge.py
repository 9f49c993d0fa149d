"""The corpus: what enters, in which order, cut where; the same bytes from the same rows; never half of it."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus import forms, merge, swap
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.order import DROP_REASONS, deal
from eagle3_assets.corpus.verify_corpus import judge_corpus
from eagle3_assets.errors import CorpusError, StoreError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.store import Store, digest_file, read_manifest
from eagle3_assets_tests.review.made_rows import VOCAB, loose_file, make_row, quarantined, sample_id, tiny_campaign, write_tokens

GRADES = ("A0", "A1", "A2", "B1", "B2", "C1", "R", "I", "D", "Q")
quick = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def built(campaign: Campaign, store: Store, rows: list[SampleRow], files: int = 2) -> dict[str, Any]:
    tokens = [write_tokens(store, "b3_magicoder", f"{k:02d}", rows[k::files]) for k in range(files)]
    build_corpus(campaign, store, tokens)
    manifest: dict[str, Any] = json.loads((store.corpus / "manifest.json").read_bytes())
    return manifest


def content(store: Store) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(store.corpus.iterdir())}


def failed(store: Store) -> set[str]:
    return {v.check for v in judge_corpus(store) if not v.passed}


ROWS = [make_row(i, prompt=2 + i % 7, response=3 + (i * 5) % 40) for i in range(50)]


def test_rows_come_back_by_number_by_sample_and_by_part(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spans = make_row("spans", response=10, loss_spans=((5, 8), (11, 15)))
    turn = make_row("turn", sample_id=spans.sample_id, turn=1, grade="A0", source="engine")
    given_rows = {(r.sample_id, r.turn): r for r in [*ROWS, spans, turn]}
    manifest = built(tiny_campaign(), store, list(given_rows.values()), files=3)
    c = corpora.open(store.corpus)
    assert len(c) == 52 == manifest["rows"]["kept"] and c.parts == ("00000", "00001", "00002", "00003")
    for i, pack in enumerate(c):
        row = given_rows.pop((pack.sample_id, pack.turn))
        mask = np.zeros(len(row.input_ids), dtype=np.uint8)
        for start, end in row.loss_spans:
            mask[start:end] = 1
        assert pack.index == i and pack.input_ids.tolist() == list(row.input_ids) and pack.loss_mask.tolist() == mask.tolist()
        assert (pack.dataset, pack.grade) == (row.dataset, row.grade)
        assert pack.input_ids.dtype == np.uint32 and pack.loss_mask.dtype == np.uint8 and not pack.input_ids.flags.writeable
    assert not given_rows
    assert [p.turn for p in c.by_sample_id(spans.sample_id)] == [0, 1]
    assert [p.index for key in c.parts for p in c.part(key)] == list(range(52))
    assert c[-1].index == 51 and [p.index for p in c[3:6]] == [3, 4, 5]
    again = pickle.loads(pickle.dumps(c))
    assert len(again) == 52 and np.array_equal(again[7].input_ids, c[7].input_ids) and len(pickle.dumps(c)) < 1000
    lineage = c.archive("00001").to_pylist()
    assert [r["sample_id"] for r in lineage] == [p.sample_id for p in c.part("00001")]
    assert {"attempt", "shard", "provider", "p_exact", "survivors", "finish_reason", "wire_sha256", "prompt_len"} <= set(
        lineage[0]
    )
    for wrong in (52, -53):
        with pytest.raises(IndexError, match="corpus of 52 rows"):
            c[wrong]
    with pytest.raises(CorpusError, match="holds no sample 'nobody'"):
        c.by_sample_id("nobody")
    with pytest.raises(CorpusError, match="has no part '00009'; it has 00000 to 00003"):
        c.part("00009")
    assert failed(store) == set()


def test_every_row_is_dropped_for_one_reason(tmp_path: Path) -> None:
    campaign = tiny_campaign(corpus={"max_length": 100, "grades": ("A0", "B1", "C1", "R")})
    rows = [
        make_row("kept"), make_row("C1", grade="C1", p_exact=0.95),
        quarantined("q", "grammar"), make_row("d", grade="D", p_exact=0.9), make_row("i", grade="I"),
        make_row("p", p_exact=0.949), make_row("nan", p_exact=float("nan")), make_row("long", response=96),
        make_row("attempt", attempt=1), make_row("attempt", attempt=2, response=9), make_row("just", response=95),
        make_row("copy", sample_id=sample_id("other"), dataset="b8_sweagent", grade="A0", p_exact=1.0), make_row("copy"),
    ]  # fmt: skip
    store = Store(tmp_path)
    manifest = built(campaign, store, rows)
    assert manifest["rows"] == {
        "input": 13, "kept": 5,
        "dropped": {"superseded": 1, "quarantined": 1, "unverified": 1, "grade_not_admitted": 1, "below_min_p_exact": 2,
                    "too_long": 1, "duplicate": 1},
    }  # fmt: skip
    kept = {p.sample_id: p for p in corpora.open(store.corpus)}
    assert sample_id("other") in kept and sample_id("copy") not in kept  # of equal rows the better proven one stays
    assert len(kept[sample_id("attempt")].input_ids) == 14  # the highest attempt counts
    assert list(manifest["rows"]["dropped"]) == [r for r in DROP_REASONS if r in manifest["rows"]["dropped"]]
    assert manifest["datasets"]["b3_magicoder"]["input"] == 12 and manifest["datasets"]["b8_sweagent"]["kept"] == 1


@st.composite
def any_rows(draw: st.DrawFn) -> list[SampleRow]:
    n = draw(st.integers(1, 25))
    rows = []
    for i in range(n):
        grade = draw(st.sampled_from(GRADES))
        response = draw(st.integers(1, 30))
        changes: dict[str, Any] = {"grade": grade, "p_exact": draw(st.sampled_from([0.0, 0.94, 0.95, 1.0, float("nan")]))}
        if grade == "Q" and draw(st.booleans()):
            changes |= {"input_ids": (), "prompt_len": 0, "loss_spans": ()}
        elif grade in "DQ" and draw(st.booleans()):
            changes["loss_spans"] = ()
        twin = draw(st.integers(0, max(0, i - 1)))
        name = draw(st.sampled_from([f"own{i}", f"own{twin}"]))
        rows.append(
            make_row(
                name, response=response, sample_id=sample_id((name, i)), dataset=draw(st.sampled_from(["a", "b"])), **changes
            )
        )
    return rows


@pytest.mark.slow
@quick
@given(any_rows(), st.data())
def test_drop_reasons_always_sum_to_the_input(
    tmp_path_factory: pytest.TempPathFactory, rows: list[SampleRow], data: st.DataObject
) -> None:
    store = Store(tmp_path_factory.mktemp("c"))
    campaign = tiny_campaign(
        corpus={"max_length": data.draw(st.sampled_from([None, 12, 30])), "shards": data.draw(st.integers(1, 9))}
    )
    rows = [*rows, make_row("anchor", grade="A0", p_exact=1.0, response=4)]
    manifest = built(campaign, store, rows)
    counted = manifest["rows"]
    assert counted["input"] == len(rows) == counted["kept"] + sum(counted["dropped"].values())
    assert set(counted["dropped"]) <= set(DROP_REASONS)
    assert sum(p["rows"] for p in manifest["parts"]) == counted["kept"] and all(p["rows"] for p in manifest["parts"])
    assert len(manifest["parts"]) == min(campaign.corpus.shards, counted["kept"])
    assert failed(store) == set()
    c = corpora.open(store.corpus)
    assert (
        manifest["supervised_tokens"]
        == sum(int(p.loss_mask.sum()) for p in c)
        == sum(sum(e - s for s, e in r["loss_spans_"]) for r in _archive(c))
    )


def _archive(c: corpora.Corpus) -> list[dict[str, Any]]:
    rows = [row for key in c.parts for row in c.archive(key).to_pylist()]
    return [{**r, "loss_spans_": [(s["start"], s["end"]) for s in r["loss_spans"]]} for r in rows]


@pytest.mark.slow
@quick
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(0, 3))
def test_the_shuffle_does_not_depend_on_input_order_or_file_split(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random, files: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("c")
    campaign = tiny_campaign(campaign={"seed": seed})
    rows = [*ROWS[:12], make_row("copy", sample_id=sample_id("x"), dataset="b8_sweagent"), make_row("copy")]
    plain = Store(folder / "plain")
    build_corpus(campaign, plain, [loose_file(folder / "all.parquet", rows)])
    mixed, other = rows.copy(), Store(folder / "mixed")
    chance.shuffle(mixed)
    tokens = [loose_file(folder / f"{k}.parquet", mixed[k::files], shard=f"{k:02d}") for k in range(files)]
    chance.shuffle(tokens)
    build_corpus(campaign, other, tokens)
    one, two = content(plain), content(other)
    assert {n: b for n, b in one.items() if n != "manifest.json"} == {n: b for n, b in two.items() if n != "manifest.json"}
    assert json.loads(one["manifest.json"])["digest"] == json.loads(two["manifest.json"])["digest"]


def test_equal_input_gives_equal_bytes_and_another_seed_another_order(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in "abc"]
    for store, seed in zip(stores, (7, 7, 8), strict=True):
        built(tiny_campaign(campaign={"seed": seed}), store, ROWS)
    assert content(stores[0]) == content(stores[1])
    orders = [[p.sample_id for p in corpora.open(s.corpus)] for s in (stores[0], stores[2])]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != [r.sample_id for r in ROWS]


@given(st.lists(st.one_of(st.integers(1, 400), st.integers(1, 300_000)), min_size=1, max_size=300), st.integers(1, 90))
def test_parts_are_never_empty_and_differ_by_no_more_than_a_row(lengths: list[int], parts: int) -> None:
    part = deal(np.array(lengths), parts)
    tokens = np.bincount(part, weights=lengths)
    assert len(part) == len(lengths) and len(tokens) == min(parts, len(lengths)) and (tokens > 0).all()
    assert tokens.max() <= sum(lengths) / len(tokens) + max(lengths)


def real_lengths(chance: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """40,000 samples, 138 M ids: A1 has 2,800 of 16 K, the longest 300 K; the others are answers of 2.5 K."""
    a1 = chance.lognormal(9.53, 0.55, 2_800)
    a1[0] = 300_000
    others = chance.lognormal(7.6, 0.65, 37_200)
    return np.concatenate([a1 * 44.9e6 / a1.sum(), others * 93.5e6 / others.sum()]).astype(np.int64) + 1


@pytest.mark.parametrize("seed", range(5))
def test_eighty_parts_of_the_real_lengths_are_within_two_percent(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = real_lengths(chance)
    chance.shuffle(lengths)
    tokens = np.bincount(deal(lengths, 80), weights=lengths)
    assert len(tokens) == 80 and tokens.max() / tokens.mean() <= 1.011 and lengths.max() > 250_000


def test_no_admitted_row_is_one_readable_line_and_keeps_the_old_corpus(tmp_path: Path) -> None:
    store, campaign = Store(tmp_path), tiny_campaign()
    built(campaign, store, ROWS)
    before = content(store)
    bad = [write_tokens(store, "b3_magicoder", "00", [quarantined(i, "grammar") for i in range(3)] + [make_row("d", grade="D")])]
    with pytest.raises(CorpusError, match=r"none of 4 rows may enter \(3 quarantined, 1 unverified\)") as caught:
        build_corpus(campaign, store, bad)
    assert "\n" not in str(caught.value) and content(store) == before and not list(tmp_path.glob(".corpus*"))
    for nothing in ([], [write_tokens(store, "b3_magicoder", "01", [])]):
        with pytest.raises(CorpusError):
            build_corpus(campaign, store, nothing)


def test_a_file_that_breaks_its_own_rules_is_refused_by_name(tmp_path: Path) -> None:
    store, campaign = Store(tmp_path), tiny_campaign()
    files = [write_tokens(store, "b3_magicoder", "05", [*ROWS, make_row("bad", loss_spans=((4, 13),))])]
    with pytest.raises(CorpusError, match=r"05\.parquet: span inside the prompt in 1 rows.*partition 05"):
        build_corpus(campaign, store, files)
    files[0].path.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="not readable Parquet"):
        build_corpus(campaign, store, files)
    assert not store.corpus.exists()


@pytest.mark.slow
def test_one_row_and_one_very_long_row_are_corpora_too(tmp_path: Path) -> None:
    one, long = Store(tmp_path / "one"), Store(tmp_path / "long")
    assert len(built(tiny_campaign(), one, [make_row("Ünïcode ⽂")])["parts"]) == 1
    manifest = built(tiny_campaign(), long, [make_row("long", response=300_000), *ROWS[:3]])
    assert manifest["tokens"] == sum(len(r.input_ids) for r in ROWS[:3]) + 300_005 and len(manifest["parts"]) == 4
    assert len(corpora.open(long.corpus).by_sample_id(sample_id("long"))[0].input_ids) == 300_005
    assert failed(one) == failed(long) == set()


def test_names_of_any_alphabet_and_an_empty_dataset_are_carried_through(tmp_path: Path) -> None:
    store, names = Store(tmp_path), ("données", "数据集", "данные")
    rows = {
        name: [make_row((name, i), sample_id=f"{name} 🙂/{i}", dataset=name) for i in range(n)]
        for name, n in zip(names, (7, 1, 0), strict=True)
    }
    build_corpus(tiny_campaign(), store, [loose_file(tmp_path / f"{k}.parquet", rows[n], dataset=n) for k, n in enumerate(names)])
    c = corpora.open(store.corpus)
    assert c.by_sample_id("数据集 🙂/0")[0].dataset == "数据集" and len(c) == 8 and failed(store) == set()
    assert {name: d["kept"] for name, d in c.manifest["datasets"].items()} == dict(zip(names, (7, 1, 0), strict=True))
    assert c.lineage(c.by_sample_id("données 🙂/3")[0].index)["sample_id"] == "données 🙂/3"


def test_the_commit_names_partitions_waivers_and_inputs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tokens = [write_tokens(store, "b3_magicoder", "00", ROWS)]
    waived = [{"check": "grammar", "shard": "00", "who": "ada", "why": "known"}]
    committed = build_corpus(tiny_campaign(), store, tokens, waived, commit_inputs={"code": 1})
    assert committed.numbers["partitions"] == ["00000", "00001", "00002", "00003"] and committed.numbers["rows"] == 50
    manifest = json.loads((store.corpus / "manifest.json").read_bytes())
    assert manifest["waived"] == waived and manifest["inputs"] == [
        {"dataset": "b3_magicoder", "shard": "00", "digest": tokens[0].digest, "rows": 50}
    ]
    stored = read_manifest(store.corpus, verify=True)
    assert stored is not None and stored.inputs == {"code": 1} and stored.digest == committed.digest
    assert "corpus/part-00003.parquet" in stored.files


# ---------------------------------------------------------------------------------------------------- kills and damage
class Killed(BaseException):
    """What a kill looks like from inside: nothing after it runs but what the kernel does."""


STEPS = {"write_json": merge, "write_part": forms, "index_of": forms, "digest_file": merge}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "after"), [("write_json", 1), ("write_part", 3), ("index_of", 1), ("digest_file", 3)])
def test_a_rebuild_killed_between_files_leaves_the_old_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: int
) -> None:
    store, campaign = Store(tmp_path), tiny_campaign()
    built(campaign, store, ROWS)
    before = content(store)
    calls = Counter[str]()
    real = getattr(STEPS[step], step)

    def dies(*args: Any, **kwargs: Any) -> Any:
        calls[step] += 1
        if calls[step] == (1 if step == "write_json" else after):
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(STEPS[step], step, dies)
    monkeypatch.setattr("shutil.rmtree", lambda *a, **k: None)  # a killed process does not tidy up
    with pytest.raises(Killed):
        built(campaign, store, ROWS[10:])
    monkeypatch.undo()
    assert content(store) == before and len(corpora.open(store.corpus)) == 50 and failed(store) == set()
    built(campaign, store, ROWS[10:])
    assert len(corpora.open(store.corpus)) == 40 and not list(tmp_path.glob(".corpus*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the first rename", "between the renames", "after the second"])
def test_a_kill_inside_the_swap_leaves_a_whole_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    store, campaign = Store(tmp_path), tiny_campaign()
    built(campaign, store, ROWS)
    real, done = swap._move, [0]

    def dies(source: Path, target: Path) -> None:
        if moment == "before the first rename" or (moment == "between the renames" and done[0] == 1):
            raise Killed
        real(source, target)
        done[0] += 1
        if moment == "after the second" and done[0] == 2:
            raise Killed

    monkeypatch.setattr(swap, "_move", dies)
    monkeypatch.setattr(swap, "_put_back", lambda folder: None)
    monkeypatch.setattr("shutil.rmtree", lambda *a, **k: None)
    with pytest.raises(Killed):
        built(campaign, store, ROWS[10:])
    monkeypatch.undo()
    assert len(corpora.open(store.corpus)) == (40 if moment == "after the second" else 50)
    assert failed(store) == set()
    built(campaign, store, ROWS[20:])
    assert len(corpora.open(store.corpus)) == 30 and not list(tmp_path.glob(".corpus*"))


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["part-00002.parquet", "tokens.bin", "loss_mask.bin", "index.parquet"])
def test_a_flipped_bit_in_any_file_is_found_and_named(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    built(tiny_campaign(), store, ROWS)
    flip(store.corpus / name)
    match = next(v for v in judge_corpus(store) if v.check == "parts_match_manifest")
    assert not match.passed and match.stops and match.examples == (name,)


@pytest.mark.parametrize("name", ["part-00001.parquet", "tokens.bin", "loss_mask.bin", "index.parquet"])
def test_a_missing_or_short_file_is_refused_by_the_reader(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    built(tiny_campaign(), store, ROWS)
    whole = (store.corpus / name).read_bytes()
    (store.corpus / name).write_bytes(whole[:-1])
    with pytest.raises(CorpusError, match=rf"{name}: expected {len(whole)} bytes, found {len(whole) - 1} bytes"):
        corpora.open(store.corpus)
    assert {"parts_match_manifest", "forms_agree"} <= failed(store)
    (store.corpus / name).unlink()
    with pytest.raises(CorpusError, match="found no file"):
        corpora.open(store.corpus)


def test_forms_that_differ_are_found_even_when_checksums_match(tmp_path: Path) -> None:
    """A bug that writes two different forms is not damage: only comparing them finds it."""
    store = Store(tmp_path)
    manifest = built(tiny_campaign(), store, ROWS)
    for name in ("tokens.bin", "loss_mask.bin"):
        flip(store.corpus / name)
        manifest["files"][name]["xxh3"] = digest_file(store.corpus / name)
        (store.corpus / "manifest.json").write_text(json.dumps(manifest))
        assert failed(store) == {"forms_agree"}
        flip(store.corpus / name)
        manifest["files"][name]["xxh3"] = digest_file(store.corpus / name)
    (store.corpus / "manifest.json").write_text(json.dumps(manifest))
    assert failed(store) == set()


def test_drop_reasons_that_do_not_add_up_are_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = built(tiny_campaign(), store, [*ROWS, quarantined("q", "grammar")])
    manifest["rows"]["dropped"] = {}
    (store.corpus / "manifest.json").write_text(json.dumps(manifest))
    assert failed(store) == {"drop_reasons_add_up"}


def test_a_folder_without_a_corpus_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="materialize corpus first"):
        corpora.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": 99}')
    with pytest.raises(CorpusError, match="expected version 2, found 99"):
        corpora.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CorpusError, match="cannot be read as JSON"):
        corpora.open(tmp_path)


def test_the_archive_is_plain_parquet_that_others_read(tmp_path: Path) -> None:
    import duckdb

    store = Store(tmp_path)
    survivors = ((1, 2, VOCAB - 1), (3, 4))
    built(tiny_campaign(), store, [*ROWS, make_row("c1", grade="C1", p_exact=0.96, survivors=survivors)])
    db = duckdb.connect()
    found = db.execute(f"SELECT survivors FROM '{store.corpus}/part-*.parquet' WHERE grade = 'C1'").fetchall()
    assert found == [([[1, 2, VOCAB - 1], [3, 4]],)]
    total = db.execute(f"SELECT sum(len(input_ids)) FROM '{store.corpus}/part-*.parquet'").fetchall()
    assert total == [(len(corpora.open(store.corpus).tokens),)]
    assert pq.read_table(store.corpus / "index.parquet").column_names == [
        "index", "sample_id", "turn", "dataset", "grade", "split", "truncated", "part", "offset", "length"
    ]  # fmt: skip
