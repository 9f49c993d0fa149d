"""Claims about what goes wrong: one readable line each, nothing lost, the exit code of the design."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import openrouter_standin as standin
from eagle3_assets.campaign import SHARDS
from eagle3_assets.wire import journal
from eagle3_assets_tests.e2e.conftest import Place, kill_nine, last_line, small_campaign
from openrouter_standin.service.launcher import stop

pytestmark = pytest.mark.e2e
CANARY = "sk-or-v1-canary-4f1d0c9be7"


def _one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The error as a person sees it: exit code, one line that starts with the program's name, no traceback."""
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("eagle3: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def _answers(place: Place, campaign: str, dataset: str = "b3_magicoder") -> dict[tuple[str, int], str]:
    """key -> request id of every finished answer in the journals, each once."""
    found: dict[tuple[str, int], str] = {}
    for shard in SHARDS:
        for answer in journal.read(place.root(campaign) / "answers" / dataset / shard):
            if answer.outcome == "finished":
                assert answer.key not in found, "bought twice"
                found[answer.key] = answer.request_id
    return found


# ------------------------------------------------------------------------------------------------ keys
def test_a_missing_key_names_the_variable_and_never_falls_back_to_the_stand_in(place: Place) -> None:
    campaign = small_campaign(place.folder, "real", real=True)
    line = _one_line(place.run("eagle3", "run", EAGLE3_CAMPAIGN=str(campaign)), 1)
    assert "OPENROUTER_API_KEY is not set" in line
    assert not (place.root("real") / "standin").exists()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def served(place: Place) -> Iterator[tuple[str, str, Place]]:
    """`eagle3 standin serve` in the foreground: (base URL, key, place)."""
    port = _free_port()
    server = place.start("eagle3", "standin", "serve", "--port", str(port), "--folder", str(place.folder / "served"))
    assert server.stdout is not None
    shown = ""
    while "curl" not in shown and (line := server.stdout.readline()):
        shown += line
    base = re.search(r"http://127\.0\.0\.1:\d+/api/v1", shown)
    key = re.search(r"(?m)^key +(\S+)", shown)
    assert base and key, shown
    yield base[0], key[1], place
    kill_nine(server)


def test_a_refused_key_stops_at_once_and_shows_nowhere(served: tuple[str, str, Place]) -> None:
    base, _, place = served
    campaign = small_campaign(place.folder, "real", real=True)
    done = place.run("eagle3", "run", EAGLE3_CAMPAIGN=str(campaign), OPENROUTER_BASE_URL=base, OPENROUTER_API_KEY=CANARY)
    line = _one_line(done, 1)
    assert "refused the key" in line and "OPENROUTER_API_KEY" in line
    assert CANARY not in done.stdout + done.stderr
    for path in place.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


def test_real_money_needs_an_approval_and_then_flows(served: tuple[str, str, Place]) -> None:
    base, key, place = served
    campaign = small_campaign(place.folder, "real", real=True)
    env = {"EAGLE3_CAMPAIGN": str(campaign), "OPENROUTER_BASE_URL": base, "OPENROUTER_API_KEY": key}
    line = _one_line(place.run("eagle3", "run", "--until", "answers", **env), 1)
    assert "nothing is approved" in line and "eagle3 plan --approve USD" in line
    assert place.run("eagle3", "plan", "--approve", "2", **env).returncode == 1  # the budget is 1 USD
    assert place.run("eagle3", "plan", "--approve", "1", **env).returncode == 0
    assert place.run("eagle3", "run", "--until", "answers", **env).returncode == 0
    assert len(_answers(place, "real")) == 24


def test_an_occupied_port_is_one_line(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = _one_line(place.run("eagle3", "standin", "serve", "--port", str(port)), 1)
    assert str(port) in line


# ------------------------------------------------------------------------------------------------ budget
def test_a_budget_stop_is_exit_3_keeps_what_was_paid_and_resumes(place: Place) -> None:
    name = "tight"
    campaign = small_campaign(place.folder, name, rows=80, campaign_usd="0.008", approved_usd="0.008", pilot_usd="0.005")
    done = place.run("eagle3", "run", "--until", "answers", EAGLE3_CAMPAIGN=str(campaign))
    line = _one_line(done, 3)
    assert "stopped on budget" in line and "eagle3 close" in line
    before = _answers(place, name)
    money = json.loads(place.run("eagle3", "status", "--json", EAGLE3_CAMPAIGN=str(campaign)).stdout)["money"]
    assert 0 < len(before) < 80 and 0 < money["spent_usd"] <= 0.008
    richer = small_campaign(place.folder, name, rows=80, campaign_usd="0.5", approved_usd="0.5", pilot_usd="0.005")
    assert place.run("eagle3", "run", "--until", "answers", EAGLE3_CAMPAIGN=str(richer)).returncode == 0
    after = _answers(place, name)
    assert len(after) == 80 and before.items() <= after.items()


def test_a_closed_dataset_goes_on_with_what_is_there(place: Place) -> None:
    campaign = small_campaign(place.folder, "tight", rows=80, campaign_usd="0.008", approved_usd="0.008", pilot_usd="0.005")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    assert place.run("eagle3", "run", "--until", "answers", **env).returncode == 3
    assert place.run("eagle3", "close", "b3_magicoder", **env).returncode == 0
    done = place.run("eagle3", "run", "--until", "tokens", **env)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------ files
def test_a_torn_journal_loses_only_the_torn_record_and_glues_nothing(place: Place) -> None:
    campaign = small_campaign(place.folder, "torn")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    assert place.run("eagle3", "run", "--until", "answers", **env).returncode == 0
    before = _answers(place, "torn")
    (segment,) = (place.root("torn") / "answers" / "b3_magicoder" / "00").glob("segment-*")
    segment.write_bytes(segment.read_bytes()[:-40])
    assert place.run("eagle3", "run", "--until", "answers", **env).returncode == 0
    after = _answers(place, "torn")
    assert after.keys() == before.keys()
    assert sum(before[k] != after[k] for k in before) == 1


def test_a_corrupt_parquet_is_named_and_made_again(place: Place) -> None:
    campaign = small_campaign(place.folder, "corrupt")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    assert place.run("eagle3", "run", "--until", "tokens", **env).returncode == 0
    bad = place.root("corrupt") / "tokens" / "b3_magicoder" / "05.parquet"
    bad.write_bytes(b"PAR1 not any more")
    status = json.loads(place.run("eagle3", "status", "--json", **env).stdout)
    assert status["stages"]["tokens"] == {"current": 15, "damaged": 1}
    refused = place.run(
        "dagster", "asset", "materialize", "-m", "eagle3_assets.definitions", "--select", "report/b3_magicoder", **env
    )
    assert refused.returncode == 1
    assert "tokens/b3_magicoder partition 05 is damaged" in last_line(refused), refused.stderr[-600:]
    done = place.run("eagle3", "run", "--until", "report", **env)
    assert done.returncode == 0, done.stderr


def test_a_campaign_changed_after_money_was_spent_is_refused_with_the_difference(place: Place) -> None:
    campaign = small_campaign(place.folder, "changed")
    assert place.run("eagle3", "run", "--until", "answers", EAGLE3_CAMPAIGN=str(campaign)).returncode == 0
    colder = small_campaign(place.folder, "changed", temperature="0.6")
    line = _one_line(place.run("eagle3", "run", "--force", "--until", "answers", EAGLE3_CAMPAIGN=str(colder)), 2)
    assert "sampling was" in line and '"temperature": 0.6' in line and str(colder) in line


def _tmpfs(folder: Path, kilobytes: int) -> bool:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True)
    return mounted.returncode == 0


def test_a_full_disk_is_one_line_and_nothing_paid_is_lost(place: Place, tmp_path: Path) -> None:
    small = tmp_path / "small"
    if os.geteuid() != 0 or not _tmpfs(small, 1000):
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        campaign = small_campaign(place.folder, "full", rows=80, in_flight="2")
        env = {"EAGLE3_CAMPAIGN": str(campaign), "EAGLE3_DATA": str(small)}
        line = _one_line(place.run("eagle3", "run", "--until", "tokens", **env), 1)
        assert "no space left" in line or "free space" in line or "no room" in line, line
        # the disk grows (here: a larger one with the same files), the run goes on, and nothing is bought twice
        roomy = place.folder / "roomy"
        shutil.copytree(small, roomy, ignore=shutil.ignore_patterns("*.lock", "standin"))
        before = {
            a.key
            for s in SHARDS
            for a in journal.read(roomy / "full" / "answers" / "b3_magicoder" / s)
            if a.outcome == "finished"
        }
        shutil.rmtree(place.folder / "data" / "dagster")  # it belongs to the small data root
        done = place.run("eagle3", "run", "--until", "tokens", **{**env, "EAGLE3_DATA": str(roomy)})
        assert done.returncode == 0, done.stderr
        after = [
            a.key
            for s in SHARDS
            for a in journal.read(roomy / "full" / "answers" / "b3_magicoder" / s)
            if a.outcome == "finished"
        ]
        assert len(after) == len(set(after)) == 80 and before <= set(after)
    finally:
        for folder in (small / "full" / "standin", place.folder / "roomy" / "full" / "standin"):
            if folder.exists():
                stop(folder)
        subprocess.run(["umount", "-l", str(small)], check=False)


# ------------------------------------------------------------------------------------------------ two at once, kills, shards
def _with_profiles(campaign: Path, **settings: str) -> Path:
    """`campaign` with stand-in profiles of its own: the default ones, and these settings."""
    text = (Path(standin.__file__).parent / "profiles" / "default.toml").read_text()
    for key, value in settings.items():
        text, n = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert n == 1, key
    profiles = campaign.with_suffix(".profiles.toml")
    profiles.write_text(text)
    kind = 'kind = "embedded"'
    campaign.write_text(campaign.read_text().replace(kind, f'{kind}\nstandin_profiles = "{profiles}"', 1))
    return campaign


def _slow_campaign(place: Place, name: str, **more: str) -> Path:
    """At real speed and few at once, so that a run is still busy when the test acts."""
    return _with_profiles(small_campaign(place.folder, name, rows=48, in_flight="4", **more), time_scale="1.5")


def _wait_for_answers(place: Place, name: str, at_least: int) -> None:
    """Until the journals hold some answers: the journal is the event that the test waits for."""
    deadline = time.monotonic() + 120
    folder = place.root(name) / "answers"
    while time.monotonic() < deadline:
        if sum(p.read_bytes().count(b"\n") for p in folder.rglob("segment-*")) >= at_least:
            return
        time.sleep(0.05)
    raise AssertionError("no answers arrived")


def test_a_second_run_on_a_shard_names_the_owner_and_after_kill_nine_it_resumes_at_once(place: Place) -> None:
    campaign = _slow_campaign(place, "twice")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    assert place.run("eagle3", "run", "--until", "plan", **env).returncode == 0
    command = ("dagster", "asset", "materialize", "-m", "eagle3_assets.definitions", "--select", "answers/b3_magicoder")
    first = place.start(*command, "--partition-range", "00...15", **env)
    _wait_for_answers(place, "twice", 6)
    second = place.run(*command, "--partition", "03", **env)
    assert second.returncode == 1
    assert re.search(r"^eagle3: answers/b3_magicoder shard 03 is in use by pid \d+ on ", last_line(second)), last_line(second)
    kill_nine(first)
    before = _answers(place, "twice")
    resumed = place.run("eagle3", "run", "--until", "answers", **env)
    assert resumed.returncode == 0, resumed.stderr
    after = _answers(place, "twice")
    assert len(after) == 48 and before.items() <= after.items()


def test_ctrl_c_is_exit_130_and_the_next_run_resumes(place: Place) -> None:
    campaign = _slow_campaign(place, "stopped", stop_grace_s="0.5")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    running = place.start("eagle3", "run", "--until", "answers", **env)
    _wait_for_answers(place, "stopped", 6)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert "Traceback" not in stderr and "interrupted" in stderr
    runs = sqlite3.connect(place.folder / "data" / "dagster" / "history" / "runs.db")
    newest = runs.execute("SELECT status FROM runs ORDER BY id DESC LIMIT 1").fetchone()
    assert newest == ("CANCELED",)  # as Terminate in the UI: what is missing is not among what failed
    before = _answers(place, "stopped")
    assert place.run("eagle3", "run", "--until", "answers", **env).returncode == 0
    assert before.items() <= _answers(place, "stopped").items()


def test_one_incomplete_shard_fails_the_run_and_the_others_stay_recorded(place: Place) -> None:
    """A prompt whose only attempt meets a provider that is down: its shard stays incomplete."""
    campaign = _with_profiles(small_campaign(place.folder, "holes", attempts="1"), rates="{ 502 = 0.15 }")
    env = {"EAGLE3_CAMPAIGN": str(campaign)}
    done = place.run("eagle3", "run", "--until", "answers", **env)
    line = _one_line(done, 1)
    assert re.search(r"answers/b3_magicoder shard \d\d lacks \d+ of \d+", line), line
    recorded = {p.name.split(".")[0] for p in (place.root("holes") / "answers" / "b3_magicoder").glob("*.manifest.json")}
    lacking = set(re.findall(r"shard (\d\d) lacks", line))
    assert recorded and lacking and not recorded & lacking
