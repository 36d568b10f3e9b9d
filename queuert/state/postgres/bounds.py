"""Bounds how long a transaction of the store may hold its locks after its client has stopped responding.

If a process is stopped, a machine loses power, or a network drops packets, the server waits for the client and holds
its locks until TCP gives up, which takes hours. So each transaction of the store sets how long it may be idle and how
long it may wait for locks. The settings are sent with BEGIN, cost no round trip, and end with the transaction, so that
they are safe behind a pooler. Transactions that a caller has begun are left as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import BaseConnection, Error, errors, generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus

from queuert.state.postgres.other_drivers import (
    AnyConnection,
    AsyncAnyConnection,
    AsyncpgConnection,
    Psycopg2Connection,
)

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

_LEAST_IDLE = 1.0
_WHOLE = 4
"""How many answers a transaction may wait for, each as long as its client would."""
_LONGEST = 2**31 - 1
"""Milliseconds that the server's settings can hold."""
_BEGIN = b"BEGIN; "


@dataclass(frozen=True, slots=True)
class Bounds:
    """The seconds after which the server ends an idle transaction, a wait for a lock, or a whole transaction.

    A ``lock_timeout`` or ``transaction_timeout`` of the role or the database is kept. Only a bound on the whole ends a
    transaction whose client has stopped in the middle of a message, or of a pipeline: to the server it is not idle.
    Servers before Postgres 17 have no such bound.
    """

    idle: float = 10.0
    lock: float = 30.0
    whole: float = 120.0

    @staticmethod
    def of(answer_timeout: float) -> Bounds:
        """Return the bounds for a client with this answer timeout. It stops waiting before the lock timeout ends."""
        return Bounds(max(_LEAST_IDLE, answer_timeout / 3), answer_timeout, _WHOLE * answer_timeout)

    def begin(self, lock: float | None = None) -> bytes:
        """Return the statements that begin a transaction. ``lock`` sets its lock timeout in seconds, whatever the role
        has."""
        wait = "CASE current_setting('lock_timeout') WHEN '0' THEN {} END" if lock is None else "{}"
        setting = f"set_config('lock_timeout', '{milliseconds(self.lock if lock is None else lock)}', true)"
        idle = f"set_config('idle_in_transaction_session_timeout', '{milliseconds(self.idle)}', true)"
        whole = (
            "CASE current_setting('transaction_timeout', true) WHEN '0' "
            f"THEN set_config('transaction_timeout', '{milliseconds(self.whole)}', true) END"
        )
        return _BEGIN + f"SELECT {idle}, {wait.format(setting)}, {whole}".encode()

    def parameters(self, lock: float | None = None) -> dict[str, str | None]:
        """Return the parameters of ``set_short_lock_timeout``: the same settings, for a transaction that has begun
        already."""
        return {
            "lock": None if lock is None else milliseconds(lock),
            "idle": milliseconds(self.idle),
            "whole": milliseconds(self.whole),
        }


LOCK_SOON = 0.05
"""Lock timeout in seconds for callers that should not wait: longer than a statement holds a lock, shorter than a user's
transaction does."""


def milliseconds(seconds: float) -> str:
    """Return the time as Postgres takes it. It is never 0, which would mean no limit."""
    return str(min(max(1, round(seconds * 1000)), _LONGEST))


def _bounds(connection: object) -> Bounds:
    found = getattr(connection, "bounds", None)
    return found if isinstance(found, Bounds) else Bounds()


@asynccontextmanager
async def async_bounded(connection: AsyncAnyConnection, *, lock: float | None = None) -> AsyncIterator[None]:
    """Open a transaction with bounds; inside an open transaction, a savepoint."""
    begin = _bounds(connection).begin(lock)
    if isinstance(connection, AsyncpgConnection):
        async with connection.transaction(begin.decode()):
            yield
        return
    if not is_idle(connection) or _begins_otherwise(connection):
        outermost = is_idle(connection)
        async with connection.transaction():
            if outermost:
                await connection.execute(begin.removeprefix(_BEGIN))
            yield
        return
    try:
        async with connection.lock:
            await connection.wait(_begun(connection.pgconn, begin))
        yield
    except BaseException:
        with suppress(Error):
            await connection.rollback()
        raise
    await connection.commit()


@contextmanager
def sync_bounded(connection: AnyConnection, *, lock: float | None = None) -> Iterator[None]:
    """Sync version of :func:`async_bounded`."""
    begin = _bounds(connection).begin(lock)
    if isinstance(connection, Psycopg2Connection):
        with connection.transaction(begin.decode()):
            yield
        return
    if not is_idle(connection) or _begins_otherwise(connection):
        outermost = is_idle(connection)
        with connection.transaction():
            if outermost:
                connection.execute(begin.removeprefix(_BEGIN))
            yield
        return
    try:
        with connection.lock:
            connection.wait(_begun(connection.pgconn, begin))
        yield
    except BaseException:
        with suppress(Error):
            connection.rollback()
        raise
    connection.commit()


def is_idle(connection: AsyncAnyConnection | AnyConnection) -> bool:
    """Whether no transaction is open."""
    if isinstance(connection, AsyncpgConnection | Psycopg2Connection):
        return connection.idle
    return connection.info.transaction_status is TransactionStatus.IDLE


def _begins_otherwise(connection: BaseConnection[Any]) -> bool:
    """Whether the connection has settings for how its transactions begin, or is in pipeline mode, in which a message
    has one statement. Then psycopg begins them, in one more round trip."""
    settings = (connection.isolation_level, connection.read_only, connection.deferrable)
    return any(one is not None for one in settings) or connection.pgconn.pipeline_status != PipelineStatus.OFF


def _begun(pgconn: PGconn, statements: bytes) -> PQGen[None]:
    """Send several statements in one message, which psycopg's own BEGIN does not support."""
    pgconn.send_query(statements)
    for result in (yield from generators.execute(pgconn)):
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
