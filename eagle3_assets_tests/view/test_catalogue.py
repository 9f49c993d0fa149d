"""Claims about the table of rows: it says what the files say, today's files."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.review.rows.columns import Columns
from eagle3_assets.store import Store
from eagle3_assets.view import catalogue as module
from eagle3_assets.view.calls import Calls, answer_of
from eagle3_assets.view.catalogue import Catalogue, open_catalogue
from eagle3_assets.view.roots import Root
from eagle3_assets.view.texts import fill_texts
from eagle3_assets.wire.journal import Journal, encode_line, segments
from eagle3_assets_tests.view.small_root import DATASET, SHARD, answers_of, failed, write_tokens


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)


@pytest.mark.slow
def test_differences_from_the_bill_are_those_of_the_review(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    columns = Columns(to_table(rows))
    for part in ("completion", "prompt"):
        told = columns.residual(part)
        expected = {row.sample_id: int(d) if known else None for row, d, known in zip(rows, told.d, told.known, strict=True)}
        assert dict(catalogue.ask(f"SELECT sample_id, residual_{part} FROM rows")) == expected
    supervised = dict(zip((row.sample_id for row in rows), columns.supervised.tolist(), strict=True))
    assert dict(catalogue.ask("SELECT sample_id, supervised FROM rows")) == supervised


@pytest.mark.slow
def test_the_model_s_verdict_stands_beside_its_row(catalogue: Catalogue) -> None:
    found = catalogue.ask("SELECT grade, model_grade, mean_logprob FROM rows WHERE model_grade <> ''")
    assert [line[:2] for line in found] == [("B1", "B1")]
    assert np.isfinite(found[0][2])


def test_rows_that_fail_are_those_that_no_corpus_takes(catalogue: Catalogue, rows: list[SampleRow], campaign: Campaign) -> None:
    policy = campaign.corpus
    out = {r.sample_id for r in rows if r.grade in "QD" or r.grade not in policy.grades or r.p_exact < policy.min_p_exact}
    assert out and {name for (name,) in catalogue.ask("SELECT sample_id FROM rows WHERE failing = 'yes'")} == out


@pytest.mark.slow
def test_a_file_without_its_manifest_is_not_there_yet(catalogue: Catalogue, rows: list[SampleRow], store: Store) -> None:
    write_tokens(store, [replace(row, shard="01") for row in rows[:3]], shard="01")
    store.tokens(DATASET, "01").with_name("01.parquet.manifest.json").rename(store.root / "aside.json")
    catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(len(rows),)]


@pytest.mark.slow
def test_a_file_that_was_made_anew_is_read_anew(catalogue: Catalogue, rows: list[SampleRow], store: Store) -> None:
    version = catalogue.version
    write_tokens(store, rows[:5])
    assert catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(5,)]
    assert catalogue.version > version
    assert not catalogue.refresh()
    fill_texts(catalogue, threading.Event())
    assert catalogue.ask("SELECT count(*) FROM texts") == [(5,)]


@pytest.mark.slow
def test_a_damaged_file_is_named_and_the_others_are_shown(catalogue: Catalogue, rows: list[SampleRow], store: Store) -> None:
    write_tokens(store, [replace(row, shard="01") for row in rows[:3]], shard="01")
    path = store.tokens(DATASET, "01")
    path.write_bytes(b"PAR1" + b"\0" * (path.stat().st_size - 8) + b"PAR1")
    catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(len(rows),)]
    assert any("01.parquet" in problem for problem in catalogue.told())
    write_tokens(store, [replace(row, shard="01") for row in rows[:3]], shard="01")
    catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(len(rows) + 3,)] and catalogue.told() == []


@pytest.mark.slow
def test_a_file_of_another_size_than_its_manifest_says_is_named_until_it_is_made_again(
    catalogue: Catalogue, rows: list[SampleRow], store: Store
) -> None:
    path = store.tokens(DATASET, SHARD)
    path.write_bytes(path.read_bytes()[:-10])
    catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(0,)] and "expected" in catalogue.told()[0]
    write_tokens(store, rows)
    catalogue.refresh()
    assert catalogue.ask("SELECT count(*) FROM rows") == [(len(rows),)] and catalogue.told() == []


@pytest.mark.slow
def test_evidence_that_is_no_json_is_no_obstacle(catalogue: Catalogue, rows: list[SampleRow], store: Store) -> None:
    write_tokens(store, [replace(rows[0], evidence="{broken"), replace(rows[1], evidence="[1]")])
    catalogue.refresh()
    assert [spacing for (spacing,) in catalogue.ask("SELECT spacing FROM rows")] == ["", ""]


def test_no_folder_is_said_in_words(campaign: Campaign, store: Store) -> None:
    with pytest.raises(StoreError, match=r"does not exist.*eagle3 run"):
        open_catalogue(Root(campaign.name, store, campaign))


# ---------------------------------------------------------------------------------------------------- journals
@pytest.mark.slow
def test_every_call_is_in_the_table_also_those_that_came_to_nothing(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    assert dict(catalogue.ask("SELECT outcome, count(*) FROM calls GROUP BY 1")) == {"finished": len(rows), "failed": 1}


@pytest.mark.slow
def test_what_is_appended_is_read_and_what_is_half_written_waits(catalogue: Catalogue, store: Store) -> None:
    calls, folder = Calls(catalogue), store.answers(DATASET, SHARD)
    before = catalogue.ask("SELECT count(*) FROM calls")[0][0]
    calls.fill(threading.Event())  # another reader begins anew; forget what it saw
    catalogue.ask("DELETE FROM calls")
    calls = Calls(catalogue)
    calls.fill(threading.Event())
    assert catalogue.ask("SELECT count(*) FROM calls") == [(before,)]
    with Journal.open(folder) as journal:
        journal.append(failed(77))
    whole = encode_line(failed(78))
    with segments(folder)[-1].open("ab") as handle:
        handle.write(whole[:40])
    calls.fill(threading.Event())
    assert catalogue.ask("SELECT count(*) FROM calls") == [(before + 1,)]
    with segments(folder)[-1].open("ab") as handle:
        handle.write(whole[40:])
    calls.fill(threading.Event())
    assert catalogue.ask("SELECT count(*) FROM calls") == [(before + 2,)]


@pytest.mark.slow
def test_a_damaged_record_is_named_and_its_neighbours_are_read(catalogue: Catalogue, store: Store) -> None:
    path = segments(store.answers(DATASET, SHARD))[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b"thought", b"THOUGHT"), *lines[2:]]))
    catalogue.ask("DELETE FROM calls")
    Calls(catalogue).fill(threading.Event())
    assert catalogue.ask("SELECT count(*) FROM calls") == [(len(lines) - 1,)]
    assert any("damaged" in problem for problem in catalogue.told())


@pytest.mark.slow
def test_the_answer_is_found_before_and_after_the_journals_are_read(catalogue: Catalogue, mini: object) -> None:
    wanted = answers_of(mini)[5]  # type: ignore[arg-type]
    by_place = answer_of(catalogue, DATASET, SHARD, wanted.sample_id, 0, 1)
    catalogue.ask("DELETE FROM calls")
    by_looking = answer_of(catalogue, DATASET, SHARD, wanted.sample_id, 0, 1)
    assert by_place == by_looking == wanted
    assert answer_of(catalogue, DATASET, SHARD, "f" * 32, 0, 1) is None
