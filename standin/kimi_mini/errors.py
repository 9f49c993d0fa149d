"""The one error of this package: a file or a request that Kimi-mini cannot take. Does not belong here: printing."""

from __future__ import annotations


class KimiMiniError(Exception):
    """`str(error)` is one readable line: file or field, found, expected, what to do."""
