"""The dataset card: what is in a hand-off, where it comes from, how far its ids can be trusted, and under which licences.

Belongs here: wording and layout of `README.md`. Does not belong here: choosing rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.review.admission import REASONS as DROPPED
from eagle3_assets.review.page import escape_markdown
from eagle3_assets.store import write_bytes

GRADES = {  # design section 5
    "A0": "ids returned by the server",
    "A1": "ids proven by the bytes of log-probabilities",
    "A2": "ids proven by the boundaries of the stream",
    "B1": "one surviving hypothesis, edges known",
    "B2": "chosen with the model's forward pass",
    "C1": "chosen by posterior",
    "R": "repaired",
    "I": "imported without a bill",
}


def write_card(
    path: Path, campaign: Campaign, corpus: Mapping[str, Any], numbers: Mapping[str, Any], refusals: Mapping[str, str]
) -> None:
    """Write the card. `corpus` is corpus/manifest.json, `numbers` those of the export, `refusals` reason -> meaning."""
    write_bytes(path, render_card(campaign, corpus, numbers, refusals).encode())


def render_card(campaign: Campaign, corpus: Mapping[str, Any], numbers: Mapping[str, Any], refusals: Mapping[str, str]) -> str:
    """The card as markdown with the hub's front matter. No times: equal input gives equal bytes."""
    e = escape_markdown
    target, sampling = campaign.target, campaign.sampling
    lines = [
        "---", "license: other", "task_categories:", "- text-generation", "tags:", "- eagle3", "- pre-tokenized", "---", "",
        f"# Pre-tokenised answers of {e(target.model)}", "",
        f"{numbers['rows']:,} rows, {numbers['tokens']:,} tokens, {numbers['supervised_tokens']:,} of them supervised: answers "
        f"that {e(target.model)} sampled, as the token ids that it produced by the evidence of each row's grade, for training an "
        "EAGLE-3 drafter.", "",
        "`tokens.jsonl`, one object a line: `id` (sample id / assistant turn), `dataset`, `grade`, `input_ids`, `loss_mask` "
        "(1 on ids that the target generated; unshifted). `speculators prepare-data --data tokens.jsonl` and SpecForge's "
        "`data.prompts_path` read it as it is.", "",
        "## Sources", "", "| dataset | source | revision | licence | answered by | rows | tokens | supervised |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for d in campaign.dataset:
        if (facts := numbers["datasets"].get(d.name)) is None:
            continue
        # A local source is named by its last part: a card must not carry the paths of the machine that wrote it.
        where = d.source.path if d.source.kind == "hf" else Path(d.source.path).name
        cells = (d.name, where, d.source.revision or "local", d.licence or "not stated", d.backend)
        counts = (facts["rows"], facts["tokens"], facts["supervised_tokens"])
        lines.append("| " + " | ".join([*(e(c) for c in cells), *(f"{n:,}" for n in counts)]) + " |")
    lines += ["", "## Grades", "", "How each row's ids are known:", "", "| grade | meaning | rows |", "| --- | --- | --- |"]
    for grade, meaning in GRADES.items():
        rows = sum(facts["grades"].get(grade, 0) for facts in numbers["datasets"].values())
        if rows:
            lines.append(f"| {grade} | {meaning} | {rows:,} |")
    lines += ["", "## Left out", "", "| reason | meaning | rows |", "| --- | --- | --- |"]
    lines += [f"| {r} | {e(refusals[r])} | {n:,} |" for r, n in numbers["refused"].items()]
    dropped = corpus["rows"]["dropped"]
    lines += [f"| {r} | dropped from the corpus: {e(DROPPED.get(r, r))} | {n:,} |" for r, n in dropped.items()]
    lines += [
        "", "## Provenance", "",
        f"- campaign `{campaign.name}`, seed {campaign.campaign.seed}, tokenizer profile `{target.profile}`, "
        f"corpus `{corpus['digest']}`",
        f"- sampling: temperature {sampling.temperature}, top_p {sampling.top_p}, max_tokens {sampling.max_tokens} "
        "unless a dataset says otherwise",
        f"- admitted to the corpus: {', '.join(campaign.corpus.grades)} with p_exact >= {campaign.corpus.min_p_exact:g}",
        f"- handed on: {', '.join(campaign.handoff.grades)}",
    ]  # fmt: skip
    lines += [f"- waived: {e(str(dict(w)))}" for w in corpus["waived"]]
    return "\n".join(lines) + "\n"
