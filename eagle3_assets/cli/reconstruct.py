"""`eagle3 reconstruct`: exact ids from anyone's OpenRouter logs. JSONL in, JSONL out.

Belongs here: reading lines, choosing the profile of a line, writing results. Does not belong here: the reconstruction (`exact`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_assets.errors import ExactError, StoreError

if TYPE_CHECKING:
    from eagle3_assets.exact.tokenizer import Profile


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="JSONL files; none or - reads standard input.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="Tokenizer profile of the lines.")] = "kimi-k2.5",
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder with the tokenizer files.")] = None,
    wire_profiles: Annotated[Path | None, typer.Option("--wire-profiles", help="wire_profiles.json of a campaign.")] = None,
    table: Annotated[bool, typer.Option("--table", help="A table for reading instead of JSONL.")] = False,
) -> None:
    """Rebuild the token ids of logged answers: one JSON object a line with `id`, `request`, `response_body` (verbatim), and where
    known `status`, `content_type`, `url`.

    Every line gives one line: ids, prompt length, loss spans, grade, p_exact, residuals (rebuilt minus billed), hypotheses,
    reasons. A line that cannot be read gives grade Q and its reason. A line whose model belongs to another profile is rebuilt
    with that one.

    Examples: `eagle3 reconstruct log.jsonl --table` · `eagle3 reconstruct --profile kimi-k2.5 --tokenizer DIR < log.jsonl >
    ids.jsonl`
    """
    from eagle3_assets.exact.tokenizer import load_profile

    load_profile(profile, tokenizer)  # a missing file is one line before anything is read
    profiles = _read_wire_profiles(wire_profiles) if wire_profiles else None
    results = (
        rebuild_line(line, number, profile, tokenizer, profiles)
        for number, line in enumerate(_lines(files or []), start=1)
        if line.strip()
    )
    if table:
        _print_table(results)
        return
    for result in results:
        sys.stdout.write(json.dumps(result, ensure_ascii=True) + "\n")


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
    """Lines of the files, or of standard input."""
    for path in list(files) or [Path("-")]:
        if str(path) == "-":
            yield from sys.stdin.buffer
            continue
        try:
            with path.open("rb") as handle:
                yield from handle
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); give a JSONL file") from None


def rebuild_line(
    line: bytes, number: int, profile: str, tokenizer: Path | None, wire_profiles: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One line in, one result out (design section 4); never raises for what stands in the line."""
    row: Any = None
    try:
        row = json.loads(line.decode("utf-8"))
        if not isinstance(row, dict):
            raise ValueError("not a JSON object")
        return _rebuild(row, number, profile, tokenizer, wire_profiles)
    except UnicodeDecodeError as error:
        reason = f"line {number}: not UTF-8 text ({error.reason} at byte {error.start})"
    except (ValueError, RecursionError, ExactError) as error:
        reason = f"line {number}: {error}"
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        reason = f"line {number}: request or answer has an unexpected shape ({type(error).__name__}: {error})"
    name = row.get("id") if isinstance(row, dict) else None
    return _quarantined(name if isinstance(name, str) else f"line {number}", reason)


def _rebuild(
    row: Mapping[str, Any], number: int, name: str, tokenizer: Path | None, wire_profiles: Mapping[str, Any] | None
) -> dict[str, Any]:
    from eagle3_assets.exact.reconstruct import reconstruct
    from eagle3_assets.exact.wire import parse_fields
    from eagle3_assets.exact.wire_profiles import entry_of, provider_of

    request, body = row.get("request"), row.get("response_body")
    if not isinstance(request, dict) or not isinstance(body, str):
        lacking = "request (an object)" if not isinstance(request, dict) else "response_body (the body as text)"
        raise ValueError(f"expected the keys id, request, response_body; {lacking} is missing")
    fields = parse_fields(body.encode("utf-8", "surrogatepass"), str(row.get("content_type") or "application/json"))
    used = _profile_of(name, fields.model or request.get("model"), tokenizer)
    entry = entry_of(wire_profiles, provider_of(None, fields.provider, "openrouter"))
    found = reconstruct(used, request, fields, entry, source="openrouter")
    reasons = list(found.reasons)
    grade, p_exact = found.grade, found.p_exact
    status = row.get("status")
    if isinstance(status, int) and status >= 400:
        grade, p_exact = "Q", 0.0
        reasons.insert(0, f"HTTP status {status}")
    if used.name != name:
        reasons.append(f"the answer's model {fields.model} belongs to profile {used.name}, which was used")
    return {
        "id": row.get("id", f"line {number}"),
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
    from eagle3_assets.exact.tokenizer import load_profile, profile_for_model

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
