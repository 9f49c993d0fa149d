"""A campaign of imports alone asks nobody: no key, no listing, no pilot, no approval (docs/imports.md)."""

from __future__ import annotations

import json

import pytest

from eagle3_assets_tests.e2e.conftest import Place, small_campaign

pytestmark = pytest.mark.e2e


def test_a_campaign_of_imports_alone_runs_to_its_corpus_without_a_key(place: Place) -> None:
    path = small_campaign(place.folder, "imported", datasets=("a1_deepswekimi",), real=True)
    place.env["EAGLE3_CAMPAIGN"] = str(path)
    done = place.run("eagle3", "run", "--until", "corpus")
    assert done.returncode == 0, done.stderr
    root = place.root("imported")
    assert json.loads((root / "pilot.json").read_text())["spent_usd"] == 0.0
    assert json.loads((root / "endpoints.json").read_text())["eligible"] == []
    assert list((root / "corpus").rglob("*.parquet"))
    looked = {f["what"]: f["level"] for f in json.loads(place.run("eagle3", "doctor", "--json").stdout)}
    assert looked["key"] == looked["approval"] == "ok"
