"""`eagle3 verify` and `eagle3 prune` as a person runs them, over states of the embedded model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from eagle3_assets import old_states
from eagle3_assets.assets.prune import prune_job
from eagle3_assets.campaign import Campaign
from eagle3_assets.cli import verify
from eagle3_assets.cli.main import run
from eagle3_assets.stages import hidden_states
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store, manifest_path
from eagle3_assets_tests.states.conftest import make_packs

KEYS = ("00000", "00001")


class Corpus:
    """What the commands ask of a corpus: the rows of a part, and (through lineage) its digest."""

    def __init__(self) -> None:
        self.parts = {key: make_packs((20, 35, 50), seed=i, vocab=2000) for i, key in enumerate(KEYS)}
        self.digests = {key: f"digest-{key}" for key in KEYS}

    def part(self, key: str) -> Any:
        return self.parts[key]


@pytest.fixture
def corpus(campaign: Campaign, store: Store, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    corpus = Corpus()
    monkeypatch.setattr("eagle3_assets.corpus.open", lambda path: corpus)
    for module in (verify, old_states):
        monkeypatch.setattr(module, "corpus_shards", lambda store: list(corpus.digests))
    monkeypatch.setattr(hidden_states, "part_digest", lambda store, key: corpus.digests[key])
    extractor: Any = open_extractor(campaign)
    for key in KEYS:
        write_partition(campaign, store, key, corpus.parts[key], extractor, corpus_part_digest=corpus.digests[key])
    return corpus


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 4
    path.write_bytes(data)


@pytest.mark.slow
def test_sound_states_are_called_sound_and_the_model_agrees(
    corpus: Corpus, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "--recompute", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"00000: 3 rows, 105 tokens, 0\.000 GB in 1 parts, 2 rows computed anew .worst distance [\d.e-]+.: sound", out
    )
    assert run(["verify", "--partition", "00001", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["sound"], [p["partition"] for p in facts["partitions"]]) == (True, ["00001"])


def test_a_flipped_bit_ends_with_1_and_names_the_part(corpus: Corpus, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store.states("00001") / "part-000.safetensors", 0.6)
    assert run(["verify"]) == 1
    out = capsys.readouterr().out
    assert "00000: 3 rows, 105 tokens, 0.000 GB in 1 parts: sound" in out
    assert re.search(r"states_match_rows: .*00001/part-000\.safetensors: checksum differs", out)
    flip(store.states("00000") / "manifest.json", 0.5)
    assert run(["verify", "--partition", "00000"]) == 1
    assert "manifest.json" in capsys.readouterr().out


@pytest.mark.slow
def test_states_of_an_older_corpus_are_called_outdated(corpus: Corpus, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.digests["00000"] = "another"
    assert run(["verify", "--partition", "00000"]) == 1
    assert "outdated: its corpus part changed since; materialize hidden_states again" in capsys.readouterr().out


def test_a_partition_that_is_not_there_is_one_line(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--partition", "00009"]) == 1
    assert re.search(r"^eagle3: .*holds no partition 00009; it holds 00000, 00001$", capsys.readouterr().err.strip())


def test_prune_shows_first_and_removes_only_when_told(corpus: Corpus, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    del corpus.digests["00000"]
    assert run(["prune"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"0\.000 GB  00000: not in the corpus\n +0\.000 GB  in 1 places may go; nothing was touched", out)
    assert store.states("00000").exists()
    assert run(["prune", "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["removed"], [Path(c["path"]).name for c in facts["candidates"]]) == (True, ["00000"])
    assert not store.states("00000").exists()
    assert not manifest_path(store.states("00000")).exists()
    assert store.states("00001").exists()


def test_without_a_corpus_nothing_counts_as_old(
    corpus: Corpus, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(old_states, "corpus_shards", lambda store: [])
    assert run(["prune", "--yes"]) == 1
    assert "nothing says which states are old" in capsys.readouterr().err
    assert store.states("00000").exists()


@pytest.mark.slow
@pytest.mark.parametrize("remove", [False, True])
def test_the_job_in_the_ui_does_the_same(corpus: Corpus, campaign: Campaign, store: Store, tmp_path: Path, remove: bool) -> None:
    corpus.digests["00001"] = "another"
    config = {"ops": {"prune": {"config": {"remove": remove, "archive": str(tmp_path / "cold")}}}}
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        assert prune_job(campaign).execute_in_process(run_config=config if remove else None, instance=instance).success
    assert store.states("00001").exists() is not remove
    assert (tmp_path / "cold" / "00001" / "manifest.json").exists() is remove
    assert store.states("00000").exists()


def test_what_a_resource_may_not_change_is_refused(campaign: Campaign) -> None:
    from eagle3_assets.errors import StateError
    from eagle3_assets.resources.gpu import GpuResource

    assert GpuResource.of(campaign).extractor(campaign).describe()["engine"] == "transformers"
    other = GpuResource.of(campaign).model_copy(update={"weights": "./other"})
    with pytest.raises(StateError, match=r"resource gpu: weights = './other', the campaign says 'embedded'"):
        other.extractor(campaign)


def test_a_partition_of_the_corpus_that_is_not_there_is_named(
    corpus: Corpus, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.digests["00002"] = "digest-00002"
    assert run(["verify"]) == 0
    assert "not there, so not looked at: 1 partitions of the corpus: 00002" in capsys.readouterr().out
    assert run(["verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["absent"] == ["00002"]
