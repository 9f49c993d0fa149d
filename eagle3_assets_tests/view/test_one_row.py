"""Claims about one row's page: what it shows is what the files hold, and nothing in it acts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets.errors import StoreError, UsageError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.exact.show import visible
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.view.calls import answer_of
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.one_row import BLOCK, hex_dump, raw_bytes, raw_window, row_page, shown, token_block, tokens_from
from eagle3_assets_tests.view.small_root import DATASET, EVIL, EVIL_NAME


def key_of(row: SampleRow) -> str:
    return f"{row.dataset}/{row.sample_id}/{row.turn}"


def side(spans: list[list[str]], *kinds: str) -> str:
    return "".join(text for kind, text in spans if kind in kinds)


def page_where(catalogue: Catalogue, condition: str) -> dict[str, Any]:
    return row_page(catalogue, catalogue.ask(f"SELECT key FROM rows WHERE {condition} ORDER BY n LIMIT 1")[0][0])


@pytest.mark.slow
def test_the_wire_s_text_and_the_model_s_are_both_there_whole(catalogue: Catalogue, rows: list[SampleRow], mini: Profile) -> None:
    for row in rows:
        answer = answer_of(catalogue, DATASET, row.shard, row.sample_id, row.turn, row.attempt)
        assert answer is not None
        message = json.loads(answer.body)["choices"][0]["message"]
        page = row_page(catalogue, key_of(row))
        for field in page["wire"]["fields"]:
            if field["name"] in ("reasoning", "content") and not any(kind == "left_out" for kind, _ in field["spans"]):
                assert side(field["spans"], "same", "gone", "text") == shown(message[field["name"]] or "")
    joined = page_where(catalogue, "provider = 'Joining' AND grade = 'B1'")
    reasoning = next(field for field in joined["wire"]["fields"] if field["name"] == "reasoning")
    assert reasoning["edited"] and side(reasoning["spans"], "gone") == "  "
    row = next(r for r in rows if key_of(r) == joined["key"])
    response = row.input_ids[row.prompt_len :]
    assert side(reasoning["spans"], "same", "new") == mini.decode(response[: response.index(mini.special("</think>"))])


@pytest.mark.slow
def test_every_edge_that_was_read_otherwise_is_named(catalogue: Catalogue) -> None:
    page = page_where(catalogue, "provider = 'Joining' AND grade = 'B1'")
    edited = {edge["edge"]: (edge["wire"], edge["model"]) for edge in page["wire"]["edges"] if edge["edited"] == "True"}
    assert edited["reasoning_lead"] == ("  ", " ")
    assert page["wire"]["reading"].startswith("join join")


def test_the_bill_is_held_against_the_count(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    wrong = next(row for row in rows if "completion_equals_bill" in "".join(row.reasons))
    lines = {line["part"]: line for line in row_page(catalogue, key_of(wrong))["bill"]}
    completion = lines["completion"]
    assert completion["rebuilt"] == len(wrong.input_ids) - wrong.prompt_len and completion["billed"] == wrong.billed_completion
    assert completion["d"] == completion["rebuilt"] + completion["convention"] - completion["billed"] != 0
    assert lines["prompt"]["d"] == 0


def test_the_prompt_stands_beside_the_request(catalogue: Catalogue, rows: list[SampleRow], mini: Profile) -> None:
    row = next(row for row in rows if row.grade == "B1")
    prompt = row_page(catalogue, key_of(row))["prompt"]
    assert side(prompt["rendered"], "text", "marker") == mini.decode(row.input_ids[: row.prompt_len])
    assert [kind for kind, _ in prompt["rendered"]].count("marker") == sum(
        token >= mini.n_base for token in row.input_ids[: row.prompt_len]
    )
    assert prompt["messages"][0]["role"] == "user" and side(prompt["messages"][0]["spans"], "text").startswith(
        "tell me about number"
    )


def test_survivors_say_where_they_differ_and_what_the_chosen_one_is_worth(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    open_rows = [row for row in rows if row.survivors]
    assert open_rows
    for row in open_rows:
        page = row_page(catalogue, key_of(row))
        assert len(page["survivors"]) == len(row.survivors) and 0 < page["posterior"] < 1
        for told, other in zip(page["survivors"], row.survivors, strict=True):
            first = next(k for k, (a, b) in enumerate(zip(row.input_ids, other, strict=False)) if a != b)
            assert told["differences"][0]["at"] == first
            chosen, survivor = told["differences"][0]["chosen"], told["differences"][0]["survivor"]
            assert [i for i, _ in chosen] == list(row.input_ids[first : first + len(chosen)])
            assert [i for i, _ in survivor] == list(other[first : first + len(survivor)])


@pytest.mark.slow
def test_the_least_likely_id_is_found_where_states_exist(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    page = page_where(catalogue, "model_grade <> ''")
    row = next(r for r in rows if key_of(r) == page["key"])
    position, token, _, logprob = page["surprise"]["least"][0]
    assert (position, token, logprob) == (row.loss_spans[0][0] + 2, row.input_ids[row.loss_spans[0][0] + 2], -9.0)
    block = token_block(catalogue, page["key"], 0)["tokens"]
    assert [k for k, piece in enumerate(block) if piece[4] == -9.0] == [position]
    assert page_where(catalogue, "model_grade = ''")["surprise"] is None


def test_blocks_of_tokens_are_the_row(rows: list[SampleRow], mini: Profile) -> None:
    from dataclasses import replace

    row = replace(rows[0], input_ids=rows[0].input_ids * (2 * BLOCK // len(rows[0].input_ids) + 2))
    seen: list[int] = []
    while len(seen) < len(row.input_ids):
        block = tokens_from(mini, row, None, len(seen))
        assert block["start"] == len(seen) and 0 < len(block["tokens"]) <= BLOCK
        seen += [token[0] for token in block["tokens"]]
    assert tuple(seen) == row.input_ids
    assert tokens_from(mini, row, None, 10**9)["stop"] == len(row.input_ids)


def test_the_loss_mask_is_on_the_chips(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    row = rows[0]
    supervised = [k for k, token in enumerate(token_block(catalogue, key_of(row), 0)["tokens"]) if token[3]]
    assert supervised == [k for start, end in row.loss_spans for k in range(start, end)]


def test_raw_bytes_come_back_as_they_were_received(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    row = rows[3]
    answer = answer_of(catalogue, DATASET, row.shard, row.sample_id, row.turn, row.attempt)
    assert answer is not None and raw_bytes(catalogue, key_of(row), "response") == answer.body
    assert json.loads(raw_bytes(catalogue, key_of(row), "request")) == answer.request
    with pytest.raises(UsageError, match="request or response"):
        raw_bytes(catalogue, key_of(row), "secret")


def test_windows_of_raw_bytes_lose_nothing_and_split_no_character() -> None:
    data = ("é😀x" * 40_000).encode()
    text, start = "", 0
    while start < len(data):
        window = raw_window(data, start)
        text, start = text + window["text"], window["stop"]
    assert text == data.decode()
    assert raw_window(b"\xff\x00a\x1b", 0)["text"] == "\\xff\\x00a\\x1b"
    assert bytes.fromhex("".join(line[10:57] for line in hex_dump(data[:100]).splitlines())) == data[:100]


def test_nothing_in_a_hostile_row_is_left_that_could_act_on_a_reader(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    found: list[str] = []
    for row in rows:
        if row.provider == EVIL_NAME:
            found += texts_in({**row_page(catalogue, key_of(row)), "key": ""}) + texts_in(token_block(catalogue, key_of(row), 0))
    for text in found:
        assert all(char.isprintable() or char in "\n\t" for char in text), text
    assert visible("\u202e") in "".join(found) and EVIL[:9] in "".join(found)  # seen, both of them


def texts_in(value: Any) -> list[str]:
    """Every text in plain JSON, names too."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in texts_in(one)]


def test_a_row_that_is_gone_is_said_in_words(catalogue: Catalogue) -> None:
    with pytest.raises(StoreError, match="there is no row"):
        row_page(catalogue, "b3_magicoder/nothing/0")


def test_a_row_without_its_record_still_shows_its_ids(catalogue: Catalogue, rows: list[SampleRow]) -> None:
    import shutil

    catalogue.ask("DELETE FROM calls")
    shutil.rmtree(catalogue.root.store.answers(DATASET, rows[0].shard))
    page = row_page(catalogue, key_of(rows[0]))
    assert "no record" in page["wire"]["fault"] and page["raw"] is None and page["length"] == len(rows[0].input_ids)
