"""Where the files of another installed package lie, without importing it: the demo's target is Kimi-mini of the package beside this one.

Belongs here: finding. Does not belong here: reading tokenizers (`targets`) or weights (`states.target`).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from eagle3_assets.errors import StateError

HOW = "install it with `pip install ./standin` in a clone of the repository (`make setup` does)"


def installed_folder(inside: str) -> Path | None:
    """The folder `package/rest` of an installed package, or None where there is no such package. Nothing is imported."""
    package, _, rest = inside.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / rest


def kimi_mini_weights() -> Path:
    """Config and safetensors of the demo's target. Raises StateError where its package is not installed."""
    folder = installed_folder("kimi_mini/data/model")
    if folder is None:
        raise StateError(f'[target] weights = "embedded" is the model of the package openrouter-standin, which is missing; {HOW}')
    return folder
