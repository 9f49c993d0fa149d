"""What the rules stand for that put rows into quarantine when tokens are made: tokens made under other rules are outdated.

Belongs here: their digest. Does not belong here: the rules (`row_invariants.py`), putting rows out (`quarantine.py`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from eagle3_assets.review.rows.row_invariants import FATAL, INVARIANTS
from eagle3_assets.store import digest_json


def fatal_rules_digest() -> str:
    """Of the names and the code of the fatal rules, 32 hex digits. Comments, docstrings and layout do not count. What a rule calls is not
    part of it: where that changes what a rule says, the stage's version is raised.
    """
    return digest_json({name: code_of(INVARIANTS[name]) for name in FATAL})


def code_of(function: Callable[..., Any]) -> str:
    """The source of a function without comments, docstring and layout."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)
    if ast.get_docstring(body) is not None:
        body.body = body.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
