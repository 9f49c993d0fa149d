"""The draft vocabulary: chosen by supervised counts, described by offsets, checked against both trainers' laws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.reader import open_corpus
from eagle3_assets.corpus.vocab import (
    build_vocab_map,
    choose_ids,
    coverage,
    judge_vocab_map,
    mapping_faults,
    read_vocab_map,
    to_offsets,
)
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.store import Store, read_manifest
from eagle3_assets_tests.review.made_rows import END, VOCAB, make_row, tiny_campaign, write_tokens

FORCED = (END, 501, 502)


def corpus_of(campaign: Campaign, store: Store, rows: list[SampleRow]) -> None:
    build_corpus(campaign, store, [write_tokens(store, "b3_magicoder", "00", rows)])


ROWS = [make_row(i, response=20 + i) for i in range(30)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_offsets_and_mask_describe_the_same_increasing_set(counts: list[int], data: st.DataObject) -> None:
    size = len(counts)
    places = data.draw(st.integers(1, size))
    forced = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=places))
    chosen = choose_ids(np.array(counts), places, forced)
    d2t, t2d = to_offsets(chosen), np.isin(np.arange(size), chosen)
    target = np.arange(places) + d2t
    assert d2t.dtype == np.int64 and (np.diff(target) > 0).all()
    assert target[0] >= 0 and target[-1] < size
    assert t2d.sum() == places and t2d[target].all()
    assert set(forced) <= set(target.tolist())
    assert mapping_faults(d2t, t2d, n_draft=places, n_target=size) == []
    free = [i for i in range(size) if i not in forced]
    best = sorted(free, key=lambda i: (-counts[i], i))[: places - len(forced)]
    assert set(target.tolist()) == set(best) | set(forced)
    if places == size:
        assert (d2t == 0).all()
    assert np.array_equal(chosen, choose_ids(np.array(counts), places, forced[::-1]))


def test_only_supervised_ids_count_and_ties_go_to_the_lower_id(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(vocab={"draft_vocab_size": 4}), Store(tmp_path)
    ids = (9, 9, 9, 9, 7, 7, 8, 8, 3, END)
    corpus_of(campaign, store, [make_row("a", input_ids=ids, prompt_len=4, loss_spans=((4, 10),))])
    committed = build_vocab_map(campaign, store, [END])
    d2t, t2d = np.load(store.vocab_map / "d2t.npy"), np.load(store.vocab_map / "t2d.npy")
    assert (np.arange(4) + d2t).tolist() == [3, 7, 8, END] == np.flatnonzero(t2d).tolist()  # 9 is only ever in the prompt
    freq = pq.read_table(store.vocab_map / "token_freq.parquet").to_pydict()
    assert freq == {"token_id": [3, 7, 8, END], "count": [1, 2, 2, 1]}
    assert committed.numbers["coverage"] == 1.0 and committed.numbers["supervised_tokens"] == 6
    assert t2d.dtype == np.bool_ and t2d.shape == (VOCAB,) and d2t.dtype == np.int64


def test_the_map_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    found = []
    for name, rows in (("a", ROWS), ("b", ROWS[::-1])):
        store = Store(tmp_path / name)
        campaign = tiny_campaign(campaign={"seed": ord(name)})
        corpus_of(campaign, store, rows)
        build_vocab_map(campaign, store, FORCED)
        found.append({p.name: p.read_bytes() for p in store.vocab_map.iterdir() if p.name != "map.json"})
    assert found[0] == found[1] and set(found[0]) == {"d2t.npy", "t2d.npy", "token_freq.parquet"}


def test_coverage_is_reported_over_all_and_per_dataset(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(vocab={"draft_vocab_size": 2}), Store(tmp_path)
    rows = [
        make_row("a", input_ids=(1, 5, 5, 5, 5), prompt_len=1, loss_spans=((1, 5),)),
        make_row("b", input_ids=(1, 6, 6, 7, 5), prompt_len=1, loss_spans=((1, 5),), dataset="b8_sweagent"),
    ]
    corpus_of(campaign, store, rows)
    numbers = build_vocab_map(campaign, store, []).numbers
    assert numbers["coverage"] == 7 / 8 and numbers["coverage_by_dataset"] == {"b3_magicoder": 1.0, "b8_sweagent": 0.75}
    judged = {v.check: v for v in judge_vocab_map(campaign, store)}
    assert judged["mapping"].passed and not judged["coverage"].passed and not judged["coverage"].stops
    assert judged["coverage"].numbers["covered_b8_sweagent"] == 0.75


def test_a_full_vocabulary_has_zero_offsets(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(vocab={"draft_vocab_size": VOCAB}), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    build_vocab_map(campaign, store, FORCED)
    assert not np.load(store.vocab_map / "d2t.npy").any() and np.load(store.vocab_map / "t2d.npy").all()
    assert all(v.passed for v in judge_vocab_map(campaign, store))


def test_impossible_wishes_are_one_line(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(vocab={"draft_vocab_size": 2}), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    for forced, message in (((1, 2, 3), "3 ids are forced in, but vocab.draft_vocab_size is 2"), ((VOCAB,), "512.* is outside"),
                            ((-1,), "-1.* is outside")):  # fmt: skip
        with pytest.raises(CorpusError, match=message):
            build_vocab_map(campaign, store, forced)
    small = tiny_campaign(target={"vocab_size": 300}, vocab={"draft_vocab_size": 2})
    with pytest.raises(CorpusError, match=r"target\.vocab_size is 300"):
        build_vocab_map(small, store, [])
    assert not store.vocab_map.exists()


BREAKS: dict[str, Any] = {
    "absolute ids instead of offsets": lambda d2t, t2d: (np.arange(len(d2t)) + d2t, t2d),
    "an identity written as arange": lambda d2t, t2d: (np.arange(len(d2t)), t2d),
    "one id twice": lambda d2t, t2d: (np.where(np.arange(len(d2t)) == 5, d2t - 1 - (d2t[5] - d2t[4]), d2t), t2d),
    "a mark missing in t2d": lambda d2t, t2d: (d2t, t2d & (np.arange(len(t2d)) != np.flatnonzero(t2d)[3])),
    "a mark too many in t2d": lambda d2t, t2d: (d2t, t2d | (np.arange(len(t2d)) == np.flatnonzero(~t2d)[0])),
    "another size": lambda d2t, t2d: (d2t[:-1], t2d),
    "int32 offsets": lambda d2t, t2d: (d2t.astype(np.int32), t2d),
    "t2d as bytes": lambda d2t, t2d: (d2t, t2d.astype(np.uint8)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_map_fails_its_check(tmp_path: Path, name: str) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    build_vocab_map(campaign, store, FORCED)
    assert judge_vocab_map(campaign, store)[0].passed
    d2t, t2d = BREAKS[name](np.load(store.vocab_map / "d2t.npy"), np.load(store.vocab_map / "t2d.npy"))
    np.save(store.vocab_map / "d2t.npy", d2t)
    np.save(store.vocab_map / "t2d.npy", t2d)
    found = judge_vocab_map(campaign, store)[0]
    assert found.stops and found.check == "mapping"


def test_a_map_of_another_corpus_is_found(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    committed = build_vocab_map(campaign, store, FORCED, commit_inputs={"corpus": "x"})
    assert committed.inputs == {"corpus": "x"} and read_manifest(store.vocab_map, verify=True) is not None
    corpus_of(campaign, store, ROWS[:-1])
    assert "counted on another corpus" in judge_vocab_map(campaign, store)[0].message
    for damage in (b"torn", b""):  # numpy says an empty file by another error
        (store.vocab_map / "d2t.npy").write_bytes(damage)
        assert all(not v.passed for v in judge_vocab_map(campaign, store))
        with pytest.raises(CorpusError, match="materialize vocab_map again"):
            read_vocab_map(campaign, store)


def test_coverage_of_nothing_is_whole() -> None:
    assert coverage(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=bool)) == 1.0


# ---------------------------------------------------------------------------------------------------- reading it back
def test_a_map_is_read_for_its_own_corpus_sizes_and_tokenizer_only(tmp_path: Path) -> None:
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    key = build_vocab_map(campaign, store, FORCED).numbers["key"]
    found = read_vocab_map(campaign, store)
    assert found.key == key and found.forced == FORCED and set(FORCED) <= set(found.target_ids.tolist())
    assert found.corpus_digest == open_corpus(store.corpus).digest and len(found.d2t) == 64 and len(found.t2d) == VOCAB
    for change, message in (
        ({"vocab": {"draft_vocab_size": 65}}, "draft_vocab_size = 64, expected 65"),
        ({"target": {"vocab_size": VOCAB + 1}}, f"target_vocab_size = {VOCAB}, expected {VOCAB + 1}"),
        ({"target": {"profile": "kimi-k2.5"}}, "made for tokenizer_sha256"),
    ):
        with pytest.raises(CorpusError, match=message):
            read_vocab_map(tiny_campaign(**change), store)
    corpus_of(campaign, store, [*ROWS[:-1], make_row("another", response=49)])  # as many supervised ids: only the digest tells
    with pytest.raises(CorpusError, match="made for corpus ="):
        read_vocab_map(campaign, store)
    assert not judge_vocab_map(campaign, store)[0].passed
    assert build_vocab_map(campaign, store, FORCED).numbers["key"] != key
    (store.vocab_map / "map.json").write_text('{"version": 1}')
    with pytest.raises(CorpusError, match="cannot be read"):
        read_vocab_map(campaign, store)
    (store.vocab_map / "map.json").unlink()
    with pytest.raises(CorpusError, match=r"map\.json: is missing; materialize vocab_map"):
        read_vocab_map(campaign, store)


def test_the_counts_go_out_in_order_of_id_so_that_a_stable_sort_breaks_ties_as_ours(tmp_path: Path) -> None:
    """Without forced ids the N most common of the counts, ties by order of the dict, are the map: SpecForge's rule."""
    campaign, store = tiny_campaign(), Store(tmp_path)
    corpus_of(campaign, store, ROWS)
    build_vocab_map(campaign, store, [])
    found = read_vocab_map(campaign, store)
    counts = found.counts_by_id()
    assert list(counts) == sorted(counts) and sum(counts.values()) == found.counts.sum() and 0 not in counts.values()
    assert sorted(i for i, _ in Counter(counts).most_common(64)) == found.target_ids.tolist()
