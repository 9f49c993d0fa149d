"""The `vllm` engine: a client of servers that write hidden states to a folder (`extract_hidden_states`, vLLM 0.17 and later).

Belongs here: one request a row, a bounded number on their way over all servers, reading the file that a server wrote, and one message
for each way in which that goes wrong. Does not belong here: the server (`vllm_server.py`), whether E_k is E_k (`self_test.py`).

A server writes `{request}.safetensors` with `hidden_states` [T, layers, H] and `token_ids` [T] under a lock file, answers with its
path, and never looks at it again: a write that failed is only in the server's log (docs/research/hidden-states.md#4;
docs/research/eagle3-anchors.md#2.4). So every file is held against the ids that were sent. Several servers are data parallel:
each row goes to the next of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors.checkpoint import read_final_norm, reference_of_first_layers, text_config
from eagle3_assets.states.extractors.interface import Captured
from eagle3_assets.states.extractors.vllm_server import running_server, shell_line
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.format.layers import check_layers, require_prenorm
from eagle3_assets.states.target.weights import model_fingerprint

if TYPE_CHECKING:
    import torch

    from eagle3_assets.states.target.target_head import TargetHead

ATTEMPTS = 3  # of a request whose connection broke or whose file is not there: the row costs nothing but time
LOCK_POLL_S = 0.02


class BrokenExchange(StateError):
    """A transport fault: asked again before it counts."""


class VllmExtractor:
    """An `Extractor` (see `interface.py`) over running servers. Build with `of`; `close()` stops a server that it started."""

    def __init__(self, campaign: Campaign, urls: Sequence[str], resources: contextlib.ExitStack | None = None) -> None:
        import torch

        x, config = campaign.extraction, text_config(campaign)
        self._campaign = campaign
        self._urls = [url.rstrip("/") for url in urls]
        self._turn = itertools.count()
        self._exchange = Path(x.exchange)
        self._timeout_s, self._in_flight = x.timeout_s, x.in_flight
        self._stored_dtype: torch.dtype = getattr(torch, x.dtype)
        self._resources = resources or contextlib.ExitStack()
        self._pool = self._resources.enter_context(ThreadPoolExecutor(x.in_flight, thread_name_prefix="vllm"))
        self._n_layers, self._hidden_size = int(config["num_hidden_layers"]), int(config["hidden_size"])
        self._vocab_size = int(config["vocab_size"])
        self._reference: torch.Tensor | None = None
        models = [self._model_of(url) for url in self._urls]
        if len({m["id"] for m in models}) != 1:
            raise StateError(f"servers {', '.join(self._urls)} hold different models: {', '.join(str(m['id']) for m in models)}")
        self._model, self._max_length = str(models[0]["id"]), models[0].get("max_model_len")
        self._facts = {
            "engine": "vllm",
            "model": campaign.target.model,
            "revision": None,
            "fingerprint": model_fingerprint(campaign),
            "architecture": str((config.get("architectures") or ["unknown"])[0]),
            "dtype": campaign.target.dtype,
            "attention": None,
            "num_hidden_layers": self._n_layers,
            "hidden_size": self._hidden_size,
            "vocab_size": self._vocab_size,
            "device": "server",
            "batching": f"{len(self._urls)} servers, {x.in_flight} rows on their way",
            "versions": {"vllm": self._version(self._urls[0])},
        }

    @classmethod
    def of(cls, campaign: Campaign) -> VllmExtractor:
        """Over `extraction.urls`, or over a server that is started here. Raises StateError."""
        resources = contextlib.ExitStack()
        try:
            urls = campaign.extraction.urls or (resources.enter_context(running_server(campaign)),)
            extractor = cls(campaign, urls, resources)
            for key in ("num_hidden_layers", "hidden_size"):
                if extractor._facts[key] != getattr(campaign.target, key):
                    raise StateError(
                        f"{campaign.path}: target.{key} = {getattr(campaign.target, key)}, but config.json at target.weights = "
                        f"{campaign.target.weights!r} says {extractor._facts[key]}; one of the two is another model"
                    )
            return extractor
        except BaseException:
            resources.close()
            raise

    def describe(self) -> dict[str, Any]:
        """See `Extractor.describe`."""
        return dict(self._facts)

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        """See `Extractor.capture`."""
        require_prenorm(final)
        return list(self.stream(token_lists, layers))

    def stream(self, token_lists: Iterable[Sequence[int]], layers: Sequence[int]) -> Iterator[Captured]:
        """The same, row by row in the order given: no more than `in_flight` rows are asked for ahead of the one that is taken."""
        check_layers(layers, self._n_layers)
        waiting: deque[Future[Captured]] = deque()
        try:
            for ids in token_lists:
                waiting.append(self._pool.submit(self._row, tuple(ids), len(layers) + 1))
                if len(waiting) == self._in_flight:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def reference_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """See `Extractor.reference_states`: the target in transformers on the CPU, loaded for this and dropped.

        With `extraction.reference = "partial"` only the first layers: [low + 2, T, H], which is enough to tell E_low from its
        neighbours; the final state is then judged by the head (`greedy_ids`).
        """
        if self._campaign.extraction.reference == "partial":
            return reference_of_first_layers(self._campaign, tuple(token_ids), self._campaign.layers[0] + 2)
        from eagle3_assets.states.extractors.transformers import TransformersExtractor

        x = self._campaign.extraction.model_copy(update={"device": "cpu", "devices": ()})
        whole = TransformersExtractor.of(self._campaign.model_copy(update={"extraction": x}))
        try:
            return whole.reference_states(token_ids)
        finally:
            whole.close()

    def greedy_ids(self, token_lists: Sequence[Sequence[int]]) -> list[int]:
        """The id that the server puts behind each row at temperature 0: what head(norm(final state)) must agree with."""
        found = []
        for ids in token_lists:
            choice, path = self._ask(tuple(ids))
            self._remove(path)
            after = choice.get("token_ids")
            if not isinstance(after, list) or not after:
                raise StateError(f"{self._urls[0]}: the server did not return the ids that it generated (return_token_ids)")
            found.append(int(after[0]))
        return found

    def head(self) -> TargetHead:
        """The target's head, from the checkpoint."""
        from eagle3_assets.states.target.target_head import load_head

        return load_head(self._campaign, self.final_norm())

    def final_norm(self) -> FinalNorm:
        """See `Extractor.final_norm`: from the checkpoint."""
        return read_final_norm(self._campaign)

    def close(self) -> None:
        """Stop what was started."""
        self._resources.close()

    # ------------------------------------------------------------------------------------------------ one row
    def _row(self, ids: tuple[int, ...], n_slots: int) -> Captured:
        for attempt in range(ATTEMPTS):
            try:
                choice, path = self._ask(ids)
                return self._take(path, choice, ids, n_slots)
            except BrokenExchange:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _ask(self, ids: tuple[int, ...]) -> tuple[dict[str, Any], Path]:
        """(the answer's choice, path of the file that it names)."""
        url = self._urls[next(self._turn) % len(self._urls)]
        if self._max_length is not None and len(ids) >= int(self._max_length):
            raise StateError(
                f"a row of {len(ids)} tokens does not fit the server at {url} (max_model_len {self._max_length}, one of it for the id that is "
                "generated); start it with a larger --max-model-len or set corpus.max_length"
            )
        answer = self._request(
            url,
            "POST",
            "/v1/completions",
            {"model": self._model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "return_token_ids": True},
        )
        parameters = answer.get("kv_transfer_params") or {}
        where = parameters.get("hidden_states_path") if isinstance(parameters, dict) else None
        if not isinstance(where, str):
            raise StateError(
                f"{url}: the server answers without hidden states: it runs without the connector; start it with: "
                f"{shell_line(self._campaign, urlsplit(url).port or 80)}"
            )
        try:
            choice: dict[str, Any] = answer["choices"][0]
        except (KeyError, IndexError, TypeError):
            raise StateError(f"{url}: the answer has no choices; expected the shape of /v1/completions") from None
        return choice, self._inside(where, url)

    def _inside(self, where: str, url: str) -> Path:
        """The path, which is read and then removed: nothing outside the exchange folder may be named."""
        path = Path(where)
        if path.suffix != ".safetensors" or self._exchange.resolve() not in path.resolve().parents:
            raise StateError(
                f"{url}: the server wrote to {where}, expected a .safetensors file in extraction.exchange = {self._exchange}; give both the "
                "same folder (shared_storage_path of the server)"
            )
        return path

    def _take(self, path: Path, choice: dict[str, Any], ids: tuple[int, ...], n_slots: int) -> Captured:
        """Read what the server wrote, hold it against what was asked, and remove it."""
        from safetensors import SafetensorError, safe_open

        try:
            with _locked(path, self._timeout_s), safe_open(path, framework="pt") as handle:
                states, ran = handle.get_tensor("hidden_states"), handle.get_tensor("token_ids").tolist()
        except (OSError, SafetensorError) as error:
            raise BrokenExchange(
                f"{path}: the server named this file and it cannot be read ({error}): its write failed (see its log), or the folder is not "
                "the same on both sides"
            ) from None
        finally:
            self._remove(path)
        if states.ndim != 3 or states.shape[1] != n_slots:
            raise StateError(
                f"{path.name}: the server gave states of shape {tuple(states.shape)}, expected {n_slots} layers: it was started for other "
                "layers, or its model drops the final one (vllm#46973)"
            )
        if states.shape[0] != len(ids):
            raise StateError(
                f"{path.name}: the server gave {states.shape[0]} rows of states for {len(ids)} tokens: a cached prefix is left out by old "
                "versions (vllm#44485); start it with --no-enable-prefix-caching (and --no-enable-chunked-prefill)"
            )
        echoed = choice.get("prompt_token_ids")
        return Captured(states.to(self._stored_dtype), tuple(ran) if echoed in (None, list(ran)) else tuple(echoed or ()))

    def _remove(self, path: Path) -> None:
        for file in (path, Path(f"{path}.lock")):
            with contextlib.suppress(OSError):
                file.unlink()

    # ------------------------------------------------------------------------------------------------ HTTP
    def _model_of(self, url: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._request(url, "GET", "/v1/models")["data"][0]
            return {"id": found["id"], **found}
        except (KeyError, IndexError, TypeError):
            raise StateError(f"{url}/v1/models: names no model; expected an OpenAI-compatible vLLM server") from None

    def _version(self, url: str) -> str:
        with contextlib.suppress(StateError):
            return str(self._request(url, "GET", "/version").get("version"))
        return "unknown"

    def _request(self, url: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One exchange of JSON. Raises BrokenExchange (connection, 5xx), StateError (the server refuses)."""
        place = urlsplit(url)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=self._timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, text = response.status, response.read()
        except TimeoutError:
            raise BrokenExchange(f"{url}{path}: no answer within extraction.timeout_s = {self._timeout_s:g}") from None
        except (OSError, http.client.HTTPException) as error:
            raise BrokenExchange(f"{url}{path}: cannot be reached ({error}); is the vLLM server running?") from None
        finally:
            connection.close()
        if status != 200:
            said = " ".join(text[:300].decode(errors="replace").split())
            raise (BrokenExchange if status >= 500 else StateError)(f"{url}{path}: the server answers {status}: {said}")
        try:
            answer = json.loads(text)
        except ValueError:
            raise StateError(f"{url}{path}: the answer is no JSON; expected an OpenAI-compatible vLLM server") from None
        if not isinstance(answer, dict):
            raise StateError(f"{url}{path}: the answer is no JSON object; expected an OpenAI-compatible vLLM server")
        return answer


@contextlib.contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds the writer's lock, shared, while the file is read; a server that was started without locks has no lock file."""
    lock = Path(f"{path}.lock")
    try:
        fd = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(f"its writer held {lock.name} for {timeout_s:g} s") from None
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)
