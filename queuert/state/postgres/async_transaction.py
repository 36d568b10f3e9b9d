"""The transaction of an attempt's block. ``sync_transaction.py`` is generated from this module."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from queuert.errors import LeaseLostError, StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.migrations import forget_login
from queuert.state._asyncio import async_pauses
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.async_statements import fetch, finish_and_release
from queuert.state.postgres.async_steps import record_step
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
from queuert.state.steps import NewStep, StepRecord
from queuert.state.types import ClaimedJob, Finish, FinishResult, Lease, check_finishes, last_renewals

_SWALLOWED = (
    "a statement inside the block failed, and its error was swallowed: all of the block was rolled back. "
    "Use a savepoint (connection.transaction()) around what may fail"
)


class AsyncPostgresTransaction:
    """The caller's writes and the job's finish in one transaction, fenced by the lease throughout.

    The transaction begins by locking the job's row, so that the reaper skips it and a cancel waits. The server closes a
    connection that is idle in it for longer than the lease: a frozen worker must not lock its job for ever.
    """

    def __init__(self, connections: AsyncConnections, sql: Statements, job: ClaimedJob) -> None:
        self._connections = connections
        self._sql = sql
        self._job = job
        self._borrowed: AbstractAsyncContextManager[AsyncPooledConnection] | None = None
        self._connection: AsyncPooledConnection | None = None
        self._has_dependents = True
        self._written: Finish | None = None
        self._committed = False

    @property
    def connection(self) -> AsyncPooledConnection:
        """The psycopg connection of the transaction."""
        if self._connection is None:
            raise RuntimeError("the transaction must have begun: use it inside its `async with` block")
        return self._connection

    @property
    def locks_job(self) -> bool:
        """True: the job's row is locked."""
        return True

    def abort(self) -> None:
        """Close the transaction's connection, from any thread."""
        cut(self.connection)

    # --- the finish ---------------------------------------------------------------------------------------------------

    async def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction; the last one commits in the same round trip if it can."""
        check_finishes([finish])
        if renewals := last_renewals([finish]):
            with self._connections.limited(self.connection):
                await fetch(self.connection, self._sql.renew_with_events, parameters.renewals(renewals))
            finish = replace(finish, progress=None)
        if last and self._goes_with_commit(finish):
            return await self._complete_and_commit(finish)
        with self._connections.limited(self.connection):
            results = await self._finish(finish)
        if finish.job.lease not in results:
            # The row is locked since the beginning, so only SQL of the caller in this transaction can have changed the
            # token.
            raise LeaseLostError(finish.job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER)
        self._written = finish
        return results[finish.job.lease]

    async def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job inside the transaction."""
        with self._connections.limited(self.connection):
            return await record_step(self.connection, self._sql, self._job.lease, step)

    async def _finish(self, finish: Finish) -> dict[Lease, FinishResult]:
        """Write the finish. The job's row is locked, so nobody else can begin to wait for its chain meanwhile.

        Only the caller's own SQL in this transaction can; the simple statement checks that and then writes nothing.
        """
        if all_simple_completions([finish]):
            found = await fetch(self.connection, self._sql.complete, parameters.complete([finish]))
            if found:
                return completed([finish], found)
        return await finish_and_release(self.connection, self._sql, [finish])

    def _goes_with_commit(self, finish: Finish) -> bool:
        """Whether the finish is a simple completion that can commit in one round trip: the job has no dependents, and
        the caller's SQL cannot have added one."""
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
        params = {"id": job.id, "token": job.token, "output": finish.output, "trace": job.attempt_trace_context}
        try:
            with self._connections.watched(self.connection):
                await self._exchange(Step(self._sql.prepared["complete_and_commit"], params), Step(COMMIT, {}))
        except errors.DivisionByZero:
            # The statement divides by the number of rows that it wrote.
            raise LeaseLostError(job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER) from None
        except BROKEN as failure:
            if not self.connection.closed:
                # The server answered with an error, such as a deadlock or a timeout, and has rolled back.
                raise mapped(failure, self._sql.schema) from failure
            await self._give_back()
            await self._resolve(failure, finish)
        except errors.IntegrityError:
            # A deferred constraint of the handler's tables failed at the commit: the handler gets psycopg's error.
            raise
        except psycopg.Error as refused:
            raise mapped(refused, self._sql.schema) from refused
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
                # The connection must be released even if the rollback is cancelled.
                await borrowed.__aexit__(type(error), error, error.__traceback__)
            raise
        self._borrowed = borrowed
        self._connection.held = True
        self._connection.used_by_client = False
        return self

    async def _begin(self) -> None:
        """Begin the transaction and lock the job."""
        lease = self._job.lease
        idle = str(max(1000, round(self._job.lease_seconds * 1000)))
        params = {"id": lease.job_id, "root": self._job.chain_id, "idle": idle}
        steps = [Step(self._sql.prepared["lock_for_attempt"], params)]
        begin = self.connection.begin_for_handlers
        [held] = await async_begin_with(self.connection, begin, steps, prepare=self._connections.prepares)
        locked = {id: (token, running, awaited) for id, token, running, awaited, *_ in text_rows(held)}
        token, running, awaited = locked.get(lease.job_id, (None, None, None))
        if token != lease.token or running != "t":
            raise LeaseLostError(lease.job_id, await self._reason())
        # Dependents may have been added since the claim. None can be added while the row is locked.
        self._has_dependents = awaited != "f"

    async def _exchange(self, *steps: Step) -> list[Any]:
        return await async_execute_pipeline(self.connection, steps, prepare=self._connections.prepares)

    async def _reason(self) -> AbortReason:
        found = await fetch(self.connection, self._sql.lease_states, {"ids": [self._job.id]})
        [state] = rows.lease_states([self._job.lease], found)
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
        if failure is not None and self._written is not None:
            await self._resolve(failure, self._written)

    async def _give_back(self) -> None:
        """Release the connection first: the pool is small, and the read of the job's state needs another connection."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            await borrowed.__aexit__(None, None, None)

    async def _end(self, error: BaseException | None) -> psycopg.Error | None:
        """Commit, or roll back after an error. Returns the error that left the result of the commit unknown, if any."""
        try:
            with self._connections.watched(self.connection):
                if error is not None:
                    await self._roll_back()
                    return None
                if self.connection.info.transaction_status is TransactionStatus.INERROR:
                    # The server would answer COMMIT with a silent ROLLBACK.
                    await self._roll_back()
                    raise StateError(_SWALLOWED)
                await self.connection.commit()
        except BROKEN as failure:
            if self._written is None:
                raise mapped(failure, self._sql.schema) from failure
            return failure
        return None

    async def _roll_back(self) -> None:
        """Roll back. A broken connection has rolled back already."""
        with suppress(psycopg.Error):
            await self.connection.rollback()

    async def _resolve(self, failure: psycopg.Error, finish: Finish) -> None:
        """Find out whether the commit of a finish took effect after its answer was lost.

        Only a finish keeps its token in the row, so token and status tell. A worker that stops may have written another
        finish meanwhile.
        """
        forget_login(failure)
        async for _ in async_pauses():
            try:
                async with self._connections.connection() as connection:
                    found = await fetch(connection, self._sql.lease_states, {"ids": [self._job.id]})
            except StateUnavailableError:
                continue
            [state] = rows.lease_states([self._job.lease], found)
            if state is LeaseState.ENDED and rows.settled(finish, state, found).lost is None:
                return
            raise StateUnavailableError(
                "the connection broke during the commit, which did not take effect: repeat the operation"
            ) from failure
        raise StateUnavailableError(
            "the connection broke during the commit, and the database cannot be reached: whether it took "
            "effect is unknown"
        ) from failure
