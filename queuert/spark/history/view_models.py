"""The contents of the report as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

Percentiles: TypeAlias = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of a job type. Waits and runs are seconds at p50, p95 and p99; None if there were none."""

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
    """An error of a job type and the number of attempts that failed with it; ``final``: how many of them were the
    last."""

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
    """The contents of the page: ``days`` before ``through``, which is None if nothing was rolled up yet."""

    hours: Sequence[Hour]
    failures: Sequence[Failure]
    archived: Sequence[Archived]
    through: datetime | None
    days: int
    lost: bool
