"""Bar charts as inline SVG: the median as a bar, the least and the greatest as a whisker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.arithmetic import Spread, shown

_WIDTH = 880
_LABELS = 300
_VALUES = 150
_ROW = 26
_BAR = 16


@dataclass(frozen=True)
class Bar:
    """A bar, or a word in its place when there is no figure."""

    label: str
    value: Spread | None
    kind: str
    notification: str = ""
    instead: str = "failed"


def bars(rows: Sequence[Bar], title: str) -> str:
    """A horizontal chart; all bars begin at zero and share one scale."""
    greatest = max((row.value.high for row in rows if row.value is not None), default=0.0) or 1.0
    height = _ROW * len(rows) + 6
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [f'<svg {size} role="img" aria-label="{escape(title)}">']
    for place, row in enumerate(rows):
        parts += _bar(row, place * _ROW + 3, greatest)
    return "\n".join([*parts, "</svg>"])


def _bar(row: Bar, top: int, greatest: float) -> Iterator[str]:
    middle = top + _ROW / 2
    yield f'<text class="label" x="{_LABELS - 8}" y="{middle}">{escape(row.label)}</text>'
    if row.value is None:
        yield f'<text class="failed" x="{_LABELS}" y="{middle}">{escape(row.instead)}</text>'
        return
    scale = (_WIDTH - _LABELS - _VALUES) / greatest
    low, high, end = (_LABELS + one * scale for one in (row.value.low, row.value.high, row.value.median))
    yield (
        f'<rect class="{row.kind}" x="{_LABELS}" y="{middle - _BAR / 2}" width="{max(1.0, end - _LABELS):.1f}"'
        f' height="{_BAR}"><title>{escape(row.notification)}</title></rect>'
    )
    yield (
        f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"/>'
    )
    yield f'<text class="value" x="{max(end, high) + 8:.1f}" y="{middle}">{shown(row.value.median)}</text>'
