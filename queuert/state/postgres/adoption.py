"""Adopt a database that was moved from another cluster of Postgres, by a dump or by logical replication.

Transactions are numbered by the cluster. The log is read in the order of these numbers, up to those that are over, and
chains are archived by them. A database that was moved has numbers that its new cluster reaches much later, or never:
until then nothing old is over, and nothing new is found behind it. An adoption gives the events new numbers that are
over, and takes away those of closed chains. ``docs/design/events.md`` says why so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from queuert.errors import MigrationError, SchemaMissingError
from queuert.migrations import DEFAULT_SCHEMA, check_schema_name, checked_dsn, only_migrator
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.event_log import moved_text
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import StoreWarning

MOVED = "database moved"
"""The name of the risk that a store tells of."""

BLOCKS = 8_192
"""Of the table of jobs in one transaction: 64 MiB."""


def moved_risks(owners: list[Row]) -> tuple[StoreWarning, ...]:
    """The risk of a database whose numbers are another cluster's, from the row of ``log_owner``."""
    return tuple(StoreWarning(MOVED, moved_text(owner, system)) for owner, system in owners if owner != system)


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What an adoption would do.

    Attributes:
        owner: the cluster whose numbers the database has.
        system: the cluster that it is in.
        next_tx: the first number that this cluster has not given.
        workers: how many live.
        ahead: whether the log has numbers from there on, so that its events get new ones.
        events: about how many rows the log has.
        jobs: about how many jobs there are.
        blocks: of the table of jobs.
    """

    owner: str
    system: str
    next_tx: int
    workers: int
    ahead: bool
    events: int
    jobs: int
    blocks: int

    @property
    def needed(self) -> bool:
        """Whether the database was moved."""
        return self.owner != self.system or self.ahead


@dataclass(frozen=True, slots=True)
class Adoption:
    """What an adoption has done: to so many events of the log, and so many jobs."""

    events: int
    jobs: int


def how_moved(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> str | None:
    """What is wrong and what to do, if the database was moved from another cluster; None if it was not.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with suppress(SchemaMissingError), _connected(dsn, schema) as (connection, sql):
        for risk in moved_risks(fetch(connection, sql.log_owner)):
            return risk.advice
    return None


def plan_adoption(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> AdoptionPlan:
    """Look whether the database was moved, and what there is to be done. Nothing is changed.

    Raises:
        SchemaMissingError: the tables are not there, or not at the newest revision.
        StateUnavailableError: the database cannot be reached.
    """
    with _connected(dsn, schema) as (connection, sql):
        return _plan(connection, sql)


def adopt(
    dsn: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    force: bool = False,
    lock_timeout: float = 60.0,
    on_step: Callable[[str], None] = lambda _: None,
) -> Adoption:
    """Make the numbers of the database this cluster's. Running it again does nothing; run it again after a failure.

    The events of each day become those of one small number, in the order in which they were written. Numbers of closed
    chains that this cluster has not given are cleared. Last the database is noted as this cluster's: until then readers
    of the log are refused. Each day of the log is a transaction, and each 64 MiB of jobs; it locks rows and no table.

    Args:
        dsn: libpq connection string or URI of the schema's owner, to Postgres itself.
        schema: whose tables are meant.
        force: also while workers live. What they write meanwhile is kept, in the order of its days.
        lock_timeout: how many seconds to wait for a migrator, and for each row.
        on_step: is told of each step, in one line.

    Raises:
        MigrationError: workers live, a migrator is at work, a lock was not to be had, or the login is not the owner.
            What was done until then stays done.
        SchemaMissingError: the tables are not there, or not at the newest revision.
        StateUnavailableError: the database cannot be reached.
    """
    check_schema_name(schema)
    with only_migrator(dsn, schema, lock_timeout), _connected(dsn, schema, lock_timeout) as (connection, sql):
        plan = _plan(connection, sql)
        if plan.workers and plan.needed and not force:
            raise MigrationError(
                f"{plan.workers} worker(s) live: stop them first, so that no new event gets a number between the old "
                "ones, or add --force"
            )
        events = _renumber(connection, sql, on_step) if plan.ahead else 0
        jobs = _clear_jobs(connection, sql, plan, on_step)
        fetch(connection, sql.adopt_note, {"system": plan.system, "renumbered": plan.ahead})
    return Adoption(events, jobs)


def _plan(connection: psycopg.Connection[Any], sql: Statements) -> AdoptionPlan:
    ((owner, system, next_tx, workers, ahead, events, jobs, blocks),) = fetch(connection, sql.adopt_look)
    return AdoptionPlan(owner, system, int(next_tx), workers, ahead, events, jobs, blocks)


def _renumber(connection: psycopg.Connection[Any], sql: Statements, on_step: Callable[[str], None]) -> int:
    """Give the events of each day a number, from 1 on: below all that any cluster gives."""
    days = fetch(connection, sql.adopt_days)
    if days:
        fetch(connection, sql.adopt_numbers, {"least": days[0][1] // 64 + 1})
    changed = 0
    for number, (day, _) in enumerate(days, 1):
        ((count,),) = fetch(connection, sql.adopt_day, {"tx": str(number), "day": day})
        on_step(f"{count:,} events of {day} renumbered")
        changed += count
    return changed


def _clear_jobs(
    connection: psycopg.Connection[Any], sql: Statements, plan: AdoptionPlan, on_step: Callable[[str], None]
) -> int:
    changed = 0
    for low in range(0, plan.blocks + 1, BLOCKS):
        high = low + BLOCKS if low + BLOCKS <= plan.blocks else None
        ((count,),) = fetch(connection, sql.adopt_jobs, {"low": low, "high": high, "next": str(plan.next_tx)})
        changed += count
        done = min(high or plan.blocks, plan.blocks)
        on_step(f"{changed:,} jobs cleared of old numbers; {done:,} of {plan.blocks:,} blocks looked through")
    return changed


@contextmanager
def _connected(
    dsn: str, schema: str, lock_timeout: float = 60.0
) -> Iterator[tuple[psycopg.Connection[Any], Statements]]:
    """A connection in autocommit: each statement is a transaction of its own, and may take its time."""
    checked_dsn(dsn)
    with (
        mapped_errors(),
        psycopg.connect(dsn, autocommit=True, connect_timeout=10, application_name="queuert migrate") as connection,
    ):
        connection.execute("SELECT set_config('statement_timeout', '0', false)")
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, round(lock_timeout * 1000))}ms",))
        try:
            yield connection, Statements(schema)
        except psycopg.errors.InsufficientPrivilege as error:
            reason = error.diag.message_primary or "permission denied"
            raise MigrationError(f"the database was not adopted: {reason}; run it as the schema's owner") from error
        except psycopg.errors.LockNotAvailable as error:
            raise MigrationError("another transaction has locked a row for too long: run it again") from error
