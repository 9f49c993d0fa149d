"""The stand-in is a package of its own: its absence and its errors as ours.

Belongs here: that translation. Does not belong here: serving (`openrouter_standin`), Kimi-mini's files (`installed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from eagle3_assets.errors import WireError
from eagle3_assets.installed import HOW


@contextlib.contextmanager
def standin_errors() -> Iterator[None]:
    """Everything that the stand-in refuses becomes a WireError with the same line; so does its absence."""
    try:
        from openrouter_standin.errors import USER_ERRORS
    except ModuleNotFoundError:
        raise WireError(f'[server] kind = "embedded" is the package openrouter-standin, which is missing; {HOW}') from None
    try:
        yield
    except USER_ERRORS as error:
        raise WireError(str(error)) from None
