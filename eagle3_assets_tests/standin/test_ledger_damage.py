"""Full disks, damaged files, kills at the wrong moment: what is billed is what truth knows, and a mistake is one line."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import Client, MakeStandin, chat, connected, only, settings
from openrouter_standin.errors import StandinError
from openrouter_standin.schema.faults import Faults
from openrouter_standin.schema.server import ForeignSpend, Money
from openrouter_standin.service.server import Standin
from openrouter_standin.truth import ledger as ledger_module
from openrouter_standin.truth.ledger import Ledger, write_secret


class Disk:
    """Full for one of the two files of a ledger, as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full_for: int | None = None
        write = ledger_module._write_line

        def limited(fd: int, line: bytes) -> int:
            if fd == self.full_for:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(fd, line)

        monkeypatch.setattr(ledger_module, "_write_line", limited)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def truths(standin: Standin) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (standin.ledger.folder / "truth.jsonl").read_text().splitlines()]


def restarted(standin: Standin) -> Ledger:
    standin.ledger.close()
    return Ledger(standin.ledger.folder)


@pytest.mark.parametrize("file", ["_truth_fd", "_ledger_fd"])
@pytest.mark.parametrize(
    ("fault", "stream"), [(None, False), (None, True), ("gzip", False), ("reset_before_headers", True), ("hang", True)]
)
def test_an_answer_that_the_disk_has_no_room_for_is_an_error_and_not_billed(
    file: str, fault: Any, stream: bool, disk: Disk, make_standin: MakeStandin
) -> None:
    standin = make_standin(settings(faults=Faults(rates={fault: 1.0} if fault else {})))

    async def answer(client: Client, text: str) -> bytes:
        return (await client.post(chat(text, stream=stream, **only("verbatim"))))[2]

    async def run() -> None:
        async with connected(standin) as client:
            disk.full_for = getattr(standin.ledger, file)
            assert b'"error"' in await answer(client, "a")
            assert standin.ledger.spent_pico == 0 and not truths(standin) and not standin.ledger.generations
            disk.full_for = None
            if fault in (None, "gzip"):
                assert b'"usage"' in await answer(client, "b")

    asyncio.run(run())
    assert standin.gateway.account.held_pico == 0
    spent = sum(truth["cost_pico"] for truth in truths(standin))
    assert standin.ledger.spent_pico == spent == restarted(standin).spent_pico
    assert (spent > 0) == (fault in (None, "gzip"))


def test_the_truth_of_an_answer_is_found_after_one_that_was_lost(disk: Disk, make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            for k in range(6):
                disk.full_for = standin.ledger._ledger_fd if k % 2 else None
                await client.post(chat(f"{k}"))

    asyncio.run(run())
    for generation_id in standin.ledger.generations:
        truth = standin.ledger.truth_of(generation_id)
        assert truth is not None and truth["generation_id"] == generation_id
    assert len(truths(standin)) == 3


def test_what_others_spend_while_the_disk_is_full_is_written_down_later(disk: Disk, make_standin: MakeStandin) -> None:
    standin = make_standin(settings(money=Money(foreign=(ForeignSpend(at_s=0.0, usd=1.0),))))
    disk.full_for = standin.ledger._ledger_fd
    assert standin.gateway.account.usage_pico == 0
    disk.full_for = None
    assert standin.gateway.account.usage_pico == 10**12 == restarted(standin).foreign_pico


def test_a_refund_waits_for_room_on_the_disk(disk: Disk, make_standin: MakeStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openrouter_standin.openrouter.delivery._AGAIN_S", 0.01)
    standin = make_standin(settings(faults=Faults(rates={"finish_error": 1.0}), money=Money(refund_delay_s=0.0)))
    refund, tries = standin.ledger.refund, 0

    async def run() -> None:
        nonlocal tries
        given_back = asyncio.Event()

        def counted(generation_id: str) -> None:
            nonlocal tries
            tries += 1
            disk.full_for = standin.ledger._ledger_fd if tries < 3 else None
            refund(generation_id)
            given_back.set()

        standin.ledger.refund = counted  # type: ignore[method-assign]
        async with connected(standin) as client:
            await client.post(chat())
            await asyncio.wait_for(given_back.wait(), 5)

    asyncio.run(run())
    assert tries == 3 and standin.ledger.spent_pico == 0


@pytest.mark.parametrize(
    "line", [b"garbage", b"", b"\xff\xfe", b'["a", "b"]', b'{"generation_id":"gen-1-x"}', b'{"generation_id":5}']
)
@pytest.mark.parametrize("file", ["truth.jsonl", "ledger.jsonl"])
def test_a_damaged_line_is_named(file: str, line: bytes, make_standin: MakeStandin) -> None:
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            for k in range(2):
                await client.post(chat(f"{k}"))

    asyncio.run(run())
    standin.ledger.close()
    path = standin.ledger.folder / file
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second, b""]))
    with pytest.raises(StandinError, match=rf"{file}: line 2 is damaged") as error:
        Ledger(standin.ledger.folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [b"", b"\n", b"\xff\xfe\n"])
def test_a_secret_that_is_none_is_made_anew(kept: bytes, tmp_path: Path) -> None:
    """An empty token of truth would let everybody in."""
    path = tmp_path / "truth.token"
    path.write_bytes(kept)
    secret = write_secret(path)
    assert len(secret) == 48 and write_secret(path) == secret


def test_an_answer_that_a_kill_left_to_truth_alone_counts_for_its_provider(make_standin: MakeStandin) -> None:
    """`[[provider.change]] after_answers` counts it, too."""
    standin = make_standin()

    async def run() -> None:
        async with connected(standin) as client:
            for k in range(3):
                await client.post(chat(f"{k}", **only("verbatim")))

    asyncio.run(run())
    standin.ledger.close()
    path = standin.ledger.folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    again = make_standin()
    assert again.gateway.traffic.answers["verbatim/int4"] == 3
    assert again.ledger.spent_pico == standin.ledger.spent_pico
