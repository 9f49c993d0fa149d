"""The official `openrouter` package, unmodified, as a client of the stand-in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from eagle3_assets_tests.standin.conftest import KEY, settings
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.faults import Faults

openrouter = pytest.importorskip("openrouter")
import httpx  # noqa: E402

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def client(origin: str, key: str = KEY) -> Any:
    """As its readme says, with the stand-in's address; never a retry unless a test asks for it."""
    return openrouter.OpenRouter(api_key=key, server_url=f"{origin}/api/v1", retry_config=None)


@contextlib.contextmanager
def overheard(origin: str, key: str = KEY) -> Iterator[tuple[Any, list[httpx.Response]]]:
    """The same, and every response that it got."""
    seen: list[httpx.Response] = []

    def listen(response: httpx.Response) -> None:
        response.read()
        seen.append(response)

    with httpx.Client(event_hooks={"response": [listen]}) as http:
        with openrouter.OpenRouter(api_key=key, server_url=f"{origin}/api/v1", retry_config=None, client=http) as api:
            yield api, seen


def with_faults(**faults: Any) -> Profiles:
    return settings(faults=Faults(**faults))
