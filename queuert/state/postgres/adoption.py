"""Adopts a database that was moved from another Postgres cluster, by a dump or by logical replication.

Each cluster numbers its transactions. The event log is read in the order of these numbers, up to the oldest open
transaction, and chains are archived by them. A moved database has numbers that its new cluster reaches much later, or
never: until then the old events count as not yet committed, and no new event is read after them. An adoption renumbers
the events below the numbers of the new cluster, and clears the numbers of closed chains. ``docs/design/events.md`` has
the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from queuert.errors import MigrationError, SchemaMissingError
from queuert.migrations import checked_dsn, only_migrator
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.event_log import moved_text
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import StoreWarning

MOVED = "database moved"
"""The name of the store warning for a moved database."""

BLOCKS = 8_192
"""Number of blocks of the table of jobs in one transaction: 64 MiB."""


def moved_risks(owners: list[Row]) -> tuple[StoreWarning, ...]:
    """Return the warning for a database with another cluster's transaction numbers, from the row of ``log_owner``."""
    return tuple(StoreWarning(MOVED, moved_text(owner, system)) for owner, system in owners if owner != system)


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The work that an adoption would do.

    Attributes:
        owner: the cluster that assigned the transaction numbers in the database.
        system: the cluster that the database is in.
        next_tx: the next transaction number of this cluster.
        workers: number of workers that are alive.
        ahead: whether the log has numbers from ``next_tx`` on, so that its events must be renumbered.
        events: approximate number of rows of the event log.
        jobs: approximate number of jobs.
        blocks: number of blocks of the table of jobs.
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
        """Whether the database was moved and must be adopted."""
        return self.owner != self.system or self.ahead


@dataclass(frozen=True, slots=True)
class Adoption:
    """The numbers of events and jobs that an adoption has changed."""

    events: int
    jobs: int


def how_moved(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> str | None:
    """Return what is wrong and what to do if the database was moved from another cluster; None if it was not.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    with suppress(SchemaMissingError), _connected(dsn, schema) as (connection, sql):
        for risk in moved_risks(fetch(connection, sql.log_owner)):
            return risk.advice
    return None


def plan_adoption(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> AdoptionPlan:
    """Return whether the database was moved, and the work of an adoption. Nothing is changed.

    Raises:
        SchemaMissingError: the tables do not exist, or are not at the newest revision.
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
    """Make the transaction numbers of the database valid in this cluster. It is idempotent; repeat it after a failure.

    The events of each day get one small number, in the order in which they were written. The numbers of closed chains
    that this cluster has not assigned yet are cleared. Webhooks receive what happens from then on; ``queuert
    webhooks replay`` sends what they have missed. Last, this cluster is recorded as the owner of the numbers;
    until then, reading the log raises DatabaseMovedError. Each day of the log is one transaction, and so are each 64
    MiB of jobs. Rows are locked, tables are not.

    Args:
        dsn: libpq connection string or URI of the schema's owner, to Postgres itself.
        schema: the schema of the tables.
        force: adopt also while workers are alive. What they write meanwhile is kept, in the order of its days.
        lock_timeout: seconds to wait for another migrator, and for the lock of each row.
        on_step: called with a line of text after each step.

    Raises:
        MigrationError: workers are alive, another migrator is running, a lock was not available in time, or the login
            is not the owner of the schema. The steps before remain committed.
        SchemaMissingError: the tables do not exist, or are not at the newest revision.
        StateUnavailableError: the database cannot be reached.
    """
    check_schema_name(schema)
    with only_migrator(dsn, schema, lock_timeout), _connected(dsn, schema, lock_timeout) as (connection, sql):
        plan = _plan(connection, sql)
        if plan.workers and plan.needed and not force:
            raise MigrationError(
                f"workers must be stopped, {plan.workers} are alive: stop them, so that no new event gets a "
                "number between "
                "the old ones, or add --force"
            )
        events = _renumber(connection, sql, on_step) if plan.ahead else 0
        jobs = _clear_jobs(connection, sql, plan, on_step)
        ((webhooks,),) = fetch(connection, sql.adopt_webhooks, {"next": str(plan.next_tx)})
        if webhooks:
            on_step(f"{webhooks:,} webhooks receive what happens from now on: replay what they have missed")
        fetch(connection, sql.adopt_record, {"system": plan.system})
    return Adoption(events, jobs)


def _plan(connection: psycopg.Connection[Any], sql: Statements) -> AdoptionPlan:
    ((owner, system, next_tx, workers, ahead, events, jobs, blocks),) = fetch(connection, sql.adopt_plan)
    return AdoptionPlan(owner, system, int(next_tx), workers, ahead, events, jobs, blocks)


def _renumber(connection: psycopg.Connection[Any], sql: Statements, on_step: Callable[[str], None]) -> int:
    """Number the events of each day from 1 on, which is below all numbers that a cluster assigns."""
    fetch(connection, sql.adopt_dropped)
    days = fetch(connection, sql.adopt_days)
    highest = max((seq for _, seq in days), default=None)
    if highest is not None:
        fetch(connection, sql.adopt_numbers, {"least": highest // 64 + 1})
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
    """Connect in autocommit mode: each statement is a transaction of its own, without a statement timeout."""
    checked_dsn(dsn)
    with (
        mapped_errors(schema),
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
            raise MigrationError(
                "another transaction has locked a row for longer than the lock timeout: run it again"
            ) from error
