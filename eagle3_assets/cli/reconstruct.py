"""`eagle3 reconstruct`: exact ids from anyone's logs of chat completions. JSONL, JSON, cassettes or stream transcripts in, JSONL out.

Belongs here: opening files, options, writing results and the summary. Does not belong here: the shapes of logs (`exact/logs`), one record
(`exact/logs/log_rows.py`), learning from a log (`exact/logs/log_learning.py`), processes (`exact/logs/log_workers.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from eagle3_assets.errors import ExactError, StoreError
from eagle3_assets.grades import GRADES

if TYPE_CHECKING:
    from eagle3_assets.exact.logs.log_learning import Drawn
    from eagle3_assets.exact.logs.log_rows import LogReader
    from eagle3_assets.exact.logs.log_workers import Rebuilt

STDIN = Path("-")


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="Log files; none or - reads standard input.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="Tokenizer profile of lines that name no model.")] = "kimi-k2.5",
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder with the tokenizer files.")] = None,
    wire_profiles: Annotated[
        list[Path] | None, typer.Option("--wire-profiles", help="wire_profiles.json of a campaign or of --save-wire-profiles.")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Learn the providers' habits from this log first.")] = False,
    save_wire_profiles: Annotated[
        Path | None, typer.Option("--save-wire-profiles", help="Write here what --learn learned.")
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Who answered, where the log does not say it.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", help="NAME=MODEL: a name of your own (a deployment's) stands for a model.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--request", help="The request (JSON) that each FILE, a bare answer, answered; or a batch's request file."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default all cores.")] = None,
    table: Annotated[bool, typer.Option("--table", help="A table for reading instead of JSONL.")] = False,
) -> None:
    """Rebuild the token ids of logged answers. A line is one JSON object with `request` and `response_body` (verbatim) or `response` (an
    OpenAI-style body, its text, the lines of a stream, a list of chunks, or an envelope with `body`), and where known `id`, `status`,
    `content_type`, `provider`. Logs of LiteLLM, Langfuse, inspect_ai, OpenAI batches, VCR cassettes and HAR files are read as they are;
    docs/exactness.md lists the shapes.

    Every exchange gives one line: ids, prompt length, loss spans, grade, p_exact, residuals (rebuilt minus billed), hypotheses,
    reasons. One that cannot be read gives grade Q and its reason. A line whose model belongs to another profile is rebuilt
    with that one; a model that no profile knows is Q.

    `--learn` reads the log twice: some hundred answers of a provider show what it does to text and bill, and rows become B1 without a
    campaign. With `--wire-profiles` that file is what is known before. A summary goes to the error stream.

    Examples: `eagle3 reconstruct log.jsonl --table` · `eagle3 reconstruct --learn --save-wire-profiles wire.json log.jsonl > ids.jsonl`
    · `eagle3 reconstruct --request request.json answer.sse` · `eagle3 reconstruct --request batch.jsonl batch_output.jsonl`
    """
    from eagle3_assets.exact.logs.log_rows import LogRebuilder
    from eagle3_assets.exact.logs.log_workers import rebuild
    from eagle3_assets.targets.tokenizer import load_profile

    if save_wire_profiles is not None and not learn:
        raise typer.BadParameter("--save-wire-profiles writes what --learn learned: give --learn too")
    load_profile(profile, tokenizer)  # a missing file is one line before anything is read
    prior = [_read_wire_profiles(path) for path in wire_profiles or ()]
    reader, bodies_of = _reader(profile, tokenizer, provider, alias or (), request)
    with ExitStack() as stack:
        paths = list(files or []) or [STDIN]
        if learn:
            paths = [path if path.is_file() else stack.enter_context(_spooled(path)) for path in paths]
        if workers is None:  # a pipe without --learn gives each line when it comes
            workers = 1 if STDIN in paths else os.cpu_count() or 1

        def records() -> Iterator[bytes]:
            return _lines(paths) if bodies_of is None else _bodies(paths, bodies_of)

        known: Sequence[Mapping[str, Any]] = prior
        drawn = None
        if learn:
            known, drawn = _learn(reader, records, prior, save_wire_profiles)
        results = rebuild(LogRebuilder(reader, known), records(), workers)
        counted = _Counted()
        total = drawn.records if drawn else None
        shown = counted.over(results) if table else _with_progress(counted.over(results), "rebuilding", total)
        if table:
            _print_table(json.loads(result.line) for result in shown)
        else:
            for result in shown:
                sys.stdout.write(result.line + "\n")
        if learn:
            counted.report()


# ---------------------------------------------------------------------------------------------------- learning
def _learn(
    reader: LogReader, records: Callable[[], Iterator[bytes]], prior: Sequence[Mapping[str, Any]], save: Path | None
) -> tuple[list[dict[str, Any]], Drawn]:
    from eagle3_assets.exact.logs.log_learning import draw, learn_log, summary

    drawn = draw(reader, lambda: iter(_with_progress(records(), "reading", None)))
    learned = learn_log(reader, lambda: iter(_with_progress(records(), "learning", drawn.records)), drawn, prior)
    for line in summary(learned, drawn):
        _say(line)
    if prior:
        _say(
            "of --wire-profiles: kept for providers of whom this log has too few answers, and for the model's habits where it has more ids"
        )
    if save is not None:
        _save(save, learned)
    return learned, drawn


def _save(path: Path, learned: Sequence[Mapping[str, Any]]) -> None:
    """One file a tokenizer profile: the first under the name given, others with their profile's name in it."""
    from eagle3_assets.store import atomic_file

    for k, wire_profile in enumerate(learned):
        own = path if k == 0 else path.with_name(f"{path.stem}.{wire_profile['profile']}{path.suffix}")
        try:
            with atomic_file(own) as handle:
                handle.write(json.dumps(wire_profile, indent=1, ensure_ascii=False).encode())
        except OSError as error:
            raise StoreError(f"{own}: cannot be written ({error.strerror}); give --save-wire-profiles another place") from None
        _say(f"{own}: what was learned for {wire_profile['profile']}")


class _Counted:
    """Rows by grade, and how many of them may be expected to be exact."""

    def __init__(self) -> None:
        self.grades: Counter[str] = Counter()
        self.expected = 0.0

    def over(self, results: Iterable[Rebuilt]) -> Iterator[Rebuilt]:
        for result in results:
            self.grades[result.grade] += 1
            self.expected += result.p_exact
            yield result

    def report(self) -> None:
        shares = ", ".join(f"{grade} {self.grades[grade]:,}" for grade in GRADES if self.grades[grade]) or "none"
        _say(f"rows: {self.grades.total():,} ({shares}); expected exact: {self.expected:,.1f} (sum of p_exact)")


def _say(line: str) -> None:
    from eagle3_assets.exact.show import visible

    print(visible(line), file=sys.stderr)


def _with_progress(items: Iterable[Any], what: str, total: int | None) -> Iterable[Any]:
    """A count on the error stream while lines go to a file or a pipe."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        items, what, total=total, transient=True, console=console, disable=sys.stdout.isatty() or not console.is_terminal
    )


# ---------------------------------------------------------------------------------------------------- what is read
def _reader(
    profile: str, tokenizer: Path | None, provider: str | None, alias: Sequence[str], request: Path | None
) -> tuple[LogReader, Mapping[str, Any] | None]:
    """(the reader, the one request that all files answered where `--request` is one)."""
    from eagle3_assets.exact.logs.batches import index_batch
    from eagle3_assets.exact.logs.log_rows import LogReader

    aliases = {}
    for pair in alias:
        name, equals, model = pair.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"--alias {pair}: expected NAME=MODEL")
        aliases[name] = model
    batch, one = None, None
    if request is not None:
        try:
            batch = index_batch(request)
        except OSError as error:
            raise StoreError(f"{request}: cannot be read ({error.strerror}); give the request's JSON") from None
        except ValueError as error:
            raise ExactError(f"{request}: {error}; give the batch's request file as it was sent") from None
        one = _read_request(request) if batch is None else None
    return LogReader(profile, tokenizer, provider, aliases, batch), one


def _read_request(path: Path) -> Mapping[str, Any]:
    from eagle3_assets.exact.logs import read_request

    try:
        return read_request(json.loads(path.read_bytes()))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); give the request's JSON") from None
    except (ValueError, RecursionError) as error:
        raise ExactError(f"{path}: {error}; give the JSON body of the request") from None


def _bodies(files: Iterable[Path], request: Mapping[str, Any]) -> Iterator[bytes]:
    """One record per file, each a whole response body."""
    for path in files:
        with _opened(path) as handle:
            body = handle.read().decode("utf-8", "surrogateescape")
        yield json.dumps({"id": str(path), "request": request, "response_body": body}).encode()


def _read_wire_profiles(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ExactError(f"{path}: cannot be read ({error.strerror}); give a wire_profiles.json") from None
    except ValueError as error:
        raise ExactError(f"{path}: is not JSON ({error}); give a wire_profiles.json") from None
    if not isinstance(value, dict) or not isinstance(value.get("providers"), dict) or "version" not in value:
        raise ExactError(f"{path}: expected a wire_profiles.json (version, providers …), found another JSON file")
    return value


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    """The records of the files, or of standard input."""
    from eagle3_assets.exact.logs import records_of

    for path in files:
        with _opened(path) as handle:
            try:
                yield from records_of(handle)
            except ValueError as error:
                raise ExactError(f"{path}: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as handle:
            yield handle
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); give a log file") from None


@contextmanager
def _spooled(path: Path) -> Iterator[Path]:
    """Standard input or a pipe as a file that can be read twice."""
    with tempfile.NamedTemporaryFile(prefix="eagle3-log-") as kept, _opened(path) as handle:
        shutil.copyfileobj(handle, kept)
        kept.flush()
        yield Path(kept.name)


# ---------------------------------------------------------------------------------------------------- the table
def _print_table(results: Iterable[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from eagle3_assets.exact.show import visible

    table = Table(title="rebuilt minus billed, row by row")
    for column in ("id", "grade", "p", "prompt", "completion", "reasoning", "tried/surviving/distinct", "reasons"):
        table.add_column(column, overflow="fold", justify="left" if column in ("id", "reasons") else "right")
    for result in results:
        residual, hypotheses = result["residual"], result["hypotheses"]
        numbers = [
            "-" if residual[key] is None else f"{residual[key]:+d}" if residual[key] else "0"
            for key in ("prompt", "completion", "reasoning")
        ]
        counts = "/".join(str(hypotheses[key]) for key in ("tried", "surviving", "distinct"))
        table.add_row(
            visible(str(result["id"])),
            result["grade"],
            f"{result['p_exact']:.3f}",
            *numbers,
            counts,
            visible("; ".join(result["reasons"])),
        )
    console = Console()
    # a pipe has no width of its own: leave room for the reasons
    (console if console.is_terminal else Console(width=200)).print(table, markup=False)
