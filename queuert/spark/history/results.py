"""What runs report while they are running, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that was done, or a part of one.

    Attributes:
        step: the name of the step: ``rollup.written``, ``archive.planned``, ``archive.deleting`` and so on.
        text: a description of what was done.
        done: how many of ``total`` items are done, if they can be counted.
        total: the number of items.
    """

    step: str
    text: str
    done: int | None = None
    total: int | None = None


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called in the thread of the run. If it raises, the run ends there, and the next run continues from that step."""


def quiet(_: Progress) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class RollupResult:
    """The result of a rollup.

    Attributes:
        dates: the days (UTC, ``2026-01-31``) that were written or replaced.
        through: all hours before this time (UTC) are in the output.
        rows: the number of rows, one for each type and hour, of these days.
        lost: whether retention had dropped events before they were read: days are missing or incomplete.
    """

    dates: Sequence[str]
    through: datetime
    rows: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of one run of the archive.

    Attributes:
        run: the name of the run, which is in the paths of its files; empty if there was nothing to archive.
        chains: number of chains that this run moved from the database to the archive.
        jobs: number of their jobs.
        events: number of their archived events.
        kept: number of closed chains that stay in the database and not in the archive, by reason: ``changed`` (retried
            meanwhile, or finished anew), ``waited_for`` (a blocker of an unfinished job), ``unread`` (webhooks have
            still to read what happened to it), ``busy`` (locked by another transaction), and ``torn`` (changed while
            it was read).
        kept_ids: ids of some of them, at most a hundred.
        dates: number of chains by the day (UTC) on which they closed.
        resumed: whether an earlier process began the run.
    """

    run: str
    chains: int
    jobs: int
    events: int
    kept: Mapping[str, int] = field(default_factory=dict)
    kept_ids: Sequence[str] = ()
    dates: Mapping[str, int] = field(default_factory=dict)
    resumed: bool = False
