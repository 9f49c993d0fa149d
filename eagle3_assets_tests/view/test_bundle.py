"""The committed bundle is what `make viewer` makes of the source."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from eagle3_assets.view.server import STATIC
from eagle3_assets_tests.conftest import REPOSITORY

VIEWER = REPOSITORY / "viewer"


@pytest.mark.skipif(
    shutil.which("npm") is None or not (VIEWER / "node_modules").is_dir(), reason="needs Node and `make viewer` once"
)
def test_the_committed_bundle_is_built_from_the_source(tmp_path: Path) -> None:
    subprocess.run(["npm", "run", "types"], cwd=VIEWER, check=True, capture_output=True, timeout=120)
    subprocess.run(
        ["npx", "vite", "build", "--outDir", str(tmp_path), "--emptyOutDir"],
        cwd=VIEWER,
        check=True,
        capture_output=True,
        timeout=120,
    )
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built.keys() == {path.name for path in STATIC.iterdir()}
    assert [name for name, data in built.items() if (STATIC / name).read_bytes() != data] == []
