"""`eagle3 init`: a folder in which a campaign can be run, from an installed package alone.

Belongs here: which files, their texts. Does not belong here: what a campaign may say (`campaign.py`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from eagle3_assets.campaign import CAMPAIGNS_DIR, FOLDERS_OWN
from eagle3_assets.errors import StoreError, UsageError

TARGETS = {"kimi-k2.5": "kimi-k2.5.toml"}
FOLDER_FILES = CAMPAIGNS_DIR / "folder"  # dagster.yaml, workspace.yaml: those of the repository, a test compares them
GITIGNORE = "data/\n.tmp_dagster_home_*\n*.log\n"

DEMO = """# A demo campaign of eagle3_assets

The whole flow in miniature: no key, no GPU, no money. It needs the stand-in's package and torch: `pip install 'eagle3-assets[demo]'`.

    eagle3 run        # about a minute and a half
    eagle3 view       # every row in a browser
    eagle3 ui         # Dagster: runs, checks, history

`campaign.toml` is yours to change: `eagle3 run` makes again what a change outdates. `eagle3` alone says where you are.
"""
REAL = """# A campaign of eagle3_assets: {target}

Read the first lines of `campaign.toml`: datasets that name files of your own must point to them, or go.

    eagle3 doctor              # what this machine lacks: tokenizer files, the key, sources to pin
    eagle3 run --until plan    # prompts, a pilot of at most 2 USD, and what the answers will cost
    eagle3 plan --approve USD  # only now may answers spend; then: eagle3 run

The key is read from OPENROUTER_API_KEY; use one of its own whose limit equals the budget. Everything that is bought lies in `data/`: keep it.
`eagle3 view` shows every row, `eagle3 ui` Dagster's pages. From `hidden_states` on: `pip install 'eagle3-assets[states]'`.
"""


def command(
    folder: Annotated[Path, typer.Argument(help="where; made if it is not there")] = Path(),
    target: Annotated[str | None, typer.Option("--target", help=f"the target model: {', '.join(TARGETS)}")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="the demo campaign instead: everything on this machine")] = False,
) -> None:
    """A folder for a campaign: campaign.toml, dagster.yaml, workspace.yaml, .gitignore, README.md. Nothing is overwritten.

    \b
    eagle3 init my-run && cd my-run          the campaign for Kimi K2.5
    eagle3 init --demo demo && cd demo       the demo; then: eagle3 run
    """
    if demo and target is not None:
        raise UsageError("--demo has a target of its own; leave --target out")
    files = files_of(target or next(iter(TARGETS)), demo=demo)
    write_files(folder, files)
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    print(f"{folder.absolute()}: {', '.join(sorted(f for f in files if '/' not in f))}")
    print(f"next: {where}{'eagle3 run' if demo else 'eagle3 doctor'}   (README.md has the commands behind it)")


def files_of(target: str, *, demo: bool) -> dict[str, bytes]:
    """Relative path -> content."""
    if not demo and target not in TARGETS:
        known = ", ".join(TARGETS)
        raise UsageError(
            f"--target {target!r}: known are {known}; for another model begin with one of them, make a profile with "
            "`eagle3 new-profile`, and name it in [target] of campaign.toml"
        )
    campaign = CAMPAIGNS_DIR / ("demo.toml" if demo else TARGETS[target])
    files = {
        FOLDERS_OWN: campaign.read_bytes(),
        "README.md": (DEMO if demo else REAL.format(target=target)).encode(),
        ".gitignore": GITIGNORE.encode(),
    }
    files |= {p.name: p.read_bytes() for p in FOLDER_FILES.glob("*.yaml")}
    if demo:
        files |= {f"demo_data/{p.name}": p.read_bytes() for p in (CAMPAIGNS_DIR / "demo_data").glob("*.jsonl")}
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write all or, where one is there already or the folder cannot be written, none. Raises StoreError."""
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise StoreError(f"{folder / taken[0]}: is there already; nothing was written. Give another folder: `eagle3 init FOLDER`")
    fresh = not folder.exists()
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(f"{folder}: cannot be written ({error.strerror}); check its permissions and free space") from None
