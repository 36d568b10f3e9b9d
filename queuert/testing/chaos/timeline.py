"""A run as one self-contained page of HTML: faults above, claims and completions by worker below."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator

from queuert.page_style import page_style
from queuert.testing.chaos.catalogue import CRASHES, WORKERS_KILLED
from queuert.testing.chaos.history import History

_WIDTH = 1600
_ROW = 16
_LEFT = 190
_MOST_POINTS = 40_000
_CURVE_ROWS = 4

_PAGE = """<!doctype html><html lang="en" data-theme="auto"><meta charset="utf-8"><title>Chaos</title>
<style>{style}body{{max-width:none}}svg{{background:var(--panel);max-width:none}}
svg text{{font-size:11px}}.c{{fill:#4a7ab5}}.d{{fill:#3a9a4a}}.r{{fill:#d98a00}}.f{{fill:#c33;opacity:.75}}
.k{{fill:var(--text)}}.s{{fill:#a0a}}.m{{fill:#bbb}}.u{{fill:none;stroke:#555}}
.served{{stroke:#a0a;stroke-dasharray:3 3}}</style>
<h1>Chaos</h1><p>{summary}</p>
<p>Rows with faults: <b style="color:#c33">a fault</b>, <b>a kill</b>, <b style="color:#a0a">a crash of the server</b>,
<b style="color:#999">missed</b>; hover for what was done. Rows of workers: <b style="color:#4a7ab5">claims</b>,
<b style="color:#3a9a4a">finishes</b>, <b style="color:#d98a00">leases reaped</b>.</p>
<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{body}</svg>
<script type="application/json" id="data">{data}</script></html>
"""


def timeline(history: History, began: float, ended: float) -> str:
    """Return the page."""
    scale = (_WIDTH - _LEFT - 20) / max(1.0, ended - began)
    rows: list[str] = []
    kinds = [row[0] for row in history.rows("SELECT DISTINCT kind FROM f ORDER BY kind")]
    for index, kind in enumerate(kinds):
        rows += _row(index, kind)
        rows += _faults(history, kind, index, began, scale)
    slots = [row[0] for row in history.rows("SELECT DISTINCT slot FROM x WHERE slot >= 0 ORDER BY slot")]
    for index, slot in enumerate(slots, len(kinds) + 1):
        rows += _row(index, f"worker {slot}")
        rows += _points(history, slot, index, began, scale)
    curves = list(_curves(history, (len(kinds) + len(slots) + 2) * _ROW, began, scale))
    rows += curves
    height = (len(kinds) + len(slots) + 2 + len(curves) * _CURVE_ROWS) * _ROW
    for (at,) in history.rows("SELECT ended FROM outages WHERE down"):
        x = _LEFT + (at - began) * scale
        rows.append(f'<line class="served" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
    data = [dict(row) for row in history.rows("SELECT number, kind, began, ended, happened, detail FROM f")]
    summary = f"{ended - began:.1f} seconds, {len(data)} faults; dashed lines: the server serves again."
    return _PAGE.format(
        style=page_style(),
        summary=summary,
        width=_WIDTH,
        height=height,
        body="".join(rows),
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _curves(history: History, top: int, began: float, scale: float) -> Iterator[str]:
    """Return the resources of the leak probes: a curve for each and for memory and files, scaled between its minimum
    and its maximum."""
    for column, what, unit in (("resident", "memory of the witnesses", 1 << 20), ("files", "their open files", 1)):
        for (role,) in history.rows("SELECT DISTINCT role FROM resources WHERE slot < 0 ORDER BY role DESC"):
            found = history.rows(f"SELECT at, {column} FROM resources WHERE slot < 0 AND role = ? ORDER BY at", (role,))
            least, most = min(row[1] for row in found), max(row[1] for row in found)
            high = (_CURVE_ROWS - 1) * _ROW
            rise = high / max(1, most - least)
            points = " ".join(
                f"{_LEFT + max(0.0, at - began) * scale:.1f},{top + high - rise * (value - least):.1f}"
                for at, value in found
            )
            title = f"{what}, {role}: {least / unit:.0f} to {most / unit:.0f}{' MB' if unit > 1 else ''}"
            yield (
                f'<text x="4" y="{top + 12}">{html.escape(title)}</text>'
                f'<polyline class="u" points="{points}"><title>{html.escape(title)}</title></polyline>'
            )
            top += _CURVE_ROWS * _ROW


def _row(index: int, name: str) -> Iterator[str]:
    y = index * _ROW + 12
    yield f'<text x="4" y="{y}">{html.escape(name)}</text>'
    yield f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y + 3}" y2="{y + 3}" stroke="#eee"/>'


def _faults(history: History, kind: str, index: int, began: float, scale: float) -> Iterator[str]:
    mode = "s" if kind in CRASHES else "k" if kind in WORKERS_KILLED else "f"
    for row in history.rows("SELECT began, ended, happened, detail FROM f WHERE kind = ?", (kind,)):
        x, width = _LEFT + (row["began"] - began) * scale, max(2.0, (row["ended"] - row["began"]) * scale)
        title = html.escape(f"{kind} at {row['began'] - began:.1f} s: {row['detail']}")
        shape = f'x="{x:.1f}" y="{index * _ROW + 3}" width="{width:.1f}" height="{_ROW - 6}"'
        yield f'<rect class="{mode if row["happened"] else "m"}" {shape}><title>{title}</title></rect>'


def _points(history: History, slot: int, index: int, began: float, scale: float) -> Iterator[str]:
    holders = "SELECT DISTINCT 'chaos-' || pid FROM x WHERE slot = ?"
    rows = history.rows(
        f"""SELECT at, CASE WHEN new_status = 'running' THEN 'c' WHEN new_token IS NULL THEN 'r' ELSE 'd' END FROM c
            WHERE kind = 'update' AND substr(holder, 1, length(holder) - 13) IN ({holders}) LIMIT {_MOST_POINTS}""",
        (slot,),
    )
    heights = {"c": 2, "d": 7, "r": 11}
    # Events on the same pixel are drawn once.
    seen = {(round(_LEFT + (at - began) * scale), mode) for at, mode in rows}
    for x, mode in sorted(seen):
        yield f'<rect class="{mode}" x="{x}" y="{index * _ROW + heights[mode]}" width="1" height="4"/>'
