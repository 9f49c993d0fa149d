"""The vLLM engine against a stub that speaks the protocol: right answers are taken, every way to go wrong has its own message."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle3_assets import states as states_room
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import CampaignError, StateError
from eagle3_assets.states.care.verify_states import judge_states
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.extractors.self_test import relative_error, run_self_test
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.extractors.vllm import VllmExtractor, _locked
from eagle3_assets.states.extractors.vllm_server import main, running_server, server_command
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store
from eagle3_assets_tests.states.conftest import CampaignMaker, N, make_packs, tiny_model
from eagle3_assets_tests.states.vllm_stub import Stub, serving

LAYERS = (2, 4, 6)
PACKS = make_packs((5, 40, 17, 1, 33, 8))
ROWS = [tuple(int(i) for i in p.input_ids) for p in PACKS]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("weights") / "model"
    tiny_model("deepseek_v3", torch.bfloat16).save_pretrained(folder)
    return folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


@pytest.fixture
def stub(saved: tuple[Path, Any], tmp_path: Path) -> Iterator[Stub]:
    with serving(Stub(saved[1], tmp_path / "exchange", (*LAYERS, N))) as running:
        yield running


Opener = Callable[..., VllmExtractor]


@pytest.fixture
def campaign_of(make_campaign: CampaignMaker, saved: tuple[Path, Any], tmp_path: Path) -> Callable[..., Campaign]:
    def make(*urls: str, more: str = "") -> Campaign:
        lines = f'engine = "vllm"\nurls = {json.dumps(urls)}\nexchange = "{tmp_path / "exchange"}"\nin_flight = 4\ntimeout_s = 5.0\n{more}'
        return make_campaign(weights=str(saved[0]), model_dtype="bfloat16", dtype="bfloat16", more=lines)

    return make


@pytest.fixture
def open_at(campaign_of: Callable[..., Campaign]) -> Iterator[Opener]:
    opened: list[VllmExtractor] = []

    def make(*urls: str, more: str = "") -> VllmExtractor:
        extractor = open_extractor(campaign_of(*urls, more=more))
        assert isinstance(extractor, VllmExtractor)
        opened.append(extractor)
        return extractor

    yield make
    for extractor in opened:
        extractor.close()


@pytest.mark.slow
def test_rows_come_back_in_order_equal_to_the_models_and_nothing_stays_in_the_exchange(
    stub: Stub, open_at: Opener, tmp_path: Path
) -> None:
    with serving(Stub(stub.model, stub.folder / "second", stub.layers)) as second:
        captured = open_at(stub.url, second.url).capture(ROWS, LAYERS)
        assert len(stub.asked) == len(second.asked) == 3, "servers take turns"
        assert max(stub.most_in_flight, second.most_in_flight) <= 4
    own = TransformersExtractor(stub.model, name="x", revision=None, fingerprint="x")
    for ids, row, expected in zip(ROWS, captured, own.capture(ROWS, LAYERS), strict=True):
        assert row.input_ids == ids
        assert row.states.dtype == torch.bfloat16
        assert relative_error(row.states, expected.states) <= 5e-3
    assert not [f for f in stub.folder.rglob("*") if f.is_file()]


@pytest.mark.slow
def test_a_partition_through_a_server_passes_the_self_test_and_every_check(
    stub: Stub, campaign_of: Any, open_at: Opener, store: Store
) -> None:
    campaign = campaign_of(stub.url)
    write_partition(campaign, store, "00000", PACKS, open_at(stub.url))
    assert all(v.passed for v in judge_states(campaign, store, "00000", PACKS))
    raw = states_room.open(store.states("00000")).manifest.raw
    assert raw["self_test"]["tolerance"]["nearer"] == 10.0
    assert (raw["model"]["engine"], raw["model"]["versions"]) == ("vllm", {"vllm": "0.32.0"})


@pytest.mark.slow
def test_a_target_too_large_to_load_is_proved_by_its_first_layers_and_its_head(
    stub: Stub, campaign_of: Any, open_at: Opener, store: Store
) -> None:
    more = 'reference = "partial"\n'
    campaign = campaign_of(stub.url, more=more)
    write_partition(campaign, store, "00000", PACKS, open_at(stub.url, more=more))
    assert all(v.passed for v in judge_states(campaign, store, "00000", PACKS))
    tested = states_room.open(store.states("00000")).manifest.raw["self_test"]
    assert (tested["reference"], [row["layer"] for row in tested["layers"]]) == ("partial", [2])
    assert tested["final"]["greedy_agrees"] >= 6


def shifted(by: int) -> Callable[[Stub], None]:
    def apply(stub: Stub) -> None:
        stub.layers = (*(k + by for k in LAYERS), N)

    return apply


def post_norm(stub: Stub) -> None:
    norm = FinalNorm(stub.model.model.norm.weight.detach().float().numpy(), stub.model.model.norm.variance_epsilon)
    stub.bend = lambda states, ids: (torch.cat([states[:, :3], norm.apply(states[:, 3:])], dim=1), ids)


def wrong_final(stub: Stub) -> None:
    stub.bend = lambda states, ids: (torch.cat([states[:, :3], states[:, 2:3]], dim=1), ids)


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["whole", "partial"])
@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (shifted(1), r"E_2 is not hidden_states\[2\]: nearest is hidden_states\[3\]"),
        (shifted(-1), r"E_2 is not hidden_states\[2\]: nearest is hidden_states\[1\]"),
        (post_norm, "the final state is post-norm"),
        (wrong_final, r"the final state is not (the input of the final norm|what the head reads)"),
    ],
)
def test_a_server_with_wrong_layers_or_norm_is_refused_with_the_distances(
    stub: Stub, open_at: Opener, defect: Callable[[Stub], None], message: str, reference: str
) -> None:
    defect(stub)
    with pytest.raises(StateError, match=rf"self-test of vllm .*{message}") as caught:
        run_self_test(open_at(stub.url, more=f'reference = "{reference}"\n'), LAYERS, "bfloat16")
    assert "\n" not in str(caught.value)


def bent(bend: Callable[[torch.Tensor, list[int]], Any]) -> Callable[[Stub], None]:
    return lambda stub: setattr(stub, "bend", bend)


def changed(**values: Any) -> Callable[[Stub], None]:
    return lambda stub: setattr(stub, "change", lambda answer: {**answer, **values})


def lost(stub: Stub) -> None:
    stub.after_write = lambda path: path.unlink()


def torn(stub: Stub) -> None:
    stub.after_write = lambda path: path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (bent(lambda s, ids: (s[:, :3], ids)), r"states of shape \(40, 3, 64\), expected 4 layers: .*vllm#46973"),
        (bent(lambda s, ids: (s[5:], ids)), r"35 rows of states for 40 tokens: a cached prefix .*--no-enable-prefix-caching"),
        (lost, r"cannot be read .*: its write failed .see its log., or the folder is not the same"),
        (torn, "cannot be read"),
        (changed(kv_transfer_params=None), r"runs without the connector; start it with: .*extract_hidden_states"),
        (
            changed(kv_transfer_params={"hidden_states_path": "/etc/passwd"}),
            r"wrote to /etc/passwd, expected .* in extraction\.exchange",
        ),
        (changed(kv_transfer_params={"hidden_states_path": "/x/../etc/a.safetensors"}), r"expected .* in extraction\.exchange"),
        (changed(choices=[]), "the answer has no choices"),
        (lambda stub: setattr(stub, "change", lambda _: ["x"]), "the answer is no JSON object"),
        (lambda stub: setattr(stub, "change", lambda _: b"<html>"), "the answer is no JSON;"),
        (lambda stub: stub.status.extend([400]), "answers 400: .*engine is.*busy"),
        (lambda stub: stub.status.extend([503] * 9), "answers 503"),
        (lambda stub: setattr(stub, "max_model_len", 40), r"a row of 40 tokens does not fit the server .* .max_model_len 40"),
    ],
)
def test_each_failure_has_its_own_line(stub: Stub, open_at: Opener, defect: Callable[[Stub], None], message: str) -> None:
    defect(stub)
    with pytest.raises(StateError, match=message) as caught:
        open_at(stub.url).capture([ROWS[1]], LAYERS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["file", "answer"])
def test_other_ids_than_were_sent_are_refused_wherever_they_show(
    stub: Stub, open_at: Opener, campaign_of: Any, store: Store, where: str
) -> None:
    def other_ids(answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][0]["prompt_token_ids"] = [1, *answer["choices"][0]["prompt_token_ids"][1:]]
        return answer

    if where == "file":
        stub.bend = lambda states, ids: (states, [ids[0] ^ 1, *ids[1:]])
    else:
        stub.change = other_ids
    with pytest.raises(StateError, match=r"ran other ids than it was sent .first difference at position 0."):
        write_partition(campaign_of(stub.url), store, "00000", PACKS, open_at(stub.url))


def test_a_row_that_got_lost_once_is_asked_for_again(stub: Stub, open_at: Opener) -> None:
    seen: list[Path] = []

    def lose_the_first(path: Path) -> None:
        seen.append(path)
        if len(seen) == 1:
            path.unlink()

    stub.after_write = lose_the_first
    stub.status.extend([500])
    assert open_at(stub.url).capture([ROWS[1]], LAYERS)[0].input_ids == ROWS[1]
    assert len(stub.asked) == 2


def test_a_server_that_is_not_there_is_one_line(open_at: Opener) -> None:
    with pytest.raises(StateError, match=r"http://127\.0\.0\.1:9/v1/models: cannot be reached .*is the vLLM server running"):
        open_at("http://127.0.0.1:9")


def test_an_address_that_is_no_server_is_refused_with_the_file(campaign_of: Any) -> None:
    with pytest.raises(CampaignError, match=r"extraction\.urls holds 'ftp://x': expected http://host:port"):
        campaign_of("ftp://x")


def test_the_command_asks_vllm_for_our_layers_and_the_final_state(campaign_of: Any) -> None:
    campaign = campaign_of()
    command = server_command(campaign, port=8123)
    speculative = json.loads(command[command.index("--speculative-config") + 1])
    assert speculative["draft_model_config"]["hf_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 4, 6, 9]}
    connector = json.loads(command[command.index("--kv-transfer-config") + 1])
    assert connector["kv_connector_extra_config"] == {"shared_storage_path": campaign.extraction.exchange}
    assert connector["kv_connector_module_path"] == "eagle3_cpu_connector"
    assert "--no-enable-prefix-caching" in command
    assert "pipeline" not in " ".join(command)


def test_the_launcher_prints_a_line_for_a_shell(
    campaign_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = campaign_of()
    monkeypatch.setenv("EAGLE3_CAMPAIGN", str(campaign.path))
    assert main(["--port", "8123"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[words.index("vllm") :] == server_command(campaign, 8123)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A stand-in for vLLM's Python that takes the same command line, answers /health, and writes its process id down."""
    fake = tmp_path / "python"
    fake.write_text(
        f"""#!{sys.executable}
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
class H(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), H).serve_forever()
"""
    )
    fake.chmod(0o755)
    return fake


@pytest.mark.slow
def test_a_server_of_our_own_is_started_waited_for_and_stopped(campaign_of: Any, fake: Path) -> None:
    with running_server(campaign_of(more=f'vllm_python = "{fake}"\n'), timeout_s=60) as url:
        assert urlopen(f"{url}/health").status == 200
    with pytest.raises(URLError):
        urlopen(f"{url}/health")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed")
def test_a_killed_driver_leaves_no_server_behind(campaign_of: Any, fake: Path, tmp_path: Path) -> None:
    campaign = campaign_of(more=f'vllm_python = "{fake}"\n')
    pid = os.fork()
    if pid == 0:
        # what other tests of this process ignore or block would be inherited by the server
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        with running_server(campaign, timeout_s=60):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    server = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{server}/cmdline").exists() and Path(f"/proc/{server}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the server lives on"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "raise SystemExit('RuntimeError: pin_memory=True requires a CUDA backend')",
            "ended with 1 before it answered: RuntimeError: pin_memory",
        ),
        (None, "cannot be started .* set extraction.vllm_python"),
    ],
)
def test_a_server_that_does_not_start_says_why(campaign_of: Any, tmp_path: Path, program: str | None, message: str) -> None:
    fake = tmp_path / "python"
    if program is not None:
        fake.write_text(f"#!{sys.executable}\n{program}\n")
        fake.chmod(0o755)
    with pytest.raises(StateError, match=message) as caught, running_server(campaign_of(more=f'vllm_python = "{fake}"\n')):
        pass
    assert "\n" not in str(caught.value)


def test_a_file_is_read_only_when_its_writer_has_let_go_of_the_lock(tmp_path: Path) -> None:
    path, entered = tmp_path / "a.safetensors", threading.Event()

    def read() -> None:
        with _locked(path, 30.0):
            entered.set()

    with Path(f"{path}.lock").open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        reader = threading.Thread(target=read)
        reader.start()
        assert not entered.wait(0.1)
        with pytest.raises(OSError, match=r"its writer held a\.safetensors\.lock for 0\.05 s"), _locked(path, 0.05):
            pass
    assert entered.wait(30)
    reader.join()
