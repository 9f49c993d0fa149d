"""The look of the report pages: the viewer's colours, light and dark, on paper and on a narrow screen.

Belongs here: the style sheet. Does not belong here: what a page says. A test compares the colours with the viewer's own (`viewer/src/style.css`).
"""

from __future__ import annotations

LIGHT = {
    "bg": "#f7f7f5", "panel": "#ffffff", "ink": "#1c2126", "muted": "#57606a", "line": "#d8dde3", "accent": "#0b5cad", "soft": "#eef1f4",
    "pass": "#17692f", "warn": "#805300", "stop": "#b3261e",
}  # fmt: skip
DARK = {
    "bg": "#121518", "panel": "#1a1e23", "ink": "#e6e9ec", "muted": "#a3adb8", "line": "#343b44", "accent": "#79b8ff", "soft": "#23292f",
    "pass": "#6fd08c", "warn": "#e8c268", "stop": "#ff9b92",
}  # fmt: skip


def _colours(named: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in named.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_colours(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_colours(DARK)} }} }}
* {{ box-sizing: border-box }}
body {{ font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem 1.2rem; color: var(--ink);
background: var(--bg); overflow-wrap: anywhere }}
nav {{ color: var(--muted); margin-bottom: .6rem }} a {{ color: var(--accent) }} h1 small {{ font-weight: 400; color: var(--muted); font-size: .6em }}
h2 {{ margin: 1.6rem 0 .4rem; font-size: 1.15rem }} section, details {{ overflow-x: auto; background: var(--panel); border: 1px solid var(--line);
border-radius: 10px; padding: .4rem .9rem; margin: 0 0 1rem }}
table {{ border-collapse: collapse; margin: .5rem 0; width: 100%; font-size: .93em; overflow-wrap: normal }}
td, th {{ padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }}
th {{ color: var(--muted); font-weight: 600 }}
td.n {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }}
.pass {{ color: var(--pass) }} .stop {{ color: var(--stop); font-weight: 600 }} .warn {{ color: var(--warn) }} .note {{ color: var(--muted) }}
.verdict {{ background: var(--panel); border-left: 6px solid; padding: .2rem 1rem; margin: 1rem 0 }} .verdict p {{ color: var(--ink) }}
code {{ background: var(--soft); padding: 0 .25em; border-radius: 3px }} img {{ max-width: 100%; background: #fff; border-radius: 6px }}
summary {{ cursor: pointer }}
@media (max-width: 50rem) {{ table {{ display: block; overflow-x: auto }} }}
@media print {{ :root {{ {_colours(LIGHT)} }} body {{ background: #fff; max-width: none }} details > * {{ display: revert }}
section, details {{ break-inside: avoid; border: 0 }} nav {{ display: none }} }}
"""
