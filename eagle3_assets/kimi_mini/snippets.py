"""Code, logs and data files as a model writes them: many brackets, quotes, escapes and indents in a row.

Belongs here: Python, JavaScript, shell, SQL and JSON snippets, tracebacks, diffs, test output; Windows line ends now and then.
Does not belong here: prose (`prose.py`), tool declarations (`toolset.py`). Bracket and quote runs are the places where a sampling
model leaves the canonical split most often (research note exactness 4(i)), so there are plenty.
"""

from __future__ import annotations

import json
from random import Random

_NOUNS = (
    "row", "item", "key", "path", "value", "name", "count", "total", "index", "token", "line", "chunk", "node", "user", "price",
    "record", "buffer", "shard", "batch", "field",
)  # fmt: skip
_VERBS = (
    "parse", "load", "merge", "split", "count", "find", "build", "check", "read", "write", "format", "encode", "decode", "filter",
    "sort", "group", "update",
)  # fmt: skip
_TYPES = ("int", "str", "int", "list[int]", "dict[str, int]", "bytes")


def identifier(rng: Random) -> str:
    return f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}s" if rng.random() < 0.7 else f"{rng.choice(_NOUNS)}_{rng.choice(_NOUNS)}"


def camel(rng: Random) -> str:
    return rng.choice(_VERBS) + rng.choice(_NOUNS).capitalize() + rng.choice(("", "s", "ById", "List"))


def file_path(rng: Random) -> str:
    folder = rng.choice(("src", "lib", "tests", "app", "core", "pkg/store", "web/static"))
    return f"/repo/{folder}/{rng.choice(_NOUNS)}_{rng.choice(_VERBS)}.{rng.choice(('py', 'py', 'js', 'json', 'md', 'toml'))}"


def _python(rng: Random) -> str:
    f, a, b, n = identifier(rng), rng.choice(_NOUNS), rng.choice(_NOUNS), rng.randint(0, 300)
    bodies = (
        f"    return [{a} for {a} in {b}s if {a} != {n}]\n",
        f"    out = {{}}\n    for {a} in {b}s:\n        out[{a}['{b}']] = out.get({a}['{b}'], 0) + 1\n    return out\n",
        f'    with open({a}, "r", encoding=\'utf-8\') as f:\n        return json.loads(f.read())["{b}"][0]\n',
        f'    if not {a}:\n        raise ValueError(f"no {a} in {{{b}!r}}: it\'s empty")\n    return {a}[{n % 9}:]\n',
        f"    while {a} > 0:\n        {a} -= 1\n        print(f'{{{a}}}, {{{b}[\"{a}\"]}}')\n",
        f'    return tuple(sorted(set(map(str.strip, {a}.split("{rng.choice((",", ";", "|"))}")))))\n',
        f'    """Return the {a} of a {b}."""\n    return sum(len(x) for x in ({a} or [])) ** 2\n',
    )
    head = f"def {f}({a}: {rng.choice(_TYPES)}, {b}=None):\n"
    tail = rng.choice(
        (f'\n\nassert {f}("{a}", [[{n}], [{n + 1}, [2]]]) == (({n},),)\n', f"\n\nprint({f}({n}, {{'{b}': [1, (2, 3)]}}))\n", "")
    )
    return head + rng.choice(bodies) + tail


def _javascript(rng: Random) -> str:
    f, a, b, n = camel(rng), rng.choice(_NOUNS), rng.choice(_NOUNS), rng.randint(0, 300)
    bodies = (
        f"  return {b}s.filter(({a}) => {a}.id !== {n}).map(({a}) => ({{ ...{a}, {b}: null }}));\n",
        f'  const {a} = await fetch(`/api/{b}/${{id}}`);\n  console.log(JSON.stringify({{"{a}": [1, {{"{b}": "c"}}]}}));\n',
        f"  if (!{a} || {a}['{b}'].length === 0) {{\n    throw new Error('missing {a}');\n  }}\n  return {a}[{n % 7}];\n",
        f"  document.querySelector('#{a}').addEventListener(\"click\", () => {{ set{b.capitalize()}(({b}) => {b} + 1); }});\n",
    )
    keyword = rng.choice(("function", "async function", "export function"))
    return f"{keyword} {f}({a}, {b}s = []) {{\n{rng.choice(bodies)}}}\n"


def _other(rng: Random) -> tuple[str, str]:
    a, b, n = rng.choice(_NOUNS), rng.choice(_NOUNS), rng.randint(1, 500)
    return rng.choice(
        (
            ("sql", f"SELECT {a}, COUNT(*) AS n\nFROM {b}s\nWHERE {a} <> '{b}' AND n >= {n}\nGROUP BY {a};\n"),
            ("bash", f"for f in *.{a}; do\n  grep -c '\"{b}\"' \"$f\" | awk '{{s+=$1}} END {{print s}}'\ndone\n"),
            ("json", json.dumps({a: {b: [n, None, True]}, "items": [{"id": n}, {"id": n + 1, "ok": "it's"}]}, indent=2) + "\n"),
            ("toml", f'[{a}.{b}]\nname = "{a}-{n}"\nlimits = [[{n}, {n + 1}], []]\n'),
            ("html", f'<div class="{a}"><span data-{b}="{n}">{a} &amp; {b}</span></div>\n'),
            ("", f"r'^\\s*({a}|{b})\\[(\\d+)\\]\\.{{{n % 5}}}$'\n"),
        )
    )


def code(rng: Random) -> tuple[str, str]:
    """(language tag of the fence, source ending in a newline); one in fifteen has CRLF line ends."""
    roll = rng.random()
    if roll < 0.55:
        tag, source = "python", "\n\n".join(_python(rng) for _ in range(rng.choice((1, 1, 2))))
    elif roll < 0.8:
        tag, source = rng.choice(("javascript", "js")), _javascript(rng)
    else:
        tag, source = _other(rng)
    return tag, source.replace("\n", "\r\n") if rng.random() < 1 / 15 else source


def fenced(rng: Random) -> str:
    tag, source = code(rng)
    return f"```{tag}\n{source}```"


def shell_command(rng: Random) -> str:
    path, name, n = file_path(rng), rng.choice(_NOUNS), rng.randint(2, 60)
    return rng.choice(
        (
            f"cd /repo && python -m pytest -q {path.replace('/repo/', '')} 2>&1 | tail -n {n}",
            f"grep -rn \"{identifier(rng)}\" --include='*.py' /repo | head -{n}",
            f"sed -n '{n},{n + 40}p' {path}",
            f"git -C /repo diff --stat && git log --oneline -{n % 9 + 1}",
            f"ls -la /repo/{name}s && wc -l {path}",
            f"python - <<'EOF'\nfrom {name} import {identifier(rng)}\nprint({identifier(rng)}(\"{name}\"))\nEOF",
            f"find /repo -name \"*{name}*\" -not -path '*/node_modules/*'",
        )
    )


def shell_output(rng: Random) -> str:
    path, f, n = file_path(rng), identifier(rng), rng.randint(1, 90)
    return rng.choice(
        (
            f"{path}:{n}:def {f}({rng.choice(_NOUNS)}):\n{path}:{n + 12}:    return {f}(x)[0]",
            f"Traceback (most recent call last):\n  File \"{path}\", line {n}, in <module>\nKeyError: '{rng.choice(_NOUNS)}'",
            f"{'.' * (n % 30 + 3)}F\nFAILED {path}::test_{f} - assert {n} == {n + 1}\n1 failed, {n} passed in {n / 13:.2f}s",
            f"{'.' * (n % 40 + 4)}\n{n} passed in {n / 17:.2f}s",
            f" {path} | {n} +++++----\n 1 file changed, {n} insertions(+), {n % 7} deletions(-)",
            f"total {n * 8}\ndrwxr-xr-x 2 dev dev 4096 Jan {n % 28 + 1} 10:{n % 60:02d} .\n-rw-r--r-- 1 dev dev {n * 131} {path}",
            "",
            f"{n}\t{_python(rng).strip()}",
        )
    )


def edit(rng: Random) -> tuple[str, str]:
    """(old, new) text of a small change in one file."""
    old = _python(rng)
    name, n = rng.choice(_NOUNS), rng.randint(1, 9)
    change = (
        f"    if {name} is None:\n        {name} = [[]]\n",
        f"    # it's {name}, not '{name}s'\n",
        f"    {name} = {name}[{n}:]\n",
    )
    head, _, rest = old.partition("\n")
    return old, f"{head}\n{rng.choice(change)}{rest}"
