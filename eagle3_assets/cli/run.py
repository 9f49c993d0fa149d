"""`eagle3 run`: all stages in order, as a few Dagster runs (one a partitions definition), skipping what is current.

Belongs here: which runs are needed, their launch in this process, the live line, the exit code, the closing table.
Does not belong here: what a stage does. This is the only command that imports Dagster.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from eagle3_assets import gate, stages
from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.cli.doctor import require_ready
from eagle3_assets.cli.main import EXIT_INTERRUPTED
from eagle3_assets.cli.status import gather, print_summary
from eagle3_assets.corpus.parts import corpus_shards
from eagle3_assets.errors import Eagle3Error, GateError, StoreError
from eagle3_assets.progress import Step, listening
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.stage import Artifact, Per
from eagle3_assets.store import Store

TEMPORARY_HOME = "eagle3-home-"
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
MAX_ROUNDS = 4  # a stage made anew may outdate one behind it in the same run; more rounds than stages would mean a loop


def command(
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="stop after this stage, e.g. plan, answers, corpus")] = None,
    force: Annotated[bool, typer.Option(help="make everything again (answers are never bought again)")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the closing summary as JSON")] = False,
) -> None:
    """All stages in order, through Dagster; resumable; its runs appear in the UI.

    \b
    eagle3 run                              the demo campaign
    eagle3 run --until plan                 up to the plan: costs at most the pilot
    EAGLE3_CAMPAIGN=kimi-k2.5 eagle3 run    the real one
    """
    if until is not None and until not in stages.names():
        raise typer.BadParameter(f"no stage named {until!r}; stages are {', '.join(stages.names())}", param_hint="--until")
    campaign = load_campaign()
    store = Store.of(campaign)
    # Dagster captures the streams of a step; the live line must reach the terminal nonetheless
    console = Console(file=os.fdopen(os.dup(2), "w", errors="backslashreplace"), stderr=True)
    with readable_state(), dagster_instance() as instance, store.lock("run", what=f"campaign {campaign.name}"):
        require_ready(campaign, until)
        code = run_stages(campaign, store, instance, console, until=until, force=force)
    if code:
        raise typer.Exit(code)
    summary = gather(campaign, store)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        print_summary(campaign, store, summary)


def run_stages(
    campaign: Campaign, store: Store, instance: Any, console: Console, *, until: str | None = None, force: bool = False
) -> int:
    """Launch what is not current; returns an exit code (0, or 130 when interrupted). Raises the Eagle3Error that stopped a run."""
    for judged in gate.rejudge_outdated(stages.made(campaign, store)):  # a run that died between making and checking
        console.print(f"  checked again: {' '.join(n for n in judged.place if n != ALL)}", highlight=False)
    try:
        return _run_groups(campaign, store, instance, console, until=until, force=force)
    finally:
        _tell_dagster(campaign, store, instance)


def _run_groups(campaign: Campaign, store: Store, instance: Any, console: Console, *, until: str | None, force: bool) -> int:
    names = stages.names()
    for group in stages.groups():
        wanted = [s for s in group if until is None or names.index(s.name) <= names.index(until)]
        if not wanted:
            break
        made: set[tuple[str, str, str]] = set()
        for _ in range(MAX_ROUNDS):
            stale = [a for s in wanted for a in s.artifacts(campaign, store) if force or a.state() != "current"]
            stale = [a for a in stale if not force or a.place not in made]
            if not stale:
                break
            made |= {a.place for a in stale}
            if _launch(campaign, store, instance, stale, console):
                return EXIT_INTERRUPTED
        else:
            raise GateError(
                f"{', '.join(s.name for s in wanted)}: still not current after {MAX_ROUNDS} runs; see `eagle3 status`"
            )
        if not made:
            console.print(f"[green]✓[/green] {', '.join(s.name for s in wanted)}: current", highlight=False)
    return 0


def _tell_dagster(campaign: Campaign, store: Store, instance: Any) -> None:
    """The UI calls outdated what `eagle3 status` calls outdated, also for reasons that no run of Dagster's has seen."""
    from eagle3_assets.assets.provenance import follow
    from eagle3_assets.partitions import register_partitions

    if parts := corpus_shards(store):
        register_partitions(instance, campaign, parts)
    follow(instance, stages.artifacts(campaign, store))


@contextmanager
def dagster_instance() -> Iterator[Any]:
    """The same state that `dagster dev` and `dagster asset materialize` use from this folder.

    With DAGSTER_HOME unset Dagster reads ./dagster.yaml (relative folders under data/dagster); so do we, through a temporary home.
    """
    import dagster as dg

    if home := os.environ.get("DAGSTER_HOME"):
        if not Path(home).is_absolute() or not (Path(home) / "dagster.yaml").is_file():
            raise StoreError(
                f"DAGSTER_HOME={home}: it must be absolute and hold a dagster.yaml: mkdir -p {home} && "
                f"cp deploy/dagster-home.yaml {home}/dagster.yaml && export DAGSTER_HOME=$(realpath {home}); or unset it"
            )
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    if not Path("dagster.yaml").exists():
        raise StoreError(
            f"{Path.cwd()}: there is no dagster.yaml here; start from the folder of the checkout, or set DAGSTER_HOME to a folder with one"
        )
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_HOME) as home:
        shutil.copy("dagster.yaml", home)
        os.environ["DAGSTER_HOME"] = home
        try:
            with dg.DagsterInstance.get() as instance:
                yield instance
        finally:
            os.environ.pop("DAGSTER_HOME", None)


@contextmanager
def readable_state() -> Iterator[None]:
    """A failed write to Dagster's own state (SQLite under data/dagster) becomes one StoreError line. Ours fail as such already."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except Eagle3Error:
        raise
    except Exception as error:
        chain: BaseException | None = error
        while chain is not None:
            if isinstance(chain, DBAPIError):
                raise _state_error(str(chain.orig)) from None
            if isinstance(chain, OSError) and chain.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _state_error(str(chain)) from None
            chain = chain.__cause__ or chain.__context__
        raise


def _state_error(said: str) -> StoreError:
    """Where Dagster's state lies, what SQLite said of it, and what to do."""
    home = os.environ.get("DAGSTER_HOME")
    folder = Path(home) if home and not Path(home).name.startswith(TEMPORARY_HOME) else Path("data/dagster").absolute()
    if "malformed" in said or "not a database" in said:
        do = "move it aside: it holds the history of runs only, every artifact stays, and a new one is made"
    elif "readonly" in said or "unable to open" in said or "locked" in said:
        do = "check its permissions and that no other program holds it"
    else:
        do = "free space on its disk, or set DAGSTER_HOME to a folder on another one (README)"
    return StoreError(
        f"{folder}: Dagster's own state cannot be used ({said.splitlines()[0]}); {do}; answers are kept where they are: run again"
    )


def _launch(campaign: Campaign, store: Store, instance: Any, stale: list[Artifact], console: Console) -> bool:
    """One Dagster run over `stale`, in this process. Returns True when it was interrupted."""
    import dagster as dg

    from eagle3_assets.assets import frame
    from eagle3_assets.assets.jobs import job_of, run_tags
    from eagle3_assets.definitions import defs
    from eagle3_assets.partitions import register_partitions

    tags: dict[str, str] = {}
    first = stale[0].stage
    if first.per is Per.PART:  # known to the data root, perhaps not to a Dagster state that is new
        register_partitions(instance, campaign, first.partitions(store))
    if first.per.partitioned:
        partitions = [a.partition for a in stale]
        order = first.partitions(store)
        tags = dict(zip(RANGE_TAGS, (min(partitions, key=order.index), max(partitions, key=order.index)), strict=True))
    keys = sorted({a.key for a in stale})
    names = list(dict.fromkeys(a.stage.name for a in stale))
    title = ", ".join(names) + (f" {tags[RANGE_TAGS[0]]}...{tags[RANGE_TAGS[1]]}" if tags else "")
    frame.last_error.clear()
    # A job of the code location, not an ad hoc one: the run has a name, stands in the timeline and can be executed again from the UI.
    job = defs.resolve_job_def(job_of([a.stage for a in stale]))
    with _live_line(console, title), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = job.execute_in_process(
                asset_selection=[dg.AssetKey(list(k)) for k in keys],
                instance=instance,
                tags={**tags, **run_tags(campaign, stale), frame.LAUNCHED_BY: frame.BY_RUN_COMMAND},
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
            result = None
    if result is None or _was_interrupted(instance, result):
        console.print(f"[yellow]![/yellow] {title}: interrupted; run again to resume", highlight=False)
        return True
    _print_checks(console, result)
    if result.success:
        console.print(f"[green]✓[/green] {title}", highlight=False)
        return False
    raise _why(result, frame.last_error)


def _was_interrupted(instance: Any, result: Any) -> bool:
    """Ctrl-C, SIGTERM: raised out of the run, or recorded by Dagster as its cancellation, or as the failure of a step."""
    run = instance.get_run_by_id(result.run_id)
    if run is not None and run.status.value in ("CANCELING", "CANCELED"):
        return True
    errors = [getattr(e.event_specific_data, "error", None) for e in result.all_events if e.is_failure]
    names = {c.cls_name for e in errors if e is not None for c in (e, e.cause) if c is not None}
    return "DagsterExecutionInterruptedError" in names


def _why(result: Any, errors: list[Eagle3Error]) -> Eagle3Error:
    """The error that stopped the run: ours when there is one, else the blocking checks, else Dagster's own last line."""
    if errors:
        return errors[0]
    failed = [
        e
        for e in result.get_asset_check_evaluations()
        if not e.passed and e.blocking is not False and e.severity.value == "ERROR"
    ]
    if failed:
        first = failed[0]
        names = ", ".join(sorted({f"{e.asset_key.to_user_string()}: {e.check_name}" for e in failed}))
        return GateError(f"blocking checks failed ({names}): {first.description}")
    for event in result.all_events:
        error = getattr(event.event_specific_data, "error", None)
        if event.is_step_failure and error is not None:
            cause = error.cause or error
            frame = " ".join(cause.stack[-1].split()[:5]).rstrip(",") if cause.stack else ""
            if "(sqlite3." in error.message + cause.message:  # as SQLAlchemy words it: Dagster's state, not our ledger
                return _state_error((error.message + cause.message).partition("(sqlite3.")[2].partition(") ")[2])
            line = cause.message.strip().splitlines()[-1]
            return Eagle3Error(
                f"step {event.step_key}: {line} ({frame}); this is a fault of ours: run {result.run_id} in the UI has the whole trace"
            )
    return Eagle3Error(f"run {result.run_id} failed; see the UI")


def _print_checks(console: Console, result: Any) -> None:
    """Failed checks, one line each; a check recorded per partition and as a summary is shown once."""
    seen: set[tuple[str, str]] = set()
    for e in reversed(result.get_asset_check_evaluations()):
        name = (e.asset_key.to_user_string(), e.check_name)
        if e.passed or name in seen:
            continue
        seen.add(name)
        mark = "[red]✗[/red]" if e.severity.value == "ERROR" else "[yellow]![/yellow]"
        console.print(f"  {mark} {name[0]}: {name[1]}: {escape(str(e.description))}", highlight=False)


class _Count(ProgressColumn):
    """`12/16`; nothing for work whose size is not known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f}")


@contextmanager
def _live_line(console: Console, title: str) -> Iterator[None]:
    """A line for the run and one for each stage of it that tells how far it is; a stage's line goes on over its datasets."""
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Count(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False), console=console, transient=True, refresh_per_second=4,
    )  # fmt: skip
    lines: dict[str, _Line] = {}

    def show(step: Step) -> None:
        if step.stage not in lines:
            lines[step.stage] = _Line(progress.add_task(step.stage, total=step.total, note=""))
        line = lines[step.stage]
        line.tell(step)
        progress.update(line.task, completed=line.before + step.done, total=line.before + step.total, note=step.note)

    with progress, listening(show):
        progress.add_task(title, total=None, note="")
        yield


@dataclass
class _Line:
    """How far a stage is: what its earlier datasets were (`before`), and the latest step of this one."""

    task: TaskID
    before: float = 0.0
    latest: Step | None = None

    def tell(self, step: Step) -> None:
        if self.latest is not None and step.done < self.latest.done:  # the next dataset begins
            self.before += self.latest.total
        self.latest = step
