"""What every run does around a stage's work: bind the data root and Dagster's state, turn user errors into one line.

Belongs here: this frame. Does not belong here: any stage, what an asset looks like (`build.py`).
"""

import atexit
import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import CampaignError, Eagle3Error, GateError
from eagle3_assets.stage import Interrupted
from eagle3_assets.store import Store, write_bytes

MARKER = "eagle3_campaign"
LAST_WORD = "EAGLE3_LAST_WORD"
LAUNCHED_BY, BY_RUN_COMMAND = "eagle3/launched_by", "eagle3 run"  # a run's tag

# The last user error of this process: `eagle3 run` takes its exit code from here, since Dagster only keeps the text.
last_error: list[Eagle3Error] = []


@contextmanager
def readable_errors() -> Iterator[None]:
    """An Eagle3Error becomes a `Failure` whose description is its one line, never retried: a person must act. A signal is Dagster's own."""
    try:
        yield
    except Interrupted:
        raise dg.DagsterExecutionInterruptedError() from None
    except Eagle3Error as error:
        last_error[:] = [error]
        leave_last_word(error)
        raise dg.Failure(description=str(error), allow_retries=False) from None


def say_last_word_at_exit() -> None:
    """`dagster asset materialize` ends with a traceback; let the line that a person needs come after it.

    The step may run in a child process, so the line travels through a file that the parent names in the environment.
    """
    if Path(sys.argv[0]).name != "dagster" or LAST_WORD in os.environ:
        return
    path = Path(tempfile.gettempdir()) / f"eagle3-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[LAST_WORD] = str(path)
    owner = os.getpid()

    def say() -> None:
        if os.getpid() == owner and path.exists():
            print(f"eagle3: {path.read_text()}", file=sys.stderr, flush=True)
            path.unlink()

    atexit.register(say)


def leave_last_word(error: Eagle3Error) -> None:
    """Hand `error`'s line to the process that will say it at its end; nothing where nobody asked for it."""
    if path := os.environ.get(LAST_WORD):
        with contextlib.suppress(OSError):
            Path(path).write_text(str(error))


@contextmanager
def frame(context: Any, campaign: Campaign) -> Iterator[Store]:
    """The data root, bound to this campaign, inside `readable_errors`."""
    with canceled_by_signals(context), readable_errors():
        store = Store.of(campaign)
        bind_dagster_state(context.instance, campaign)
        store.bind(campaign)
        yield store


@contextmanager
def canceled_by_signals(context: Any) -> Iterator[None]:
    """Ctrl-C of `eagle3 run` cancels its run, as Terminate in the UI does. Dagster calls a signal that nobody announced a failure, and the
    partitions that were never begun would stand among the failed ones."""
    try:
        yield
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        run = context.instance.get_run_by_id(context.run_id)
        if run is not None and run.status is dg.DagsterRunStatus.STARTED and run.tags.get(LAUNCHED_BY) == BY_RUN_COMMAND:
            context.instance.report_run_canceling(run, "Ctrl-C or SIGTERM to `eagle3 run`")
        raise


def partition_keys(context: Any) -> list[str]:
    """The partitions of this step. Raises GateError for a range that holds none (its ends in the wrong order): doing nothing is no success."""
    keys = [str(key) for key in context.partition_keys]
    if not keys:
        given = context.partition_key_range
        raise GateError(
            f"partition range {given.start}...{given.end} holds no partition; give the first before the last: {given.end}...{given.start}"
        )
    return keys


def bind_dagster_state(instance: dg.DagsterInstance, campaign: Campaign) -> None:
    """One Dagster state, one campaign: histories of two would mix under the same asset keys. Raises CampaignError."""
    home = Path(instance.storage_directory()).parent
    marker, root = home / MARKER, Store.of(campaign).root.resolve()
    if not marker.exists():
        write_bytes(marker, f"{campaign.name}\n{root}\n".encode())
    owner, _, its_root = marker.read_text().strip().partition("\n")
    if (owner, its_root) != (campaign.name, str(root)):
        own = f"data/dagster-{campaign.name}"
        whose = f"campaign {owner!r}" + (f" in {its_root}" if owner == campaign.name else "")
        raise CampaignError(
            f"{home}: Dagster's state belongs to {whose}, not {campaign.name!r} in {root}; give this one its own: "
            f"mkdir -p {own} && cp deploy/dagster-home.yaml {own}/dagster.yaml && export DAGSTER_HOME=$PWD/{own}"
        )
