"""The days of the event log: what is to be done about them, and the statements for it, as pure functions.

The statements are no files, since names of tables cannot be parameters.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum

from queuert.state.postgres.rows import Row

STEPS = 40
"""What is done at most in one go."""

CHUNK = 5_000
"""Old events without a day that are deleted at a time."""

_REAL = "{} < pg_snapshot_xmax(pg_current_snapshot())"


class Task(Enum):
    """What can be done about a day."""

    MAKE = "make"
    EMPTY = "empty"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """Something to be done about a day."""

    task: Task
    day: date

    def statements(self, schema: str) -> list[bytes]:
        """The statements that do it. A new day is made apart and attached, which locks less than making it there."""
        log, table = f'"{schema}".job_event', f'"{schema}".job_event_{self.day:%Y%m%d}'
        if self.task is Task.EMPTY:
            # Who reads the log by transactions learns from it what is no longer there. A number that no transaction has
            # had yet was not written by a transition: it would tell all readers that all is lost, for good.
            newest = f"(SELECT tx FROM {table} WHERE {_REAL.format('tx')} ORDER BY tx DESC LIMIT 1)"
            before = f"CASE WHEN {_REAL.format('dropped_tx')} THEN dropped_tx ELSE '0' END"
            texts = [
                f'UPDATE "{schema}".event_log SET dropped_tx = greatest({before}, {newest})',
                f"TRUNCATE {table}",
            ]
        elif self.task is Task.DROP:
            texts = [f"DROP TABLE {table}"]
        else:
            bounds = f"FROM ('{self.day} 00:00:00+00') TO ('{self.day + timedelta(days=1)} 00:00:00+00')"
            texts = [
                f"CREATE TABLE {table} (LIKE {log} INCLUDING DEFAULTS INCLUDING INDEXES)",
                f"ALTER TABLE {log} ATTACH PARTITION {table} FOR VALUES {bounds}",
            ]
        return [text.encode() for text in texts]


def next_step(days: Sequence[Row], besides: Container[date]) -> Step | None:
    """What is to be done next, from the rows of ``event_days``; nothing about the days that are left out."""
    for _, day, _, filled, old, missing in days:
        if day is None or day in besides:
            continue
        if missing:
            return Step(Task.MAKE, day)
        if old:
            return Step(Task.EMPTY if filled else Task.DROP, day)
    return None


def has_strays(days: Sequence[Row]) -> bool:
    """Whether there may be events that have no day."""
    return any(day is None and filled for _, day, _, filled, _, _ in days)
