"""`eagle3 standin`: the stand-in of this data root: serve it, score a campaign against its truth, end it.

Belongs here: which folder and files of ours. Does not belong here: the server and its own command line (`openrouter_standin.cli`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eagle3_assets.embedded import standin_errors
from eagle3_assets.errors import StoreError

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
    from eagle3_assets.store import data_root

    with standin_errors():
        from openrouter_standin import cli

        cli.serve(folder or data_root() / "standin_serve", standin_profiles, seed, port, live)


@app.command()
def schema(markdown: Annotated[bool, typer.Option("--markdown", help="Tables for people instead.")] = False) -> None:
    """Print the JSON schema of a stand-in profiles file: for an editor, or to read.

    Examples: `eagle3 standin schema > standin-profiles.schema.json` · `eagle3 standin schema --markdown`
    """
    with standin_errors():
        from openrouter_standin import cli

        cli.schema(markdown)


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
    with standin_errors():
        from openrouter_standin import cli

        cli.print_score(result, as_json=as_json)


def compare(folder: Path, files: list[Path]) -> dict[str, Any]:
    """Rebuilt ids against the truth (`openrouter_standin.truth.score`). Raises WireError with one line."""
    with standin_errors():
        from openrouter_standin import cli

        return cli.compare(folder, files)


@app.command()
def stop(folder: Folder = None) -> None:
    """End the campaign's stand-in (it also ends by itself when idle). Ledger and truth stay.

    Example: `eagle3 standin stop`
    """
    where = folder or _campaign_folder()
    with standin_errors():
        from openrouter_standin.service.launcher import stop as end

        typer.echo("stopped" if end(where) else f"no stand-in runs in {where}")
