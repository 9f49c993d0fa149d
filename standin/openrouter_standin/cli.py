"""`openrouter-standin`: serve, stop, the schema of a profiles file, the score of rebuilt ids against the truth.

Belongs here: options, printing. Does not belong here: the server (`service`), the comparison (`truth.score`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openrouter_standin.errors import USER_ERRORS, StandinError

if TYPE_CHECKING:
    from openrouter_standin.schema.source import Answers

app = typer.Typer(
    help="An OpenRouter, vLLM and SGLang on loopback: priced, rate-limited, bending, with the truth in a file beside it.",
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT_FOLDER = Path("standin-data")
Port = Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)]
ProfilesFile = Annotated[Path | None, typer.Option("--profiles", help="Profiles TOML, or a built-in one (default, catalogue).")]
Folder = Annotated[Path, typer.Option(help="Folder of ledger, truth, key and log.")]
Seed = Annotated[int, typer.Option(help="Joined with the profiles' seed.")]
LiveOrBank = Annotated[
    bool | None,
    typer.Option("--live/--bank", help="Sample from Kimi-mini (needs torch), or replay the bank (default: as the profiles say)."),
]


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    port: Port = 8080,
    profiles: ProfilesFile = None,
    folder: Folder = DEFAULT_FOLDER,
    seed: Seed = 0,
    live: LiveOrBank = None,
) -> None:
    """Without a command: serve in the foreground until Ctrl-C.

    Examples: `openrouter-standin --port 8080` · `openrouter-standin --profiles catalogue --live`
    """
    if context.invoked_subcommand is None:
        serve(folder, profiles, seed, port, live)


def serve(folder: Path, profiles: Path | None, seed: int, port: int, live: bool | None) -> None:
    """Serve until Ctrl-C; prints addresses and key. Raises StandinError."""
    from openrouter_standin.service.process import Settings, run_server

    answers: Answers | None = None if live is None else "live" if live else "bank"
    settings = Settings(folder.resolve(), profiles, seed, port, idle_exit_s=0.0, answers=answers)
    run_server(settings, ready=lambda origin, standin: _announce(origin, standin, settings.folder))
    typer.echo("stopped; the ledger is kept")


def _announce(origin: str, standin: Any, folder: Path) -> None:
    model = standin.generator.profiles.model.slug
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200})
    lines = (
        f"base URL   {origin}/api/v1",
        f"vLLM       {origin}/engine/v1",
        f"SGLang     {origin}/sglang/v1, {origin}/sglang/generate",
        f"key        {standin.api_key}   (of this stand-in only)",
        f"folder     {folder}",
        f"try        curl {origin}/api/v1/chat/completions -H 'Authorization: Bearer {standin.api_key}' -d '{body}'",
    )
    typer.echo("\n".join(lines))


@app.command()
def schema(markdown: Annotated[bool, typer.Option("--markdown", help="Tables for people instead.")] = False) -> None:
    """Print the JSON schema of a profiles file: for an editor, or to read.

    Examples: `openrouter-standin schema > standin-profiles.schema.json` · `openrouter-standin schema --markdown`
    """
    from openrouter_standin.profiles import profiles_schema
    from openrouter_standin.service import reference

    typer.echo(reference.markdown().rstrip() if markdown else json.dumps(profiles_schema(), indent=2))


@app.command()
def score(
    files: Annotated[
        list[Path], typer.Argument(help="Parquet files of rebuilt rows (columns sample_id, input_ids, … of eagle3).")
    ],
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Compare rebuilt ids with the truth: exact rows per dataset, grade and provider.

    Example: `openrouter-standin score tokens/*.parquet --folder standin-data`
    """
    print_score(compare(folder, files), as_json=as_json)


def compare(folder: Path, files: list[Path]) -> dict[str, Any]:
    """`truth.score.score`, with one line for a truth file that is not one. Raises StandinError."""
    from openrouter_standin.truth.score import score as scored

    try:
        return scored(folder, files)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OSError) as error:
        raise StandinError(
            f"{folder / 'truth.jsonl'}: is not the truth of a stand-in ({type(error).__name__}: {error}); restore it, or do without "
            "the comparison"
        ) from None


def print_score(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_table(result)


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="rebuilt ids against the stand-in's truth")
    for name in ("dataset", "group"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "no truth", "exact", "answer exact", "exact share"):
        table.add_column(name, justify="right")

    def line(dataset: str, group: str, counts: dict[str, Any]) -> None:
        share = "-" if counts["exact_share"] is None else f"{100 * counts['exact_share']:.2f} %"
        numbers = [str(counts[k]) for k in ("rows", "no_truth", "exact", "completion_exact")]
        table.add_row(Text(dataset), Text(group), *numbers, share)

    for name, entry in result["datasets"].items():
        line(name, "all", entry)
        for kind in ("grades", "providers"):
            for group, counts in entry[kind].items():
                line("", f"grade {group}" if kind == "grades" else group, counts)
        table.add_section()
    line("total", "", result["total"])
    Console().print(table)


@app.command()
def stop(folder: Folder = DEFAULT_FOLDER) -> None:
    """End the server of a folder. Ledger and truth stay.

    Example: `openrouter-standin stop --folder standin-data`
    """
    from openrouter_standin.service.launcher import stop as end

    typer.echo("stopped" if end(folder) else f"no stand-in runs in {folder}")


def main() -> None:
    """The console script: every error of a user is one line and exit code 1."""
    try:
        app()
    except USER_ERRORS as error:
        print(f"openrouter-standin: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
