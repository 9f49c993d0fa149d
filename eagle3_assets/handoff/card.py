"""The dataset card: what is in a hand-off, where it comes from, how far its ids can be trusted, and under which licences.

Belongs here: wording and layout of `README.md`. Does not belong here: choosing rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.order import DROP_REASONS
from eagle3_assets.grades import GRADES
from eagle3_assets.handoff.policy import REFUSALS
from eagle3_assets.review.report.page import escape_markdown
from eagle3_assets.store import write_bytes


def write_card(
    path: Path,
    campaign: Campaign,
    corpus: Mapping[str, Any],
    numbers: Mapping[str, Any],
    *,
    what: str,
    use: Sequence[str],
    files: Mapping[str, str] | None = None,
) -> None:
    """Write the card. `corpus` is corpus/manifest.json, `numbers` those of the export, `use` paragraphs on the files, `files` split ->
    file, where the hub's viewer and `datasets` can read them."""
    write_bytes(path, render_card(campaign, corpus, numbers, what=what, use=use, files=files).encode())


def render_card(
    campaign: Campaign,
    corpus: Mapping[str, Any],
    numbers: Mapping[str, Any],
    *,
    what: str,
    use: Sequence[str],
    files: Mapping[str, str] | None = None,
) -> str:
    """The card as markdown with the hub's front matter. No times: equal input gives equal bytes."""
    e = escape_markdown
    model = e(campaign.target.model)
    lines = [
        *_front_matter(campaign, numbers, what, files or {}), "",
        f"# {what} of {model}", "",
        f"{numbers['rows']:,} rows, {numbers['tokens']:,} tokens, {numbers['supervised_tokens']:,} of them supervised: answers "
        f"that {model} sampled, as the token ids that it produced by the evidence of each row's grade, for training an "
        "EAGLE-3 drafter.", "",
        *(line for paragraph in use for line in (paragraph, "")),
        *_load(files or {}),
    ]  # fmt: skip
    lines += [*_sources(campaign, numbers), *_statistics(numbers), *_grades(numbers), *_left_out(corpus, numbers)]
    return "\n".join([*lines, *_provenance(campaign, corpus)]) + "\n"


# The hub's own buckets: https://huggingface.co/docs/hub/datasets-cards, size_categories
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))


def _front_matter(campaign: Campaign, numbers: Mapping[str, Any], what: str, files: Mapping[str, str]) -> list[str]:
    """What the hub reads: name, size, which file is which split, the source's licences by name."""
    size = next((name for most, name in _SIZES if numbers["rows"] < most), "n>10M")
    licences = sorted({d.licence for d in campaign.dataset if d.licence and d.name in numbers["datasets"]})
    lines = ["---", f"pretty_name: {json.dumps(f'{what} of {campaign.target.model}', ensure_ascii=False)}", "license: other",
             "license_name: each-source-its-own", f"license_details: {json.dumps('; '.join(licences) or 'not stated', ensure_ascii=False)}",
             "size_categories:", f"- {size}", "task_categories:", "- text-generation", "tags:", "- eagle3", "- speculative-decoding"]  # fmt: skip
    there = {split: name for split, name in files.items() if numbers["splits"].get(split)}
    if there:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        lines += [line for split, name in there.items() for line in (f"  - split: {split}", f"    path: {name}")]
    return [*lines, "---"]


def _load(files: Mapping[str, str]) -> list[str]:
    if not files:
        return []
    named = json.dumps({split: f"FOLDER/{name}" for split, name in files.items()})
    code = [
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("json", data_files={named})',
        'rows["train"][0]["input_ids"]',
    ]
    return ["```python", *code, "```", ""]


def _sources(campaign: Campaign, numbers: Mapping[str, Any]) -> list[str]:
    e = escape_markdown
    lines = [
        "## Sources", "", "Each row stays under the licence of its source; the answers are the target model's.", "",
        "| dataset | source | revision | licence | answered by | rows | tokens | supervised |",
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
    return lines


def _statistics(numbers: Mapping[str, Any]) -> list[str]:
    rows, tokens = numbers["rows"], numbers["tokens"]
    splits = ", ".join(f"{split} {n:,}" for split, n in numbers["splits"].items() if n)
    return ["", "## Statistics", "", f"- tokens a row: mean {tokens / rows:,.1f}, longest {numbers['longest']:,}",
            f"- supervised: {numbers['supervised_tokens'] / tokens:.1%} of the tokens", f"- rows by split: {splits}"]  # fmt: skip


def _grades(numbers: Mapping[str, Any]) -> list[str]:
    exact = numbers.get("p_exact", {})
    lines = [
        "", "## Grades", "", "How each row's ids are known. p_exact: the probability that every id of a row is right, mean over the corpus rows "
        "that came with the grade; what the model's own verdict changed has no figure here.", "",
        "| grade | meaning | rows | p_exact |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for grade, facts_of_grade in GRADES.items():
        rows = sum(facts["grades"].get(grade, 0) for facts in numbers["datasets"].values())
        if rows:
            share = f"{exact[grade]:.2%}" if grade in exact else "–"
            lines.append(f"| {grade} | {facts_of_grade.meaning} | {rows:,} | {share} |")
    return lines


def _left_out(corpus: Mapping[str, Any], numbers: Mapping[str, Any]) -> list[str]:
    e = escape_markdown
    lines = ["", "## Left out", "", "| reason | meaning | rows |", "| --- | --- | --- |"]
    lines += [f"| {r} | {e(REFUSALS[r])} | {n:,} |" for r, n in numbers["refused"].items()]
    return [
        *lines,
        *(
            f"| {r} | dropped from the corpus: {e(DROP_REASONS.get(r, r))} | {n:,} |"
            for r, n in corpus["rows"]["dropped"].items()
        ),
    ]


def _provenance(campaign: Campaign, corpus: Mapping[str, Any]) -> list[str]:
    e, sampling = escape_markdown, campaign.sampling
    return [
        "", "## Provenance", "",
        f"- campaign `{campaign.name}`, seed {campaign.campaign.seed}, tokenizer profile `{campaign.target.profile}`, "
        f"corpus `{corpus['digest']}`",
        f"- sampling: temperature {sampling.temperature}, top_p {sampling.top_p}, max_tokens {sampling.max_tokens} "
        "unless a dataset says otherwise",
        f"- admitted to the corpus: {', '.join(campaign.corpus.grades)} with p_exact >= {campaign.corpus.min_p_exact:g}",
        *_shaping(campaign),
        f"- handed on: {', '.join(campaign.handoff.grades)}",
        *(f"- waived: {e(str(dict(w)))}" for w in corpus["waived"]),
    ]  # fmt: skip


def _shaping(campaign: Campaign) -> list[str]:
    """What the corpus did to rows besides admitting them."""
    policy, lines = campaign.corpus, []
    if policy.max_length is not None:
        lines.append(
            f"- rows longer than {policy.max_length:,} ids: {'cut, without an end' if policy.too_long == 'cut' else 'dropped'}"
        )
    if policy.near_duplicates:
        lines.append(f"- near-duplicates: responses from a Jaccard index of {policy.near_duplicates:g} on count once")
    if policy.validation_share:
        lines.append(
            f"- validation: {policy.validation_share:.1%} of the groups; no prompt, conversation or near-duplicate is on both sides"
        )
    return lines
