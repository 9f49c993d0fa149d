"""What the plan takes for granted: each value with its unit and where it comes from.

Belongs here: figures about the outside world. Does not belong here: arithmetic. A pilot, or `--what-if`, replaces a value, and then the
plan says so in its place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    """One named value. `unit` as people say it."""

    name: str
    value: float
    unit: str
    source: str


STATED: dict[str, Assumption] = {
    a.name: a
    for a in (
        Assumption("chars_per_token", 3.88, "characters", "Kimi's vocabulary on prose and code (docs/research/tokenizers.md#2)"),
        Assumption(
            "prompt_tokens", 1008.0, "tokens a row",
            "the corpus that this was made for: (138.4 M - 44.9 M of A1 - 8 x 7 M answered) / 37,200 rows; only until the prompts are made",
        ),
        Assumption(
            "length_sigma", 0.8, "of ln(tokens)",
            "log-normal answer lengths: with 0.8 an 8,192 cap keeps 96 % of the rows that are not A1, as the quoted 3.5 TB says "
            "(docs/research/hidden-states.md#5); only until the pilot knows p50 and p90",
        ),
        Assumption("seconds_per_answer", 60.0, "s", "30 to 100 s are usual for 3,500 tokens; only until the pilot knows"),
        Assumption("local_tokens_per_s", 90.0, "tokens/s", "one local server of eight GPUs, as stated for B1 and B2 (30 h a dataset)"),
        Assumption("tokens_per_s", 422.0, "tokens/s", "hidden states: 138.4 M tokens in 91 h, as stated (docs/research/hidden-states.md#5)"),
        Assumption("seconds_per_row", 0.0, "s", "hidden states: time a row whatever its length; none is part of the 422 tokens/s"),
        Assumption("disk_bytes_per_s", 1.0e9, "bytes/s", "what one local disk takes; at 20,000 tokens/s it is the limit, not the GPUs"),
        Assumption("lossless_ratio", 1.443, "times smaller", "byte planes + zstd on real activations (docs/research/hidden-states.md#3)"),
        Assumption("answers_bytes", 5.0, "bytes a token", "journal: request and response as text (about 4), JSON escapes"),
        Assumption("answer_bytes", 2000.0, "bytes an answer", "journal: ids, headers and JSON around an answer (measured on the demo's records)"),
        Assumption("streamed_bytes", 300.0, "bytes a token", "journal of an answer that was streamed: one event a token"),
        Assumption("tokens_bytes", 2.0, "bytes a token", "tokens/<ds>: ids in zstd Parquet (1.3, docs/research/perf-baselines.md#6) and evidence"),
        Assumption("corpus_bytes", 6.5, "bytes a token", "training form 4 + mask 1, archive 1.5 (docs/research/perf-baselines.md#6)"),
        Assumption("rebuild_bytes", 10.5, "bytes a token", "while a corpus is rebuilt: the new one beside the old, and 4 of spool"),
        Assumption("handoff_bytes", 8.0, "bytes a token", "handoff/tokens: ids as JSON text, and a mask"),
    )
}  # fmt: skip


def stated(name: str) -> float:
    """The value of a named assumption."""
    return STATED[name].value
