"""Whether the arguments of a tool call fit the JSON schema that the request declared for the tool.

Belongs here: the schema library, behind one function. Does not belong here: which calls are looked at (`row_invariants.py`).

Schemas come out of prompt sets, so nothing that they say is trusted: a reference to another document is not fetched, a schema that is none
or refers to nothing asks nothing (that is no fault of the model's), and `pattern` is not asked (a regular expression may run for ever).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

LARGEST = 100_000  # characters of a schema, or of arguments, that are still looked at


def fits_schema(arguments: Mapping[str, Any], schema: Any) -> bool:
    """True where `arguments` satisfy `schema`, and where it cannot be asked."""
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, Mapping):
        return True
    text = json.dumps(schema, sort_keys=True, default=str)
    validator = _validator(text) if len(text) <= LARGEST else None
    if validator is None or len(json.dumps(arguments)) > LARGEST:
        return True
    try:
        return bool(validator.is_valid(arguments))
    except (Unresolvable, RecursionError):
        return True


@lru_cache(maxsize=512)
def _validator(text: str) -> Any:
    """A validator of the schema, or None of what is no schema. The registry holds the meta-schemas and retrieves nothing."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY

    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except (SchemaError, RecursionError):
        return None
    return _asking(kind)(schema, registry=REGISTRY)


@lru_cache(maxsize=8)
def _asking(kind: Any) -> Any:
    from jsonschema.validators import extend

    return extend(kind, {"pattern": lambda validator, pattern, instance, schema: None})
