"""Which prompt form explains how many bills, for each provider and month of a log of answers; in one run, with CPU seconds.

    python benchmarks/prompt_forms.py ../shared/data/wire/recorded-k2-0905.jsonl.gz --tokenizer ../shared/data/tokenizers
    python benchmarks/prompt_forms.py log.jsonl --profile kimi-k2.5

A line of the log is one object as `eagle3 reconstruct` reads it. A provider and month has one form and one constant of at most three
tokens (`prompt_learning.decide_prompt`), for answers with tools and without; nothing is fitted to single rows. "met" counts bills that this
one form meets, "open" those that any form meets which the month's answers do not rule out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import prompt_counts
from eagle3_assets.exact.prompt_side.request_facts import wants_thinking
from eagle3_assets.exact.providers.prompt_learning import decide_prompt
from eagle3_assets.exact.search.wire_facts import facts_of
from eagle3_assets.targets.tokenizer import load_profile, profile_for_model
from eagle3_assets.wire.parse import parse_fields


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def observe_prompts(
    paths: list[Path], profile_name: str | None, tokenizer: Path | None
) -> tuple[dict[tuple[str, str], list[Any]], Counter[str]]:
    """({(provider, month): what the learner needs of each answer}, answers passed over by reason)."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    passed_over: Counter[str] = Counter()
    for row in (row for path in paths for row in read_rows(path)):
        request = row["request"]
        fields = parse_fields(row["response_body"].encode("utf-8", "surrogatepass"), row.get("content_type"))
        name = profile_name or profile_for_model(request.get("model"))
        if name is None or not fields.billed_prompt:
            passed_over["no profile" if name is None else "no prompt bill"] += 1
            continue
        profile = load_profile(name, tokenizer)
        thinking = profile.opened_by != "never" and wants_thinking(request)
        try:
            forms = prompt_counts(profile, request, thinking)
        except ExactError as error:
            passed_over[str(error)[:60]] += 1
            continue
        seconds = re.search(r'"created":\s*(\d+)', row["response_body"])
        month = datetime.fromtimestamp(int(seconds[1]), UTC).strftime("%Y-%m") if seconds else "?"
        provider = fields.provider or row.get("provider") or row.get("url") or "?"
        seen = SimpleNamespace(
            billed_prompt=fields.billed_prompt,
            forms=forms,
            form_ids={},
            tools=bool(request.get("tools")),
            facts=facts_of(request, fields),
        )
        found[provider, month].append(seen)
    return found, passed_over


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="+", type=Path)
    parser.add_argument("--profile", help="read all answers with this profile (default: by the request's model)")
    parser.add_argument("--tokenizer", type=Path, help="the folder of tokenizer files")
    options = parser.parse_args(argv)
    started = time.process_time()
    found, passed_over = observe_prompts(options.log, options.profile, options.tokenizer)
    totals: Counter[str] = Counter()
    print(f"{'provider':28} {'month':8} {'tools':5} {'rows':>5} {'met':>5} {'open':>5} {'const':>5}  form")
    for (provider, month), rows in sorted(found.items()):
        for tools in (False, True):
            part = [row for row in rows if row.tools == tools]
            if part:
                verdict = decide_prompt(part)
                met = max(verdict["forms"].values(), default=0)
                totals.update(rows=len(part), met=met, open=verdict["explained"])
                constant = f"{verdict['offset']:+d}" if verdict["offset"] else ""
                print(
                    f"{provider[:28]:28} {month:8} {'yes' if tools else 'no':5} {len(part):5} {met:5} {verdict['explained']:5} "
                    f"{constant:>5}  {verdict['form']}"
                )
    seconds = time.process_time() - started
    print(
        f"one form explains {totals['met']:,} of {totals['rows']:,} bills, {totals['open']:,} with what is open; {seconds:.1f} CPU s"
    )
    for reason, count in passed_over.most_common():
        print(f"passed over: {count:,} ({reason})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
