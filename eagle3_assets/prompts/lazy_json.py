"""A list of JSON values that is kept as bytes and read when somebody looks.

Belongs here: the container. Does not belong here: what is in it.

A run holds every prompt that it may ask, tens of thousands of histories of tool calls; as Python objects they take five to twenty
times their text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import orjson

_WORTH_PACKING = 1024  # bytes; below it a header saves nothing


class Packed(Sequence[Any]):
    """The JSON array in `data`; equal to a tuple or list of the same values. Raises ValueError when it is none."""

    __slots__ = ("_data", "_length", "_small")

    def __init__(self, data: bytes) -> None:
        values = orjson.loads(data)
        if not isinstance(values, list):
            raise ValueError(f"expected a JSON array, found {type(values).__name__}")
        self._length, self._small = len(values), len(data) < _WORTH_PACKING
        self._data = data if self._small else zlib.compress(data, 1)

    def _values(self) -> list[Any]:
        values: list[Any] = orjson.loads(self._data if self._small else zlib.decompress(self._data))
        return values

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        found = self._values()[index]
        return tuple(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Packed, tuple, list)) and len(self) == len(other) and self._values() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Packed({self._values()!r})"
