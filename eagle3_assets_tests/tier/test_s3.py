"""The tier against a real S3 server process (moto's), and through a wire that cuts: `make test-s3`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store, digest_file
from eagle3_assets.tier import remote as remotes
from eagle3_assets.tier.moves import evict, fetch, upload
from eagle3_assets.tier.remote import Remote
from eagle3_assets_tests.tier.made import part, partition

pytestmark = pytest.mark.s3

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """Port of an S3 server in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "none"},
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class Wire:
    """A way to the server that can be cut: of each connection, with `cut` (a share), after a random number of bytes; `closed`: at once."""

    def __init__(self, upstream: int, seed: int = 0) -> None:
        self.upstream, self.draw = upstream, random.Random(seed)
        self.cut, self.closed, self.cuts, self.bytes_up = 0.0, False, 0, 0
        self.port = 0
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        threading.Thread(target=self._serve, daemon=True).start()
        assert self._ready.wait(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        left = self.draw.randint(1_000, 3 * MIB) if self.draw.random() < self.cut else 1 << 60
        state = {"left": left}

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool) -> None:
            while data := await source.read(65_536):
                state["left"] -= len(data)
                self.bytes_up += len(data) if up else 0
                if state["left"] < 0:
                    self.cuts += 1
                    break
                sink.write(data)
                await sink.drain()

        pumps = [asyncio.ensure_future(pump(reader, up_writer, True)), asyncio.ensure_future(pump(up_reader, writer, False))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        for sink in (writer, up_writer):
            sink.transport.abort() if state["left"] < 0 else sink.close()


@pytest.fixture
def wire(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    wire = Wire(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-must-not-be-shown")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(remotes, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remotes, "PART_BYTES", 5 * MIB)
    monkeypatch.setattr(remotes, "READ_BYTES", MIB)
    remotes._file_system.cache_clear()
    yield wire
    wire.stop()


@pytest.fixture
def client(server: int, wire: Wire) -> Any:
    """boto3: a client that nobody here wrote, straight to the server."""
    import boto3

    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}")


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> Remote:
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    client.create_bucket(Bucket=name)
    return Remote(f"s3://{name}/kimi")


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "root" / "campaign")


def names(client: Any, bucket: Remote) -> list[str]:
    listed = client.list_objects_v2(Bucket=bucket.url.split("/")[2])
    return [item["Key"] for item in listed.get("Contents", [])]


def test_files_of_several_parts_are_proven_by_their_etag_and_are_what_boto_reads(
    here: Store, bucket: Remote, client: Any
) -> None:
    manifest = partition(here, "00000", parts=2, size=17 * MIB)
    place = upload(bucket, here.root, here.states("00000"))
    assert {facts["proof"] for facts in place.files.values()} == {"etag"}
    assert names(client, bucket) == [f"kimi/hidden_states/{name}" for name in ("00000.manifest.json", *sorted(manifest.files))]
    for name in manifest.files:
        body = client.get_object(Bucket=bucket.url.split("/")[2], Key=f"kimi/hidden_states/{name}")["Body"].read()
        assert body == (here.hidden_states / name).read_bytes()


def test_an_object_that_was_changed_behind_our_back_is_seen(here: Store, bucket: Remote, client: Any) -> None:
    manifest = partition(here, "00000", parts=1, size=3 * MIB)
    upload(bucket, here.root, here.states("00000"))
    name, facts = next((n, f) for n, f in manifest.files.items() if n.endswith("safetensors"))
    path = here.hidden_states / name
    assert bucket.holds(path, f"hidden_states/{name}", facts["bytes"], facts["xxh3"])
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    client.put_object(Bucket=bucket.url.split("/")[2], Key=f"kimi/hidden_states/{name}", Body=bytes(data))
    assert not bucket.holds(path, f"hidden_states/{name}", facts["bytes"], facts["xxh3"])
    assert not bucket.holds(None, f"hidden_states/{name}", facts["bytes"], facts["xxh3"])


def test_over_a_wire_that_cuts_everything_arrives_whole_both_ways(here: Store, bucket: Remote, wire: Wire) -> None:
    partition(here, "00000", parts=3, size=8 * MIB)
    before = {k: digest_file(part(here, "00000", k)) for k in range(3)}
    wire.cut = 0.3
    upload(bucket, here.root, here.states("00000"))
    evict(here.root, here.states("00000"))
    for k in range(3):
        fetch(part(here, "00000", k))
    assert wire.cuts > 0
    assert {k: digest_file(part(here, "00000", k)) for k in range(3)} == before


def test_a_server_that_went_away_is_one_line_deletes_nothing_and_a_second_run_goes_on(
    here: Store, bucket: Remote, wire: Wire, client: Any
) -> None:
    partition(here, "00000", parts=3, size=6 * MIB)
    put, sent = bucket._fs.put_file, []

    def put_then_close(local: str, url: str, **options: Any) -> None:
        put(local, url, **options)
        sent.append(url)
        wire.closed = len(sent) == 2
        if wire.closed:  # connections that are kept open would still answer
            remotes._file_system.cache_clear()
            bucket._fs = Remote(bucket.url)._fs
            bucket._fs.put_file = put_then_close

    bucket._fs.put_file = put_then_close
    with pytest.raises(StoreError, match=r"cannot be .* after 5 tries") as caught:
        upload(bucket, here.root, here.states("00000"))
    assert "a-secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert evict(here.root, here.states("00000")) == 0
    assert "kimi/hidden_states/00000.manifest.json" not in names(client, bucket)
    wire.closed = False
    again = Remote(bucket.url)
    again._fs.put_file = lambda local, url, **options: (sent.append(f"again {url}"), put(local, url, **options))
    upload(again, here.root, here.states("00000"))
    assert len([url for url in sent if url.startswith("again")]) == 2  # four files, two of them were there


def test_a_bucket_that_is_not_there_is_named(wire: Wire, here: Store) -> None:
    partition(here, "00000", parts=1, size=1_000)
    with pytest.raises(StoreError, match="check the bucket's name and the credentials"):
        upload(Remote("s3://no-such-bucket/kimi"), here.root, here.states("00000"))
