"""`eagle3 reconstruct`: exact ids from anyone's OpenRouter logs. JSONL, JSON or stream transcripts in, JSONL out.

Belongs here: opening files, choosing the profile of a line, writing results. Does not belong here: the shapes of logs
(`exact/logs.py`), the reconstruction (`exact`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from eagle3_assets.errors import ExactError, StoreError

if TYPE_CHECKING:
    from eagle3_assets.exact.tokenizer import Profile


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="Log files; none or - reads standard input.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="Tokenizer profile of the lines.")] = "kimi-k2.5",
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder with the tokenizer files.")] = None,
    wire_profiles: Annotated[Path | None, typer.Option("--wire-profiles", help="wire_profiles.json of a campaign.")] = None,
    request: Annotated[
        Path | None, typer.Option("--request", help="The request (JSON) that each FILE, a response body or a stream, answered.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="A table for reading instead of JSONL.")] = False,
) -> None:
    """Rebuild the token ids of logged answers. A line is one JSON object with `request` and `response_body` (verbatim) or `response` (an
    OpenAI-style body, its text, the lines of a stream, a list of chunks, or an envelope with `body`), and where known `id`, `status`,
    `content_type`. A file may also be one JSON object or an array of them; docs/exactness.md lists the shapes.

    Every line gives one line: ids, prompt length, loss spans, grade, p_exact, residuals (rebuilt minus billed), hypotheses,
    reasons. A line that cannot be read gives grade Q and its reason. A line whose model belongs to another profile is rebuilt
    with that one.

    Examples: `eagle3 reconstruct log.jsonl --table` · `eagle3 reconstruct --request request.json answer.sse` · `eagle3 reconstruct
    --profile kimi-k2.5 --tokenizer DIR < log.jsonl > ids.jsonl`
    """
    from eagle3_assets.exact.tokenizer import load_profile

    load_profile(profile, tokenizer)  # a missing file is one line before anything is read
    profiles = _read_wire_profiles(wire_profiles) if wire_profiles else None
    lines = _lines(files or []) if request is None else _bodies(files or [], _read_request(request))
    results = (rebuild_line(line, number, profile, tokenizer, profiles) for number, line in enumerate(lines, start=1))
    if table:
        _print_table(results)
        return
    for result in _shown_progress(results):
        sys.stdout.write(json.dumps(result, ensure_ascii=True) + "\n")


def _shown_progress(results: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """A count on the error stream while lines go to a file or a pipe."""
    from rich.console import Console
    from rich.progress import track

    return track(results, "rebuilding", transient=True, console=Console(stderr=True), disable=sys.stdout.isatty())


def _read_request(path: Path) -> Mapping[str, Any]:
    from eagle3_assets.exact.logs import read_request

    try:
        return read_request(json.loads(path.read_bytes()))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); give the request's JSON") from None
    except (ValueError, RecursionError) as error:
        raise ExactError(f"{path}: {error}; give the JSON body of the request") from None


def _bodies(files: Iterable[Path], request: Mapping[str, Any]) -> Iterator[bytes]:
    """One line per file, each a whole response body."""
    for path in list(files) or [Path("-")]:
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

    for path in list(files) or [Path("-")]:
        with _opened(path) as handle:
            try:
                yield from records_of(handle)
            except ValueError as error:
                raise ExactError(f"{path}: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as handle:
            yield handle
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); give a log file") from None


def rebuild_line(
    line: bytes, number: int, profile: str, tokenizer: Path | None, wire_profiles: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One line in, one result out (design section 4); never raises for what stands in the line."""
    row: Any = None
    try:
        row = json.loads(line.decode("utf-8"))
        return _rebuild(row, number, profile, tokenizer, wire_profiles)
    except UnicodeDecodeError as error:
        reason = f"line {number}: not UTF-8 text ({error.reason} at byte {error.start})"
    except (ValueError, RecursionError, ExactError) as error:
        reason = f"line {number}: {error}"
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        reason = f"line {number}: request or answer has an unexpected shape ({type(error).__name__}: {error})"
    name = row.get("id") if isinstance(row, dict) else None
    return _quarantined(name if isinstance(name, str) else f"line {number}", reason)


def _rebuild(row: Any, number: int, name: str, tokenizer: Path | None, wire_profiles: Mapping[str, Any] | None) -> dict[str, Any]:
    from eagle3_assets.exact.logs import read_record
    from eagle3_assets.exact.reconstruct import reconstruct
    from eagle3_assets.exact.wire import parse_fields
    from eagle3_assets.exact.wire_profiles import entry_of, provider_of

    logged = read_record(row)
    fields = parse_fields(logged.body, logged.content_type)
    used = _profile_of(name, fields.model or logged.request.get("model"), tokenizer)
    entry = entry_of(wire_profiles, provider_of(None, fields.provider, "openrouter"))
    found = reconstruct(used, logged.request, fields, entry, source="openrouter")
    reasons = list(found.reasons)
    grade, p_exact = found.grade, found.p_exact
    if logged.status is not None and logged.status >= 400:
        grade, p_exact = "Q", 0.0
        reasons.insert(0, f"HTTP status {logged.status}")
    if used.name != name:
        reasons.append(f"the answer's model {fields.model} belongs to profile {used.name}, which was used")
    return {
        "id": logged.id or f"line {number}",
        "input_ids": list(found.input_ids),
        "prompt_len": found.prompt_len,
        "loss_spans": [list(span) for span in found.loss_spans],
        "grade": grade,
        "p_exact": p_exact,
        "residual": found.residual,
        "hypotheses": found.hypotheses,
        "reasons": reasons,
        "evidence": found.evidence,
    }


def _profile_of(name: str, model: Any, tokenizer: Path | None) -> Profile:
    """The asked-for profile, unless the answer's model is known to belong to another one."""
    from eagle3_assets.exact.profile_facts import profile_for_model
    from eagle3_assets.exact.tokenizer import load_profile

    other = profile_for_model(model if isinstance(model, str) else None)
    return load_profile(other if other is not None else name, tokenizer)


def _quarantined(name: str, reason: str) -> dict[str, Any]:
    return {
        "id": name,
        "input_ids": [],
        "prompt_len": 0,
        "loss_spans": [],
        "grade": "Q",
        "p_exact": 0.0,
        "residual": {"prompt": None, "completion": None, "reasoning": None},
        "hypotheses": {"tried": 0, "surviving": 0, "distinct": 0},
        "reasons": [reason],
        "evidence": {},
    }


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
