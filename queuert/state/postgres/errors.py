"""Maps errors of psycopg to errors of the store contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from queuert.errors import (
    JobIdConflictError,
    RightMissingError,
    SchemaMissingError,
    StateError,
    StateUnavailableError,
)
from queuert.migrations import forget_login
from queuert.rights import WORKING, requested_operation, roles_that_may
from queuert.schema_names import DEFAULT_SCHEMA, upgrade_command

_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName, errors.UndefinedObject)
BROKEN = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)
"""Errors of psycopg that are raised when the connection was lost, or was closed by the server."""

_PASSING = (*BROKEN, errors.ReadOnlySqlTransaction)
"""Outages, restarts, failovers to a read-only server, deadlocks, lock and statement timeouts: errors worth a retry."""


@contextmanager
def mapped_errors(schema: str = DEFAULT_SCHEMA) -> Iterator[None]:
    """Raise errors of psycopg inside the block as errors of Queuert, with the original as the cause."""
    try:
        yield
    except psycopg.Error as error:
        raise mapped(error, schema) from error


def mapped(error: psycopg.Error, schema: str = DEFAULT_SCHEMA) -> Exception:
    """Return the error of Queuert for one of psycopg. ``schema`` is that of the tables, for the advice."""
    forget_login(error)
    if isinstance(error, _MISSING):
        return SchemaMissingError(
            f"no usable Queuert schema {schema!r} here ({_first_line(error)}): run {upgrade_command(schema)}"
        )
    if isinstance(error, errors.InsufficientPrivilege):
        operation = requested_operation()
        return RightMissingError(_first_line(error), operation, roles_that_may(operation, schema))
    if isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == "job_pkey":
        return JobIdConflictError([_conflicting_id(error)])
    if isinstance(error, _PASSING) and not (error.sqlstate or "").startswith("54"):
        return StateUnavailableError(_first_line(error))
    return StateError(_first_line(error))


@contextmanager
def naming_cancelled(schema: str) -> Iterator[None]:
    """Say of a missing right that it is needed for the chains that close with a completed one."""
    try:
        yield
    except errors.InsufficientPrivilege as error:
        operation = "complete_chain of a chain that others close with"
        raise RightMissingError(_first_line(error), operation, roles_that_may(WORKING, schema)) from error


def was_deadlock(error: StateUnavailableError) -> bool:
    """Whether the statement was the victim of a deadlock or of a serialization conflict."""
    return isinstance(error.__cause__, errors.DeadlockDetected | errors.SerializationFailure)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _conflicting_id(error: psycopg.Error) -> str:
    # "Key (id)=(abc) already exists.", in the language of the server, and with quotes if it quotes all names.
    detail = error.diag.message_detail or ""
    _, _, value = detail.partition(")=(")
    id, _, _ = value.rpartition(")")
    return id or "?"
