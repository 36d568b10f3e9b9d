"""Line charts as inline SVG: one line a series, over the hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape

_WIDTH = 880
_HEIGHT = 220
_LEFT = 70
_RIGHT = 12
_TOP = 10
_BOTTOM = 26
_TICKS = 4

Points = Sequence[tuple[datetime, float]]


def lines(series: Mapping[str, Points], title: str, unit: str, span: tuple[datetime, datetime]) -> str:
    """Return a chart of some series over a span of time. The vertical axis begins at zero; hours without a value are
    gaps.

    Args:
        series: points in order of time, by name; at most eight can be distinguished.
        title: a description, for screen readers.
        unit: the unit of the values.
        span: the first hour, and the last.
    """
    greatest = nice(max((value for points in series.values() for _, value in points), default=0.0))
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [f'<svg {size} role="img" aria-label="{escape(title)}">']
    parts += _axes(greatest, unit, span)
    for place, (name, points) in enumerate(series.items()):
        parts.append(_line(name, points, place % 8, greatest, unit, span))
    return "\n".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """Return the legend of the series."""
    entries = (f'<span class="key c{at % 8}">{escape(name)}</span>' for at, name in enumerate(names))
    return f'<p class="legend">{"".join(entries)}</p>'


def nice(value: float) -> float:
    """Return the next larger number that is easy to read: 1, 2 or 5, and zeros."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * 0.999_999)


def shown(value: float) -> str:
    """Return a value with three significant digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _x(at: datetime, span: tuple[datetime, datetime]) -> float:
    whole = (span[1] - span[0]).total_seconds() or 3600.0
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - span[0]).total_seconds() / whole


def _y(value: float, greatest: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / greatest)


def _axes(greatest: float, unit: str, span: tuple[datetime, datetime]) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        value = greatest * tick / _TICKS
        height = _y(value, greatest)
        yield f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>'
        text = shown(value) + (f" {unit}" if tick == _TICKS else "")
        yield f'<text class="axis" x="{_LEFT - 8}" y="{height:.1f}">{escape(text)}</text>'
    for tick in range(_TICKS + 1):
        at = span[0] + (span[1] - span[0]) * tick / _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        yield (
            f'<text class="time" text-anchor="{anchor}" x="{_x(at, span):.1f}" y="{_HEIGHT - 8}">'
            f"{at:%m-%d %H:%M}</text>"
        )
        if span[0] == span[1]:
            return


def _line(name: str, points: Points, mode: int, greatest: float, unit: str, span: tuple[datetime, datetime]) -> str:
    path: list[str] = []
    dots: list[str] = []
    before: datetime | None = None
    for at, value in points:
        x, y = _x(at, span), _y(value, greatest)
        follows = before is not None and (at - before).total_seconds() <= 3600
        path.append(f"{'L' if follows else 'M'}{x:.1f} {y:.1f}")
        notification = f"{name}, {at:%Y-%m-%d %H:%M}Z: {shown(value)} {unit}".rstrip()
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"><title>{escape(notification)}</title></circle>')
        before = at
    return f'<g class="c{mode}"><path class="line" d="{"".join(path)}"/>{"".join(dots)}</g>' if path else ""
