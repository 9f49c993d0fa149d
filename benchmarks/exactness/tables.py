"""What is printed. Belongs here: rich tables of figures that are already made, and the block of claims at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.exactness import experiments, figures
from benchmarks.exactness.experiments import SHIFTS, Change, Learned, Placebo
from benchmarks.exactness.judge import HIGH, LOW, Judged
from benchmarks.exactness.plain import Tally
from benchmarks.exactness.rebuild import Clock
from benchmarks.exactness.worlds import World

GRADES = ("A0", "A1", "A2", "B1", "B2", "C1", "R", "I", "D", "Q")


@dataclass(frozen=True)
class Claim:
    """One claim of the issue. `met` None: not measured in this run."""

    what: str
    target: str
    measured: str
    met: bool | None


def share(k: int, n: int) -> str:
    return f"{k / n:.3f}" if n else "-"


def bounded(k: int, n: int) -> str:
    """`0.998 [0.991, 1.000]`."""
    low, high = figures.clopper_pearson(k, n)
    return f"{k / n:.4f} [{low:.4f}, {high:.4f}]" if n else "-"


def table(title: str, *columns: str) -> Table:
    """First column to the left, figures to the right."""
    made = Table(title=title, title_justify="left", pad_edge=False)
    for k, column in enumerate(columns):
        made.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    return made


def providers(console: Console, rows: Mapping[str, Sequence[Judged]], clocks: Mapping[str, Clock]) -> None:
    """Per provider: rows by grade as right+wrong, exact share, coverage, time."""
    seen = [g for g in GRADES if any(row.grade == g for found in rows.values() for row in found)]
    made = table(
        "rows by grade: right+wrong",
        "provider",
        "rows",
        *seen,
        "exact",
        "95 % interval",
        "coverage",
        "tokens right",
        "ms",
        "encoding",
    )
    for name, found in rows.items():
        cells = []
        for grade in seen:
            of = [row for row in found if row.grade == grade]
            wrong = sum(not row.exact for row in of)
            cells.append("" if not of else f"{len(of) - wrong}" + (f"[red]+{wrong}[/]" if wrong else ""))
        exact = [row for row in found if row.exact]
        low, high = figures.clopper_pearson(len(exact), len(found))
        clock = clocks.get(name, Clock())
        right, all_of = sum(row.matching for row in found), sum(row.tokens for row in found)
        made.add_row(
            name, str(len(found)), *cells, share(len(exact), len(found)), f"{low:.3f}-{high:.3f}",
            share(sum(row.grade in HIGH for row in exact), len(exact)), f"{right / max(1, all_of):.5f}",
            f"{1000 * clock.seconds / max(1, clock.answers):.2f}", f"{clock.encoding / clock.seconds:.0%}" if clock.seconds else "-",
        )  # fmt: skip
    console.print(made)


def grades(console: Console, rows: Sequence[Judged]) -> None:
    columns = ("grade", "rows", "exact, 95 % interval", "mean p", "Brier", "ECE", "by chance", "what is wrong")
    made = table("all providers together, by grade", *columns)
    for grade in GRADES:
        of = [row for row in rows if row.grade == grade]
        if not of:
            continue
        p, right = [row.p_exact for row in of], [row.exact for row in of]
        wrong = Counter(row.error for row in of if not row.exact)
        made.add_row(
            grade, str(len(of)), bounded(sum(right), len(of)), f"{sum(p) / len(p):.4f}", f"{figures.brier(p, right):.4f}",
            f"{figures.calibration_error(figures.reliability(p, right)):.4f}", f"{figures.chance_error(p):.4f}",
            ", ".join(f"{n} {name}" for name, n in wrong.most_common()),
        )  # fmt: skip
    console.print(made)


def causes(console: Console, rows: Sequence[Judged]) -> None:
    """C1 by what is in doubt: mean p beside the exact share, and the providers that give most of the difference."""
    columns = ("cause", "rows", "exact, 95 % interval", "mean p", "p - exact", "most of it at (rows, p - exact)")
    made = table("C1 by cause: is its p_exact right for each", *columns)
    for cause, n in Counter(row.cause for row in rows).most_common():
        of = [row for row in rows if row.cause == cause]
        gap = sum(row.p_exact - row.exact for row in of)
        by: dict[str, list[float]] = {}
        for row in of:
            by.setdefault(row.provider, []).append(row.p_exact - row.exact)
        worst = sorted(by.items(), key=lambda item: -abs(sum(item[1])))[:4]
        told = ", ".join(f"{name} ({len(gaps)}, {sum(gaps) / len(gaps):+.2f})" for name, gaps in worst)
        right = sum(row.exact for row in of)
        made.add_row(cause, str(n), bounded(right, n), f"{sum(r.p_exact for r in of) / n:.4f}", f"{gap / n:+.4f}", told)
    console.print(made)


def calibration(console: Console, title: str, rows: Sequence[Judged]) -> None:
    made = table(title, "p_exact", "rows", "mean p", "exact, 95 % interval")
    for bin in figures.reliability([row.p_exact for row in rows], [row.exact for row in rows]):
        made.add_row(f"{bin.low:.3f}-{bin.high:.3f}", str(bin.n), f"{bin.mean_p:.4f}", bounded(round(bin.share * bin.n), bin.n))
    console.print(made)


def risk(console: Console, rows: Sequence[Judged]) -> None:
    made = table("risk and coverage: rows with the highest p_exact first", "coverage", "rows", "share wrong")
    for coverage, n, wrong in figures.risk_at(
        [r.p_exact for r in rows], [r.exact for r in rows], (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
    ):
        made.add_row(f"{coverage:.0%}", str(n), f"{wrong:.5f}")
    console.print(made)


def baseline(
    console: Console, right: Mapping[str, Tally], seeds: Mapping[str, Tally], ours: Mapping[str, Sequence[Judged]]
) -> None:
    made = table(
        "plain re-encoding (completion ids)", "provider", "ours exact", "plain, end 163586", "count = bill", "exact of those", "seed, end 163533",
        "aggregate", "mean abs.",
    )  # fmt: skip
    whole = Tally()
    for name, tally in right.items():
        whole.add(tally)
        found = ours[name]
        made.add_row(
            name, share(sum(row.completion_exact for row in found), len(found)), *_baseline(tally),
            share(seeds[name].completion_exact, seeds[name].answers), *_difference(tally),
        )  # fmt: skip
    everything = [row for name in right for row in ours[name]]
    made.add_section()
    seeds_exact = sum(tally.completion_exact for tally in seeds.values())
    made.add_row(
        "together", share(sum(row.completion_exact for row in everything), len(everything)), *_baseline(whole),
        share(seeds_exact, whole.answers), *_difference(whole),
    )  # fmt: skip
    console.print(made)


def _baseline(tally: Tally) -> tuple[str, str, str]:
    return (
        share(tally.completion_exact, tally.answers),
        share(tally.equal_bill, tally.answers),
        share(tally.equal_bill_exact, tally.equal_bill),
    )


def _difference(tally: Tally) -> tuple[str, str]:
    billed = max(1, tally.billed)
    return f"{100 * abs(tally.signed) / billed:.3f} %", f"{100 * tally.absolute / billed:.3f} %"


def wrong_bills(console: Console, found: Mapping[str, Placebo]) -> None:
    made = table(
        "placebo: share of wrong bills that the text stage fits: by shift any grade but Q and D, with whatever p_exact",
        "provider",
        *[f"{s:+d}" for s in SHIFTS],
        "any fit",
        f"p_exact >= {experiments.ADMITTED}",
        "mean p_exact",
        "prompt",
    )
    total = Placebo()

    def add_row(name: str, one: Placebo) -> None:
        made.add_row(
            name, *[share(one.any_fit[s], one.tried[s]) for s in SHIFTS], f"{one.any_share:.3f}", f"{one.share:.3f}",
            f"{one.mean_claim:.4f}", f"{one.prompt_share:.3f}",
        )  # fmt: skip

    for name, one in found.items():
        add_row(name, one)
        total.claimed += one.claimed
        for counter in ("tried", "fitted", "likely", "any_fit", "prompt_tried", "prompt_fitted", "grades"):
            getattr(total, counter).update(getattr(one, counter))
    made.add_section()
    add_row("together", total)
    console.print(made)
    console.print(f"grades of the wrong bills: {dict(total.grades)}")


def identification(console: Console, found: Mapping[str, Sequence[Learned]], steps: Sequence[int]) -> None:
    made = table(
        "answers needed to identify: exact share / exact and B1 or better, of other answers; ! wrong B1 rows",
        "provider",
        *[str(s) for s in steps],
        "needed",
    )
    for name, learned in found.items():
        by_step = {one.seen: one for one in learned}
        cells = []
        for step in steps:
            one = by_step.get(step)
            cells.append(
                "-"
                if one is None
                else f"{one.exact:.2f}/{one.covered:.2f}" + (f"[red]!{one.wrong_high}[/]" if one.wrong_high else "")
            )
        made.add_row(name, *cells, str(experiments.needed(learned) or "-"))
    console.print(made)


def watched(console: Console, found: Sequence[Change]) -> None:
    made = table("changes in mid-run", "provider", "change after", "seen after", "placed off by", "wrong B1 or better", "rows")
    for one in found:
        made.add_row(one.provider, str(one.at), "never" if one.delay is None else str(one.delay), "-" if one.off_by is None else str(one.off_by),
                     str(one.wrong_high), str(one.rows))  # fmt: skip
    console.print(made)


def quarantine(console: Console, rows: Sequence[Judged], hopeless: Sequence[str]) -> None:
    made = table(
        "quarantine and wrong rows",
        "over",
        "rows",
        "wrong",
        "in C1, D, Q",
        "Q",
        "precision of Q",
        "recall of Q",
        "recall, not at edges",
    )
    recoverable = [row for row in rows if row.provider not in hopeless]
    for title, some in (("all providers", rows), ("recoverable providers", recoverable)):
        wrong = [row for row in some if not row.exact]
        held = [row for row in some if row.grade == "Q"]
        inner = [row for row in wrong if row.error != "edge"]
        caught = sum(row.grade == "Q" for row in wrong)
        made.add_row(
            title, str(len(some)), str(len(wrong)), share(sum(row.grade in LOW for row in wrong), len(wrong)), str(len(held)),
            share(sum(not row.exact for row in held), len(held)), share(caught, len(wrong)),
            share(sum(row.grade == "Q" for row in inner), len(inner)),
        )  # fmt: skip
    console.print(made)


def claims(console: Console, found: Sequence[Claim]) -> None:
    made = Table(title="shows", title_justify="left", pad_edge=False)
    for column in ("claim", "target", "measured", ""):
        made.add_column(column, no_wrap=False)
    for claim in found:
        verdict = {True: "[green]met[/]", False: "[red]not met[/]", None: "not measured"}[claim.met]
        made.add_row(claim.what, claim.target, claim.measured, verdict)
    console.print(made)


def leading_space(console: Console, found: Sequence[World]) -> None:
    made = table(
        "the leading space",
        "model",
        "provider",
        "what decides",
        "rows",
        "B1 or better",
        "wrong of those",
        "exact",
        "holds",
        "the profile says",
    )
    for one in found:
        made.add_row(
            "writes it" if one.writes else "does not", one.bends, one.condition, str(one.rows), str(one.high), str(one.wrong_high), str(one.exact),
            "[green]yes[/]" if one.holds else "[red]no[/]", one.said[:70],
        )  # fmt: skip
    console.print(made)
