"""How long a transaction of ours may hold what it has locked, though nobody goes on with it.

A process that is stopped, a machine without power, a network that swallows packets: the server sees a client that says
nothing, and holds its locks until TCP gives up, which takes hours. So each transaction that we begin tells the server
first how long it may stand idle and wait for locks. It goes with BEGIN, costs no round trip, and ends with the
transaction, so that it does no harm behind a pooler. In a transaction that a caller has begun we set nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, BaseConnection, Connection, Error, errors, generators
from psycopg.pq import ExecStatus, TransactionStatus

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

_LEAST_IDLE = 1.0
_BEGIN = b"BEGIN; "


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds after which the server ends a transaction that stands idle, or a wait for a lock.

    A lower ``lock_timeout`` of the role or the database stays as it is.
    """

    idle: float = 10.0
    lock: float = 30.0

    @staticmethod
    def of(answer_timeout: float) -> Bounds:
        """The bounds for a client that waits so long for an answer. It is gone before the lock's is over."""
        return Bounds(max(_LEAST_IDLE, answer_timeout / 3), answer_timeout)

    def begin(self, lock: float | None = None) -> bytes:
        """The statements that begin a transaction; ``lock`` seconds to wait for its locks, whatever the role has."""
        wait = "CASE current_setting('lock_timeout') WHEN '0' THEN {} END" if lock is None else "{}"
        setting = f"set_config('lock_timeout', '{milliseconds(self.lock if lock is None else lock)}', true)"
        idle = f"set_config('idle_in_transaction_session_timeout', '{milliseconds(self.idle)}', true)"
        return _BEGIN + f"SELECT {idle}, {wait.format(setting)}".encode()

    def parameters(self, lock: float | None = None) -> dict[str, str | None]:
        """Parameters of ``set_short_lock_timeout``: the same, where BEGIN goes by itself."""
        return {"lock": None if lock is None else milliseconds(lock), "idle": milliseconds(self.idle)}


LOCK_SOON = 0.05
"""Seconds to wait for a lock for who would not: long enough for another statement's, too short for a caller's."""


def milliseconds(seconds: float) -> str:
    """As Postgres takes it; never 0, which would be without a bound."""
    return str(max(1, round(seconds * 1000)))


def _bounds(connection: object) -> Bounds:
    found = getattr(connection, "bounds", None)
    return found if isinstance(found, Bounds) else Bounds()


@asynccontextmanager
async def async_bounded(connection: AsyncConnection[Any], *, lock: float | None = None) -> AsyncIterator[None]:
    """A transaction of ours, with bounds; inside of one that is open, a savepoint."""
    begin = _bounds(connection).begin(lock)
    if not _is_idle(connection) or _begins_otherwise(connection):
        outermost = _is_idle(connection)
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
def sync_bounded(connection: Connection[Any], *, lock: float | None = None) -> Iterator[None]:
    """The same, for a synchronous connection."""
    begin = _bounds(connection).begin(lock)
    if not _is_idle(connection) or _begins_otherwise(connection):
        outermost = _is_idle(connection)
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


def _is_idle(connection: BaseConnection[Any]) -> bool:
    return connection.info.transaction_status is TransactionStatus.IDLE


def _begins_otherwise(connection: BaseConnection[Any]) -> bool:
    """Whether its owner has said how its transactions begin: psycopg knows how to say that, in a round trip more."""
    return any(one is not None for one in (connection.isolation_level, connection.read_only, connection.deferrable))


def _begun(pgconn: PGconn, statements: bytes) -> PQGen[None]:
    """Several statements in one message, which psycopg's own way to begin does not take."""
    pgconn.send_query(statements)
    for result in (yield from generators.execute(pgconn)):
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
