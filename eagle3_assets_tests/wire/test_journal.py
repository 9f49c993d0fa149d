"""Claims about the journal: lossless, never glued, owned by one, honest about damage."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import LockedError, StoreError
from eagle3_assets.wire import journal
from eagle3_assets.wire.journal import Journal
from eagle3_assets_tests.collect.samples import an_answer

json_text = st.text(st.characters(codec="utf-8"), max_size=20)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | json_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=8,
)


def write(folder: Path, *answers: Any) -> Path:
    with Journal.open(folder) as opened:
        for answer in answers:
            opened.append(answer)
    return journal.segments(folder)[-1]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200) | json_text.map(str.encode), request=st.dictionaries(json_text, json_values, max_size=4))
def test_any_body_and_request_come_back_as_they_were(body: bytes, request: dict[str, Any]) -> None:
    answer = an_answer(body=body, request=request, headers={"content-type": "text/plain"}, reason="é\n\t\x00")
    line = journal.encode_line(answer)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert journal.decode_line(line) == answer


def test_lone_surrogates_and_huge_integers_do_not_lose_an_answer() -> None:
    answer = an_answer(body=b'{"content":"\\ud83d"}', request={"messages": [{"content": "\ud83d"}]})
    assert journal.decode_line(journal.encode_line(answer)) == answer
    assert journal.decode_line(journal.encode_line(an_answer(request={"seed": 2**70}))).body == b'{"choices":[]}'


def test_every_field_of_an_answer_is_stored(tmp_path: Path) -> None:
    answer = an_answer(
        headers={"retry-after": "3"},
        provider="Chutes",
        model="m",
        generation_id="gen-1",
        started_at=1.5,
        finished_at=2.25,
        cost_usd=0.00016236,
        reason="empty",
        retry_class="content",
        outcome="failed",
        turn=3,
        attempt=2,
        completion_tokens=12,
        server="openrouter.ai",
    )
    default = an_answer()
    write(tmp_path / "b3" / "00", answer)
    (stored,) = journal.read(tmp_path / "b3" / "00")
    assert stored == answer
    assert {f.name for f in dataclasses.fields(answer) if getattr(answer, f.name) == getattr(default, f.name)} <= {
        "request_id",
        "sample_id",
        "dataset",
        "shard",
        "source",
        "request",
        "status",
        "body",
    }


@pytest.mark.slow
def test_a_tail_torn_at_any_byte_recovers_to_whole_records_and_nothing_is_glued_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # 1,400 journals: only the disk's time is saved
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    bodies = [b'{"a":1}', b"\xff\x00\n", '{"text":"用户"}'.encode()]
    answers = [an_answer(n, body) for n, body in enumerate(bodies)]
    lines = [journal.encode_line(a) for a in answers]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[: k + 1])) for k in range(3)]
    for cut in range(len(whole)):
        folder = tmp_path / f"{cut}" / "00"
        folder.mkdir(parents=True)
        (folder / "segment-000.jsonl").write_bytes(whole[:cut])
        kept = [a for a, end in zip(answers, ends, strict=True) if end - 1 <= cut]  # a record without its newline is whole
        assert list(journal.read(folder)) == kept
        with Journal.open(folder) as opened:
            assert bool(opened.notes) == (cut not in (0, *ends, *(e - 1 for e in ends)))
            opened.append(an_answer(9, b"later"))
        assert list(journal.read(folder)) == [*kept, an_answer(9, b"later")]


def test_what_recovery_cuts_off_is_reported_and_kept_aside(tmp_path: Path) -> None:
    folder = tmp_path / "b3" / "07"
    segment = write(folder, an_answer(1))
    with segment.open("ab") as handle:
        handle.write(b'{"crc":"half a rec')
    with Journal.open(folder) as opened:
        assert len(opened.notes) == 1 and "torn tail of 18 bytes" in opened.notes[0] and str(segment) in opened.notes[0]
        assert opened.notes[0].endswith("its answer will be asked for again")
    (aside,) = folder.glob("torn-*")
    assert aside.read_bytes() == b'{"crc":"half a rec'
    assert journal.segments(folder) == [segment]


def test_zeros_at_the_end_as_a_power_loss_leaves_them_are_a_torn_tail(tmp_path: Path) -> None:
    folder = tmp_path / "b3" / "07"
    segment = write(folder, an_answer(1))
    with segment.open("ab") as handle:
        handle.write(b"\x00" * 5000)
    with Journal.open(folder) as opened:
        opened.append(an_answer(2))
    assert [a.request_id for a in journal.read(folder)] == ["r1", "r2"]


def test_damage_in_the_middle_is_an_error_that_names_file_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "b3" / "07"
    segment = write(folder, *(an_answer(n, b'{"text":"hello"}') for n in range(4)))
    data = segment.read_bytes()
    at = data.index(b"hello", len(data) // 2)
    segment.write_bytes(data[:at] + b"jello" + data[at + 5 :])
    for attempt in (lambda: list(journal.read(folder)), lambda: Journal.open(folder)):
        with pytest.raises(StoreError, match=r"segment-000\.jsonl line 3: expected a record with a matching checksum"):
            attempt()
    assert segment.read_bytes() != data and len(segment.read_bytes()) == len(data)  # nothing was cut


@pytest.mark.parametrize("harm", ["its last record", "its last two records", "its only record"])
def test_a_damaged_record_that_was_whole_is_never_cut_off_as_a_torn_tail(tmp_path: Path, harm: str) -> None:
    """A torn tail has no newline. A whole line that does not fit its checksum was paid for: cutting it off buys it again."""
    folder = tmp_path / "b3" / "07"
    count, harmed = {"its last record": (3, 1), "its last two records": (3, 2), "its only record": (1, 1)}[harm]
    segment = write(folder, *(an_answer(n, b'{"text":"hello"}') for n in range(count)))
    lines = segment.read_bytes().splitlines(keepends=True)
    damaged = b"".join(line.replace(b"hello", b"jello") if n >= count - harmed else line for n, line in enumerate(lines))
    segment.write_bytes(damaged)
    line = count - harmed + 1
    with pytest.raises(
        StoreError, match=rf"segment-000\.jsonl line {line}: .* found damage at byte \d+; restore .* or delete"
    ) as caught:
        Journal.open(folder)
    assert "\n" not in str(caught.value) and segment.read_bytes() == damaged and not list(folder.glob("torn-*"))
    segment.write_bytes(damaged + b'{"crc":"torn')  # a torn tail behind it changes nothing
    with pytest.raises(StoreError, match=rf"line {line}:"):
        Journal.open(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("segment-001.jsonl", "found a folder"),
        ("segment-old.jsonl", "named segment-NNN.jsonl"),
        ("segment-000.jsonl", "found a folder"),
    ],
)
def test_a_folder_or_a_stranger_in_the_place_of_a_segment_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    folder = tmp_path / "b3" / "07"
    if name != "segment-000.jsonl":
        write(folder, an_answer(1))
    (folder / name).mkdir(parents=True)
    for attempt in (lambda: list(journal.read(folder)), lambda: Journal.open(folder)):
        with pytest.raises(StoreError, match=rf"{name}: expected a journal segment .*{words}.*; move it") as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_a_segment_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "b3" / "07"
    write(folder, an_answer(1))

    def refuse(path: Path, *args: Any, **more: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", refuse)
    for attempt in (lambda: list(journal.read(folder)), lambda: Journal.open(folder)):
        with pytest.raises(StoreError, match=r"segment-000\.jsonl: cannot be read .Input/output error."):
            attempt()


def test_a_torn_segment_before_the_last_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1540)
    folder = tmp_path / "b3" / "07"
    write(folder, *(an_answer(n, b"x" * 300) for n in range(6)))
    assert len(journal.segments(folder)) == 3
    assert [a.request_id for a in journal.read(folder)] == [f"r{n}" for n in range(6)]
    first = journal.segments(folder)[0]
    first.write_bytes(first.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"segment-000\.jsonl line"):
        list(journal.read(folder))
    with pytest.raises(StoreError, match=r"segment-000\.jsonl line"):
        Journal.open(folder)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "b3" / "07"
    real_write = os.write
    room = 150

    def write_until_full(fd: int, data: Any) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(fd, bytes(data)[:room])
        room -= written
        return written

    with Journal.open(folder) as opened:
        opened.append(an_answer(1))
        monkeypatch.setattr(os, "write", write_until_full)
        with pytest.raises(StoreError, match="no space left on the disk"):
            opened.append(an_answer(2))
        room = 10**6
        opened.append(an_answer(3))
    assert [a.request_id for a in journal.read(folder)] == ["r1", "r3"]


def test_a_half_written_record_that_could_not_be_taken_back_is_never_glued_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "b3" / "07"
    real_write, real_truncate = os.write, os.ftruncate

    def half(fd: int, data: Any) -> int:
        if len(data) < 100:
            raise OSError(errno.EIO, "Input/output error")
        return real_write(fd, bytes(data)[: len(data) - 50])

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Journal.open(folder) as opened:
        opened.append(an_answer(1))
        monkeypatch.setattr(os, "write", half)
        monkeypatch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StoreError, match="cannot be written"):
            opened.append(an_answer(2))
        monkeypatch.setattr(os, "write", real_write)
        with pytest.raises(StoreError, match="cannot be written"):
            opened.append(an_answer(3))
        monkeypatch.setattr(os, "ftruncate", real_truncate)
        opened.append(an_answer(4))
    assert [a.request_id for a in journal.read(folder)] == ["r1", "r4"]


def test_the_highest_finished_attempt_counts() -> None:
    answers = [
        an_answer(1),
        an_answer(1, attempt=3, body=b"3"),
        an_answer(1, attempt=2, body=b"2"),
        an_answer(1, attempt=4, outcome="failed"),
        an_answer(2, outcome="ambiguous"),
    ]
    assert {key: a.body for key, a in journal.best(answers).items()} == {(f"{1:032x}", 0): b"3"}


HOLDER = """
import sys, pathlib
from eagle3_assets.wire.journal import Journal
journal = Journal.open(pathlib.Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_the_lock_names_its_owner_and_is_free_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "b3_magicoder" / "07"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(LockedError, match=rf"answers/b3_magicoder shard 07 is in use by pid {holder.pid} "):
            Journal.open(folder)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with Journal.open(folder) as opened:
            opened.append(an_answer())
    assert len(list(journal.read(folder))) == 1


def test_json_nested_too_deep_is_unreadable_json_and_not_an_end_of_the_run() -> None:
    with pytest.raises(ValueError):
        journal.load_json(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
