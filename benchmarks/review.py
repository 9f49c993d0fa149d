"""Review at full size: every check of token rows and every report of 40,000 samples / 138 M tokens, timed part by part.

    python -m benchmarks.review FOLDER [--samples 40000] [--tokens 3460] [--profile kimi-k2.5 --tokenizers DIR]

FOLDER is filled by `benchmarks.full_size` first (in processes of its own, not timed). What is measured is the platform's own path, in one
process: `gate.judge(..., anew=True)` of every shard as `eagle3 recheck` does it, `build_report` and the checks of every report, the
campaign page. The parts are watched by wrapping the functions that do them; a part's time lies within its whole's.
"""

from __future__ import annotations

import functools
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.full_size import options, prepared
from eagle3_assets import gate
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets.exact import sample_row
from eagle3_assets.exact.second_opinion.checker import Checker
from eagle3_assets.review.report import figures, report
from eagle3_assets.review.report.campaign_page import write_campaign_page
from eagle3_assets.review.rows import columns, token_rows, wires
from eagle3_assets.review.rows.row_invariants import INVARIANTS
from eagle3_assets.stage import Artifact
from eagle3_assets.stages import report as reports
from eagle3_assets.stages import tokens
from eagle3_assets.store import Store, commit, read_manifest
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets.wire import journal

SPENT: defaultdict[str, float] = defaultdict(float)
CALLS: Counter[str] = Counter()


@contextmanager
def timed(part: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        SPENT[part] += time.perf_counter() - start
        CALLS[part] += 1


def watched(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        with timed(part):
            return function(*args, **more)

    return call


def watch_parts() -> None:
    """From here on every part of judging and reporting adds its time to `SPENT`."""
    for name, invariant in list(INVARIANTS.items()):
        INVARIANTS[name] = watched(invariant, f"  checks: {name}")
    for owner, name, part in (
        (gate, "committed", "  checks: checksums of token files"),
        (journal, "best", "  checks: journal read"),
        (sample_row, "read_table", "  checks: token file read"),
        (wires, "wires_of", "  checks: bodies parsed and hashed"),
        (token_rows, "structure_faults", "  checks: structure"),
        (token_rows, "grade_faults", "  checks: grades"),
        (Checker, "grammar", "  checks: grammar, second opinion"),
        (Checker, "wire_text", "  checks: wire_text, second opinion"),
        (Checker, "canonical", "  checks: canonical, second opinion"),
        (columns, "_parsed", "  both: evidence parsed"),
        (figures.Timeline, "add", "  report: journal read for the timeline"),
        (figures, "read_table", "  report: token file read"),
        (figures, "add_table", "  report: rows counted"),
        (figures, "billed_rows", "  report: rows of the monitor"),
        (figures, "monitored", "  report: monitor"),
        (figures, "billing_statistics", "  report: billing"),
        (report, "rejected", "  report: rejected rows"),
        (report, "draw_report", "  report: picture"),
        (report, "render_markdown", "  report: markdown"),
        (report, "render_html", "  report: HTML"),
    ):
        setattr(owner, name, watched(getattr(owner, name), part))


def review(campaign: Campaign, store: Store) -> Counter[str]:
    """Judge every shard, make and judge every report; returns failed checks."""
    failed: Counter[str] = Counter()
    for d in campaign.dataset:
        verdicts = {}
        for shard in SHARDS:
            with timed("checks of token rows, whole"):
                verdicts[shard] = gate.judge(Artifact(tokens.STAGE, campaign, store, d.name, shard), anew=True)
        with timed("reports, whole"):
            built = report.build_report(campaign, store, d, verdicts)
            its_report = Artifact(reports.STAGE, campaign, store, d.name)
            files = report.report_files(store, d.name)
            commit(its_report.path, files=files, inputs=its_report.inputs(), numbers=built.numbers)
        with timed("checks of reports, whole"):
            verdicts += gate.judge(its_report, anew=True)
        failed.update(v.check for v in verdicts if not v.passed)
        print(f"{d.name}: {built.numbers['rows']:,} rows, {peak_mb():,.0f} MB at most so far", flush=True)
    with timed("campaign page"):
        write_campaign_page(campaign, store)
    return failed


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    given = options(__doc__).parse_args()
    campaign, store = prepared(given)
    load_profile(given.profile)
    watch_parts()
    begun, cpu = time.perf_counter(), time.process_time()
    failed = review(campaign, store)
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    rows, tokens = totals(campaign, store)
    print(f"\n{rows:,} samples, {tokens:,} ids, profile {given.profile}")
    for part, seconds in sorted(SPENT.items(), key=lambda item: (not item[0].startswith(" "), item[1]), reverse=True):
        print(f"{seconds:9.2f} s  {part}" + (f" ({CALLS[part]:,} calls)" if part.startswith(" ") else ""))
    print(f"{wall:9.2f} s  together ({cpu:.0f} s of CPU); {peak_mb():,.0f} MB at most; failed checks: {dict(failed) or 'none'}")


def totals(campaign: Campaign, store: Store) -> tuple[int, int]:
    numbers = [read_manifest(store.tokens(d.name, s)) for d in campaign.dataset for s in SHARDS]
    return tuple(sum(int(m.numbers[name]) for m in numbers if m is not None) for name in ("rows", "tokens"))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
