"""What runs return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RollupResult:
    """What was rolled up.

    Attributes:
        dates: the days (UTC, ``2026-01-31``) that were written, anew or for the first time.
        through: all hours before this moment are in the output, UTC.
        rows: how many rows of types and hours these days have now.
        lost: whether retention had taken events before they were read: days are missing, or have too few.
    """

    dates: Sequence[str]
    through: datetime
    rows: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What one run has archived.

    Attributes:
        run: its name, which is in the paths of its files; empty where there was nothing to archive.
        chains: how many chains are in the archive by this run, and no longer in the database.
        jobs: how many jobs these have.
        events: how many of their events are archived.
        kept: how many closed chains stay in the database, and so are not in the archive, by reason: ``changed``
            (retried meanwhile, or given another end), ``waited_for`` (by a job that has not ended), ``busy`` (held by
            others), and ``torn`` (changed while it was read).
        kept_ids: some of them, at most a hundred.
        dates: how many chains by the day (UTC) on which they closed.
        resumed: whether the run was begun by an earlier process.
    """

    run: str
    chains: int
    jobs: int
    events: int
    kept: Mapping[str, int] = field(default_factory=dict)
    kept_ids: Sequence[str] = ()
    dates: Mapping[str, int] = field(default_factory=dict)
    resumed: bool = False
