"""`eagle3 standin`: the embedded OpenRouter for people (serve), its oracle (score), its end (stop).

Belongs here: options, printing. Does not belong here: the server, the comparison (room `standin`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_assets.errors import StoreError

if TYPE_CHECKING:
    from eagle3_assets.standin.schema.source import Answers

app = typer.Typer(help="The embedded OpenRouter: a simulated, lying, rate-limited API with ground truth.")

Port = Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)]
ProfilesFile = Annotated[
    Path | None, typer.Option(help="Stand-in profiles TOML, or the name of a built-in one (default, catalogue).")
]
ServeFolder = Annotated[
    Path | None, typer.Option(help="Folder of ledger, truth and log. Default: standin_serve in the data root.")
]
Seed = Annotated[int, typer.Option(help="Joined with the profiles' seed.")]
LiveOrBank = Annotated[
    bool | None, typer.Option("--live/--bank", help="Sample from kimi-mini, or replay the bank (default: as the profiles say).")
]

Folder = Annotated[
    Path | None, typer.Option(help="Folder of ledger, truth and log. Default: the campaign's.", show_default=False)
]


def _campaign_folder() -> Path:
    from eagle3_assets.campaign import load_campaign
    from eagle3_assets.store import Store

    return Store.of(load_campaign()).standin


@app.callback(invoke_without_command=True)
def standin(
    context: typer.Context,
    port: Port = 8377,
    standin_profiles: ProfilesFile = None,
    folder: ServeFolder = None,
    seed: Seed = 0,
    live: LiveOrBank = None,
) -> None:
    """Without a command: serve.

    Examples: `eagle3 standin` · `eagle3 standin --standin-profiles my.toml --port 9000`
    """
    if context.invoked_subcommand is None:
        serve(port, standin_profiles, folder, seed, live)


@app.command()
def serve(
    port: Port = 8377,
    standin_profiles: ProfilesFile = None,
    folder: ServeFolder = None,
    seed: Seed = 0,
    live: LiveOrBank = None,
) -> None:
    """Serve in the foreground until Ctrl-C.

    Examples: `eagle3 standin serve` · `eagle3 standin serve --live` · `eagle3 standin serve --port 9000 --standin-profiles my.toml`
    """
    from eagle3_assets.standin.service.process import Settings, run_server
    from eagle3_assets.store import data_root

    folder = folder or data_root() / "standin_serve"
    answers: Answers | None = None if live is None else "live" if live else "bank"
    settings = Settings(folder.resolve(), standin_profiles, seed, port, idle_exit_s=0.0, answers=answers)
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
    """Print the JSON schema of a stand-in profiles file: for an editor, or to read.

    Examples: `eagle3 standin schema > standin-profiles.schema.json` · `eagle3 standin schema --markdown`
    """
    from eagle3_assets.standin.profiles import profiles_schema
    from eagle3_assets.standin.service import reference

    typer.echo(reference.markdown().rstrip() if markdown else json.dumps(profiles_schema(), indent=2))


@app.command()
def score(
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Compare the campaign's tokens with the truth: exact rows per dataset, grade and provider.

    Examples: `eagle3 standin score` · `eagle3 standin score --json`
    """
    from eagle3_assets.campaign import load_campaign
    from eagle3_assets.store import Store

    store = Store.of(load_campaign())
    where, files = folder or store.standin, sorted((store.root / "tokens").glob("*/*.parquet"))
    if not (where / "truth.jsonl").exists():
        raise StoreError(f"{where}: no stand-in has answered here (no truth.jsonl); give the --folder that it was served from")
    if not files:
        raise StoreError(f"{store.root}: no tokens files yet; materialize tokens/<dataset>, or run `eagle3 run`")
    result = compare(where, files)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print_table(result)


def compare(folder: Path, files: list[Path]) -> dict[str, Any]:
    """`standin.score.score`, with one line for a truth file that is not one. Raises StoreError."""
    from eagle3_assets.standin.truth.score import score

    try:
        return score(folder, files)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(
            f"{folder / 'truth.jsonl'}: is not the truth of a stand-in ({type(error).__name__}: {error}); restore it, or do without "
            "the comparison"
        ) from None


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
def stop(folder: Folder = None) -> None:
    """End the campaign's stand-in (it also ends by itself when idle). Ledger and truth stay.

    Example: `eagle3 standin stop`
    """
    from eagle3_assets.standin.service.launcher import stop as end

    where = folder or _campaign_folder()
    typer.echo("stopped" if end(where) else f"no stand-in runs in {where}")
