"""Where the files of another installed package lie, without importing it: the demo's target is Kimi-mini of the package beside this one.

Belongs here: finding. Does not belong here: reading tokenizers (`targets`) or weights (`states.target`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from eagle3_assets.errors import StateError

HOW = (
    "install it with `pip install 'eagle3-assets[demo]'` where both wheels are found (`pip install --find-links DIST`), or with "
    "`pip install ./standin` in a clone of the repository (`make setup` does)"
)
# What only the extra `states` installs, by the name that is imported.
STATES = ("torch", "transformers", "safetensors")
STATES_HOW = (
    "install the extra: `pip install 'eagle3-assets[states]'` (torch in the build for this machine first), then run again"
)


def require_installed(packages: Iterable[str], what: str) -> None:
    """Raises StateError that says what to install where one of these packages is missing. Nothing is imported."""
    missing = [name for name in packages if not _is_there(name)]
    if missing:
        raise StateError(f"{what} needs {', '.join(missing)}, which this machine does not have; {STATES_HOW}")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


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
