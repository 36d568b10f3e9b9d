"""What the report shows, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

Percentiles: TypeAlias = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of a type. Waits and runs are seconds at p50, p95 and p99; None where there were none."""

    type: str
    hour: datetime
    started: int
    finished: int
    failed: int
    retried: int
    lease_losses: int
    waits: Percentiles
    runs: Percentiles
    attempts_max: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a type, and how often attempts failed by it; ``final``: of how many jobs it was the end."""

    type: str
    error_kind: str
    error_type: str | None
    failures: int
    final: int
    sample: str | None


@dataclass(frozen=True, slots=True)
class Archived:
    """A run of the archive."""

    run: str
    chains: int
    jobs: int
    events: int
    kept: int


@dataclass(frozen=True, slots=True)
class Shown:
    """All that the page shows: ``days`` before ``through``, which is None where nothing was rolled up yet."""

    hours: Sequence[Hour]
    failures: Sequence[Failure]
    archived: Sequence[Archived]
    through: datetime | None
    days: int
    lost: bool
