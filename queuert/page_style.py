"""The style of pages that stand alone (history, demo, benchmarks, chaos): the dashboard's palette and text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_TOKENS_END = "/* --- the frame --- */"

_BASE = """
:root { --ink: var(--text); --soft: var(--quiet); --good: var(--completed-text); --bad: var(--failed-text); }
body { color: var(--text); background: var(--page); max-width: 1160px; margin: 28px auto 60px; padding: 0 20px; }
h1 { font-size: 20px; font-weight: 650; letter-spacing: -.015em; margin: 0 0 8px; }
h2 { font-size: 15px; font-weight: 600; margin: 34px 0 6px; }
h3 { font-size: 13.5px; font-weight: 600; margin: 14px 0 0; }
p, figcaption { color: var(--quiet); margin: 0 0 8px; } a { color: var(--accent); }
figure { margin: 8px 0; padding: 12px 16px; overflow-x: auto; background: var(--panel); border: 1px solid var(--line);
  border-radius: 10px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; background: var(--panel); }
th, td { border-bottom: 1px solid var(--line); padding: 4px 10px; text-align: right; white-space: nowrap; }
th { font-weight: 500; color: var(--quiet); }
th:first-child, td:first-child, td.words, th.words { text-align: left; } td.words { white-space: normal; }
svg { max-width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--quiet); }
"""


@cache
def page_style() -> str:
    """Return the style sheet: a page adds what only it has. It loads nothing: the system's letters are used."""
    sheet = (files("queuert") / "web" / "dashboard" / "static" / "dashboard.css").read_text(encoding="utf-8")
    tokens = sheet[: sheet.index(_TOKENS_END)]
    lines = [line for line in tokens.splitlines() if not line.startswith(("@font-face", "/*"))]
    return "\n".join(lines) + _BASE
