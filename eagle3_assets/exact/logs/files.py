"""Files of logs → their records, each as one line of JSON.

Belongs here: JSONL, JSON over several lines, YAML cassettes, and the containers that hold many exchanges. Does not belong here: the
exchanges themselves (`shapes.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from eagle3_assets.exact.logs.shapes import dumped

STREAM_STARTS = (b"data:", b":", b"event:")
_ZIP = b"PK\x03\x04"
# how a cassette of VCR begins: Python's and Go's, Ruby's
_CASSETTE = re.compile(rb"^(---\s*)?((interactions|http_interactions|version):.*|)$")
_HINT = re.compile(rb'"(log|interactions|http_interactions|samples|observations|data|messages)"')
_ATTACHMENT = "attachment://"


def records_of(handle: IO[bytes]) -> Iterator[bytes]:
    """The records of a file, each as JSON text: JSONL line by line; one object or one array of objects written over several lines; the
    exchanges of a HAR file, of a cassette (JSON or YAML), of an inspect_ai log, of a Langfuse trace; an empty file has none. Raises
    ValueError for what holds no exchange: a stream's transcript, a zip, a container without chat completions."""
    first = next((line for line in handle if line.strip()), b"")
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(STREAM_STARTS):
        raise ValueError("is the transcript of a stream, an answer without its request; give the request with --request FILE")
    if start.startswith(_ZIP):
        raise ValueError("is a zip (an .eval log?): give it as JSON, for inspect_ai by `inspect log convert --to json`")
    if start.startswith(b"HTTP/"):
        raise ValueError(
            "is the transcript of one response (curl -i), an answer without its request; give the body and --request FILE"
        )
    if start and _CASSETTE.match(start.strip()):
        yield from _cassette(start + handle.read())
        return
    if start and (start.startswith(b"[") or not _is_json(start)):
        rest = handle.read()
        try:
            whole = json.loads(start + rest)
        except (ValueError, RecursionError):
            yield from (line for line in (start + rest).splitlines() if line.strip())
            return
        for record in whole if isinstance(whole, list) else [whole]:
            yield from _taken_apart(record)
        return
    if start:
        yield from _line(start)
    for line in handle:
        if line.strip():
            yield from _line(line)


def _line(line: bytes) -> Iterator[bytes]:
    """A line as it is, or the exchanges of the container that stands on it (a HAR file is often one line)."""
    if not _HINT.search(line[:400]):
        yield line
        return
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        yield line
        return
    container = container_of(record)
    if container is None:
        yield line
    else:
        yield from map(dumped, container(record))


def _taken_apart(record: Any) -> Iterator[bytes]:
    container = container_of(record)
    yield from map(dumped, [record] if container is None else container(record))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# ---------------------------------------------------------------------------------------------------- containers
Container = Callable[[Mapping[str, Any]], Iterable[Any]]


def container_of(record: Any) -> Container | None:
    """How to take apart an object that holds many exchanges; None for one exchange."""
    if not isinstance(record, Mapping) or "request" in record:
        return None
    if isinstance(record.get("log"), Mapping) and "entries" in record["log"]:
        return _har
    if "interactions" in record or "http_interactions" in record:
        return _interactions
    if isinstance(record.get("samples"), list) and "eval" in record:
        return _samples
    if isinstance(record.get("observations"), list):
        return lambda trace: _generations(trace["observations"])
    if isinstance(record.get("data"), list) and any(_is_observation(item) for item in record["data"]):
        return lambda page: _generations(page["data"])
    return None


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in a list; nothing where a damaged file has something else there."""
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _har(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The entries that post messages: a browser's archive holds pages and pictures too."""
    found = False
    for entry in _objects(record["log"]["entries"]):
        asked = entry.get("request")
        asked = asked if isinstance(asked, Mapping) else {}
        data = asked.get("postData")
        posted = data.get("text") if isinstance(data, Mapping) else None
        if isinstance(posted, str) and '"messages"' in posted:
            found = True
            yield {**entry, "id": entry.get("_id"), "url": asked.get("url")}
    if not found:
        raise ValueError("is a HAR archive in which no request posts messages")


def _interactions(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    found = False
    for interaction in _objects(record.get("interactions") or record.get("http_interactions")):
        if "request" in interaction:
            found = True
            asked = interaction["request"]
            url = asked.get("uri") or asked.get("url") if isinstance(asked, Mapping) else None
            yield {**interaction, "id": None, "url": url}
    if not found:
        raise ValueError("is a cassette without interactions")


def _samples(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The model events of an inspect_ai log; long texts stand apart, under their hash."""
    found = False
    for sample in _objects(record["samples"]):
        attachments = sample.get("attachments")
        attachments = attachments if isinstance(attachments, Mapping) else {}
        for k, event in enumerate(_objects(sample.get("events"))):
            if event.get("event") == "model":
                found = True
                named = f"{sample.get('id')}/{sample.get('epoch', 1)}/{k}"
                yield {**_filled(event, attachments), "id": named}
    if not found:
        raise ValueError("is an inspect_ai log without model events in its samples")


def _filled(value: Any, attachments: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attachments.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, Mapping):
        return {key: _filled(item, attachments) for key, item in value.items()}
    return [_filled(item, attachments) for item in value] if isinstance(value, list) else value


def _generations(observations: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Those of a Langfuse trace that are calls of a model: spans and events are none."""
    found = False
    for observation in observations:
        if _is_observation(observation):
            found = True
            yield observation
    if not found:
        raise ValueError("is a Langfuse export without generations")


def _is_observation(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "GENERATION"


def _cassette(data: bytes) -> Iterator[bytes]:
    """A YAML cassette. Only what stands for plain data is read: a tag that names a class is an error."""
    import yaml

    try:
        whole = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"looks like a YAML cassette and is none ({' '.join(str(error).split())})") from None
    container = container_of(whole)
    if container is None:
        raise ValueError("is YAML without interactions: expected a cassette")
    yield from map(dumped, container(whole))
