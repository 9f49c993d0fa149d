"""The error tree. Every error a user can cause is one of these and reads as one line: file, field, found, expected, what to do.

Belongs here: exception classes. Does not belong here: formatting, logging, exit codes (see `cli/`).
"""

from __future__ import annotations


class Eagle3Error(Exception):
    """Root of every error that a user can cause. `str(error)` is one readable line; the command line prints just that.

    `exit_code` is what `eagle3` ends with (docs/design.md#exit-codes: 1 failed, 2 usage, 3 stopped on budget).
    """

    exit_code = 1


class UsageError(Eagle3Error):
    """A command was asked for something that it does not know; the message says what it knows."""

    exit_code = 2


class CampaignError(Eagle3Error):
    """The campaign file cannot be read, says something impossible, or changed under data already paid for."""

    exit_code = 2


class StoreError(Eagle3Error):
    """A file under the data root is missing, torn, corrupt, outdated, or cannot be written (full disk)."""


class LockedError(StoreError):
    """Another process owns what this one needs; the message names the owner."""


class PromptError(Eagle3Error):
    """A prompt source cannot be read or mapped at all (single bad rows are set aside, not raised)."""


class WireError(Eagle3Error):
    """A server answered in a way that stops the run (refused key, no eligible endpoint, unreadable port)."""


class BudgetStop(Eagle3Error):
    """Spending stopped at the approved amount. Everything paid for is kept; resumable."""

    exit_code = 3


class ExactError(Eagle3Error):
    """Tokenizer files, template or profile are not what they must be."""


class GateError(Eagle3Error):
    """A stage refuses to start over a failed, outdated or incomplete predecessor; the message names check and shard."""


class CorpusError(Eagle3Error):
    """The corpus on disk is damaged or does not fit what is asked of it."""


class StateError(Eagle3Error):
    """Hidden states cannot be extracted, read or verified as asked."""
