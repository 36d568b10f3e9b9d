"""A clock that tests move: it moves stored times into the past, so that jobs of later become due now."""

from __future__ import annotations

import secrets
from typing import Protocol

import psycopg
from psycopg import sql

from queuert.errors import ConfigurationError
from queuert.state import StateAdapter
from queuert.state.postgres import PostgresState


class StoredTimes(Protocol):
    """Moves all times in a store. Authors of other stores pass one to ``JobQueue(times=...)``."""

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past by this much, in one step; with ``leases`` the ends of leases as well."""
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
# The entries of these are found by the start of their chain.
_ATTRIBUTES = sql.SQL("UPDATE {chain_attribute} SET created_at = created_at - {by}")
_SCHEDULES = sql.SQL("""
UPDATE {schedule} SET
    created_at = created_at - {by},
    updated_at = updated_at - {by},
    last_at = last_at - {by},
    next_at = next_at - {by} - {apart}
""")


class PostgresTimes:
    """Moves the times of the tables in a schema of Postgres.

    Args:
        dsn: the database.
        schema: the schema of the tables.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    def shift(self, seconds: float, *, leases: bool) -> None:
        """Move all stored times into the past, in one transaction."""
        tables = ("job", "chain_attribute", "limit_start", "schedule")
        names = {name: sql.Identifier(self._schema, name) for name in tables}
        by = sql.SQL("{} * interval '1 second'").format(sql.Literal(seconds))
        # The tick is part of its chain's id: if a moved tick equals an earlier one, its chain would be taken for the
        # earlier chain.
        apart = sql.SQL("{} * interval '1 microsecond'").format(sql.Literal(1 + secrets.randbelow(999_998)))
        with psycopg.connect(self._dsn) as connection:
            for statement in (_JOBS, _ATTRIBUTES, _STARTS, _SCHEDULES, *([_LEASES] if leases else [])):
                connection.execute(statement.format(by=by, apart=apart, **names))


def times_of(state: StateAdapter) -> StoredTimes:
    """Return the object that moves the times of a store.

    Raises:
        ConfigurationError: they are not known: give ``times=`` to the queue.
    """
    if isinstance(state, PostgresState):
        return PostgresTimes(state._settings.dsn, state.schema)
    raise ConfigurationError(f"the times of {type(state).__name__} cannot be moved: give the queue times=")
