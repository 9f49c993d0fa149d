"""`eagle3`: assembles the commands and turns every user error into one line and an exit code.

Belongs here: the list of commands, the catch-all. Does not belong here: any command.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from eagle3_assets.environment import refuse_unknown
from eagle3_assets.errors import Eagle3Error, UsageError
from eagle3_assets.installed import STATES, STATES_HOW

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# name -> (module, help line); modules are imported when asked for, so that `eagle3 --help` is quick
COMMANDS = {
    "init": "A folder for a campaign: its file, Dagster's files, the next commands.",
    "doctor": "Is this machine ready? What is missing, and what to do.",
    "run": "All stages in order, through Dagster; resumable.",
    "endpoints": "Who may answer, who may not and why; --used: what each gave for its money.",
    "status": "What is there, what is missing, what was spent.",
    "plan": "What the campaign will cost; --approve USD lets answers spend.",
    "recheck": "Every check again over what is there; nothing is bought.",
    "waive": "Accept the failure of one check until a day, by name.",
    "requeue": "Ask again for rejected answers of one kind.",
    "close": "Declare a dataset finished with what is there.",
    "verify": "Stored hidden states: every bit, ids against the corpus; --recompute asks the model.",
    "prune": "Old hidden states: what may go, with its bytes; --yes removes it.",
    "tier": "Where the bytes lie: here, in the remote store; --copy, --free, --compare.",
    "pull": "A campaign, or a partition of its states, back from the remote store.",
    "view": "Every row in a browser; --export DIR writes a folder to send.",
    "ui": "Dagster's UI: runs, checks, history.",
    "show": "One sample: coloured tokens, loss mask, survivors, evidence.",
    "reconstruct": "Exact ids from anyone's OpenRouter logs (JSON, JSONL, SSE in; JSONL out).",
    "audit": "How often rebuilt ids are right, where the truth is known; --buy asks for more.",
    "fetch-tokenizer": "A profile's tokenizer files from the hub, pinned and without code.",
    "new-profile": "A profile of any model from what its publisher ships, measured.",
    "accept": "Acceptance length of a drafter from stored states, without serving.",
    "push": "Hand-offs to a hub repository or an object store; a dry run unless --yes.",
    "standin": "The embedded OpenRouter: serve it, score against its truth.",
}


class _Lazy(TyperGroup):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            if near and not ctx.resilient_parsing:
                raise UsageError(f"no command {cmd_name!r}; did you mean `eagle3 {near[0]}`? `eagle3 --help` lists them")
            return None
        module = importlib.import_module(f"eagle3_assets.cli.{cmd_name.replace('-', '_')}")
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(cmd_name)(module.command)
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(cls=_Lazy, add_completion=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
                  epilog="The campaign is EAGLE3_CAMPAIGN (demo, kimi-k2.5 or a .toml file), the data root EAGLE3_DATA (default data).")  # fmt: skip


def _show_version(asked: bool) -> None:
    if asked:
        print(f"eagle3-assets {importlib.metadata.version('eagle3-assets')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def cli(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Rented answers of a large reasoning model, turned into EAGLE-3 training data that can be trusted."""
    if context.invoked_subcommand is None:
        from eagle3_assets.campaign import load_campaign
        from eagle3_assets.cli.status import print_where
        from eagle3_assets.store import Store

        campaign = load_campaign()
        print_where(campaign, Store.of(campaign))


def main() -> None:
    """Console entry point. Exit codes: 0 done, 1 failed, 2 usage, 3 stopped on budget, 130 interrupted."""
    warnings.filterwarnings("ignore", module=r"dagster\b.*")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path or name that is no text is shown, never an exception
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run `eagle3 ARGS`; returns the exit code. Never lets a user error through as a traceback."""
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _leave_stdout()  # the reader went away (`| head`): not an error
        return 0
    except OSError as error:
        _leave_stdout()
        print(
            f"eagle3: {error.filename or 'output'}: {error.strerror or error}; free space or check permissions", file=sys.stderr
        )
        return 1


def _leave_stdout() -> None:
    """Keep the interpreter from complaining at exit about what it cannot write."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: list[str]) -> int:
    try:
        refuse_unknown(os.environ)
        result = typer.main.get_command(app).main(args=args, prog_name="eagle3", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("eagle3: interrupted; run the same command again to resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except TyperException as error:
        if hasattr(error, "show"):  # its usage errors show themselves, with the usage line
            error.show()
        else:
            print(f"eagle3: {error.format_message()}", file=sys.stderr)
        return EXIT_USAGE
    except Eagle3Error as error:
        print(f"eagle3: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in STATES:
            raise
        print(f"eagle3: this needs {error.name}, which this machine does not have; {STATES_HOW}", file=sys.stderr)
        return 1
