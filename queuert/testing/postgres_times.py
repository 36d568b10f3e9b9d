"""Moves the stored times of a Postgres store: see ``queuert/testing/clock.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from queuert.state.postgres.errors import mapped_errors

if TYPE_CHECKING:
    from queuert.state.postgres.settings import PostgresSettings

# Python has no times before the year 1. The other times of a job are later than its start.
_IS_TOO_EARLY = sql.SQL("""
SELECT coalesce(least(
    (SELECT min(created_at) FROM {job}),
    (SELECT min(least(created_at, last_at, next_at)) FROM {schedule})
) < timestamptz '0002-01-01 00:00:00+00' + {by}, false)
""")
_JOBS = sql.SQL("""
UPDATE {job} SET
    created_at = created_at - {by},
    scheduled_at = scheduled_at - {by},
    started_at = started_at - {by},
    finished_at = finished_at - {by},
    chain_closed_at = chain_closed_at - {by},
    expires_at = expires_at - {by},
    stale_at = stale_at - {by}
""")
_LEASES = sql.SQL("UPDATE {job} SET lease_expires_at = lease_expires_at - {by} WHERE lease_expires_at IS NOT NULL")
_EXTENSIONS = sql.SQL("UPDATE {lease_extension} SET expires_at = expires_at - {by}")
_STEPS = sql.SQL("""
UPDATE {job_step} SET
    recorded_at = recorded_at - {by},
    wake_at = wake_at - {by},
    answered_at = answered_at - {by},
    started_at = started_at - {by}
""")
_STARTS = sql.SQL("UPDATE {limit_start} SET started_at = started_at - {by}")
# The entries of these are found by the start of their chain.
_ATTRIBUTES = sql.SQL("UPDATE {chain_attribute} SET created_at = created_at - {by}")
_SCHEDULES = sql.SQL("""
UPDATE {schedule} SET
    created_at = created_at - {by},
    updated_at = updated_at - {by},
    last_at = last_at - {by},
    next_at = next_at - {by} + {apart}
""")


class PostgresTimes:
    """Moves the times of the tables in a schema of Postgres."""

    def __init__(self, settings: PostgresSettings, apart: Iterator[int], too_early: Callable[[str], Exception]) -> None:
        self._settings = settings
        self._apart = apart
        self._too_early = too_early

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past, in one transaction."""
        tables = ("job", "job_step", "chain_attribute", "limit_start", "schedule", "lease_extension")
        names = {name: sql.Identifier(self._settings.schema, name) for name in tables}
        by = sql.SQL("{} * interval '1 second'").format(sql.Literal(seconds))
        later = sql.SQL("{} * interval '1 microsecond'").format(sql.Literal(next(self._apart)))
        with mapped_errors(self._settings.schema), psycopg.connect(self._settings.current_dsn()) as connection:
            [(is_too_early,)] = connection.execute(_IS_TOO_EARLY.format(by=by, **names)).fetchall()
            if is_too_early:
                raise self._too_early("2")
            for statement in (
                _JOBS,
                _STEPS,
                _ATTRIBUTES,
                _STARTS,
                _SCHEDULES,
                *([_LEASES, _EXTENSIONS] if leases else []),
            ):
                connection.execute(statement.format(by=by, apart=later, **names))
