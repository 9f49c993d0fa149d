"""Arguments of tool calls against schemas that nobody vouches for."""

from __future__ import annotations

import socket
import time

import pytest

from eagle3_assets.review.rows.tool_schema import LARGEST, fits_schema

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("arguments", "fits"), [({"q": "x"}, True), ({"q": 1}, False), ({}, False), ({"q": "x", "r": 1}, False), ({"q": ""}, True)]
)
def test_arguments_are_held_against_the_tools_own_schema(arguments: dict[str, object], fits: bool) -> None:
    assert fits_schema(arguments, SCHEMA) is fits
    assert fits_schema(arguments, {**SCHEMA, "$schema": "http://json-schema.org/draft-07/schema#"}) is fits


def test_a_reference_elsewhere_is_not_fetched() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        port = listening.getsockname()[1]
        assert fits_schema({"q": 1}, {"$ref": f"http://127.0.0.1:{port}/schema.json"})
        assert fits_schema({"q": 1}, {"$schema": f"http://127.0.0.1:{port}/meta.json", "type": "object"})
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    "schema",
    [
        None, [], "words", True, {"type": "words"}, {"$ref": "#"}, {"$ref": "#/$defs/none"}, {"required": "q"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {"enum": ["x" * LARGEST]},
    ],
)  # fmt: skip
def test_what_is_no_schema_asks_nothing(schema: object) -> None:
    assert fits_schema({"q": 1}, schema)


def test_a_pattern_that_never_ends_is_not_asked() -> None:
    begun = time.process_time()
    assert fits_schema({"q": "a" * 40 + "!"}, {"properties": {"q": {"pattern": "^(a+)+$"}}})
    assert time.process_time() - begun < 5.0
