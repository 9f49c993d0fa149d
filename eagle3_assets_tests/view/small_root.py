"""A small campaign folder of known content: journals, learned profiles, token rows, one verdict of the model.

Belongs here: making it, and what is hostile in it. Does not belong here: claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_assets.campaign import Campaign
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow, write_rows
from eagle3_assets.states.verdict.on_policy_table import SCHEMA
from eagle3_assets.states.verdict.verdicts_manifest import VERDICTS_FILE
from eagle3_assets.store import Store, commit, write_json
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.journal import Journal, segments
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.synthetic import Provider, Truth, sentences

DATASET, SHARD = "b3_magicoder", "00"
EVIL = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'> {{7*7}} \u202eevil\u2066 \x1b[2J \x00 "
    '<a href="javascript:window.owned = 3">click</a> __proto__ \u2028 e\u0301\u0301\u0301 \ufeff'
)
EVIL_NAME = 'Ev"il <b>&\u202e'
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
]


def answers_of(profile: Profile) -> list[WireAnswer]:
    """Two providers on the same 24 prompts (one joins spaces), then one answer that was changed on the way, one with a call, one that was cut,
    one hostile one, one whose bytes were lost, 24 of an engine that
    returns ids, three of a provider that nobody knows yet."""
    plain, joining = Provider(profile, "Plain"), Provider(profile, "Joining", bends="injects")
    odd = Provider(profile, EVIL_NAME)
    texts = sentences(profile, 24, neutral=None)
    for k, text in enumerate(texts):
        truth = Truth(f" thought {text}", text)  # for half of them a space in front changes the count
        asked = [{"role": "user", "content": f"tell me about number {k}"}]
        plain.answer(truth, messages=asked)
        joining.answer(truth, messages=asked)
    joining.answer(Truth(" wrong bill", "Changed on the way."), bill_shift=3, messages=[{"role": "user", "content": "bill"}])
    odd.answer(Truth(" calling", "", (("add", '{"a": 1}'),), finish="tool_calls"), tools=TOOLS)
    plain.answer(Truth(" cut", "This goes on and", finish="length"))
    odd.answer(Truth(" " + EVIL, EVIL + " end"), messages=[{"role": "user", "content": EVIL, "name": "__proto__"}])
    odd.answer(Truth(" lost", "These \ufffd\ufffd were lost."))
    engine = Provider(profile, "engine")  # whose ids say what the model writes at the edges
    for k, text in enumerate(texts):
        engine.answer(
            Truth(f" said {text}", f"So {text}"),
            messages=[{"role": "user", "content": f"local {k}"}],
            source="engine",
            with_ids=True,
        )
    young = Provider(profile, "Young", bends="strips")  # too few answers to be decided, and spaces that change no count
    for text in sentences(profile, 3, neutral=True):
        young.answer(Truth(" " + text, text))
    out = []
    for k, answer in enumerate([*plain.answers, *joining.answers, *odd.answers, *engine.answers, *young.answers]):
        at = 1_790_000_000.0 + k
        out.append(
            replace(answer, sample_id=f"{k:032x}", request_id=f"r{k}", started_at=at, finished_at=at + 2.5, cost_usd=0.001)
        )
    return out


def failed(k: int) -> WireAnswer:
    """An attempt that came to nothing."""
    return WireAnswer(
        request_id=f"f{k}", sample_id=f"{k:032x}", turn=0, attempt=0, dataset=DATASET, shard=SHARD, source="openrouter", request={}, status=429,
        body=b"{}", outcome="failed", provider="Plain", reason="rate limit", started_at=1.79e9, finished_at=1.79e9 + 1,
    )  # fmt: skip


def write_journal(store: Store, answers: Sequence[WireAnswer]) -> None:
    folder = store.answers(DATASET, SHARD)
    with Journal.open(folder) as journal:
        for answer in answers:
            journal.append(answer)
    commit(folder, files=segments(folder), inputs={}, numbers={"selected": len(answers), "finished": len(answers)})


def write_tokens(store: Store, rows: Sequence[SampleRow], shard: str = SHARD) -> None:
    path = store.tokens(DATASET, shard)
    write_rows(path, rows)
    commit(path, files=[path], inputs={}, numbers={"rows": len(rows)})


def write_verdict(store: Store, row: SampleRow) -> None:
    """The model's verdict on one row, with a log-probability for each id in the loss: the third is the surprise."""
    write_json(store.corpus / "manifest.json", {})
    commit(store.corpus, files=[], inputs={}, numbers={"partitions": ["00000"], "content": {"00000": "x"}})
    folder = store.states("00000")
    folder.mkdir(parents=True)
    states = commit(folder, files=[], inputs={"corpus_part": "x"}, numbers={})
    ids = sum(end - start for start, end in row.loss_spans)
    logprob = np.full(ids, -0.1)
    logprob[2] = -9.0
    line = dict.fromkeys(SCHEMA.names) | {
        "sample_id": row.sample_id, "turn": row.turn, "dataset": row.dataset, "provider": row.provider, "grade": row.grade, "final_grade": row.grade,
        "candidates": 1, "winner": 0, "tokens": ids, "reasons": [], "posterior": 1.0, "log_probs": [], "judged": True,
        "mean_logprob": float(logprob.mean()),
        "logprob": logprob.tolist(), "entropy": [0.5] * ids, "mass_above": [0.1] * ids,
    }  # fmt: skip
    path = folder / VERDICTS_FILE
    pq.write_table(pa.Table.from_pylist([line], schema=SCHEMA), path)
    commit(path, files=[path], inputs={"states": states.digest}, numbers={})


def make_root(campaign: Campaign, store: Store, profile: Profile) -> list[SampleRow]:
    """Write everything; returns the rows."""
    answers = answers_of(profile)
    write_journal(store, [failed(0), *answers])
    profiles = learn(profile, answers)
    write_json(store.wire_profiles, profiles)
    commit(store.wire_profiles, files=[store.wire_profiles], inputs={})
    dataset = campaign.dataset_named(DATASET)
    rows = build_rows(profile, campaign, dataset, answers, profiles)
    write_tokens(store, rows)
    write_verdict(store, next(row for row in rows if row.grade == "B1"))
    return rows
