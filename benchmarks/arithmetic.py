"""Medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of some numbers, the least and the greatest of them."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of these numbers; None when there are none."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def paired_ratios(these: Mapping[int, float], those: Mapping[int, float]) -> list[float]:
    """``this / that`` of each round in which both were measured: what slows the machine slows both.

    A zero has no ratio.
    """
    return [this / those[number] for number, this in sorted(these.items()) if those.get(number)]


def rounded(value: float, digits: int = 3) -> float:
    """The number with so many significant digits, whole from there on."""
    if value == 0:
        return 0.0
    return float(f"{value:.{digits}g}") if abs(value) < 10**digits else float(round(value))


def shown(value: float) -> str:
    """A number for people: three significant digits, thousands set apart."""
    near = rounded(value)
    if abs(near) >= 100:
        return f"{near:,.0f}"
    return f"{near:.3g}"
