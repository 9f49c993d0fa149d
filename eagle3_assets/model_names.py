"""Names of models as gateways write them: one model under many names.

Belongs here: which parts of a name say nothing about the weights. Does not belong here: which tokenizer a model has
(`targets/profile_facts.py`), prices and routes (`collect/servers/routing.py`).
"""

from __future__ import annotations

import functools
import re

# OpenRouter's variants of one model (routing order, price, web search), and what Hugging Face's router puts behind a colon
_VARIANT = re.compile(r":[a-z0-9_-]+$")
_RELEASE = re.compile(r"[-@](\d{4}|\d{6}|\d{8}|\d{4}-\d{2}-\d{2})$")
# precision and place: the same weights and the same tokenizer (Chutes' -TEE, Vertex' -maas)
_SERVING = re.compile(r"-(tee|maas|fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|awq|gptq|turbo|fast|free|latest|preview)$")
# Fireworks writes a version's dot as p: accounts/fireworks/models/kimi-k2p6
_POINT = re.compile(r"(?<=\d)p(?=\d)")
# the repository's name of weights that gateways call without it: moonshotai/Kimi-K2-Instruct-0905 = moonshotai/kimi-k2-0905
_SHORT = {"kimi-k2-instruct": "kimi-k2"}


@functools.lru_cache(maxsize=1024)
def plain_name(name: str) -> tuple[str, str | None]:
    """(the model without vendor, path, variant and serving, its release where the name tells one): `moonshotai/kimi-k2.5-0127:nitro` →
    (`kimi-k2.5`, `0127`)."""
    plain = name.strip().casefold().rsplit("/", 1)[-1]
    plain = plain.rsplit(".", 1)[-1] if plain.startswith(("moonshot.", "moonshotai.")) and plain.count(".") == 1 else plain
    release = None
    before = ""
    while plain != before:
        before = plain
        plain = _SERVING.sub("", _VARIANT.sub("", plain))
        if found := _RELEASE.search(plain):
            release, plain = found[1].replace("-", ""), plain[: found.start()]
    plain = _POINT.sub(".", plain)
    return _SHORT.get(plain, plain), release


def is_same_model(one: str, other: str) -> bool:
    """Whether two names mean the same weights. A name without a release means whichever is served: `kimi-k2.5` = `kimi-k2.5-0127`."""
    (a, released), (b, other_released) = plain_name(one), plain_name(other)
    return a == b and (released is None or other_released is None or released[-4:] == other_released[-4:])
