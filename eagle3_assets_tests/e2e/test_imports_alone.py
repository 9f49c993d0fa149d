"""A campaign that rents nothing asks nobody: imports alone, or an engine of one's own. No key, no listing, no pilot, no approval
(docs/imports.md)."""

from __future__ import annotations

import json
import re

import pytest

from eagle3_assets_tests.e2e.conftest import Place, kill_nine, small_campaign

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


def test_a_campaign_of_an_engine_alone_needs_no_openrouter_tables_and_no_key(place: Place) -> None:
    """Without [server], [routing] and [budget]: the plan is free, every row has the engine's own ids."""
    server = place.start("openrouter-standin", "--port", "0", "--folder", str(place.folder / "served"), "--bank")
    assert server.stdout is not None
    try:
        base = next(found[1] for line in server.stdout if (found := re.search(r"vLLM +(\S+/engine/v1)", line)))
        path = small_campaign(place.folder, "engines", datasets=("b1_glaive",))
        text = re.sub(r"(?ms)^\[(server|routing|budget)\]\n.*?(?=^\[)", "", path.read_text())
        path.write_text(text.replace('base_url = "embedded"', f'base_url = "{base}"'))
        place.env["EAGLE3_CAMPAIGN"] = str(path)
        done = place.run("eagle3", "run", "--until", "corpus")
        assert done.returncode == 0, done.stderr
        root = place.root("engines")
        assert json.loads((root / "pilot.json").read_text())["spent_usd"] == 0.0
        [dataset] = json.loads(place.run("eagle3", "status", "--json").stdout)["datasets"]
        assert dataset["grades"] == {"A0": 24} and dataset["cost_usd"] == 0.0
        assert list((root / "corpus").rglob("*.parquet"))
    finally:
        kill_nine(server)
