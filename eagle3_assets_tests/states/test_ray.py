"""A real local Ray cluster with two workers (`make test-ray`, marker `ray`): same bytes as in process, a killed worker included."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets import states
from eagle3_assets.errors import StateError
from eagle3_assets.states.care.verify_states import judge_states
from eagle3_assets.states.extractors import open_engine, open_extractor
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store, is_current, read_manifest
from eagle3_assets_tests.states.conftest import CampaignMaker, make_packs, tiny_model

pytestmark = pytest.mark.ray
LENGTHS = (20, 35, 1, 50, 18, 60, 33, 47, 12, 29, 55, 40, 8, 70) * 3
POOL = 'engine = "ray"\nworkers = 2\n'


@pytest.fixture(autouse=True, scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: run `make test-ray`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # 15 by default: on a busy machine of two cores they would wait for ever
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def parts_of(store: Store) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in store.states("00000").iterdir() if f.name.startswith("part-")}


def test_two_workers_give_the_bytes_of_one_process_even_when_one_is_killed(make_campaign: CampaignMaker, tmp_path: Path) -> None:
    tiny_model("deepseek_v3").save_pretrained(tmp_path / "model")
    alone, packs = make_campaign(name="alone"), make_packs(LENGTHS)
    here = Store(tmp_path / "here")
    extractor = open_extractor(alone)
    write_partition(alone, here, "00000", packs, extractor)
    extractor.close()  # type: ignore[union-attr]

    pooled, there, killed = make_campaign(name="pooled", more=POOL), Store(tmp_path / "there"), Store(tmp_path / "killed")
    pool: Any = open_engine(pooled)
    try:
        figures = write_partition(pooled, there, "00000", packs, pool)
        assert figures["parts"] >= 12
        assert parts_of(there) == parts_of(here)
        before = pool.pids()
        assert len(set(before)) == 2
        assert os.getpid() not in before

        def kill_one_in_mid_run() -> None:
            while not list(killed.states("00000").glob("part-00[0-9].json")):
                time.sleep(0.002)
            os.kill(before[0], signal.SIGKILL)

        killer = threading.Thread(target=kill_one_in_mid_run)
        killer.start()
        tokens: list[int] = []
        figures = write_partition(pooled, killed, "00000", packs, pool, on_tokens=tokens.append)
        killer.join()
        assert before[0] not in pool.pids(), "it really died, and another took its place"
        assert sum(tokens) == sum(LENGTHS)
        assert parts_of(killed) == parts_of(here)
        assert all(v.passed for v in judge_states(pooled, killed, "00000", packs))
        assert not list(killed.states("00000").glob("*.tmp"))
        manifest = states.open(killed.states("00000")).manifest
        assert manifest.raw["self_test"]["passed"] is True
        committed = read_manifest(here.states("00000"))
        assert committed is not None
        assert is_current(killed.states("00000"), committed.inputs), "where the model ran does not make states stale"
    finally:
        pool.close()


def test_a_worker_with_another_model_may_not_write(make_campaign: CampaignMaker, tmp_path: Path, store: Store) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    pool: Any = open_engine(make_campaign(more=POOL))
    try:
        for parameter in (model := tiny_model("llama")).parameters():
            parameter.data.mul_(1.001)
        packs = make_packs((20, 30))
        pool.prove((2, 4, 6), "float32")
        model.save_pretrained(tmp_path / "model")  # as a node whose copy of the weights is another one
        other: Any = open_engine(make_campaign(more=POOL))
        other._fingerprint = pool._fingerprint
        with pytest.raises(StateError, match="a Ray worker holds model"):
            write_partition(make_campaign(more=POOL), store, "00000", packs, other)
        other.close()
    finally:
        pool.close()


def test_a_worker_that_cannot_start_says_why_in_one_line(make_campaign: CampaignMaker, tmp_path: Path, store: Store) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    campaign = make_campaign(more=POOL, device="cuda:7")
    pool: Any = open_engine(campaign)
    try:
        with pytest.raises(
            StateError, match=r"a Ray worker may not write: .*extraction\.device = 'cuda:7' cannot be used"
        ) as caught:
            write_partition(campaign, store, "00000", make_packs((20,)), pool)
        assert "\n" not in str(caught.value)
    finally:
        pool.close()
