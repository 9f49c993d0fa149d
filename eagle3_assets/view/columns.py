"""The columns of the viewer's table: one list that the query, the page and the help are made from.

Belongs here: names, kinds, titles and one line of help. Does not belong here: how a column comes about (`catalogue.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["facet", "number", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """`facet`: few values, to be chosen among; `number`: may be bounded; `text`: shown only. Every column can be sorted by."""

    name: str
    kind: Kind
    title: str
    help: str
    shown: bool = True


COLUMNS = (
    Column("dataset", "facet", "dataset", "the dataset that the prompt is from"),
    Column("shard", "facet", "shard", "one of sixteen parts of a dataset, the unit of review", shown=False),
    Column("sample_id", "text", "sample", "stable hash of dataset and prompt; open the row with it"),
    Column("turn", "number", "turn", "which assistant turn of the conversation", shown=False),
    Column("grade", "facet", "grade", "how well the ids are proved: A0 best, B1 one hypothesis fits the bill, C1 several, D no bill, Q out"),
    Column("model_grade", "facet", "model's verdict", "the grade after the target model's own forward pass; empty where it was not asked"),
    Column("p_exact", "number", "p exact", "probability that every id is right"),
    Column("provider", "facet", "provider", "who answered; (engine) and (import) are no providers"),
    Column("source", "facet", "source", "openrouter, engine or import", shown=False),
    Column("failing", "facet", "failing", "yes: in quarantine, unverified, left out by the corpus policy, or refused by the model"),
    Column("check", "facet", "check", "the check or question that the row's first reason names"),
    Column("reason", "text", "reason", "the row's first reason in words"),
    Column("dropped", "facet", "left out", "why the corpus policy would leave the row out"),
    Column("finish_reason", "facet", "finish", "how the answer ended, as returned"),
    Column("tools", "facet", "calls", "whether the answer calls tools"),
    Column("spacing", "facet", "spacing", "how the provider was read: verbatim, injected, stripped ...", shown=False),
    Column("basis", "facet", "basis", "what the ids rest on: server ids, log-probabilities, stream boundaries, the bill, nothing", shown=False),
    Column("length", "number", "ids", "all token ids of the row"),
    Column("generated", "number", "generated", "ids behind the prompt"),
    Column("supervised", "number", "in the loss", "ids that a trainer learns from", shown=False),
    Column("residual_completion", "number", "d completion", "rebuilt minus billed completion tokens; empty where nothing was billed"),
    Column("residual_prompt", "number", "d prompt", "rebuilt minus billed prompt tokens", shown=False),
    Column("survivors", "number", "survivors", "other id sequences that the evidence leaves open"),
    Column("mean_logprob", "number", "mean log-prob", "of the generated ids under the target model, in nats; where states exist", shown=False),
    Column("cost_usd", "number", "USD", "as settled"),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}
FACETS = tuple(column.name for column in COLUMNS if column.kind == "facet")
NUMBERS = tuple(column.name for column in COLUMNS if column.kind == "number")
