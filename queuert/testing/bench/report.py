"""The result of a run: medians, ranges, and the ratios of Queuert to bare SQL."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """The median, minimum and maximum of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Return the figure of these numbers, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def as_json(self) -> dict[str, float]:
        """Return the three numbers, with five significant digits."""
        return {name: float(f"{getattr(self, name):.5g}") for name in ("median", "low", "high")}

    def __str__(self) -> str:
        return f"{_shown(self.median)} ({_shown(self.low)}-{_shown(self.high)})"


@dataclass
class Row:
    """One quantity that was measured for both, in each round.

    Attributes:
        name: its name in the JSON document.
        title: its name in the table.
        unit: the unit of the numbers.
        more_is_better: whether a greater number is better.
    """

    name: str
    title: str
    unit: str
    more_is_better: bool = True
    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    def ratio(self) -> Figure:
        """Return how many times as good as bare SQL Queuert is, computed per round."""
        pairs = zip(self.ours, self.bare, strict=True)
        return Figure.of([a / b if self.more_is_better else b / a for a, b in pairs])

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "name": self.name,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "ours": Figure.of(self.ours).as_json(),
            "bare": Figure.of(self.bare).as_json(),
            "ours_to_bare": self.ratio().as_json(),
        }


@dataclass
class BenchReport:
    """The result of a run.

    Attributes:
        server: the version of Postgres.
        settings: the settings of the run.
        server_settings: the settings of the server that influence the figures.
        rows: the measurements.
    """

    server: str
    settings: dict[str, Any]
    server_settings: dict[str, str]
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "format": 1,
            "server": self.server,
            "settings": self.settings,
            "server_settings": self.server_settings,
            "results": [row.as_json() for row in self.rows],
        }

    def text(self) -> str:
        """Return the report for a terminal."""
        reported = ", ".join(f"{name} {value}" for name, value in self.server_settings.items())
        rounds = self.settings["rounds"]
        lines = [
            f"PostgreSQL {self.server}: {reported}",
            f"{rounds} alternating rounds; median (minimum-maximum). A ratio of 1 is as good as bare SQL.",
            f"{'':32} {'Queuert':>26} {'bare SQL':>26} {'ratio':>22}",
        ]
        for row in self.rows:
            figures = f"{Figure.of(row.ours)!s:>26} {Figure.of(row.bare)!s:>26} {row.ratio()!s:>22}"
            lines.append(f"{f'{row.title}, {row.unit}':32} {figures}")
        return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
