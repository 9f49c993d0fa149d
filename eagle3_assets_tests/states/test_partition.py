"""Parts and partitions on disk: readable by anyone, resumed by part, never half-believed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from eagle3_assets import states as states_room
from eagle3_assets.campaign import Campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.errors import StateError, StoreError
from eagle3_assets.states.care.verify_states import judge_states
from eagle3_assets.states.extractors import Captured, open_extractor
from eagle3_assets.states.format import part as part_module
from eagle3_assets.states.format.planes import pack_planes, unpack_planes
from eagle3_assets.states.format.writeback import start_writeback
from eagle3_assets.states.partition import packs_digest, plan_parts, state_inputs, write_partition
from eagle3_assets.store import Store, is_current, read_manifest
from eagle3_assets_tests.states.conftest import CampaignMaker, FormulaEngine, N, make_packs

LENGTHS = (20, 35, 1, 50, 18, 60, 33, 47, 12, 29, 55, 40, 8, 70)  # 478 tokens; fp32 parts of 64 KiB hold 63 tokens, so many parts
SHARD = "00000"


@pytest.fixture
def packs() -> list[Pack]:
    return make_packs(LENGTHS)


@pytest.fixture
def campaign(make_campaign: CampaignMaker) -> Campaign:
    return make_campaign()


def assert_equals_corpus(store: Store, packs: list[Pack], engine: FormulaEngine, dtype: torch.dtype = torch.float32) -> None:
    """Every row, by the reader, against the corpus and the formula."""
    opened = states_room.open(store.states(SHARD))
    assert [(r.sample_id, r.turn, r.index) for r in opened] == [(p.sample_id, p.turn, p.index) for p in packs]
    for pack, row in zip(packs, opened, strict=True):
        assert np.array_equal(row.input_ids, pack.input_ids)
        assert np.array_equal(row.loss_mask, pack.loss_mask)
        ids = [int(i) for i in pack.input_ids]
        wanted = torch.stack([engine.states_of(ids, k) for k in (2, 4, 6, N)], dim=1).to(dtype)
        assert torch.equal(row.hidden_states, wanted)


def test_a_part_that_is_gone_or_short_is_seen_without_reading_any(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    write_partition(campaign, store, SHARD, packs, FormulaEngine())
    read_manifest(store.states(SHARD), verify=True)  # the checksums that were taken while streaming are those of the files
    part = sorted(store.states(SHARD).glob("part-*.safetensors"))[1]
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"part-001\.safetensors: expected \d+ bytes"):
        read_manifest(store.states(SHARD))
    part.unlink()
    with pytest.raises(StoreError, match=r"part-001\.safetensors: expected \d+ bytes, found no file"):
        read_manifest(store.states(SHARD))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_stock_safetensors_library_reads_equal_tensors(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack], dtype: str
) -> None:
    campaign = make_campaign(dtype=dtype)
    engine = FormulaEngine(stored_dtype=getattr(torch, dtype))
    figures = write_partition(campaign, store, SHARD, packs, engine)
    files = sorted(store.states(SHARD).glob("part-*.safetensors"))
    assert [f.name for f in files] == [f"part-{i:03d}.safetensors" for i in range(figures["parts"])]
    assert figures["parts"] >= 4
    assert figures["tokens"] == sum(LENGTHS)
    assert figures["bytes"] == sum(f.stat().st_size for f in files)
    row = 0
    for file in files:
        tensors = load_file(file)
        assert {n: t.dtype for n, t in tensors.items()} == {
            "hidden_states": getattr(torch, dtype),
            "input_ids": torch.int32,
            "loss_mask": torch.uint8,
            "cu_seqlens": torch.int64,
        }
        cu = tensors["cu_seqlens"].tolist()
        for start, end in itertools.pairwise(cu):
            ids = [int(i) for i in packs[row].input_ids]
            assert tensors["input_ids"][start:end].tolist() == ids
            assert tensors["loss_mask"][start:end].tolist() == packs[row].loss_mask.tolist()
            wanted = torch.stack([engine.states_of(ids, k) for k in (2, 4, 6, N)], dim=1)
            assert torch.equal(tensors["hidden_states"][start:end], wanted.to(getattr(torch, dtype)))
            row += 1
        header, _, data_start = part_module.read_header(file)
        for tensor, alignment in (("cu_seqlens", 8), ("input_ids", 4), ("hidden_states", 4)):
            assert (data_start + header[tensor].start) % alignment == 0, "a mapped tensor starts at a multiple of its width"
        with safe_open(file, framework="pt") as handle:
            metadata = handle.metadata()
        assert metadata["convention"] == "E_k=input_of_decoder_layer_k"
        assert (metadata["final"], metadata["layers"], metadata["num_hidden_layers"]) == ("prenorm", "[2, 4, 6]", "9")
        assert (metadata["schema_version"], metadata["model_fingerprint"], metadata["dtype"]) == ("2", "formula-1", dtype)
    assert row == len(packs)
    assert_equals_corpus(store, packs, engine, getattr(torch, dtype))


def test_the_manifest_says_what_the_states_are(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    write_partition(campaign, store, SHARD, packs, FormulaEngine(), corpus_part_digest="abc")
    raw = json.loads((store.states(SHARD) / "manifest.json").read_text())
    assert raw["layers"] == [2, 4, 6]
    assert raw["slots"] == ["low", "mid", "high", "final_prenorm"]
    assert (raw["convention"], raw["final"], raw["dtype"]) == ("E_k=input_of_decoder_layer_k", "prenorm", "float32")
    assert raw["corpus_part_digest"] == "abc"
    assert raw["model"]["fingerprint"] == "formula-1"
    assert raw["samples"] == [[p.sample_id, p.turn] for p in packs]
    assert raw["self_test"]["passed"] is True
    assert raw["final_norm"]["file"] == "final_norm.safetensors"
    assert is_current(store.states(SHARD), state_inputs(campaign, "abc", "formula-1"))
    assert not is_current(store.states(SHARD), state_inputs(campaign, "abd", "formula-1"))


def test_parts_are_cut_by_bytes_in_corpus_order() -> None:
    assert plan_parts([3, 3, 3, 10, 1], 10, 60) == [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    assert plan_parts([5], 10, 1) == [range(0, 1)]
    assert plan_parts([], 10, 60) == []
    cuts = plan_parts(LENGTHS, 1029, 1 << 16)
    assert [i for cut in cuts for i in cut] == list(range(len(LENGTHS)))


def test_writing_begins_while_the_part_grows_and_changes_nothing(
    campaign: Campaign, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []

    def spy(fd: int, offset: int, length: int) -> None:
        ranges.append((offset, length))
        start_writeback(fd, offset, length)

    monkeypatch.setattr(part_module, "WRITEBACK_BYTES", 20_000)
    monkeypatch.setattr(part_module, "start_writeback", spy)
    write_partition(campaign, store, SHARD, packs, FormulaEngine())
    assert len(ranges) > 5
    assert all(length >= 20_000 for _, length in ranges)
    assert_equals_corpus(store, packs, FormulaEngine())
    read_manifest(store.states(SHARD), verify=True)


def test_equal_input_gives_equal_bytes(campaign: Campaign, store: Store, packs: list[Pack], tmp_path: Path) -> None:
    other = Store(tmp_path / "elsewhere")
    for place in (store, other):
        write_partition(campaign, place, SHARD, packs, FormulaEngine())
    names = sorted(f.name for f in store.states(SHARD).iterdir())
    assert names == sorted(f.name for f in other.states(SHARD).iterdir())
    for name in names:
        assert (store.states(SHARD) / name).read_bytes() == (other.states(SHARD) / name).read_bytes(), name


def test_rows_are_found_by_number_and_by_sample_without_a_copy(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    doubled = [*packs, Pack(200, "s0003", 7, "b3_magicoder", "B1", SHARD, packs[0].input_ids, packs[0].loss_mask)]
    engine = FormulaEngine()
    write_partition(campaign, store, SHARD, doubled, engine)
    opened = states_room.open(store.states(SHARD))
    assert len(opened) == 15
    assert opened["s0005"].sample_id == "s0005"
    assert opened["s0003", 7].index == 200
    assert opened["s0003", 0].index == 103
    assert opened[-1].turn == 7
    with pytest.raises(KeyError, match="turns 0, 7"):
        opened["s0003"]
    with pytest.raises(KeyError, match="holds no row 'nobody'"):
        opened["nobody"]
    row = opened[5]
    assert row.hidden_states.data_ptr() == row.raw.__array_interface__["data"][0], "the tensor is the mapping"
    assert row.raw.base is not None
    # writing into a row never reaches the file
    before = opened.parts[0].path.read_bytes()
    opened[0].hidden_states.fill_(0.0)
    assert opened.parts[0].path.read_bytes() == before
    normed = opened.final_norm.apply(opened[1].hidden_states[:, 3])
    assert torch.equal(normed, engine.reference_states([int(i) for i in doubled[1].input_ids])[N])


def test_a_second_run_captures_nothing_and_a_changed_input_only_its_own_parts(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack]
) -> None:
    campaign = make_campaign()
    tokens: list[int] = []
    write_partition(campaign, store, SHARD, packs, FormulaEngine(), on_tokens=tokens.append)
    assert sum(tokens) == sum(LENGTHS)
    assert max(tokens) <= max(LENGTHS), "progress comes row by row, not part by part"
    again = FormulaEngine()
    tokens.clear()
    figures = write_partition(campaign, store, SHARD, packs, again, on_tokens=tokens.append)
    assert again.captured == []
    assert figures["parts_kept"] == figures["parts"]
    assert sum(tokens) == sum(LENGTHS)
    for changed, engine in [
        (make_campaign(layers="[1, 4, 6]"), FormulaEngine()),
        (make_campaign(dtype="bfloat16"), FormulaEngine(stored_dtype=torch.bfloat16)),
        (make_campaign(dtype="bfloat16"), FormulaEngine(stored_dtype=torch.bfloat16, fingerprint="another model")),
    ]:
        figures = write_partition(changed, store, SHARD, packs, engine)
        assert figures["parts_kept"] == 0
        assert states_room.open(store.states(SHARD)).layers == changed.layers


def test_fewer_parts_leave_no_file_of_the_old_ones(make_campaign: CampaignMaker, store: Store, packs: list[Pack]) -> None:
    write_partition(make_campaign(), store, SHARD, packs, FormulaEngine())
    write_partition(make_campaign(part_bytes=1 << 24), store, SHARD, packs, FormulaEngine())
    assert sorted(f.name for f in store.states(SHARD).iterdir()) == [
        "final_norm.safetensors",
        "manifest.json",
        "part-000.json",
        "part-000.safetensors",
    ]


def test_a_part_of_the_wrong_size_is_not_kept(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    write_partition(campaign, store, SHARD, packs, FormulaEngine())
    file = store.states(SHARD) / "part-002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"part-002\.safetensors: found"):
        states_room.open(store.states(SHARD))
    figures = write_partition(campaign, store, SHARD, packs, FormulaEngine())
    assert figures["parts_kept"] == figures["parts"] - 1
    assert_equals_corpus(store, packs, FormulaEngine())


# ---------------------------------------------------------------------------------------------------- crashes
def run_and_die(campaign: Campaign, store: Store, packs: list[Pack], arm: Callable[[FormulaEngine], None]) -> bool:
    """Run write_partition in a forked process that may kill itself with SIGKILL; True when it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            engine = FormulaEngine()
            arm(engine)
            write_partition(campaign, store, SHARD, packs, engine)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_replace(number: int, after: bool) -> None:
    """Kill this process at its `number`-th rename, before or after it happens."""
    real, count = os.replace, 0

    def replace(src: Any, dst: Any) -> None:
        nonlocal count
        count += 1
        if count == number and not after:
            die()
        real(src, dst)
        if count == number:
            die()

    os.replace = replace  # type: ignore[assignment]


def committed_parts(store: Store) -> dict[str, int]:
    """Record name -> inode of the part's file."""
    folder = store.states(SHARD)
    return {r.stem: r.with_suffix(".safetensors").stat().st_ino for r in folder.glob("part-*.json")} if folder.exists() else {}


@pytest.mark.slow
def test_kill_9_at_any_rename_or_capture_loses_only_the_open_part(
    make_campaign: CampaignMaker, packs: list[Pack], tmp_path: Path
) -> None:
    """Every rename (before and after it) of a partition, and captures in the middle of a part; then resume in this process."""
    campaign = make_campaign(batch_tokens=4)  # windows of 16 tokens: a part needs several captures
    probe = Store(tmp_path / "probe")
    n_parts = write_partition(campaign, probe, SHARD, packs, FormulaEngine())["parts"]
    arms: list[Callable[[FormulaEngine], None]] = []
    for number in range(1, 2 * n_parts + 4):  # norm file, two a part, manifest.json, the commit beside the folder
        arms += [lambda _, n=number, a=after: die_at_replace(n, a) for after in (False, True)]  # type: ignore[misc]
    for call in (4, 7, 12):

        def arm(engine: FormulaEngine, call: int = call) -> None:
            engine.on_capture = lambda number: die() if number == call else None

        arms.append(arm)
    killed = 0
    for i, kill in enumerate(arms):
        store = Store(tmp_path / f"run{i}")
        killed += run_and_die(campaign, store, packs, kill)
        finished = committed_parts(store)
        engine = FormulaEngine()
        figures = write_partition(campaign, store, SHARD, packs, engine)
        assert figures["parts_kept"] == len(finished), i
        after = committed_parts(store)
        assert all(after[name] == inode for name, inode in finished.items()), "a finished part was written again"
        rows_done = {
            row.sample_id
            for part in states_room.open(store.states(SHARD)).parts
            if part.path.stem in finished
            for row in part.rows
        }
        recaptured = {p.sample_id for p in packs if tuple(int(t) for t in p.input_ids) in engine.captured}
        assert not rows_done & recaptured, "a finished row was computed again"
        assert_equals_corpus(store, packs, engine)
        assert all(v.passed for v in judge_states(campaign, store, SHARD, packs))
        assert not list(store.states(SHARD).glob("*tmp*"))
    assert killed == len(arms) > 20, "every arm really killed its process"


def test_nothing_is_believed_before_the_manifest(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    def arm(engine: FormulaEngine) -> None:
        engine.on_capture = lambda number: die() if number == 6 else None

    assert run_and_die(campaign, store, packs, arm)
    assert committed_parts(store)
    with pytest.raises(StateError, match=r"manifest\.json: is missing, so nothing in .* is committed"):
        states_room.open(store.states(SHARD))
    assert not is_current(store.states(SHARD), state_inputs(campaign, packs_digest(packs), "formula-1"))


def test_a_killed_run_takes_back_the_commit_of_the_states_that_it_replaces(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack]
) -> None:
    old = make_campaign()
    write_partition(old, store, SHARD, packs, FormulaEngine())
    new = make_campaign(layers="[1, 4, 6]")

    def arm(engine: FormulaEngine) -> None:
        engine.on_capture = lambda number: die() if number == 5 else None

    assert run_and_die(new, store, packs, arm)
    assert not is_current(store.states(SHARD), state_inputs(old, packs_digest(packs), "formula-1"))
    with pytest.raises(StateError, match="is missing"):
        states_room.open(store.states(SHARD))


def test_a_full_disk_is_one_line_and_what_is_committed_stays(
    campaign: Campaign, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    real = part_module._HashingWriter.write
    room = 200_000

    def write(self: Any, data: bytes | memoryview) -> None:
        nonlocal written
        written += len(data)
        if written > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data)

    monkeypatch.setattr(part_module._HashingWriter, "write", write)
    with pytest.raises(StateError, match="no space left on the disk") as caught:
        write_partition(campaign, store, SHARD, packs, FormulaEngine())
    assert "\n" not in str(caught.value)
    finished = committed_parts(store)
    assert finished
    assert not list(store.states(SHARD).glob("*tmp*")), "the unfinished file gives its room back"
    room = 10**9
    engine = FormulaEngine()
    assert write_partition(campaign, store, SHARD, packs, engine)["parts_kept"] == len(finished)
    assert all(committed_parts(store)[name] == inode for name, inode in finished.items())
    assert_equals_corpus(store, packs, engine)


@pytest.mark.slow
def test_a_real_file_size_limit_is_one_line_too(tmp_path: Path, make_campaign: CampaignMaker) -> None:
    """The operating system refuses the write (RLIMIT_FSIZE), as a quota would; no traceback, nothing half-written is left."""
    make_campaign()
    program = f"""
import resource, signal, torch
from pathlib import Path
from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import StateError
from eagle3_assets.states.partition import write_partition
from eagle3_assets.store import Store
from eagle3_assets_tests.states.conftest import FormulaEngine, make_packs
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    campaign, store = load_campaign({str(tmp_path / "tiny.toml")!r}), Store(Path({str(tmp_path / "d")!r}))
    write_partition(campaign, store, "00000", make_packs([20, 40]), FormulaEngine())
except StateError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "part-000.safetensors: cannot be written (File too large)" in done.stdout
    assert done.stdout.count("\n") == 1
    assert [f.name for f in (tmp_path / "d" / "hidden_states" / "00000").iterdir()] == ["final_norm.safetensors"]


def test_too_little_room_is_refused_before_anything_starts(
    campaign: Campaign, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    engine = FormulaEngine()
    with pytest.raises(StateError, match=r"needs 0\.000 GB and 0\.000 GB are free .*; nothing was started"):
        write_partition(campaign, store, SHARD, packs, engine)
    assert engine.captured == []


def test_extraction_stops_at_low_water_and_goes_on_there(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program fills the disk while we write: committed parts stay, nothing half-written is left, the next run resumes."""
    campaign = make_campaign(batch_tokens=4)
    asked = 0

    def usage(folder: Path) -> Any:
        nonlocal asked
        asked += 1
        return type("Usage", (), {"free": 10**12 if asked < 12 else 900_000})

    monkeypatch.setattr("shutil.disk_usage", usage)
    with pytest.raises(
        StateError, match=r"stopped at low water: 0\.001 GB are free, extraction\.low_water_gb keeps 0\.001; free"
    ) as caught:
        write_partition(campaign, store, SHARD, packs, FormulaEngine())
    assert "\n" not in str(caught.value)
    finished = committed_parts(store)
    assert finished
    assert not list(store.states(SHARD).glob("*tmp*"))
    monkeypatch.undo()
    engine = FormulaEngine()
    assert write_partition(campaign, store, SHARD, packs, engine)["parts_kept"] == len(finished)
    assert_equals_corpus(store, packs, engine)


@pytest.mark.slow
def test_kills_and_full_disks_at_random_moments_never_leave_a_wrong_row(
    make_campaign: CampaignMaker, packs: list[Pack], tmp_path: Path
) -> None:
    """SIGKILL from outside at random times, and a disk that is full after a random number of bytes, several times over one partition."""
    campaign, rng = make_campaign(batch_tokens=4), random.Random(5)
    rounds = int(os.environ.get("EAGLE3_KILLS", "6"))
    kills = 0
    store = Store(tmp_path / "killed")
    for _ in range(rounds):
        pid = os.fork()
        if pid == 0:
            engine = FormulaEngine()
            engine.on_capture = lambda number: time.sleep(0.02)
            if rng.random() < 0.5:
                fill_disk_after(rng.randrange(20_000, 400_000))
            with contextlib.suppress(StateError):
                write_partition(campaign, store, SHARD, packs, engine)
            os._exit(0)
        deadline = time.monotonic() + rng.uniform(0.02, 0.25)
        rng.random(), rng.random()  # the child's draws, so that parent and next child differ
        while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            kills += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    engine = FormulaEngine()
    write_partition(campaign, store, SHARD, packs, engine)
    assert_equals_corpus(store, packs, engine)
    assert all(v.passed for v in judge_states(campaign, store, SHARD, packs))
    assert not list(store.states(SHARD).glob("*tmp*"))
    assert kills > 0


def fill_disk_after(room: int) -> None:
    """In a child of its own: writes beyond `room` bytes find no space."""
    real, written = part_module._HashingWriter.write, 0

    def write(self: Any, data: bytes | memoryview) -> None:
        nonlocal written
        written += len(data)
        if written > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data)

    part_module._HashingWriter.write = write  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------------- unsound states
def _short(row: Captured) -> Captured:
    return Captured(row.states[:-3], row.input_ids)


def _nan(row: Captured) -> Captured:
    row.states[0, 2, 5] = float("inf")
    return row


def _other(row: Captured) -> Captured:
    return Captured(row.states, (row.input_ids[0] ^ 1, *row.input_ids[1:]))


@pytest.mark.parametrize(
    ("defect", "message"),
    [(_short, r"shape \(57, 4, 64\), expected \(60, 4, 64\)"), (_other, "ran other ids")],
)
def test_an_unsound_row_stops_the_partition_and_names_the_row(
    campaign: Campaign, store: Store, packs: list[Pack], defect: Callable[[Captured], Captured], message: str
) -> None:
    class Broken(FormulaEngine):
        def capture(self, token_lists: Any, layers: Any, final: str = "prenorm") -> list[Captured]:
            return [defect(row) if len(row.input_ids) == 60 else row for row in super().capture(token_lists, layers, final)]

    with pytest.raises(StateError, match=rf"row s0005 turn 2: .*{message}"):
        write_partition(campaign, store, SHARD, packs, Broken())
    with pytest.raises(StateError, match="is missing"):
        states_room.open(store.states(SHARD))
    assert committed_parts(store)


# ---------------------------------------------------------------------------------------------------- rows that are not finite
class Overflowing(FormulaEngine):
    """Rows of these lengths come out infinite, alone and in company; `once`: only in company, as an unlucky batch."""

    lengths: tuple[int, ...] = (60,)
    once: bool = False

    def capture(self, token_lists: Any, layers: Any, final: str = "prenorm") -> list[Captured]:
        rows = super().capture(token_lists, layers, final)
        for row in rows:
            if len(row.input_ids) in self.lengths and not (self.once and len(rows) == 1):
                _nan(row)
        return rows


@pytest.mark.parametrize("compress", ["none", "lossless"])
def test_a_row_that_is_not_finite_is_left_out_with_its_reason_and_the_rest_is_whole(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack], compress: str
) -> None:
    campaign = make_campaign(part_bytes=1 << 17, more=f'compress = "{compress}"\n')
    engine = Overflowing()
    figures = write_partition(campaign, store, SHARD, packs, engine)
    assert (figures["rows"], figures["rows_missing"]) == (len(packs) - 1, 1)
    assert figures["tokens"] == sum(LENGTHS) - 60
    opened = states_room.open(store.states(SHARD))
    assert opened.missing == {("s0005", 2): "1 values are NaN or infinite, the first at token 0, slot 2"}
    with pytest.raises(KeyError, match="left out: 1 values are NaN or infinite"):
        opened["s0005"]
    assert_equals_corpus(store, [p for p in packs if p.sample_id != "s0005"], engine)
    verdicts = {v.check: v for v in judge_states(campaign, store, SHARD, packs)}
    assert all(v.passed for v in verdicts.values())
    assert verdicts["finite"].numbers["missing"] == 1
    assert "1 rows that were not are left out" in verdicts["finite"].message
    read_manifest(store.states(SHARD), verify=True)  # the checksum of a part whose header was put right
    for file in store.states(SHARD).glob("part-*.safetensors"):
        load_file(file)  # the stock library accepts it
    again = Overflowing()
    assert write_partition(campaign, store, SHARD, packs, again)["parts_kept"] == figures["parts"]
    assert again.captured == []


def test_a_row_that_is_finite_by_itself_is_kept(make_campaign: CampaignMaker, store: Store, packs: list[Pack]) -> None:
    engine = Overflowing(on_capture=lambda number: None)
    engine.once = True
    figures = write_partition(make_campaign(part_bytes=1 << 24, batch_tokens=400), store, SHARD, packs, engine)
    assert figures["rows_missing"] == 0
    assert_equals_corpus(store, packs, engine)


def test_a_part_may_lose_all_its_rows_and_too_many_stop_the_partition(
    make_campaign: CampaignMaker, store: Store, packs: list[Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = make_campaign()
    engine = Overflowing()
    engine.lengths = (60, 70, 55)
    with pytest.raises(StateError, match=r"2 rows are not finite, 1 may be left out; the .* is s0\d+ turn \d: .*NaN or infinite"):
        write_partition(campaign, store, SHARD, packs, engine)
    with pytest.raises(StateError, match=r"manifest\.json: is missing"):
        states_room.open(store.states(SHARD))
    monkeypatch.setattr("eagle3_assets.states.partition.allowed_missing", lambda rows: 3)
    monkeypatch.setattr("eagle3_assets.states.care.verify_states.allowed_missing", lambda rows: 3)
    figures = write_partition(campaign, store, SHARD, packs, engine)
    assert figures["rows_missing"] == 3
    assert any(not part.rows for part in states_room.open(store.states(SHARD)).parts), (
        "the row of 70 tokens had a part of its own"
    )
    assert_equals_corpus(store, [p for p in packs if len(p.input_ids) not in engine.lengths], engine)
    assert all(v.passed for v in judge_states(campaign, store, SHARD, packs))


# ---------------------------------------------------------------------------------------------------- lossless
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lossless_parts_give_the_same_values_row_by_row(
    make_campaign: CampaignMaker, store: Store, tmp_path: Path, packs: list[Pack], dtype: str
) -> None:
    plain, packed = make_campaign(dtype=dtype), make_campaign(name="packed", dtype=dtype, more='compress = "lossless"\n')
    other = Store(tmp_path / "other")
    figures = write_partition(packed, store, SHARD, packs, FormulaEngine(stored_dtype=getattr(torch, dtype)))
    expected = write_partition(plain, other, SHARD, packs, FormulaEngine(stored_dtype=getattr(torch, dtype)))
    assert figures["bytes"] < expected["bytes"]
    assert figures["parts"] == expected["parts"], "cut at the same rows"
    opened = states_room.open(store.states(SHARD))
    assert torch.equal(opened["s0007"].hidden_states, states_room.open(other.states(SHARD))["s0007"].hidden_states)
    assert_equals_corpus(store, packs, FormulaEngine(), getattr(torch, dtype))
    assert all(v.passed for v in judge_states(packed, store, SHARD, packs))
    assert {n: t.dtype for n, t in load_file(store.states(SHARD) / "part-000.safetensors").items()} == {
        "hidden_planes": torch.uint8, "plane_bytes": torch.int64, "input_ids": torch.int32, "loss_mask": torch.uint8,
        "cu_seqlens": torch.int64,
    }  # fmt: skip


def test_noise_and_empty_rows_survive_the_planes() -> None:
    rng = np.random.default_rng(0)
    for width in (2, 4):
        for count in (0, 1, 7, 100_000):
            raw = rng.integers(0, 256, count * width, dtype=np.uint8)
            chunks = pack_planes(raw, width)
            assert sum(map(len, chunks)) <= len(raw), "what does not shrink is kept as it is"
            data = np.frombuffer(b"".join(chunks), np.uint8)
            back = unpack_planes(data, [len(c) for c in chunks], count, "x")
            assert np.array_equal(back.view(np.uint8), raw)


def test_activations_of_the_embedded_model_shrink_by_a_third(make_campaign: CampaignMaker) -> None:
    campaign = make_campaign(weights="embedded", num_hidden_layers=8, hidden_size=192, vocab_size=2304, dtype="bfloat16")
    ids = [tuple(int(i) for i in p.input_ids) for p in make_packs((300, 200), vocab=2304)]
    for row in open_extractor(campaign).capture(ids, campaign.layers):  # type: ignore[union-attr]
        raw = row.states.contiguous().view(torch.uint8).numpy().reshape(-1)
        assert len(raw) / sum(map(len, pack_planes(raw, 2))) >= 1.4


# ---------------------------------------------------------------------------------------------------- engines
def test_an_engine_that_runs_out_of_memory_is_one_line(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    def fail(number: int) -> None:
        if number == 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB\nsome trace")

    with pytest.raises(StateError, match=r"the engine failed .CUDA out of memory") as caught:
        write_partition(campaign, store, SHARD, packs, FormulaEngine(on_capture=fail))
    assert "\n" not in str(caught.value)


def test_a_wrong_engine_stores_nothing(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    class OneOff(FormulaEngine):
        def capture(self, token_lists: Any, layers: Any, final: str = "prenorm") -> list[Captured]:
            return super().capture(token_lists, [k + 1 for k in layers], final)

    with pytest.raises(StateError, match=r"self-test of formula .*nothing was extracted"):
        write_partition(campaign, store, SHARD, packs, OneOff())
    assert not list(store.states(SHARD).glob("part-*"))


def test_an_empty_corpus_part_or_a_torn_row_is_refused(campaign: Campaign, store: Store, packs: list[Pack]) -> None:
    with pytest.raises(StateError, match="holds no rows"):
        write_partition(campaign, store, SHARD, [], FormulaEngine())
    torn = Pack(0, "torn", 0, "b3_magicoder", "B1", SHARD, packs[0].input_ids, packs[0].loss_mask[:-1])
    with pytest.raises(StateError, match="row torn turn 0 has 20 ids and 19 mask entries"):
        write_partition(campaign, store, SHARD, [torn], FormulaEngine())


def test_memory_holds_a_window_not_a_part(make_campaign: CampaignMaker, store: Store, packs: list[Pack]) -> None:
    campaign = make_campaign(part_bytes=1 << 24, batch_tokens=20)  # one part, windows of 80 tokens
    sizes: list[int] = []

    class Watched(FormulaEngine):
        def capture(self, token_lists: Any, layers: Any, final: str = "prenorm") -> list[Captured]:
            sizes.append(sum(len(ids) for ids in token_lists))
            return super().capture(token_lists, layers, final)

    assert write_partition(campaign, store, SHARD, packs, Watched())["parts"] == 1
    assert max(sizes) <= 80
    assert_equals_corpus(store, packs, FormulaEngine())


@pytest.mark.slow
def test_the_room_opens_without_torch() -> None:
    """`eagle3 status` and the definitions must not pay for torch."""
    program = (
        "import sys, eagle3_assets.states, eagle3_assets.states.partition, eagle3_assets.states.care.verify_states, "
        "eagle3_assets.states.target.weights, eagle3_assets.states.extractors; "
        "print([m for m in ('torch', 'transformers', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
