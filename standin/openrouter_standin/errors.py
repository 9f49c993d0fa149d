"""What a user of the stand-in can do wrong. Every error reads as one line: file, field, found, expected, what to do.

Belongs here: exception classes. Does not belong here: printing, exit codes (`cli`).
"""

from __future__ import annotations

from kimi_mini.errors import KimiMiniError


class StandinError(Exception):
    """`str(error)` is one readable line; the command line prints just that and ends with 1."""


class InUseError(StandinError):
    """Another process owns the folder; the message names it."""


USER_ERRORS = (StandinError, KimiMiniError)
