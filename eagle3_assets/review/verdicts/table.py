"""The one table of checks: name, severity, whether it blocks, and how much it tolerates.

Belongs here: facts about checks. The same names are used in code, UI, `reasons`, report and docs.
Does not belong here: how a check is computed (`invariants.py`, and `verify.py` of the rooms behind).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_assets.review.verdicts.verdict import Severity, Verdict

ALL = "all"  # in the place of a dataset or a shard: what is judged has none


@dataclass(frozen=True, slots=True)
class Check:
    """`max_share`: share of bad rows tolerated before the check fails (bad rows are quarantined in any case)."""

    name: str
    severity: Severity
    blocking: bool
    description: str
    max_share: float = 0.0

    def verdict(
        self, passed: bool, message: str, *, numbers: dict[str, Any] | None = None, examples: tuple[str, ...] = ()
    ) -> Verdict:
        """What this check found, with the severity and blocking that it has. At most ten examples are kept."""
        return Verdict(self.name, bool(passed), self.severity, self.blocking, message, numbers or {}, examples[:10])


def _error(name: str, description: str, max_share: float = 0.0) -> Check:
    return Check(name, "ERROR", True, description, max_share)


def _warn(name: str, description: str, max_share: float = 0.0) -> Check:
    return Check(name, "WARN", False, description, max_share)


CHECKS: dict[str, tuple[Check, ...]] = {
    "tokenizer_probe": (
        _error("special_ids", "every named control token has the id that the profile states"),
        _error("end_of_turn", "the end of turn is the profile's id, and the campaign does not contradict it"),
        _error("boundaries", "an end-of-think marker is a hard boundary: encode(a) + [id] + encode(b) = encode(a + marker + b)"),
        _error("tool_markers", "tool markers survive encode and decode"),
        _error("round_trip", "decode(encode(text)) = text for probe texts"),
        _error("template", "our renderer agrees with the model's own chat template where that file is present"),
        _error("golden", "recorded encodings and renderings are reproduced where golden.json lies beside the tokenizer files"),
    ),
    "endpoints": (_error("eligible_endpoints", "at least one endpoint satisfies the routing policy"),),
    "prompts": (
        _error("unique_ids", "no two rows share sample_id and turn"),
        _error("rows_exist", "the sample holds at least one row"),
        _warn("enough_rows", "the source gave as many rows as the campaign asks for"),
        _warn("set_aside_share", "rows set aside with a reason", 0.20),
    ),
    "pilot": (
        _error("within_cap", "the pilot spent no more than budget.pilot_usd"),
        _warn("providers_answered", "every eligible endpoint gave at least one answer"),
    ),
    "plan": (_warn("fits_budget", "the expected cost is within budget.campaign_usd"),),
    "answers": (
        _error("complete", "every selected prompt is answered, counted as failed, or the dataset was closed"),
        _error("provider_and_model", "every answer came from an allowed provider and the base model that was asked for"),
        _warn("failed_share", "prompts that ended in a counted failure", 0.05),
        _warn("ambiguous_share", "attempts whose answer was lost and whose money stays reserved", 0.02),
    ),
    "wire_profiles": (_warn("providers_decided", "the leading-space question is decided by data for every provider"),),
    "tokens": (
        _error(
            "structure",
            "ids in range, spans inside the row and behind the prompt, one row a sample and turn, and a grade that the row's evidence "
            "carries",
        ),
        _error("lineage", "one row for every finished answer of the journal, and no other"),
        _error("grammar", "the response is one the model may emit, with an end of turn exactly where one is due", 0.05),
        _error(
            "wire_text",
            "decoding the ids and applying the wire profile gives the returned text, byte for byte; the prompt is a rendering of the "
            "request, or the server's own",
            0.05,
        ),
        _error("completion_equals_bill", "response ids = billed completion tokens, row by row", 0.05),
        _error("prompt_equals_bill", "prompt ids = billed prompt tokens, row by row", 0.05),
        _error("allowed_ids", "no reserved or unused id, and the profile's own tokenizer"),
        _error("finish_reason", "the row's finish reason is the wire's and ends an answer; `tool_calls` comes with calls", 0.05),
        _error("loss_mask", "supervised spans begin and end with the response"),
        _error("clean_text", "no U+FFFD, byte order mark, NUL or lone surrogate that splitting a stream leaves behind", 0.05),
        _error(
            "stream_complete", "the body is whole: nothing amiss in it, its pieces make up its fields, a bill is with it", 0.05
        ),
        _error("not_empty", "the model wrote something besides blanks", 0.05),
        _error("no_loops", "no degenerate loop: text, ids or calls that repeat", 0.05),
        _error("error_text", "no page or notice of a gateway in place of the answer", 0.05),
        _error("row_provider_and_model", "body, journal and row name the same provider, and the model that was asked for"),
        _error("sampling", "temperature and top_p were sent and are the dataset's"),
        _error(
            "marker_text",
            "no name of a control token in an answer without ids and without a bill, but between quotation marks, or where the turn "
            "was split at it",
            0.05,
        ),
        _error("provenance", "hash of the raw bytes as in the journal; generation, tokenizer, template and evidence are named"),
        _warn("tool_calls", "called tools were offered, arguments are JSON objects that fit the tool's schema", 0.05),
        _warn("length_cut", "rows cut by length have max_tokens ids, and none has more", 0.05),
        _warn("reasoning_equals_bill", "the reasoning part is what was billed as reasoning", 0.05),
        _warn("not_dull", "no window of 4 kB that packs to less than a tenth", 0.05),
        _warn("scripts", "no burst of five scripts within 200 characters", 0.02),
        _warn("refusals", "rows that are a refusal and nothing else", 0.05),
        _warn("duplicates", "no two rows with the same ids", 0.01),
        _warn("timing", "no faster than a server can be, and no answer given twice", 0.02),
        _warn("turn_prefix", "a turn's prompt begins the next turn's", 0.05),
        _warn("position_budget", "rows longer than corpus.max_length", 0.20),
        _warn("quarantined_share", "rows in quarantine (grade Q)", 0.05),
        _warn("truncated_share", "rows cut off by max_tokens", 0.20),
        _warn("canonical", "encode(decode(ids)) = ids for the fields of rows whose ids came from the server", 0.10),
    ),
    "report": (
        _error("all_shards_present", "every shard of the dataset has tokens made from its current answers"),
        _error("tokens_pass", "no blocking check of any shard failed"),
        _warn("aggregate_billing", "|sum of differences| / billed tokens <= 0.04 %: proves nothing about single rows", 0.0004),
        _warn(
            "length_drift",
            "mean response length is the pilot's, or chance (3 standard errors) or a tenth explains the difference",
        ),
        _warn("mismatch_alarm", "in no stratum do mismatches with the bill begin to pile up over time (CUSUM, 1 % against 10 %)"),
        _warn("mismatch_strata", "no stratum has more mismatches than 1 % explains (Benjamini-Hochberg over strata, 5 %)"),
    ),
    "corpus": (
        _error("drop_reasons_add_up", "input rows = kept rows + dropped rows by reason"),
        _error("forms_agree", "archive form and training form hold the same ids and masks"),
        _error("parts_match_manifest", "every part is as the manifest says"),
        _error("split_without_leakage", "no prompt and no conversation has rows on both sides of the split"),
        _warn("parts_balanced", "no part holds more than 2 % above the mean of its parts, or one row's length", 0.02),
    ),
    "vocab_map": (
        _error("mapping", "d2t offsets and t2d mask describe the same strictly increasing set of ids"),
        _warn("coverage", "supervised tokens covered by the draft vocabulary", 0.05),
    ),
    "handoff_tokens": (_error("rows_match_corpus", "every handed-on row equals its corpus row"),),
    **dict.fromkeys(
        ("handoff_speculators", "handoff_specforge"),
        (
            _error(
                "rows_match_corpus",
                "every row that a trainer would read is its corpus row with that row's states, and none is missing",
            ),
            _error("vocabulary_and_layers", "the draft vocabulary is vocab_map's, and layer ids mean the layers that are stored"),
            _error(
                "exported_states_predict",
                "the target's head over the exported final states predicts the next ids as often as they say",
            ),
        ),
    ),
    "drafter": (
        _error("loss_falls", "the loss of the last tenth of the training steps is below that of the first tenth, and finite"),
        _error("checkpoint_loads", "the checkpoint has a configuration and finite weights"),
    ),
    "acceptance": (
        _error("above_untrained", "the acceptance length is above that of an untrained drafter, beyond both intervals"),
        _warn("no_dataset_behind", "no dataset's acceptance length is below the campaign's by more than its interval"),
    ),
    "hidden_states": (
        _error("states_match_rows", "one row of states for every token, ids and masks as in the corpus"),
        _error("finite", "no NaN and no infinity in what is stored; rows that are not finite are left out and named", 0.01),
        _error("layer_self_test", "E_k is E_k and the final state is before the norm, proved on a probe"),
        _error("on_policy", "every provider's ids look sampled from the target model, with the stated temperature and top_p"),
        _error("edge_tokens", "no id at an edge (first, marker, behind a marker) that the sampler cannot have drawn", 0.01),
    ),
}


def check_named(stage: str, name: str) -> Check:
    """The table's entry; KeyError for a name that is not in it."""
    return next(c for c in CHECKS[stage] if c.name == name)


def verdict(
    stage: str,
    name: str,
    passed: bool,
    message: str,
    *,
    numbers: dict[str, Any] | None = None,
    examples: tuple[str, ...] = (),
) -> Verdict:
    """A Verdict with severity and blocking as the table says."""
    return check_named(stage, name).verdict(passed, message, numbers=numbers, examples=examples)
