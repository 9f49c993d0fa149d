"""`[corpus]`: length, weights, splits, additions and joined turns; every row has a place or one reason, whatever the settings."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_assets import corpus as corpora
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.forms import paint_mask
from eagle3_assets.corpus.groups import Members, group_rows
from eagle3_assets.corpus.keys import group_draw
from eagle3_assets.corpus.merge import build_corpus
from eagle3_assets.corpus.order import DROP_REASONS
from eagle3_assets.corpus.verify_corpus import judge_corpus
from eagle3_assets.errors import CorpusError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.store import Store
from eagle3_assets_tests.corpus.test_joined_turns import session
from eagle3_assets_tests.review.made_rows import END, VOCAB, loose_file, make_row, sample_id, tiny_campaign, write_tokens

NAMES = ("b3_magicoder", "b8_sweagent", "a1_deepswekimi")


def build(campaign: Campaign, folder: Path, rows: list[SampleRow]) -> tuple[corpora.Corpus, dict[str, Any]]:
    """One token file a dataset; every check must pass."""
    store = Store(folder)
    files = [write_tokens(store, name, "00", [r for r in rows if r.dataset == name]) for name in NAMES]
    build_corpus(campaign, store, files)
    assert [v.check for v in judge_corpus(store) if not v.passed and v.check != "parts_balanced"] == []
    return corpora.open(store.corpus), json.loads((store.corpus / "manifest.json").read_bytes())


def near_copy(row: SampleRow, name: object, every: int = 80, **changes: Any) -> SampleRow:
    """Another sample whose response differs in every 80th id."""
    ids = tuple(i if k < row.prompt_len or k % every else (i + 1) % END for k, i in enumerate(row.input_ids))
    return dataclasses.replace(row, sample_id=sample_id(name), input_ids=ids, **changes)


def with_prompt_of(other: SampleRow, row: SampleRow) -> SampleRow:
    """`row` with a prompt of another row, of as many ids."""
    return dataclasses.replace(row, input_ids=(*other.input_ids[: row.prompt_len], *row.input_ids[row.prompt_len :]))


# ---------------------------------------------------------------------------------------------------- duplicates
def test_of_near_duplicates_the_best_proven_one_stays(tmp_path: Path) -> None:
    weak = make_row("story", response=300, grade="C1", p_exact=0.96)
    strong = near_copy(weak, "same story", dataset="b8_sweagent", grade="A0", source="engine")
    c, manifest = build(tiny_campaign(), tmp_path / "on", [weak, strong, make_row("other", response=300)])
    assert {p.sample_id for p in c} == {strong.sample_id, sample_id("other")}
    assert manifest["rows"]["dropped"] == {"near_duplicate": 1} == manifest["datasets"]["b3_magicoder"]["dropped"]
    off, _ = build(tiny_campaign(corpus={"near_duplicates": 0.0}), tmp_path / "off", [weak, strong])
    assert len(off) == 2


def test_prompts_do_not_make_rows_alike(tmp_path: Path) -> None:
    """Two answers to one long prompt, and two turns of one conversation, stay."""
    first = make_row("first", prompt=400, response=60)
    second = dataclasses.replace(
        first, sample_id=sample_id("second"), input_ids=(*first.input_ids[:400], *make_row("x", response=60).input_ids[5:])
    )
    turn = dataclasses.replace(make_row("turn", response=200), turn=0)
    later = near_copy(turn, "turn", turn=1)
    c, _ = build(tiny_campaign(), tmp_path, [first, second, turn, later])
    assert len(c) == 4


# ---------------------------------------------------------------------------------------------------- length
CUT = {"max_length": 50, "too_long": "cut"}


def test_a_long_row_is_cut_flagged_and_counted(tmp_path: Path) -> None:
    long = make_row("long", prompt=10, response=90, loss_spans=((10, 30), (40, 70), (80, 100)))
    short = make_row("short", prompt=10, response=40)
    c, manifest = build(tiny_campaign(corpus=CUT), tmp_path, [long, short])
    cut, whole = c.by_sample_id(long.sample_id)[0], c.by_sample_id(short.sample_id)[0]
    assert cut.truncated and not whole.truncated and len(cut.input_ids) == len(whole.input_ids) == 50
    assert cut.input_ids.tolist() == list(long.input_ids[:50]) and END not in cut.input_ids.tolist()  # no end is invented
    assert np.flatnonzero(cut.loss_mask).tolist() == [*range(10, 30), *range(40, 50)]
    facts = manifest["datasets"]["b3_magicoder"]
    assert (facts["truncated"], facts["lost_supervised_tokens"], facts["supervised_tokens"]) == (1, 40, 70)
    lineage = c.lineage(cut.index)
    assert lineage["truncated"] and lineage["loss_spans"] == [{"start": 10, "end": 30}, {"start": 40, "end": 50}]


def test_a_row_that_the_cut_leaves_nothing_of_is_dropped_with_a_reason(tmp_path: Path) -> None:
    c, manifest = build(tiny_campaign(corpus=CUT), tmp_path, [make_row("long prompt", prompt=50, response=9), make_row("b")])
    assert len(c) == 1 and manifest["rows"]["dropped"] == {"cut_to_nothing": 1}
    assert manifest["datasets"]["b3_magicoder"]["truncated"] == 0  # of the kept rows


def test_rows_that_differ_only_behind_the_cut_are_one_row(tmp_path: Path) -> None:
    row = make_row("a", prompt=10, response=60)
    twin = dataclasses.replace(row, sample_id=sample_id("twin"), input_ids=(*row.input_ids[:65], 1, 2, 3, 4, END))
    c, manifest = build(tiny_campaign(corpus=CUT), tmp_path, [row, twin])
    assert len(c) == 1 and manifest["rows"]["dropped"] == {"duplicate": 1}


def test_survivors_are_cut_with_their_row(tmp_path: Path) -> None:
    row = make_row("a", prompt=10, response=60, grade="C1", p_exact=0.96)
    inside = (*row.input_ids[:20], 7, *row.input_ids[21:])
    behind = (*row.input_ids[:60], 7, *row.input_ids[61:])
    c, _ = build(tiny_campaign(corpus=CUT), tmp_path, [dataclasses.replace(row, survivors=(inside, behind, (*behind, 1)))])
    assert c.lineage(0)["survivors"] == [list(inside[:50])]


def test_dropping_is_what_happens_unless_cutting_is_asked_for(tmp_path: Path) -> None:
    c, manifest = build(tiny_campaign(corpus={"max_length": 50}), tmp_path, [make_row("long", response=90), make_row("short")])
    assert len(c) == 1 and manifest["rows"]["dropped"] == {"too_long": 1} and not c[0].truncated


# ---------------------------------------------------------------------------------------------------- weights
@pytest.mark.slow
def test_a_weight_keeps_its_share_of_conversations_and_always_the_same_ones(tmp_path: Path) -> None:
    rows = [make_row((i, t), sample_id=sample_id(i), turn=t) for i in range(300) for t in (0, 1)]
    rows += [make_row(("x", i), dataset="b8_sweagent") for i in range(20)]
    half = tiny_campaign(corpus={"weights": {"b3_magicoder": 0.5}})
    c, manifest = build(half, tmp_path / "a", rows)
    kept = Counter(p.sample_id for p in c if p.dataset == "b3_magicoder")
    assert 125 <= len(kept) <= 175 and set(kept.values()) == {2}  # a conversation stays or goes as a whole
    assert manifest["datasets"]["b8_sweagent"]["kept"] == 20
    assert manifest["rows"]["dropped"] == {"weighted_out": 600 - sum(kept.values())}
    fewer, _ = build(half, tmp_path / "b", rows[:200])
    assert {p.sample_id for p in fewer} == {sample_id(i) for i in range(100)} & set(kept)
    quarter, _ = build(tiny_campaign(corpus={"weights": {"b3_magicoder": 0.25}}), tmp_path / "c", rows)
    assert {p.sample_id for p in quarter if p.dataset == "b3_magicoder"} < set(kept)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"weights": {"b3_magicoder": 2.0}}, "b3_magicoder = 2: a weight is the share that stays.*take more of its rows"),
        ({"weights": {"b3_magicoder": 0.0}}, "leave it out of"),
        ({"weights": {"nobody": 0.5}}, "corpus.weights names 'nobody': no such dataset; there are b3_magicoder"),
        ({"additions": (("nobody",),)}, "corpus.additions names 'nobody'"),
        ({"additions": (("b3_magicoder",), ("b3_magicoder",))}, "names 'b3_magicoder' twice"),
        ({"additions": (NAMES,)}, "names every dataset"),
        ({"too_long": "cut"}, 'too_long = "cut" needs max_length'),
        ({"near_duplicates": 0.2}, "near_duplicates = 0.2: below 0.5"),
        ({"validation_share": 1.0}, "less than 1"),
    ],
)
def test_a_wrong_setting_says_what_to_do(corpus: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_campaign(corpus=corpus)


# ---------------------------------------------------------------------------------------------------- split
def test_prompts_turns_and_copies_never_meet_across_the_split(tmp_path: Path) -> None:
    rows = []
    for i in range(60):
        row = make_row(i, prompt=20, response=120, turn=0)
        same_prompt = make_row(("again", i), response=8)
        rows += [
            row,
            dataclasses.replace(
                same_prompt, input_ids=(*row.input_ids[:20], *same_prompt.input_ids[5:]), prompt_len=20, loss_spans=((20, 28),)
            ),
            make_row(("next", i), sample_id=row.sample_id, turn=1),
            # dropped, under another prompt; its second turn stays on the side of the row that it repeats
            with_prompt_of(make_row(("asked otherwise", i), prompt=20), near_copy(row, ("copy", i), dataset="b8_sweagent")),
            make_row(("copy's next", i), sample_id=sample_id(("copy", i)), turn=1, dataset="b8_sweagent"),
        ]
    c, manifest = build(tiny_campaign(corpus={"validation_share": 0.4}), tmp_path, rows)
    assert manifest["rows"]["dropped"] == {"near_duplicate": 60} and len(c) == 240
    family = {r.sample_id: k // 5 for k, r in enumerate(rows)}
    sides: dict[int, set[str]] = {}
    for p in c:
        sides.setdefault(family[p.sample_id], set()).add(p.split)
    assert all(len(s) == 1 for s in sides.values()) and 14 <= sum(s == {"validation"} for s in sides.values()) <= 34
    splits = manifest["splits"]
    assert (
        splits["validation"]["rows"]
        == len(list(c.rows(split="validation")))
        == manifest["datasets"]["b3_magicoder"]["validation"] + (manifest["datasets"]["b8_sweagent"]["validation"])
    )
    assert splits["train"]["rows"] + splits["validation"]["rows"] == len(list(c.rows()))
    assert splits["train"]["tokens"] + splits["validation"]["tokens"] == manifest["tokens"]
    assert {p.split for p in c.rows(split="train")} == {"train"}
    with pytest.raises(CorpusError, match="no split 'test'; there are train, validation"):
        c.rows(split="test")


def test_a_leak_is_found_from_the_ids_even_when_the_labels_look_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_row("a", prompt=20, response=30)
    twin = make_row("b", prompt=20, response=40)
    twin = dataclasses.replace(twin, input_ids=(*row.input_ids[:20], *twin.input_ids[20:]))
    for name in ("prompt_hash", "sample_id"):
        store = Store(tmp_path / name)
        monkeypatch.setattr("eagle3_assets.corpus.order.group_rows", lambda members, repeats, share: _torn(members))
        second = dataclasses.replace(twin, sample_id=row.sample_id, turn=1) if name == "sample_id" else twin
        build_corpus(tiny_campaign(), store, [loose_file(tmp_path / f"{name}.parquet", [row, second])])
        judged = {v.check: v for v in judge_corpus(store)}
        assert not judged["split_without_leakage"].passed and judged["split_without_leakage"].stops
        assert all(v.passed for check, v in judged.items() if check != "split_without_leakage")


def _torn(members: Members) -> Any:
    """A grouping with a bug: every row its own group, sides by turns."""
    groups = group_rows(members, {}, 0.0)
    sides = {line: ("train", "validation")[k % 2] for k, line in enumerate(members.lines)}
    return dataclasses.replace(groups, group={line: f"{line:016x}" for line in members.lines}, split=sides)


def test_the_split_of_a_row_does_not_depend_on_the_others(tmp_path: Path) -> None:
    rows = [make_row(i) for i in range(80)]
    campaign = tiny_campaign(corpus={"validation_share": 0.3})
    many, _ = build(campaign, tmp_path / "many", rows)
    few, _ = build(campaign, tmp_path / "few", rows[:30])
    side = {p.sample_id: p.split for p in many}
    assert all(side[p.sample_id] == p.split for p in few) and set(side.values()) == {"train", "validation"}


# ---------------------------------------------------------------------------------------------------- additions
def test_what_joins_later_leaves_the_old_parts_as_they_were(tmp_path: Path) -> None:
    old = [make_row(i, prompt=20, response=100 + i % 30) for i in range(80)]
    new = [make_row(("new", i), prompt=20, response=50, dataset="b8_sweagent", grade="A0", source="engine") for i in range(30)]
    new += [
        near_copy(old[k], ("copy", k), dataset="b8_sweagent", grade="A0", source="engine") for k in range(5)
    ]  # better proven, and later
    share = {"validation_share": 0.4}
    before, _ = build(tiny_campaign(corpus=share), tmp_path, old)
    parts = {p.name: p.read_bytes() for p in before.path.glob("part-*")}
    later = tiny_campaign(corpus={**share, "additions": (("b8_sweagent",),)})
    c, manifest = build(later, tmp_path, [*old, *new])
    assert len(parts) == 4 and {name: (c.path / name).read_bytes() for name in parts} == parts
    assert [p["wave"] for p in manifest["parts"]] == [0, 0, 0, 0, 1] and manifest["rows"]["dropped"] == {"near_duplicate": 5}
    assert {p.dataset for p in c.part("00004")} == {"b8_sweagent"} and len(c) == 110


def test_a_later_row_that_ties_both_sides_together_is_dropped_and_moves_nobody() -> None:
    keys = sorted((f"{k:016x}" for k in range(40)), key=group_draw)
    keys = [keys[0], keys[-1]]  # a is on the validation side, b on the train side
    a_and_b = Members([0, 1], [0, 0], ["a", "b"], ["p", "q"], keys)
    assert group_rows(a_and_b, {}, 0.5).split == {0: "validation", 1: "train"}
    bridge = Members(
        [0, 1, 2, 3, 4],
        [0, 0, 1, 1, 1],
        ["a", "b", "c", "c", "d"],
        ["p", "q", "p", "q", "r"],
        [*keys, *["1" * 16] * 2, keys[0]],
    )
    found = group_rows(bridge, {}, 0.5)
    assert found.torn == {2, 3} and (found.split[0], found.split[1], found.split[4]) == ("validation", "train", "validation")
    at_once = dataclasses.replace(bridge, wave=[0] * 5)
    assert group_rows(at_once, {}, 0.5).torn == frozenset()  # nobody was there before: one group, one side
    assert len(set(list(group_rows(at_once, {}, 0.5).split.values())[:4])) == 1


def test_a_bridge_between_the_sides_ends_as_a_reason(tmp_path: Path) -> None:
    share = tiny_campaign(corpus={"validation_share": 0.5})
    rows = [make_row(i, prompt=20, response=30) for i in range(30)]
    c, _ = build(share, tmp_path / "old", rows)
    train = next(r for r in rows if c.by_sample_id(r.sample_id)[0].split == "train")
    held = next(r for r in rows if c.by_sample_id(r.sample_id)[0].split == "validation")
    bridge = [
        make_row(("bridge", k), sample_id=sample_id("bridge"), turn=k, dataset="b8_sweagent", prompt=20, response=9,
                 input_ids=(*r.input_ids[:20], *range(1, 9), END))
        for k, r in enumerate((train, held))
    ]  # fmt: skip
    later = tiny_campaign(corpus={"validation_share": 0.5, "additions": (("b8_sweagent",),)})
    _, manifest = build(later, tmp_path / "new", [*rows, *bridge, make_row("free", dataset="b8_sweagent")])
    assert manifest["rows"]["dropped"] == {"between_splits": 2}


# ---------------------------------------------------------------------------------------------------- joined turns
def test_a_joined_row_is_on_the_side_of_whoever_has_the_prompt_of_one_of_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [session((5, 4, True), (3, 40, True), (2, 6, True), name=f"s{k}") for k in range(16)]
    asked = [make_row(f"asked {k}", dataset="b8_sweagent", prompt=s[2].prompt_len, response=30) for k, s in enumerate(sessions)]
    asked = [with_prompt_of(s[2], row) for s, row in zip(sessions, asked, strict=True)]  # the third turn, answered once more
    campaign = tiny_campaign(corpus={"join_turns": True, "validation_share": 0.5})
    c, manifest = build(campaign, tmp_path / "right", [*(r for s in sessions for r in s), *asked])
    assert manifest["rows"]["dropped"] == {"joined": 32} and {p.split for p in c} == {"train", "validation"}
    for s, row in zip(sessions, asked, strict=True):
        assert c.by_sample_id(s[0].sample_id)[0].split == c.by_sample_id(row.sample_id)[0].split
    forget = dataclasses.replace
    monkeypatch.setattr("eagle3_assets.corpus.order.group_rows", lambda m, r, share: group_rows(forget(m, later={}), r, share))
    with pytest.raises(AssertionError, match="split_without_leakage"):  # and the check does not believe the labels
        build(campaign, tmp_path / "wrong", [*(r for s in sessions for r in s), *asked])


def test_turns_that_continue_each_other_become_one_row_when_asked(tmp_path: Path) -> None:
    rows = session((5, 40, True), (3, 20, True), (1, 60, True))
    apart, _ = build(tiny_campaign(), tmp_path / "apart", rows)
    c, manifest = build(tiny_campaign(corpus={"join_turns": True}), tmp_path / "joined", rows)
    assert len(apart) == 3 and len(c) == 1 and manifest["rows"]["dropped"] == {"joined": 2}
    assert c[0].loss_mask.sum() == 120 == manifest["supervised_tokens"] and c[0].turn == 2
    assert c.lineage(0)["joined"] == [{"turn": k, "attempt": 1, "wire_sha256": rows[k].wire_sha256} for k in (0, 1)]
    assert [apart.lineage(k)["joined"] for k in range(3)] == [[], [], []]


def test_turns_that_together_would_be_refused_do_not_become_one_row(tmp_path: Path) -> None:
    """0.98 twice is enough, and three times is not: nobody loses a row by asking for fewer."""
    rows = session((5, 40, True), (3, 20, True), (1, 60, True), p_exact={0: 0.98, 1: 0.98, 2: 0.98})
    c, manifest = build(tiny_campaign(corpus={"join_turns": True}), tmp_path, rows)
    assert len(c) == 2 and manifest["rows"]["dropped"] == {"joined": 1} and manifest["supervised_tokens"] == 120


# ---------------------------------------------------------------------------------------------------- the law
@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.sampled_from([None, 30, 60]))
    return {
        "max_length": length,
        "too_long": draw(st.sampled_from(["drop", "cut"])) if length else "drop",
        "near_duplicates": draw(st.sampled_from([0.0, 0.8])),
        "validation_share": draw(st.sampled_from([0.0, 0.5])),
        "weights": draw(st.sampled_from([{}, {"b3_magicoder": 0.5}])),
        "additions": draw(st.sampled_from([(), (("b8_sweagent",),), (("a1_deepswekimi",), ("b8_sweagent",))])),
        "join_turns": draw(st.booleans()),
        "shards": draw(st.integers(1, 6)),
    }


@st.composite
def any_rows(draw: st.DrawFn) -> list[SampleRow]:
    rows: list[SampleRow] = []
    for i in range(draw(st.integers(1, 8))):
        name = f"s{draw(st.integers(0, 3))}-{i}"
        turns = [
            (draw(st.integers(1, 6)), draw(st.sampled_from([3, 45])), draw(st.booleans())) for _ in range(draw(st.integers(1, 3)))
        ]
        made = session(*turns, name=name)
        dataset = draw(st.sampled_from(NAMES))
        grade = draw(st.sampled_from(["A0", "B1", "C1", "D", "Q"]))
        p = draw(st.sampled_from([0.9, 0.96, 1.0]))
        rows += [dataclasses.replace(r, dataset=dataset, grade=grade, p_exact=p) for r in made]
        if draw(st.booleans()):
            rows.append(near_copy(made[0], ("copy", i), dataset=draw(st.sampled_from(NAMES)), turn=0))
        if draw(st.booleans()):
            rows.append(dataclasses.replace(made[0], sample_id=sample_id(("same", i)), dataset=draw(st.sampled_from(NAMES))))
    return rows


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policies(), any_rows())
def test_reasons_add_up_and_sides_hold_under_any_policy(
    tmp_path_factory: pytest.TempPathFactory, policy: dict[str, Any], rows: list[SampleRow]
) -> None:
    anchor = make_row("anchor", grade="A0", p_exact=1.0, dataset="a1_deepswekimi", response=9)
    c, manifest = build(tiny_campaign(corpus=policy), tmp_path_factory.mktemp("c"), [*rows, anchor])
    counted = manifest["rows"]
    assert counted["input"] == len(rows) + 1 == counted["kept"] + sum(counted["dropped"].values())
    assert set(counted["dropped"]) <= set(DROP_REASONS) and len(c) == counted["kept"]
    seen: set[tuple[str, int]] = set()
    for key in c.parts:
        table = c.archive(key)
        lengths = np.array([len(r) for r in table.column("input_ids").to_pylist()])
        assert np.array_equal(paint_mask(table, lengths), np.concatenate([p.loss_mask for p in c.part(key)]))
        seen |= set(zip(table.column("sample_id").to_pylist(), table.column("turn").to_pylist(), strict=True))
    assert len(seen) == len(c) and all(p.loss_mask.any() and max(p.input_ids) < VOCAB for p in c)
    limit = policy["max_length"]
    assert limit is None or all(len(p.input_ids) <= limit for p in c)
    assert all(manifest["datasets"][d]["input"] == sum(r.dataset == d for r in [*rows, anchor]) for d in NAMES)
