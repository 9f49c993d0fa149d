"""Stand-in profiles: one TOML file = one simulated OpenRouter (how each provider bends the text, the prompt and the bill).

Belongs here: the file as a whole and its reading; unknown keys are refused with one line. Does not belong here: its tables (`schema`),
the bending itself (`bend`, `render`), wire profiles (what was *learned* of a real provider: room `exact`).

A file holds `[model]`, `[server]`, `[source]`, `[engine]` and one `[[provider]]` per endpoint; every key is described on its field in
`schema`, `profiles/default.toml` is a complete example.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from openrouter_standin.errors import StandinError
from openrouter_standin.schema.base import Table
from openrouter_standin.schema.provider import Engine, Provider
from openrouter_standin.schema.server import Model, Server
from openrouter_standin.schema.source import Answers, Source

DEFAULT_PROFILES = Path(__file__).parent / "profiles" / "default.toml"
PICO = 10**12  # money is counted in whole picodollars (10^-12 USD): six decimals of a price per million are exact


class Profiles(Table):
    """The whole file."""

    model: Model
    server: Server = Server()
    source: Source = Source()
    engine: Engine
    provider: tuple[Provider, ...] = Field(min_length=1)
    sha256: str = Field(default="", description="of the file (set by load_profiles)")

    @model_validator(mode="after")
    def _unique(self) -> Profiles:
        tags = [p.tag for p in self.provider]
        for tag in tags:
            if tags.count(tag) > 1:
                raise ValueError(f"provider.tag = {tag!r} appears {tags.count(tag)} times: tags must be unique")
        for window in self.server.faults.schedule:
            for tag in window.providers:
                if tag not in tags:
                    raise ValueError(f"server.faults.schedule: no provider has the tag {tag!r}; there are {', '.join(tags)}")
        return self


def profiles_file(path: Path | None) -> Path:
    """The file that is meant: a path, a built-in one by its bare name, or (None) the default."""
    if path is None:
        return DEFAULT_PROFILES
    built_in = DEFAULT_PROFILES.parent / f"{path}.toml"
    return built_in if path.name == str(path) and not path.suffix and built_in.exists() else path


def profiles_schema() -> dict[str, Any]:
    """JSON schema of the file."""
    schema = Profiles.model_json_schema()
    del schema["properties"]["sha256"]
    return schema


def load_profiles(path: Path | None = None) -> Profiles:
    """Read and validate a stand-in profiles file (default: the built-in one). Raises StandinError with one line."""
    path = profiles_file(path)
    try:
        data = path.read_bytes()
        raw = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise StandinError(f"{path}: cannot be read ({error.strerror}); give a stand-in profiles TOML") from None
    except ValueError as error:
        raise StandinError(f"{path}: is not valid TOML ({error})") from None
    if "sha256" in raw:
        raise StandinError(f"{path}: unknown key 'sha256'")
    try:
        return Profiles.model_validate({**raw, "sha256": hashlib.sha256(data).hexdigest()})
    except ValidationError as error:
        raise StandinError(f"{path}: {_first_mistake(error, raw)}") from None


def answering(profiles: Profiles, answers: Answers | None) -> Profiles:
    """The same profiles with another `source.kind` (None: as they are)."""
    if answers is None:
        return profiles
    return profiles.model_copy(update={"source": profiles.source.model_copy(update={"kind": answers})})


def _first_mistake(error: ValidationError, raw: dict[str, Any]) -> str:
    first = error.errors()[0]
    where = _where(first["loc"], raw)
    if first["type"] == "extra_forbidden":
        return f"unknown key {where}; known keys: {', '.join(_known_keys(first['loc'][:-1]))}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = repr(first["input"])
    found = f" = {shown if len(shown) < 60 else shown[:57] + '...'}" if where and not isinstance(first["input"], dict) else ""
    return f"{where}{found}: {message[0].lower()}{message[1:]}" if where else message


def _where(loc: tuple[int | str, ...], raw: Any) -> str:
    """`provider[1] (Injector).text.strip` for a pydantic location."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            raw = raw[part] if isinstance(raw, list) else None
        else:
            raw = raw.get(part) if isinstance(raw, dict) else None
        if isinstance(part, int):
            name = raw.get("name") if isinstance(raw, dict) else None
            out += f"[{part}]" + (f" ({name})" if name else "")
        else:
            out += ("." if out else "") + (part if part.isprintable() else repr(part))
    return out


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    table: Any = Profiles
    for part in loc:
        if isinstance(part, str):
            annotation = table.model_fields[part].annotation
            options = (annotation, *getattr(annotation, "__args__", ()))
            table = next(a for a in options if isinstance(a, type) and issubclass(a, BaseModel))
    return [key for key in table.model_fields if key != "sha256"]
