"""A transaction that holds one job for its handler. ``sync_transaction.py`` is generated from this module."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from queuert.errors import LeaseLostError, StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.state._asyncio import async_pauses
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.async_statements import fetch, finish_and_release
from queuert.state.postgres.errors import BROKEN, mapped
from queuert.state.postgres.finishing import all_simple_completions, completed, is_simple_completion
from queuert.state.postgres.pool import AsyncConnections, cut
from queuert.state.postgres.protocol import (
    COMMIT,
    AsyncPooledConnection,
    Step,
    async_begin_with,
    async_execute_pipeline,
    is_plain_connection,
    text_rows,
)
from queuert.state.postgres.rows import LeaseState
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimedJob, Finish, FinishResult, Lease, check_finishes

_SWALLOWED = (
    "a statement inside the block failed, and its error was swallowed: all of the block was rolled back. "
    "Use a savepoint (connection.transaction()) around what may fail"
)


class AsyncPostgresTransaction:
    """The caller's writes and the job's finish in one transaction, fenced by the lease from first to last.

    The job's row is locked at the beginning, so that the reaper passes over it and a cancel waits. A connection that
    idles inside for longer than the lease is ended by the server: a frozen worker must not hold its job for ever.
    """

    def __init__(self, connections: AsyncConnections, sql: Statements, job: ClaimedJob) -> None:
        self._connections = connections
        self._sql = sql
        self._job = job
        self._borrowed: AbstractAsyncContextManager[AsyncPooledConnection] | None = None
        self._connection: AsyncPooledConnection | None = None
        self._has_dependents = True
        self._written = False
        self._committed = False

    @property
    def connection(self) -> AsyncPooledConnection:
        """psycopg's connection, inside the transaction."""
        if self._connection is None:
            raise RuntimeError("the transaction has not begun")
        return self._connection

    @property
    def holds(self) -> bool:
        """The job's row is locked."""
        return True

    def cut(self) -> None:
        """End the transaction's connection, from any thread."""
        cut(self.connection)

    # --- the finish ---------------------------------------------------------------------------------------------------

    async def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction; the last of all goes with the commit, if it can."""
        check_finishes([finish])
        if last and self._goes_with_commit(finish):
            return await self._complete_and_commit(finish)
        with self._connections.limited(self.connection):
            results = await self._finish(finish)
        if finish.job.lease not in results:
            # Held by our lock since the beginning: only the caller's own SQL can have taken it.
            raise LeaseLostError(finish.job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER)
        self._written = True
        return results[finish.job.lease]

    async def _finish(self, finish: Finish) -> dict[Lease, FinishResult]:
        """The job's row is locked, so most completions need no other: nobody can have begun to wait for their chain.

        Nobody but the caller in this very transaction, which the lean statement finds out.
        """
        if all_simple_completions([finish]):
            found = await fetch(self.connection, self._sql.complete, parameters.complete([finish]))
            if found:
                return completed([finish], found)
        return await finish_and_release(self.connection, self._sql, [finish])

    def _goes_with_commit(self, finish: Finish) -> bool:
        """Whether nothing can be in the way of a plain completion: no dependents of this transaction's own making."""
        connection = self.connection
        return (
            is_simple_completion(finish)
            and not self._has_dependents
            and not connection.used_by_client
            and connection.info.transaction_status is TransactionStatus.INTRANS
            and is_plain_connection(connection.pgconn)
        )

    async def _complete_and_commit(self, finish: Finish) -> FinishResult:
        job = finish.job
        params = {"id": job.id, "token": job.token, "output": finish.output}
        try:
            with self._connections.watched(self.connection):
                await self._exchange(Step(self._sql.prepared["complete_and_commit"], params), Step(COMMIT, {}))
        except errors.DivisionByZero:
            # The statement divides by the number of rows that it wrote.
            raise LeaseLostError(job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER) from None
        except BROKEN as failure:
            if not self.connection.closed:
                # An answer of the server, which has rolled back: a deadlock, a timeout.
                raise mapped(failure) from failure
            await self._give_back()
            await self._resolve(failure)
        except errors.IntegrityError:
            # The handler's own constraint, which waited for the commit: told as psycopg tells it.
            raise
        except psycopg.Error as refused:
            raise mapped(refused) from refused
        self._committed = True
        return FinishResult(job.id)

    # --- the block ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        borrowed = self._connections.raw_connection()
        self._connection = await borrowed.__aenter__()
        try:
            with self._connections.limited(self._connection):
                await self._begin()
        except BaseException as error:
            try:
                with self._connections.watched(self._connection):
                    await self._roll_back()
            finally:
                # Also if this is cancelled meanwhile: nobody else would give it back.
                await borrowed.__aexit__(type(error), error, error.__traceback__)
            raise
        self._borrowed = borrowed
        self._connection.held = True
        self._connection.used_by_client = False
        return self

    async def _begin(self) -> None:
        """Begin, and hold the job."""
        lease = self._job.lease
        idle = str(max(1000, round(self._job.lease_seconds * 1000)))
        params = {"id": lease.job_id, "root": self._job.chain_id, "idle": idle}
        steps = [Step(self._sql.prepared["hold"], params)]
        [held] = await async_begin_with(self.connection, steps, prepare=self._connections.prepares)
        row = {row[0]: row for row in text_rows(held)}.get(lease.job_id)
        if row is None or row[1] != lease.token or row[2] != "t":
            raise LeaseLostError(lease.job_id, await self._reason())
        # Perhaps since the claim; not from now on.
        self._has_dependents = row[3] != "f"

    async def _exchange(self, *steps: Step) -> list[Any]:
        return await async_execute_pipeline(self.connection, steps, prepare=self._connections.prepares)

    async def _reason(self) -> AbortReason:
        found = await fetch(self.connection, self._sql.lease_states, {"ids": [self._job.id]})
        state = rows.lease_states([self._job.lease], found)[0]
        return AbortReason.ALREADY_COMPLETED if isinstance(state, LeaseState) else state

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.held = False
        failure: psycopg.Error | None = None
        try:
            if not self._committed:
                failure = await self._end(error)
        finally:
            await self._give_back()
        if failure is not None:
            await self._resolve(failure)

    async def _give_back(self) -> None:
        """The pool has few connections, and what looks for the outcome on another must not wait for this one."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            await borrowed.__aexit__(None, None, None)

    async def _end(self, error: BaseException | None) -> psycopg.Error | None:
        """Commit, or roll back because of an error. What left the outcome of the finish in doubt."""
        try:
            with self._connections.watched(self.connection):
                if error is not None:
                    await self._roll_back()
                    return None
                if self.connection.info.transaction_status is TransactionStatus.INERROR:
                    # COMMIT would be answered by a silent ROLLBACK.
                    await self._roll_back()
                    raise StateError(_SWALLOWED)
                await self.connection.commit()
        except BROKEN as failure:
            if not self._written:
                raise mapped(failure) from failure
            return failure
        return None

    async def _roll_back(self) -> None:
        """A connection that is gone has rolled back as well."""
        with suppress(psycopg.Error):
            await self.connection.rollback()

    async def _resolve(self, failure: psycopg.Error) -> None:
        """The answer to COMMIT was lost: look whether it was done.

        The token left in the row tells: it is kept by the finish, and only by the finish.
        """
        async for _ in async_pauses():
            try:
                async with self._connections.connection() as connection:
                    found = await fetch(connection, self._sql.lease_states, {"ids": [self._job.id]})
            except StateUnavailableError:
                continue
            state = rows.lease_states([self._job.lease], found)[0]
            if state is LeaseState.ENDED:
                return
            raise StateUnavailableError("the connection broke during the commit, which was not done") from failure
        raise StateUnavailableError("the connection broke during the commit: its outcome is unknown") from failure
