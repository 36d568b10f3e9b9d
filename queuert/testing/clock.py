"""A clock that tests move: what is stored is made older, so that what is due later is due now."""

from __future__ import annotations

import secrets
from typing import Protocol

import psycopg
from psycopg import sql

from queuert.errors import ConfigurationError
from queuert.state import StateAdapter
from queuert.state.postgres import PostgresState


class StoredTimes(Protocol):
    """Makes everything in a store older. Authors of other stores give one to ``JobQueue(times=...)``."""

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Set all stored times back by this much, in one step; with ``leases`` the ends of leases as well."""
        ...


_JOBS = sql.SQL("""
UPDATE {job} SET
    created_at = created_at - {by},
    scheduled_at = scheduled_at - {by},
    started_at = started_at - {by},
    finished_at = finished_at - {by},
    chain_closed_at = chain_closed_at - {by},
    expires_at = expires_at - {by}
""")
_LEASES = sql.SQL("UPDATE {job} SET lease_expires_at = lease_expires_at - {by} WHERE lease_expires_at IS NOT NULL")
_STARTS = sql.SQL("UPDATE {limit_start} SET started_at = started_at - {by}")
# Their entries are found by the start of their chain.
_ATTRIBUTES = sql.SQL("UPDATE {chain_attribute} SET created_at = created_at - {by}")
_SCHEDULES = sql.SQL("""
UPDATE {schedule} SET
    created_at = created_at - {by},
    updated_at = updated_at - {by},
    last_at = last_at - {by},
    next_at = next_at - {by} - {apart}
""")


class PostgresTimes:
    """The times of the tables in a schema of Postgres.

    Args:
        dsn: the database.
        schema: of the tables.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Set all stored times back, in one transaction."""
        tables = ("job", "chain_attribute", "limit_start", "schedule")
        names = {name: sql.Identifier(self._schema, name) for name in tables}
        by = sql.SQL("{} * interval '1 second'").format(sql.Literal(seconds))
        # A tick is the id of its chain: one that falls upon an earlier one would be taken for it.
        apart = sql.SQL("{} * interval '1 microsecond'").format(sql.Literal(1 + secrets.randbelow(999_998)))
        with psycopg.connect(self._dsn) as connection:
            for statement in (_JOBS, _ATTRIBUTES, _STARTS, _SCHEDULES, *([_LEASES] if leases else [])):
                connection.execute(statement.format(by=by, apart=apart, **names))


def times_of(state: StateAdapter) -> StoredTimes:
    """The times of a store.

    Raises:
        ConfigurationError: they are not known: give ``times=`` to the queue.
    """
    if isinstance(state, PostgresState):
        return PostgresTimes(state._settings.dsn, state.schema)
    raise ConfigurationError(f"the times of {type(state).__name__} cannot be moved: give the queue times=")
