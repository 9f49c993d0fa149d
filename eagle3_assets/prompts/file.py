"""The prompts file of a dataset: `prompts/<ds>.parquet` and, beside it, what was set aside and why.

Belongs here: building the file (source → mapping → turns → screen → sample → Parquet), reading it back, what decides its content.
Does not belong here: the manifest (the asset commits it over what `build_prompts` wrote), Dagster.

Columns, one row a prompt, in order of rank: `sample_id` string · `turn` int32 · `shard` string · `rank` int32 · `reserve` bool ·
`messages` string (JSON) · `tools` string (JSON) or null · `expected_tokens` int32 · `source_row` string · `follow_ups` string
(JSON list of lists) · `given` string (JSON of `Given`, or of a list of them where a row has several) or null. Schema metadata:
version, dataset, seed, rows looked at.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import N_SHARDS, SHARDS, Campaign, Dataset
from eagle3_assets.errors import PromptError
from eagle3_assets.prompts.lazy_json import Packed
from eagle3_assets.prompts.mapping import columns_of, dump_json, map_row
from eagle3_assets.prompts.prompt import Given, Prompt
from eagle3_assets.prompts.sample import CHARS_PER_TOKEN, Candidate, Sampler, canonical, expected_tokens, sample_id
from eagle3_assets.prompts.screen import screen, screen_text, strings
from eagle3_assets.prompts.set_aside import BadRow, SetAside, shown
from eagle3_assets.prompts.sources import SourceRow, look_ahead, read_rows, source_digests
from eagle3_assets.prompts.turns import Turn, cut_turn, given_answers
from eagle3_assets.store import atomic_file, write_json

PROMPTS_VERSION = 1  # a new number rebuilds every file: bump it when mapping, screen or order change what is written
ROW_GROUP = 2048
ROWS_AT_ONCE = 512


def set_aside_path(out: Path) -> Path:
    """`prompts/<ds>.set_aside.json` beside `prompts/<ds>.parquet`."""
    return out.with_name(f"{out.stem}.set_aside.json")


def reserve_rows(dataset: Dataset) -> int:
    """Rows sampled beyond `n_rows`, to replace prompts that fail for good."""
    return round(dataset.n_rows * dataset.reserve)


def prompt_inputs(campaign: Campaign, dataset: Dataset) -> dict[str, Any]:
    """Everything that decides the content of the file: for skip-if-current. Reads (checksums) local source files.

    Raises PromptError when the source is not there.
    """
    return {**prompt_settings(campaign, dataset), "source": source_digests(dataset.source, campaign.path.parent)}


def prompt_settings(campaign: Campaign, dataset: Dataset) -> dict[str, Any]:
    """What of the campaign file decides the content of the prompts file, and the version of the code that writes it."""
    config = dataset.model_dump(
        mode="json", include={"name", "source", "mapping", "reserve", "turns", "mean_tokens", "max_chars"}
    )
    return {
        "version": PROMPTS_VERSION,
        "seed": campaign.campaign.seed,
        "dataset": {**config, "n_rows": dataset.n_rows, "import": dataset.backend == "import"},
        "max_tokens": campaign.sampling_of(dataset).max_tokens,
    }


def build_prompts(campaign: Campaign, dataset: Dataset, out: Path, *, markers: re.Pattern[str]) -> dict[str, Any]:
    """Write `out` (Parquet, zstd) and its `.set_aside.json`, each atomically. The caller commits the manifest over both. `markers`: the
    names of the target's control tokens.

    Returns numbers: `source_rows` = `selected` + `reserve` + sum of `set_aside` + `not_sampled`; `rows_wanted`, `look_ahead`
    (None: the whole source was read), `expected_tokens` and `prompt_chars` of the selected rows, `shards` {shard: selected rows}.
    Raises PromptError (source not readable, no usable row) and StoreError (disk).
    """
    wanted = dataset.n_rows + reserve_rows(dataset)
    bound = look_ahead(dataset.source, wanted)
    sampler = Sampler(seed=campaign.campaign.seed, dataset=dataset.name, k=wanted)
    aside = SetAside()
    source_rows = 0
    for row in read_rows(dataset.source, campaign.path.parent, columns=columns_of(dataset.mapping), limit=bound):
        source_rows += 1
        try:
            sampler.offer(_candidate(row, dataset, markers))
        except BadRow as bad:
            aside.add(bad.reason, row.where, bad.detail)
    drawn = sampler.drawn()
    if not drawn:
        raise PromptError(_nothing_usable(campaign, dataset, source_rows, aside))
    for candidate in drawn:
        for merged in sampler.merged.get(candidate.sample_id, ()):
            aside.add("duplicate", merged, f"same prompt as {candidate.source_row}")
    prior = expected_tokens(
        [c.own_chars for c in drawn], mean_tokens=dataset.mean_tokens, max_tokens=campaign.sampling_of(dataset).max_tokens
    )
    for candidate, tokens in zip(drawn, prior, strict=True):
        candidate.payload["expected_tokens"] = tokens if candidate.known_tokens is None else max(1, candidate.known_tokens)
    numbers = _numbers(drawn, dataset, source_rows, aside, bound)
    write_json(set_aside_path(out), {"dataset": dataset.name, "source_rows": source_rows, "reasons": aside.as_json()})
    _write(out, drawn, dataset, campaign.campaign.seed, source_rows, bound)
    return numbers


def _candidate(row: SourceRow, dataset: Dataset, markers: re.Pattern[str]) -> Candidate:
    """Map, cut, screen. Raises BadRow."""
    if row.row is None:
        raise BadRow(row.reason, row.detail)
    conversation = map_row(row.row, dataset.mapping)
    turn = cut_turn(conversation, dataset.turns)
    history, later = (turn.whole_history, ()) if turn.own_next else (turn.history, turn.follow_ups)
    reason = screen(history, conversation.tools, later, max_chars=dataset.max_chars, markers=markers)
    if reason == "invalid_tool_schema":
        raise BadRow(reason, dump_json(conversation.tools))
    if reason:
        raise BadRow(reason, _sketch(turn))
    given = [asdict(g) for g in given_answers(conversation, turn)] if dataset.backend == "import" else []
    if given and (reason := screen_text(given)):
        raise BadRow(reason, _sketch(turn))
    own_chars = sum(len(s) for s in strings(turn.own_answer))
    known = sum(_given_tokens(g) for g in given) if given else None
    payload = {
        "turn": turn.number,
        "messages": dump_json(turn.history),
        "tools": dump_json(conversation.tools) if conversation.tools else None,
        "follow_ups": dump_json(turn.follow_ups),
        "given": dump_json(given if turn.own_next else given[0]) if given else None,
    }
    tie = blake2b(canonical([payload["follow_ups"], payload["given"]]), digest_size=16).digest()
    # several answers to one task are several samples, so a conversation with further turns is known by all of its messages
    known_by = (*turn.whole_history, *(m for m in turn.own_answers[-1:] if m)) if turn.own_next else turn.history
    id_ = sample_id(dataset.name, known_by, conversation.tools)
    return Candidate(id_, payload, shown(row.where), tie, own_chars, known)  # shown: a file's name may hold undecodable bytes


def _given_tokens(given: dict[str, Any]) -> int:
    """Output tokens of an answer that exists: its ids, or an estimate from its text."""
    ids = given["output_ids"]
    return round(sum(map(len, strings(given["message"]))) / CHARS_PER_TOKEN) if ids is None else len(ids)


def _sketch(turn: Turn) -> str:
    """The last message of a set-aside prompt, as its example."""
    last = turn.history[-1] if turn.history else {}
    return f"{len(turn.history)} messages, last {last.get('role', '-')}: {last.get('content') or ''}"


def _nothing_usable(campaign: Campaign, dataset: Dataset, source_rows: int, aside: SetAside) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in aside.counts.most_common(4)) or "the source is empty"
    example = next((e[0]["text"] for e in aside.examples.values() if e), "")
    return (
        f"{campaign.path}: dataset {dataset.name}: no usable row among {source_rows} of {dataset.source.path} ({reasons}"
        f"{': ' + example if example else ''}); check [dataset.mapping] against the columns"
    )


def _numbers(drawn: list[Candidate], dataset: Dataset, source_rows: int, aside: SetAside, bound: int | None) -> dict[str, Any]:
    selected = drawn[: dataset.n_rows]
    shards = Counter(SHARDS[rank % N_SHARDS] for rank in range(len(selected)))
    chars = sum(len(c.payload["messages"]) + len(c.payload["tools"] or "") for c in selected)
    return {
        "source_rows": source_rows,
        "rows_wanted": dataset.n_rows,
        "selected": len(selected),
        "reserve": len(drawn) - len(selected),
        "set_aside": dict(sorted(aside.counts.items())),
        "not_sampled": source_rows - len(drawn) - aside.counts.total(),
        "look_ahead": bound,
        "expected_tokens": sum(c.payload["expected_tokens"] for c in selected),
        "prompt_chars": chars,
        "shards": {shard: shards[shard] for shard in SHARDS},
    }


# ---------------------------------------------------------------------------------------------------- the file
def _schema(metadata: dict[str, str]) -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    return pa.schema(
        [
            pa.field("sample_id", text, nullable=False),
            pa.field("turn", number, nullable=False),
            pa.field("shard", text, nullable=False),
            pa.field("rank", number, nullable=False),
            pa.field("reserve", pa.bool_(), nullable=False),
            pa.field("messages", text, nullable=False),
            pa.field("tools", text),
            pa.field("expected_tokens", number, nullable=False),
            pa.field("source_row", text, nullable=False),
            pa.field("follow_ups", text, nullable=False),
            pa.field("given", text),
        ],
        metadata=metadata,
    )


def _write(out: Path, drawn: list[Candidate], dataset: Dataset, seed: int, source_rows: int, bound: int | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "sample_id": c.sample_id,
            "shard": SHARDS[rank % N_SHARDS],
            "rank": rank,
            "reserve": rank >= dataset.n_rows,
            "source_row": c.source_row,
            **c.payload,
        }
        for rank, c in enumerate(drawn)
    ]
    schema = _schema(
        {
            "eagle3_prompts_version": str(PROMPTS_VERSION),
            "dataset": dataset.name,
            "seed": str(seed),
            "source_rows_read": str(source_rows),
            "look_ahead": "the whole source" if bound is None else f"at most {bound} rows of the stream",
        }
    )
    with atomic_file(out) as handle:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), handle, compression="zstd", row_group_size=ROW_GROUP)


def read_prompts(path: Path, *, with_reserve: bool = False) -> list[Prompt]:
    """The prompts of a dataset in order of rank; the selected ones, or the reserve behind them too. Raises PromptError."""
    return _read(path, None, with_reserve)


def read_shard(path: Path, shard: str, *, with_reserve: bool = False) -> list[Prompt]:
    """The prompts of one shard ("00" … "15") in order of rank. Raises PromptError."""
    return _read(path, [("shard", "=", shard)], with_reserve)


def _read(path: Path, filters: list[tuple[str, str, str]] | None, with_reserve: bool) -> list[Prompt]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if not path.is_file():
        raise PromptError(f"{path}: is missing; materialize prompts/{path.stem} first")
    again = f"remove it and materialize prompts/{path.stem} again"
    try:
        metadata = {k.decode(): v.decode() for k, v in (pq.read_schema(path).metadata or {}).items()}
        table = pq.read_table(path, filters=filters, use_threads=False)
        version = metadata.get("eagle3_prompts_version")
        if version != str(PROMPTS_VERSION):
            raise PromptError(f"{path}: expected prompts version {PROMPTS_VERSION}, found {version}; {again}")
        if not with_reserve:
            table = table.filter(pc.invert(table["reserve"]))
        rows = (row for batch in table.sort_by("rank").to_batches(ROWS_AT_ONCE) for row in batch.to_pylist())
        tools: dict[str, Packed] = {}
        return [_prompt(row, metadata["dataset"], tools) for row in rows]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PromptError(f"{path}: not readable as prompts ({reason}); {again}") from None


def _prompt(row: dict[str, Any], dataset: str, tools: dict[str, Packed]) -> Prompt:
    """`tools` remembers the declarations seen: one set is declared in thousands of prompts."""
    declared = row["tools"]
    if declared is not None and declared not in tools:
        tools[declared] = Packed(declared.encode())
    given = _givens(row["given"])
    return Prompt(
        sample_id=row["sample_id"],
        dataset=dataset,
        turn=row["turn"],
        shard=row["shard"],
        rank=row["rank"],
        messages=Packed(row["messages"].encode()),
        tools=tools[declared] if declared is not None else None,
        expected_tokens=row["expected_tokens"],
        reserve=row["reserve"],
        source_row=row["source_row"],
        follow_ups=Packed(row["follow_ups"].encode()) if row["follow_ups"] != "[]" else (),
        given=given[0] if given else None,
        given_next=given[1:],
    )


def _givens(text: str | None) -> tuple[Given, ...]:
    if text is None:
        return ()
    raw = json.loads(text)
    return tuple(map(_given, raw)) if isinstance(raw, list) else (_given(raw),)


def _given(raw: dict[str, Any]) -> Given:
    def ids(name: str) -> tuple[int, ...] | None:
        return tuple(raw[name]) if raw[name] is not None else None

    return Given(raw["message"], ids("output_ids"), ids("prompt_ids"), raw["finish_reason"])
